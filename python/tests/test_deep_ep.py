"""The stand-in for DeepEP, several processes on the host target: random tokens, checked against plain NumPy."""

import multiprocessing
import time
import traceback

import ml_dtypes
import numpy as np
import pytest

from switchyard_ep import FailedPrecondition, deep_ep

CONTEXT = multiprocessing.get_context("spawn")
RANKS, EXPERTS, TOP_K, HIDDEN = 2, 8, 3, 256
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


class Group:
    """A process group over a pipe between two processes."""

    def __init__(self, rank, pipe):
        self._rank, self._pipe = rank, pipe

    def rank(self):
        return self._rank

    def size(self):
        return RANKS

    def all_gather(self, mine):
        self._pipe.send(mine)
        other = self._pipe.recv()
        return [mine, other] if self._rank == 0 else [other, mine]


class Tokens:
    """What each rank has; every process can make those of all."""

    def __init__(self, rank, seed=0, num_tokens=(13, 7)):
        random = np.random.default_rng((seed, rank))
        count = num_tokens[rank]
        self.x = random.standard_normal((count, HIDDEN)).astype(BF16)
        self.ids = np.argsort(random.random((count, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int64)
        self.ids[random.random(self.ids.shape) < 0.2] = -1
        self.weights = random.random((count, TOP_K)).astype(np.float32)
        owners = np.where(self.ids >= 0, self.ids // (EXPERTS // RANKS), -1)
        self.in_rank = (owners[:, :, None] == np.arange(RANKS)).any(axis=1)
        self.fp8 = (
            random.standard_normal((count, HIDDEN)).astype(E4M3),
            random.random((count, HIDDEN // 128)).astype(np.float32),
        )
        self.words = random.integers(-(2**31), 2**31, (count, HIDDEN // 128)).astype(np.int32)


def layout_of(buffer, tokens):
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(tokens.ids, EXPERTS)
    np.testing.assert_array_equal(in_rank, tokens.in_rank)
    np.testing.assert_array_equal(per_rank, tokens.in_rank.sum(axis=0))
    np.testing.assert_array_equal(per_expert, np.bincount(tokens.ids[tokens.ids >= 0], minlength=EXPERTS))
    assert per_node is None and per_rank.dtype == per_expert.dtype == np.int32 and in_rank.dtype == bool
    return dict(num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)


def check_dispatch(rank, every, got, alignment=1):
    x, ids, weights, listed, handle, event = got
    event.current_stream_wait()
    np.testing.assert_array_equal(x, np.concatenate([t.x[t.in_rank[:, rank]] for t in every]))
    global_ids = np.concatenate([t.ids[t.in_rank[:, rank]] for t in every])
    is_local = (global_ids >= 0) & (global_ids // 4 == rank)
    np.testing.assert_array_equal(ids, np.where(is_local, global_ids - 4 * rank, -1))
    assert ids.dtype == np.int64 and weights.dtype == np.float32
    expected = np.concatenate([t.weights[t.in_rank[:, rank]] for t in every])
    np.testing.assert_array_equal(weights, np.where(is_local, expected, 0))
    counts = np.bincount(ids[ids >= 0], minlength=4)
    assert listed == [-(-int(n) // alignment) * alignment for n in counts]
    sizes = np.cumsum([t.in_rank[:, rank].sum() for t in every])
    np.testing.assert_array_equal(handle[0][:, rank], sizes)
    return handle


def run_all(rank, group):
    buffer = deep_ep.Buffer(group, int(1e6), target="host")
    every = [Tokens(r) for r in range(RANKS)]
    mine = every[rank]
    layout = layout_of(buffer, mine)
    own = dict(topk_idx=mine.ids, topk_weights=mine.weights)

    got = buffer.dispatch(mine.x, **layout, **own)
    handle = check_dispatch(rank, every, got)
    num_ranks_of = mine.in_rank.sum(axis=1)
    combined, none, _ = buffer.combine(got[0], handle)
    expected = (mine.x.astype(np.float32) * num_ranks_of[:, None]).astype(BF16)
    np.testing.assert_array_equal(combined, expected)
    assert none is None

    # The same layout by its handle, twice before it is combined; then an older handle.
    again = buffer.dispatch(mine.x * BF16(2), handle=handle)
    np.testing.assert_array_equal(again[0], got[0] * BF16(2))
    assert again[1:5] == (None, None, None, None)
    again = buffer.dispatch(mine.x, handle=handle)
    combined, sums, _ = buffer.combine(again[0], handle, topk_weights=got[2])
    np.testing.assert_array_equal(combined, expected)
    np.testing.assert_allclose(sums, np.where(mine.ids >= 0, mine.weights, 0), rtol=1e-6)
    bias = (np.ones_like(mine.x), np.full_like(mine.x, 2))
    combined, _, _ = buffer.combine(got[0], handle, bias=bias)
    np.testing.assert_array_equal(combined, (3 + mine.x.astype(np.float32) * num_ranks_of[:, None]).astype(BF16))

    # fp8, an alignment, worst-case sizes, other tokens.
    codes, scales = buffer.dispatch(mine.fp8, **layout, **own)[0]
    np.testing.assert_array_equal(
        codes.view("u1"), np.concatenate([t.fp8[0][t.in_rank[:, rank]] for t in every]).view("u1")
    )
    np.testing.assert_array_equal(scales, np.concatenate([t.fp8[1][t.in_rank[:, rank]] for t in every]))
    run_other_scales(rank, buffer, every)
    run_other_scales(rank, buffer, [Tokens(r, seed=2, num_tokens=(13, 0)) for r in range(RANKS)])
    check_dispatch(rank, every, buffer.dispatch(mine.x, **layout, **own, expert_alignment=8), 8)
    worst = buffer.dispatch(mine.x, **layout, **own, num_worst_tokens=64, async_finish=True)
    assert worst[0].shape == (64, HIDDEN) and worst[3] == [] and (worst[1][len(got[0]) :] == -1).all()
    more = [Tokens(r, seed=1, num_tokens=(40, 0)) for r in range(RANKS)]
    got = buffer.dispatch(
        more[rank].x, **layout_of(buffer, more[rank]), topk_idx=more[rank].ids, topk_weights=more[rank].weights
    )
    check_dispatch(rank, more, got)
    got = None  # it holds one of the sets of rows that are lent
    run_growing_steps(rank, buffer)
    run_two_handles(rank, buffer)
    run_rows_that_are_held(rank, buffer)
    run_low_latency(rank, buffer)
    buffer.destroy()
    buffer.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        buffer.dispatch(mine.x, handle=handle)


def run_other_scales(rank, buffer, every):
    """Words of packed scales, columns that are fewer, none at all but a number for each token: they come as they are."""
    own = dict(topk_idx=every[rank].ids, topk_weights=every[rank].weights)
    layout = layout_of(buffer, every[rank])
    forms = (
        lambda t: t.words,
        lambda t: t.words[:, :1],
        lambda t: t.words[:, 0],
        lambda t: t.fp8[1][:, :1],
        lambda t: np.asfortranarray(t.fp8[1]),
        lambda t: t.words[:, :0],
    )
    for form in forms:
        handle = None
        for _ in range(2):
            given = form(every[rank])
            options = {**layout, **own} if handle is None else dict(handle=handle)
            (codes, scales), *_, handle, _ = buffer.dispatch((every[rank].fp8[0], given), **options)
            sent = np.concatenate([form(t)[t.in_rank[:, rank]] for t in every])
            assert scales.dtype == given.dtype and scales.flags.c_contiguous
            np.testing.assert_array_equal(scales.view(np.int32), np.ascontiguousarray(sent).view(np.int32))
            sent = np.concatenate([t.fp8[0][t.in_rank[:, rank]] for t in every])
            np.testing.assert_array_equal(codes.view("u1"), sent.view("u1"))


def run_growing_steps(rank, buffer):
    """Ranks ask each other how many tokens they have only if one has more than any rank had before, and what was received
    before that can still be combined. There is room for 64 tokens."""
    num_asked, agree = 0, buffer._agree_on_room

    def count(*arguments):
        nonlocal num_asked
        num_asked += 1
        return agree(*arguments)

    buffer._agree_on_room = count
    held = []
    for seed, num_tokens in enumerate(((50, 1), (3, 100), (128, 128), (300, 200), (0, 0))):
        every = [Tokens(r, 20 + seed, num_tokens) for r in range(RANKS)]
        mine = every[rank]
        own = dict(topk_idx=mine.ids, topk_weights=mine.weights)
        got = buffer.dispatch(mine.x, **layout_of(buffer, mine), **own)
        check_dispatch(rank, every, got)
        codes, scales = buffer.dispatch(mine.fp8, **layout_of(buffer, mine), **own)[0]
        sent = [[part[t.in_rank[:, rank]] for part in t.fp8] for t in every]
        np.testing.assert_array_equal(codes.view("u1"), np.concatenate([codes_of for codes_of, _ in sent]).view("u1"))
        np.testing.assert_array_equal(scales, np.concatenate([scales_of for _, scales_of in sent]))
        # What finishes asynchronously takes the last set of rows.
        last = buffer.dispatch(mine.fp8, **layout_of(buffer, mine), **own, async_finish=True)
        ones = np.ones((len(last[0][0]), HIDDEN), BF16)
        num_ranks = np.broadcast_to(mine.in_rank.sum(axis=1)[:, None], mine.x.shape)
        np.testing.assert_array_equal(buffer.combine(ones, last[4])[0], num_ranks.astype(BF16))
        held.append((mine, got))
    assert num_asked == 2
    buffer._agree_on_room = agree
    for mine, got in held:
        expected = (mine.x.astype(np.float32) * mine.in_rank.sum(axis=1)[:, None]).astype(BF16)
        np.testing.assert_array_equal(buffer.combine(got[0], got[4])[0], expected)


def run_two_handles(rank, buffer):
    """Two dispatches of different tokens, then the combines of both."""
    steps = [[Tokens(r, seed, num_tokens) for r in range(RANKS)] for seed, num_tokens in ((3, (9, 16)), (4, (16, 0)))]
    for _ in range(4):
        received = []
        for every in steps:
            mine = every[rank]
            layout = layout_of(buffer, mine)
            received.append(buffer.dispatch(mine.x, **layout, topk_idx=mine.ids, topk_weights=mine.weights))
        combined = [buffer.combine(got[0], got[4])[0] for got in received]
        for every, got, sums in zip(steps, received, combined):
            check_dispatch(rank, every, got)
            mine, num_ranks_of = every[rank], every[rank].in_rank.sum(axis=1)
            np.testing.assert_array_equal(sums, (mine.x.astype(np.float32) * num_ranks_of[:, None]).astype(BF16))


def run_rows_that_are_held(rank, buffer):
    """Rank 0 holds what it gets from five dispatches, and rank 1 nothing."""
    every = [Tokens(r, seed=5) for r in range(RANKS)]
    mine = every[rank]
    got = buffer.dispatch(mine.x, **layout_of(buffer, mine), topk_idx=mine.ids, topk_weights=mine.weights)
    first, handle, held = got[0].copy(), got[4], []
    del got
    for scale in range(1, 6):
        rows = buffer.dispatch(mine.x * BF16(scale), handle=handle)[0]
        if rank == 0:
            held.append(rows)
        np.testing.assert_array_equal(rows, first * BF16(scale))
        for number, before in enumerate(held):
            np.testing.assert_array_equal(before, first * BF16(1 + number))
    expected = (mine.x.astype(np.float32) * mine.in_rank.sum(axis=1)[:, None]).astype(BF16)
    np.testing.assert_array_equal(buffer.combine(rows, handle)[0], expected * BF16(5))
    addresses = [array.ctypes.data for array in held]
    assert len(set(addresses)) == len(held)
    # The first two are lent, the others copies.
    assert [array.flags.owndata for array in held] == [number >= 2 for number in range(len(held))]
    # Lent rows that nobody holds any more are where the next ones go.
    held.clear()
    rows = before = again = None
    for _ in range(4):
        again = None
        again = [buffer.dispatch(mine.x, handle=handle)[0] for _ in range(2)]
        assert rank == 1 or [array.ctypes.data for array in again] == addresses[:2]
    buffer.get_combine_buffer(handle, HIDDEN)[:] = again[0] * BF16(4)
    written = buffer.get_combine_buffer(handle, HIDDEN)
    np.testing.assert_array_equal(buffer.combine(written, handle)[0], expected * BF16(4))
    # Scales lie with their rows: who holds them alone keeps the set from being written.
    sent = np.concatenate([tokens.fp8[1][tokens.in_rank[:, rank]] for tokens in every])
    factors = [np.float32(factor) for factor in (1, 2, 3)]
    scales = [buffer.dispatch((mine.fp8[0], mine.fp8[1] * factor), handle=handle)[0][1] for factor in factors]
    assert [array.flags.owndata for array in scales] == [False, False, True]
    for factor, array in zip(factors, scales):
        np.testing.assert_array_equal(array, sent * factor)


def run_low_latency(rank, buffer, num_max=16, num_local=EXPERTS // RANKS):
    every = [Tokens(r, seed=2) for r in range(RANKS)]
    mine, stats = every[rank], np.zeros(num_local, np.int32)
    for use_fp8 in (False, True, True):
        got, counts, handle, event, hook = buffer.low_latency_dispatch(
            mine.x,
            mine.ids,
            num_max,
            EXPERTS,
            use_fp8=use_fp8,
            return_recv_hook=True,
            cumulative_local_expert_recv_stats=stats,
        )
        hook()
        rows = got
        if use_fp8:
            assert got[0].dtype == E4M3 and got[1].shape == (num_local, RANKS * num_max, HIDDEN // 128)
            rows = (got[0].astype(np.float32) * np.repeat(got[1], 128, axis=2)).astype(BF16)
        assert rows.shape == (num_local, RANKS * num_max, HIDDEN) and counts.dtype == np.int32
        for local in range(num_local):
            # By source rank, and each rank's by token.
            tokens = [np.nonzero((t.ids == num_local * rank + local).any(axis=1))[0] for t in every]
            assert counts[local] == sum(map(len, tokens))
            expected = np.concatenate([t.x[index] for t, index in zip(every, tokens)]).astype(np.float32)
            found = rows[local, : counts[local]].astype(np.float32)
            np.testing.assert_allclose(found, expected, rtol=0.08 if use_fp8 else 0, atol=0.02 if use_fp8 else 0)
            np.testing.assert_array_equal(handle[0][local, : counts[local]], np.concatenate(tokens))
            for source, index in enumerate(tokens):
                begin, count = handle[1][local, source] >> 32, handle[1][local, source] & 0xFFFFFFFF
                assert count == len(index) and begin == sum(map(len, tokens[:source]))
        combined, _, _ = buffer.low_latency_combine(rows, mine.ids, mine.weights, handle)
        expected = mine.x.astype(np.float32) * np.where(mine.ids >= 0, mine.weights, 0).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(combined.astype(np.float32), expected, rtol=0.1, atol=0.05)
    np.testing.assert_array_equal(stats, 3 * counts)
    # A handle that is not the last one.
    rows, _, first, _, _ = buffer.low_latency_dispatch(mine.x, mine.ids, num_max, EXPERTS, use_fp8=False)
    buffer.low_latency_dispatch(mine.x, mine.ids, num_max, EXPERTS)
    again, _, _ = buffer.low_latency_combine(rows, mine.ids, mine.weights, first, out=np.zeros_like(mine.x))
    np.testing.assert_allclose(again.astype(np.float32), expected, rtol=0.02, atol=0.02)
    run_scales_hooks_and_zero_copy(rank, buffer, mine, num_max)
    run_wait_statistics(rank, buffer, mine, num_max)
    buffer.clean_low_latency_buffer(num_max, HIDDEN, EXPERTS)
    status = np.full(RANKS, 7, np.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert not status.any()
    assert deep_ep.Buffer.get_low_latency_rdma_size_hint(num_max, HIDDEN, RANKS, EXPERTS) > 0


def run_scales_hooks_and_zero_copy(rank, buffer, mine, num_max):
    shape = (EXPERTS // RANKS, RANKS * num_max)
    given = (mine.x, mine.ids, num_max, EXPERTS)
    (codes, scales), counts, _, _, _ = buffer.low_latency_dispatch(*given, round_scale=True)
    assert scales.dtype == np.float32 and scales.shape == (*shape, HIDDEN // 128)
    (same, words), _, handle, _, _ = buffer.low_latency_dispatch(*given, round_scale=True, use_ue8m0=True)
    assert words.dtype == np.int32 and words.shape == (*shape, 1)
    for local, count in enumerate(counts):
        np.testing.assert_array_equal(same[local, :count].view("u1"), codes[local, :count].view("u1"))
        exponents = np.ascontiguousarray(words[local, :count]).view("u1")[:, : HIDDEN // 128].astype(np.int32)
        np.testing.assert_array_equal((exponents << 23).view(np.float32), scales[local, :count])
    # The receiving halves come when the hooks are called, also if that is the next call's doing.
    rows, counts, handle, _, hook = buffer.low_latency_dispatch(*given, use_fp8=False, return_recv_hook=True)
    hook()
    hook()
    expected = mine.x.astype(np.float32) * np.where(mine.ids >= 0, mine.weights, 0).sum(axis=1, keepdims=True)
    for scale, zero_copy in ((1, False), (2, True), (4, False)):
        values = rows * BF16(scale)
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle)[:] = values
            values = np.zeros_like(values)
        out, _, hook = buffer.low_latency_combine(
            values, mine.ids, mine.weights, handle, zero_copy=zero_copy, return_recv_hook=True
        )
        if scale < 4:
            hook()
            np.testing.assert_allclose(out.astype(np.float32), scale * expected, rtol=0.02, atol=0.05)
    for _ in range(2):  # both turns, so that the last combine's hook has to run
        buffer.low_latency_dispatch(*given, use_fp8=False)
    np.testing.assert_allclose(out.astype(np.float32), 4 * expected, rtol=0.02, atol=0.1)


def run_wait_statistics(rank, buffer, mine, num_max):
    """Rank 1 is late with every call; what is given may lie where a kernel cannot write."""
    late, num_ns = 0.3, int(0.2e9)
    given = (mine.x, mine.ids, num_max, EXPERTS)
    for has_hooks in (False, True):
        for begin in (0, 1):  # aligned to 16 bytes, and not
            of_dispatch, of_combine = (np.zeros(RANKS + begin, np.int64)[begin:] for _ in range(2))

            def call(function, *arguments, **options):
                buffer.group.all_gather(b"")
                time.sleep(late * rank)
                result = function(*arguments, **options, return_recv_hook=has_hooks)
                if has_hooks:
                    result[-1]()
                return result

            rows, _, handle, _, _ = call(
                buffer.low_latency_dispatch, *given, use_fp8=False, dispatch_wait_recv_cost_stats=of_dispatch
            )
            out, _, _ = call(
                buffer.low_latency_combine,
                rows.copy(),
                mine.ids,
                mine.weights,
                handle,
                combine_wait_recv_cost_stats=of_combine,
            )
            expected = mine.x.astype(np.float32) * np.where(mine.ids >= 0, mine.weights, 0).sum(axis=1, keepdims=True)
            np.testing.assert_allclose(out.astype(np.float32), expected, rtol=0.02, atol=0.05)
            for stats in (of_dispatch, of_combine):
                assert stats[rank] == 0
                assert stats[1] > num_ns if rank == 0 else stats[0] < num_ns


def work(rank, pipe, results):
    try:
        run_all(rank, Group(rank, pipe))
        results.put((rank, None))
    except BaseException:
        results.put((rank, traceback.format_exc()))


def test_dispatch_and_combine_between_processes():
    results, ends = CONTEXT.Queue(), CONTEXT.Pipe()
    processes = [CONTEXT.Process(target=work, args=(rank, ends[rank], results)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            rank, error = results.get(timeout=60)
            assert error is None, f"rank {rank}: {error}"
    finally:
        for process in processes:
            process.join(20)
            if process.is_alive():
                process.kill()


class Alone:
    rank = staticmethod(lambda: 0)
    size = staticmethod(lambda: 1)
    all_gather = staticmethod(lambda mine: [mine])


def dispatch_alone(buffer, num_tokens, **options):
    ids = np.arange(num_tokens * TOP_K, dtype=np.int64).reshape(num_tokens, TOP_K) % EXPERTS
    _, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    x = np.full((num_tokens, HIDDEN), num_tokens, BF16)
    weights = np.ones(ids.shape, np.float32)
    got = buffer.dispatch(
        x,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=ids,
        topk_weights=weights,
        **options,
    )
    np.testing.assert_array_equal(got[0][:num_tokens], x)
    return got


def test_memory_that_a_graph_holds_outlives_growth():
    buffer = deep_ep.Buffer(Alone(), target="host")
    handle = dispatch_alone(buffer, 10)[4]
    buffer._is_capturing = True  # as on a stream that is being captured
    buffer.dispatch(np.ones((10, HIDDEN), BF16), handle=handle)
    (captured,) = buffer._captured.values()
    with pytest.raises(FailedPrecondition, match="room for 4096 tokens of each rank, and there is room for 16"):
        dispatch_alone(buffer, 10, num_worst_tokens=4096)
    buffer._is_capturing = False
    dispatch_alone(buffer, 40)
    assert buffer._captured and captured in buffer._captured.values() and captured in buffer._used
    captured.ep.synchronize(0)


def test_a_rank_may_have_more_tokens_than_it_said():
    buffer = deep_ep.Buffer(Alone(), target="host")
    buffer.max_tokens_per_rank = 16
    dispatch_alone(buffer, 40)
    other = deep_ep.Buffer(Alone(), target="host")
    with pytest.raises(ValueError, match="num_worst_tokens is 20, .* room for 32 tokens .* rank 0 has 40; set Buffer.max_"):
        dispatch_alone(other, 40, num_worst_tokens=20)
    dispatch_alone(other, 20, num_worst_tokens=20)


def test_torch_tensors_come_back_as_such():
    torch = pytest.importorskip("torch")
    buffer = deep_ep.Buffer(Alone(), target="host")
    x, ids = torch.randn(6, HIDDEN).bfloat16(), torch.rand(6, EXPERTS).topk(TOP_K, -1).indices
    layout = buffer.get_dispatch_layout(ids, EXPERTS)
    received, local, weights, counts, handle, _ = buffer.dispatch(
        x,
        num_tokens_per_rank=layout[0],
        is_token_in_rank=layout[3],
        num_tokens_per_expert=layout[2],
        topk_idx=ids,
        topk_weights=torch.ones(6, TOP_K),
    )
    assert torch.equal(received, x) and torch.equal(local, ids) and sum(counts) == 6 * TOP_K
    combined, sums, _ = buffer.combine(received, handle, topk_weights=weights)
    assert torch.equal(combined, x) and torch.equal(sums, torch.ones(6, TOP_K)) and handle[0].dtype == torch.int32


def test_a_call_that_helps_others_is_told_so(monkeypatch):
    from switchyard_ep import _deep_ep_survivors

    class Buffer:
        rank, group_size = 0, 2

    monkeypatch.setattr(_deep_ep_survivors, "Meetings", lambda group, timeout: None)
    survivors = _deep_ep_survivors.Survivors(Buffer(), None, 1)
    decisions = iter([1, 1, 2])  # rank 1 has not completed the first call when this rank makes the second
    monkeypatch.setattr(survivors, "_gather", lambda: next(decisions))
    calls = []
    survivors.call(lambda is_help: calls.append(("first", is_help)))
    survivors.call(lambda is_help: calls.append(("second", is_help)))
    assert calls == [("first", False), ("first", True), ("second", False)]


def test_waits_of_a_call_that_breaks_and_of_masked_ranks_add_nothing():
    from switchyard_ep._arrays import arrays_of
    from switchyard_ep._deep_ep_low_latency import RankWaits

    stats = np.full(4, 5, np.int64)
    for is_complete in (False, True):
        waits = RankWaits(arrays_of(stats), stats, [0, 2, 3], True)
        waits.of_members[:] = (0, 10, 20)
        if is_complete:
            waits.complete()
        assert stats.tolist() == ([5, 5, 15, 25] if is_complete else [5] * 4)
    assert RankWaits(arrays_of(stats), stats, [0, 1, 2, 3], False).of_members is stats
