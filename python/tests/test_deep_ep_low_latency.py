"""Low latency of the stand-in for DeepEP on the host target, between ranks with very different numbers of tokens."""

import functools

import ml_dtypes
import numpy as np
import pytest

import processes
from switchyard_ep import _deep_ep_low_latency, deep_ep

RANKS, EXPERTS, TOP_K, HIDDEN, MOST = 3, 12, 3, 256, 96
NUM_TOKENS = (1, MOST, 0)  # rank 0 has its sums long before rank 1 has read its rows
BF16 = ml_dtypes.bfloat16


class Tokens:
    """Those of one rank, each for TOP_K experts, whose rows are added up."""

    def __init__(self, rank, num_tokens):
        random = np.random.default_rng(rank)
        self.x = random.standard_normal((num_tokens, HIDDEN)).astype(BF16)
        self.ids = np.argsort(random.random((num_tokens, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int64)
        self.weights = np.ones((num_tokens, TOP_K), np.float32)

    def dispatch(self, buffer, **options):
        return buffer.low_latency_dispatch(self.x, self.ids, MOST, EXPERTS, use_fp8=False, **options)

    def combine(self, buffer, rows, handle, **options):
        return buffer.low_latency_combine(rows, self.ids, self.weights, handle, **options)

    def check(self, sums, scale=1):
        np.testing.assert_array_equal(sums, (self.x.astype(np.float32) * (TOP_K * scale)).astype(BF16))


def write_behind_combines(group):
    rank = group.rank()
    buffer, mine = deep_ep.Buffer(group, low_latency_mode=True, target="host"), Tokens(rank, NUM_TOKENS[rank])
    for i in range(12):
        given, _, handle, _, _ = mine.dispatch(buffer)
        zero_copy = (i + rank) % 3 == 0  # a rank decides that for itself
        if zero_copy:
            rows, given = given, buffer.get_next_low_latency_combine_buffer(handle)
            given[:] = rows
        elif i % 2:
            given = given.copy()
        sums, _, _ = mine.combine(buffer, given, handle, zero_copy=zero_copy)
        given[:] = np.nan
        mine.check(sums)
    buffer.destroy()


def write_behind_sending_halves(group):
    """Tokens, ids and rows that were copied may be written to before the hook is called."""
    rank = group.rank()
    buffer, mine = deep_ep.Buffer(group, low_latency_mode=True, target="host"), Tokens(rank, NUM_TOKENS[rank])
    for _ in range(3):
        x, ids = mine.x.copy(), mine.ids.copy()
        rows, _, handle, _, hook = buffer.low_latency_dispatch(
            x, ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        x[:], ids[:] = np.nan, -1
        hook()
        given = rows.copy()
        sums, _, hook = mine.combine(buffer, given, handle, return_recv_hook=True)
        given[:] = np.nan
        hook()
        mine.check(sums)
    buffer.destroy()


def combine_into_the_rows(group):
    """out is part of the rows of which a peer reads its last token's."""
    rank = group.rank()
    buffer, mine = deep_ep.Buffer(group, low_latency_mode=True, target="host"), Tokens(rank, NUM_TOKENS[rank])
    for has_hook in (False, True):
        for kind in ("own", "received", "buffer", "zero copy"):
            rows, counts, handle, _, _ = mine.dispatch(buffer)
            given = {"own": rows.copy(), "received": rows}.get(kind)
            if given is None:
                given = buffer.get_next_low_latency_combine_buffer(handle)
                given[:] = rows
            begin = max(0, counts[-1] - len(mine.x))
            options = dict(zero_copy=kind == "zero copy", return_recv_hook=has_hook)
            out = given[-1, begin : begin + len(mine.x)]
            if has_hook and given is not rows and kind != "own" and len(out):
                with pytest.raises(ValueError, match="out lies in the combine buffer"):
                    mine.combine(buffer, given, handle, out=out, **options)
                out = np.empty_like(mine.x)
            sums, _, hook = mine.combine(buffer, given, handle, out=out, **options)
            assert sums is out
            if has_hook:
                hook()
            mine.check(sums)
    wrong = np.zeros((len(mine.x), HIDDEN), np.float32)
    rows, _, handle, _, _ = mine.dispatch(buffer)
    with pytest.raises(ValueError, match="out has dtype float32; it must be bfloat16"):
        mine.combine(buffer, rows, handle, out=wrong)
    mine.check(mine.combine(buffer, rows, handle)[0])
    buffer.destroy()


def reach_peers_over_a_wire(group):
    """As ranks do that do not reach each other's memory: nobody awaits readers."""
    options = _deep_ep_low_latency.low_latency_options
    _deep_ep_low_latency.low_latency_options = lambda *shape: dict(options(*shape), p2p_world_size=1)
    rank = group.rank()
    buffer, mine = deep_ep.Buffer(group, low_latency_mode=True, target="host"), Tokens(rank, NUM_TOKENS[rank])
    for has_hook in (False, True, False):
        rows, _, handle, _, _ = mine.dispatch(buffer)
        assert handle.exchange.has_wire
        sums, _, hook = mine.combine(buffer, rows.copy(), handle, return_recv_hook=has_hook)
        if has_hook:
            hook()
        mine.check(sums)
    buffer.destroy()


@pytest.mark.parametrize(
    "function",
    [write_behind_combines, write_behind_sending_halves, combine_into_the_rows, reach_peers_over_a_wire],
)
def test_ranks_with_few_tokens_and_many(function):
    processes.run(function, RANKS)


class Alone:
    rank = staticmethod(lambda: 0)
    size = staticmethod(lambda: 1)
    all_gather = staticmethod(lambda mine: [mine])


def test_a_dispatch_that_is_refused_takes_no_turn():
    buffer, mine = deep_ep.Buffer(Alone(), low_latency_mode=True, target="host"), Tokens(0, 8)
    first = mine.dispatch(buffer)[2].exchange
    strided = np.zeros(2 * EXPERTS, np.int32)[::2]
    for return_recv_hook in (False, True):
        with pytest.raises(ValueError, match=r"recv_stats has shape \(3,\) and dtype int32; it must be \(12,\)"):
            mine.dispatch(
                buffer, cumulative_local_expert_recv_stats=strided[:3], return_recv_hook=return_recv_hook
            )
    with pytest.raises(ValueError, match="row_totals"):
        mine.dispatch(buffer, cumulative_local_expert_recv_stats=strided)
    second = mine.dispatch(buffer)[2].exchange
    rows, _, handle, _, _ = mine.dispatch(buffer)
    assert handle.exchange is first is not second
    mine.check(mine.combine(buffer, rows, handle)[0])


def test_handles_have_the_items_of_deep_ep():
    buffer, mine = deep_ep.Buffer(Alone(), low_latency_mode=True, target="host"), Tokens(0, 8)
    rows, counts, handle, _, _ = mine.dispatch(buffer)
    src_info, layout_range, num_max, hidden, num_experts = handle
    assert (num_max, hidden, num_experts) == (MOST, HIDDEN, EXPERTS) and handle[2:] == (MOST, HIDDEN, EXPERTS)
    assert src_info.shape == (EXPERTS, MOST) and (layout_range[:, 0] == counts).all()
    mine.check(mine.combine(buffer, rows, handle)[0])

    _, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(mine.ids, EXPERTS)
    dispatch = functools.partial(
        buffer.dispatch, mine.x, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, num_tokens_per_rank=None
    )
    received, _, _, _, handle, _ = dispatch(topk_idx=mine.ids, topk_weights=mine.weights)
    rank_prefix_matrix, sent_by_channel, received_by_channel, recv_src_idx, is_token_in_rank, send_head = handle
    assert rank_prefix_matrix.tolist() == [[8]] and recv_src_idx.tolist() == list(range(8))
    assert is_token_in_rank.all() and sent_by_channel.size == received_by_channel.size == send_head.size == 0
    np.testing.assert_array_equal(buffer.combine(received, handle)[0], mine.x)
