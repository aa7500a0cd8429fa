"""The stand-in has the names of DeepEP V1 (29d31c0): modules, classes, arguments, their order and defaults, attributes."""

import inspect
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from switchyard_ep import deep_ep

HIDDEN, BF16, E4M3 = 256, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
# Arguments of the methods of Buffer, with their defaults.
METHODS = {
    "__init__": "group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24, "
    "allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, use_fabric=False, explicitly_destroy=False, "
    "enable_shrink=False, comm=None",
    "destroy": "",
    "is_sm90_compiled": "",
    "set_num_sms": "new_num_sms",
    "capture": "",
    "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts",
    "get_comm_stream": "",
    "get_dispatch_config": "num_ranks",
    "get_combine_config": "num_ranks",
    "get_dispatch_layout": "topk_idx, num_experts, previous_event=None, async_finish=False, "
    "allocate_on_comm_stream=False",
    "dispatch": "x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None, "
    "num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0, config=None, "
    "previous_event=None, async_finish=False, allocate_on_comm_stream=False",
    "combine": "x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False, "
    "allocate_on_comm_stream=False",
    "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank, hidden, num_experts",
    "low_latency_dispatch": "x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, "
    "cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False, "
    "use_ue8m0=False, async_finish=False, return_recv_hook=False",
    "low_latency_combine": "x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False, async_finish=False, "
    "return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None",
    "low_latency_update_mask_buffer": "rank_to_mask, mask=False",
    "low_latency_query_mask_buffer": "mask_status",
    "low_latency_clean_mask_buffer": "",
    "get_next_low_latency_combine_buffer": "handle",
}
STATIC = {
    "is_sm90_compiled",
    "set_num_sms",
    "capture",
    "get_low_latency_rdma_size_hint",
    "get_dispatch_config",
    "get_combine_config",
}
NOT_THERE = {"get_local_buffer_tensor", "internode_dispatch", "internode_combine"}  # of any arguments
CONFIG = (
    "num_sms=20, num_max_nvl_chunked_send_tokens=6, num_max_nvl_chunked_recv_tokens=256, "
    "num_max_rdma_chunked_send_tokens=6, num_max_rdma_chunked_recv_tokens=256"
)


def arguments_of(function):
    """Those that may be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    given = [one for one in inspect.signature(function).parameters.values() if one.kind in kinds and one.name != "self"]
    return ", ".join(one.name + ("" if one.default is one.empty else f"={one.default!r}") for one in given)


def test_methods_have_the_arguments_and_defaults_of_deep_ep():
    found = {name: arguments_of(getattr(deep_ep.Buffer, name)) for name in METHODS}
    assert found == METHODS
    attributes = {name: inspect.getattr_static(deep_ep.Buffer, name) for name in METHODS}
    assert {name for name, of in attributes.items() if isinstance(of, staticmethod)} == STATIC
    assert all(callable(getattr(deep_ep.Buffer, name)) for name in NOT_THERE)
    assert arguments_of(deep_ep.Config) == CONFIG
    assert arguments_of(deep_ep.EventOverlap) == "event=None, extra_tensors=None"


class Alone:
    rank = staticmethod(lambda: 0)
    size = staticmethod(lambda: 1)
    all_gather = staticmethod(lambda mine: [mine])


def test_a_buffer_has_the_attributes_of_deep_ep():
    group = Alone()
    buffer = deep_ep.Buffer(group, 1000, 2000, low_latency_mode=True, explicitly_destroy=True, target="host")
    expected = dict(
        rank=0,
        group_size=1,
        group=group,
        num_nvl_bytes=1000,
        num_rdma_bytes=2000,
        low_latency_mode=True,
        enable_shrink=False,
        explicitly_destroy=True,
        num_sms=20,
    )
    assert {name: getattr(buffer, name) for name in expected} == expected
    assert buffer.runtime.is_available()
    assert (buffer.runtime.get_num_rdma_ranks(), buffer.runtime.get_rdma_rank()) == (1, 0)
    buffer.destroy()
    assert buffer.runtime is None


class Communicator:
    """As of mpi4py, of one process."""

    Get_rank = staticmethod(lambda: 0)
    Get_size = staticmethod(lambda: 1)
    allgather = staticmethod(lambda mine: [mine])


def test_a_communicator_serves_as_a_group():
    comm = Communicator()
    buffer = deep_ep.Buffer(None, comm=comm, target="host")
    assert (buffer.rank, buffer.group_size, buffer.group) == (0, 1, comm)
    x, ids = np.ones((4, HIDDEN), BF16), np.tile([0, 1], (4, 1))
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, 8, use_fp8=False)
    sums, _, _ = buffer.low_latency_combine(rows, ids, np.ones((4, 2), np.float32), handle)
    np.testing.assert_array_equal(sums, x * BF16(2))
    buffer.destroy()
    with pytest.raises(ValueError, match="group and comm are None; one of them must be given"):
        deep_ep.Buffer(None, target="host")
    with pytest.raises(NotImplementedError, match="torch.distributed"):
        deep_ep.Buffer(None, comm=comm, enable_shrink=True, target="host")


def test_events_of_the_host_are_complete():
    from switchyard_ep.deep_ep.buffer import Buffer
    from switchyard_ep.deep_ep.utils import EventHandle, EventOverlap

    assert (Buffer, EventHandle, EventOverlap) == (deep_ep.Buffer, deep_ep.EventHandle, deep_ep.EventOverlap)
    for event in (EventOverlap(EventHandle()), deep_ep.Buffer.capture(), EventHandle()):
        event.current_stream_wait()
    with EventOverlap(EventHandle(), (1, 2)) as overlap:
        assert overlap.extra_tensors == (1, 2)


INSTALLED = """
import importlib.util, sys
import switchyard_ep.deep_ep
switchyard_ep.deep_ep.install()
switchyard_ep.deep_ep.install()
assert importlib.util.find_spec("deep_ep") is not None
import deep_ep, deep_ep.utils
from deep_ep import Buffer, Config, EventOverlap
from deep_ep.buffer import Buffer as same
from deep_ep.utils import EventHandle, EventOverlap, check_nvlink_connections
check_nvlink_connections(None)
assert Buffer is same is switchyard_ep.deep_ep.Buffer and deep_ep.topk_idx_t is not None
"""
TOO_LATE = """
import sys, types
sys.modules["deep_ep"] = types.ModuleType("deep_ep")
sys.modules["deep_ep"].__file__ = "/elsewhere/deep_ep/__init__.py"
import switchyard_ep
from switchyard_ep import deep_ep
try:
    deep_ep.install()
except switchyard_ep.FailedPrecondition as error:
    assert "deep_ep has been imported from /elsewhere/deep_ep/__init__.py" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("program", [INSTALLED, TOO_LATE], ids=["in time", "too late"])
def test_it_is_installed_as_deep_ep(program):
    subprocess.run([sys.executable, "-c", program], check=True)


def test_bad_arguments_are_named():
    buffer = deep_ep.Buffer(Alone(), target="host")
    x, ids = np.zeros((4, HIDDEN), BF16), np.zeros((4, 2), np.int64)
    with pytest.raises(ValueError, match="must be int64"):
        buffer.get_dispatch_layout(ids.astype(np.int32), 8)
    with pytest.raises(ValueError, match=r"topk_idx holds 0\.\.0; it must be -1\.\.-1|num_experts is 0"):
        buffer.get_dispatch_layout(ids, 0)
    layout = buffer.get_dispatch_layout(ids, 8)
    with pytest.raises(ValueError, match="is_token_in_rank and num_tokens_per_expert must be given"):
        buffer.dispatch(x)
    with pytest.raises(ValueError, match="given together"):
        buffer.dispatch(x, is_token_in_rank=layout[3], num_tokens_per_expert=layout[2], topk_idx=ids)
    pair = (x.astype(E4M3), np.zeros((4, 3), np.int32))
    with pytest.raises(NotImplementedError, match="room for 3 scales of a token with hidden 256; there may be 2"):
        buffer.dispatch(pair, is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])
    with pytest.raises(ValueError, match=r"the scales have shape \(3, 2\); it must be \(4, at most 2\)"):
        buffer.dispatch((pair[0], pair[1][:3, :2]), is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])
    with pytest.raises(ValueError, match="the scales has dtype int64; it must be float32 or int32"):
        buffer.dispatch((pair[0], np.zeros((4, 2), np.int64)), is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])
    with pytest.raises(ValueError, match="must be bfloat16"):
        buffer.dispatch(x.astype(np.float32), is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])


def test_what_is_not_there_says_what_to_use():
    buffer = deep_ep.Buffer(Alone(), low_latency_mode=True, target="host")
    given = (np.zeros((1, HIDDEN), BF16), np.zeros((1, 2), np.int64), 4, 8)
    with pytest.raises(ValueError, match="round_scale"):
        buffer.low_latency_dispatch(*given, use_ue8m0=True)
    with pytest.raises(ValueError, match=r"dispatch_wait_recv_cost_stats has shape \(2,\) and dtype int64"):
        buffer.low_latency_dispatch(*given, dispatch_wait_recv_cost_stats=np.zeros(2, np.int64))
    rows, _, handle, _, _ = buffer.low_latency_dispatch(*given, use_fp8=False)
    returned = (rows, given[1], np.ones((1, 2), np.float32), handle)
    with pytest.raises(ValueError, match=r"combine_wait_recv_cost_stats .* dtype int32; it must be \(1,\)"):
        buffer.low_latency_combine(*returned, combine_wait_recv_cost_stats=np.zeros(1, np.int32))
    with pytest.raises(NotImplementedError, match="combine_format"):
        buffer.low_latency_combine(*returned, use_logfmt=True)
    with pytest.raises(NotImplementedError, match="torch.distributed"):
        deep_ep.Buffer(Alone(), enable_shrink=True, target="host")
    with pytest.raises(ValueError, match="enable_shrink"):
        buffer.low_latency_update_mask_buffer(0, True)
    for name in ("internode_dispatch", "get_comm_stream", "get_local_buffer_tensor"):
        with pytest.raises(NotImplementedError, match="; .+"):
            getattr(buffer, name)()
    assert deep_ep.Config(24).num_sms == 24
    with pytest.raises(ValueError, match="num_sms is 3"):
        deep_ep.Config(3)
