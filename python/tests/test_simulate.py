"""Simulated interleavings on weak memory."""

import pytest

import switchyard_ep as sy


@pytest.mark.parametrize("protocol", ["slotted", "direct"])
def test_seeds_pass(protocol):
    assert sy.simulate(range(5), n_ranks=2, protocol=protocol) == []


def test_what_goes_wrong_is_told_by_seed():
    failures = sy.simulate([3], n_ranks=2, capacity_factor=0.01, protocol="direct")
    assert failures[0].seed == 3 and failures[0].reason
