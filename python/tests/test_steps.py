"""Steps over arrays of NumPy: what goes to which rank, and what comes back."""

import gc
import threading
import time

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16, SHAPE, Step


@pytest.mark.parametrize("protocol", ["slotted", "direct"])
def test_every_token_comes_back_as_it_was(world, step, protocol):
    ep = sy.ExpertParallel(world, protocol=protocol, **SHAPE)
    outputs = step.run(ep)
    ep.synchronize()
    assert ep.config["protocol"] == protocol
    for output, tokens in zip(outputs, step.tokens):
        np.testing.assert_array_equal(output.numpy(), tokens)


def test_rows_are_grouped_by_expert_and_say_where_they_came_from(ep, step):
    sent = [ep.dispatch(r, step.tokens[r], step.topk_ids[r], src_ranks=True) for r in range(4)]
    ep.synchronize()
    for rank, rows in enumerate(sent):
        offsets, counts = rows.row_offsets.numpy(), rows.row_counts.numpy()
        for group in range(2):
            expert = 2 * rank + group
            expected = sum(int((ids == expert).sum()) for ids in step.topk_ids)
            assert counts[group] == expected
            for row in range(offsets[group], offsets[group] + counts[group]):
                source, (token, k) = rows.src_ranks.numpy()[row], rows.src_info.numpy()[row]
                assert step.topk_ids[source][token, k] == expert
                np.testing.assert_array_equal(rows.rows.numpy()[row], step.tokens[source][token])


def test_halves_unreduced_and_own_output(world, step):
    ep = sy.ExpertParallel(world, protocol="slotted", **SHAPE)
    outputs = [np.empty((16, 2, 256), BF16) for _ in range(4)]
    for r in range(4):
        ep.dispatch_async(r, step.tokens[r], step.topk_ids[r])
    sent = [ep.dispatch_wait(r, unwritten="zeroed") for r in range(4)]
    for r in range(4):
        ep.combine_async(r, sent[r].rows)
    for r in range(4):
        assert ep.combine_wait(r, step.topk_ids[r], out=outputs[r], reduction="unreduced") is outputs[r]
    ep.synchronize()
    for output, tokens in zip(outputs, step.tokens):
        np.testing.assert_array_equal(output, np.stack([tokens, tokens], axis=1))


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("protocol", ["slotted", "direct"])
def test_waits_are_added_to_the_entry_of_the_late_rank(world, step, protocol, is_split):
    ep = sy.ExpertParallel(world, protocol=protocol, **SHAPE)
    ep.warm_up()
    waits = [[np.full(4, 7, dtype) for dtype in (np.int64, np.uint64)] for _ in range(4)]

    def dispatch(r):
        given = (r, step.tokens[r], step.topk_ids[r])
        if not is_split:
            return ep.dispatch(*given, rank_wait_ns=waits[r][0])
        ep.dispatch_async(*given, rank_wait_ns=waits[r][0])
        return ep.dispatch_wait(r, rank_wait_ns=waits[r][0])

    def combine(r):
        given = dict(topk_ids=step.topk_ids[r], topk_weights=step.weights[r], rank_wait_ns=waits[r][1])
        if not is_split:
            return ep.combine(r, sent[r].rows, **given)
        ep.combine_async(r, sent[r].rows)
        return ep.combine_wait(r, **given)

    def run_late(late, call):
        results = {r: call(r) for r in range(4) if r != late}
        time.sleep(0.3)
        results[late] = call(late)
        ep.synchronize()
        return results

    sent = run_late(2, dispatch)
    outputs = run_late(1, combine)
    for r in range(4):
        np.testing.assert_array_equal(outputs[r].numpy(), step.tokens[r])
        for late, added in zip((2, 1), waits[r]):
            assert added[r] == 7
            for other in {0, 1, 2, 3} - {r}:
                assert (added[other] > 0.2e9) == (other == late)
    with pytest.raises(sy.InvalidArgument, match=r"rank_wait_ns has shape \(3,\); it must be \(n_ranks,\)"):
        ep.dispatch(0, step.tokens[0], step.topk_ids[0], rank_wait_ns=np.zeros(3, np.int64))


@pytest.mark.parametrize("layout", ["ragged", "per-rank"])
def test_a_step_that_is_called_off_names_the_rank(world, step, layout):
    ep = sy.ExpertParallel(world, protocol="direct", row_layout=layout, **SHAPE)

    def dispatch(rank):
        weights = (step.weights[rank],) if layout == "per-rank" else ()
        return ep.dispatch(rank, step.tokens[rank], step.topk_ids[rank], *weights)

    for _ in range(2):
        for rank in range(3):
            dispatch(rank)
        ep.call_off_step(3)
        for rank in range(4):
            with pytest.raises(sy.ResourceExhausted, match="rank 3 has called the step off") as caught:
                ep.synchronize(rank)
            assert caught.value.fault.kind == "called off" and caught.value.late_rank == 3
            assert str(ep.fault(rank)) == str(caught.value)
        for rank in range(4):
            dispatch(rank)
            assert ep.fault(rank) is None
            ep.abandon_step(rank)
        ep.synchronize()
    with pytest.raises(sy.InvalidArgument, match="rank is 4"):
        ep.call_off_step(4)


def test_experts_in_numpy_and_a_thread_per_rank(world, step):
    ep = sy.ExpertParallel(world, protocol="direct", **SHAPE)
    outputs, errors = [None] * 4, []

    def work(rank):
        try:
            sent = ep.dispatch(rank, step.tokens[rank], step.topk_ids[rank])
            ep.synchronize(rank)
            num_rows = sent.row_offsets.numpy()[-1]
            sent.expert_outputs.numpy()[:num_rows] = sent.rows.numpy()[:num_rows] * BF16(2)
            outputs[rank] = ep.combine(rank, sent.expert_outputs, step.topk_ids[rank], step.weights[rank])
            ep.synchronize(rank)
        except Exception as error:  # pytest does not see those of threads
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for output, tokens in zip(outputs, step.tokens):
        np.testing.assert_array_equal(output.numpy(), tokens * BF16(2))


def test_fewer_expert_rows_are_enough_if_fewer_came(world, step):
    ep = sy.ExpertParallel(world, protocol="slotted", **SHAPE)
    sent = [ep.dispatch(r, step.tokens[r], step.topk_ids[r]) for r in range(4)]
    ep.synchronize()
    used = [rows.rows.numpy()[: rows.row_offsets.numpy()[-1]].copy() for rows in sent]
    with pytest.raises(sy.InvalidArgument, match=r"expert_rows has \d+ rows; this step has \d+"):
        ep.combine(0, used[0][:-1], step.topk_ids[0], step.weights[0])
    outputs = [ep.combine(r, used[r], step.topk_ids[r], step.weights[r]) for r in range(4)]
    ep.synchronize()
    np.testing.assert_array_equal(outputs[3].numpy(), step.tokens[3])


def test_arrays_are_kept_until_the_step_has_ended(world):
    ep = sy.ExpertParallel(world, **SHAPE)
    for seed in range(20):
        step = Step(seed=seed)
        outputs = step.run(ep)
        expected = [tokens.copy() for tokens in step.tokens]
        del step
        garbage = [np.full((16, 256), 7, BF16) for _ in range(16)]
        ep.synchronize()
        for output, tokens in zip(outputs, expected):
            np.testing.assert_array_equal(output.numpy(), tokens)
        del garbage


@pytest.mark.parametrize("name", ["fp8", "fp8-ue8m0", "fp8-by-row", "mxfp8", "nvfp4", "mxfp6"])
def test_formats_have_rows_and_scales(world, step, name):
    ep = sy.ExpertParallel(world, dispatch_format=name, protocol="direct", **SHAPE)
    sent = [ep.dispatch(r, step.tokens[r], step.topk_ids[r]) for r in range(4)]
    ep.synchronize()
    info = sy.token_formats()[name]
    rows = sent[0].rows.numpy()
    assert rows.dtype.itemsize * rows.shape[1] == 256 * info["num_bits"] // 8
    assert sent[0].scales is not None
    if name.startswith("fp8"):  # element = code * scale, a scale for each 128 elements
        scales = sent[0].scales.numpy()
        if name == "fp8-by-row":  # [row][group], of the others [group][row]
            assert scales.dtype == np.float32 and scales.shape == (rows.shape[0], 2)
            scales = scales.T
        if name == "fp8-ue8m0":  # four exponents in a word, [group / 4][row]
            assert scales.dtype == np.uint32 and scales.shape[0] == 1
            exponents = np.stack([scales[0] >> (8 * g) & 0xFF for g in range(2)]).astype(np.int32)
            scales = np.ldexp(np.float32(1), exponents - 127)
        token, k = sent[0].src_info.numpy()[0]
        decoded = rows[0].astype(np.float32) * np.repeat(scales[:, 0], 128)
        source = next(r for r in range(4) if step.topk_ids[r][token, k] == 0)
        np.testing.assert_allclose(decoded, step.tokens[source][token].astype(np.float32), rtol=0.07, atol=0.02)


def test_a_step_is_captured_and_replayed(world, step):
    ep = sy.ExpertParallel(world, **SHAPE)
    outputs = []
    graph = world.capture(lambda: outputs.extend(step.run(ep)))
    for value in (1, 2, 3):
        for tokens in step.tokens:
            tokens[:] = BF16(value)
        graph.launch()
        graph.synchronize()
        ep.synchronize()
        for output in outputs:
            assert (output.numpy() == BF16(value)).all()


def test_a_graph_keeps_what_it_uses(world, step):
    ep = sy.ExpertParallel(world, protocol="direct", **SHAPE)
    outputs = []
    graph = world.capture(lambda: outputs.extend(step.run(ep)))
    with pytest.raises(sy.FailedPrecondition, match="graphs that use them"):
        ep.reset(survivors=[0, 1])
    expected = [tokens.copy() for tokens in step.tokens]
    del ep, step
    gc.collect()
    graph.launch()
    graph.synchronize()
    np.testing.assert_array_equal(outputs[1].numpy(), expected[1])


def test_what_capture_calls_may_raise(world):
    with pytest.raises(ZeroDivisionError):
        world.capture(lambda: 1 // 0)


def test_ranks_without_tokens_and_padding(world):
    ep = sy.ExpertParallel(world, **SHAPE)
    step = Step()
    for rank in (0, 2):
        step.tokens[rank], step.topk_ids[rank] = step.tokens[rank][:0], step.topk_ids[rank][:0]
        step.weights[rank] = step.weights[rank][:0]
    step.topk_ids[0] = np.where(step.topk_ids[0] < 0, 0, step.topk_ids[0])  # NumPy gives it other strides
    step.topk_ids[1][:] = -1
    outputs = step.run(ep)
    ep.synchronize()
    assert outputs[0].shape == (0, 256)
    assert not outputs[1].numpy().any()
    np.testing.assert_array_equal(outputs[3].numpy(), step.tokens[3])


def test_memory_needed_is_what_create_allocates(world, ep):
    needed = sy.ExpertParallel.memory_needed(4, **SHAPE)
    assert needed["exchange"] == ep.bytes_per_rank
    assert needed["total"] == needed["exchange"] + needed["row_buffers"]


def test_counts_placement_and_seats(world, step):
    ep = sy.ExpertParallel(world, counts_experts=True, placement=[[7, 6], [5, 4], [3, 2], [1, 0]], **SHAPE)
    step.run(ep)
    ep.synchronize()
    counts = np.sum([ep.expert_counts(r) for r in range(4)], axis=0)
    np.testing.assert_array_equal(counts, np.bincount(np.concatenate(step.topk_ids).ravel(), minlength=8))
    ep.set_placement([[0, 1], [2, 3], [4, 5], [6, 7]])
    assert ep.placement[0] == [0, 1]
    outputs = step.run(ep)
    ep.synchronize()
    np.testing.assert_array_equal(outputs[2].numpy(), step.tokens[2])


def test_a_seed_replays_an_interleaving(step):
    with sy.World(n_ranks=4, target="host", mode="simulated", seed=7) as world:
        ep = sy.ExpertParallel(world, **SHAPE)
        outputs = step.run(ep)
        ep.synchronize()
        np.testing.assert_array_equal(outputs[0].numpy(), step.tokens[0])


def test_steps_are_captured_with_marks(world, ep, step):
    outputs = [np.zeros((16, 256), BF16) for _ in range(4)]
    times_called = []

    def steps():
        times_called.append(1)
        for _ in range(2):
            world.mark("dispatch")
            sent = [ep.dispatch(rank, step.tokens[rank], step.topk_ids[rank]) for rank in world.local_ranks]
            world.mark("combine")
            for rank in world.local_ranks:
                ep.combine(rank, sent[rank].rows, step.topk_ids[rank], step.weights[rank], out=outputs[rank])

    graph = world.capture(steps)
    assert not any(output.any() for output in outputs)
    for scale in (1, 2):
        for tokens in step.tokens:
            tokens *= BF16(scale)
        graph.launch()
        graph.synchronize()
        ep.synchronize()
        for tokens, output in zip(step.tokens, outputs):
            np.testing.assert_array_equal(output, tokens)
        spans = graph.elapsed()
        assert [name for name, _ in spans] == ["dispatch", "combine"] * 2
        assert all(microseconds > 0 for _, microseconds in spans)
    assert len(times_called) == 1
