"""What engines bring: their streams, ids of 64 bits, rows with gaps, tokens that are encoded; polls, flights, warm-ups."""

import ml_dtypes
import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16, SHAPE, Step


class TorchStream:
    def __init__(self, handle):
        self.cuda_stream = handle


class CudaStream:
    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return 0, self._handle


def run(ep, step, streams=None, **options):
    ranks = range(len(step.tokens))
    stream = (lambda r: None) if streams is None else (lambda r: streams[r])
    sent = [ep.dispatch(r, step.tokens[r], step.topk_ids[r], stream=stream(r), **options) for r in ranks]
    return [ep.combine(r, sent[r].rows, step.topk_ids[r], step.weights[r], stream=stream(r)) for r in ranks]


def check(outputs, step, scale=1):
    for output, tokens in zip(outputs, step.tokens):
        np.testing.assert_array_equal(output.numpy(), tokens * BF16(scale))


@pytest.mark.parametrize("kind", [int, TorchStream, CudaStream])
def test_calls_take_the_callers_stream(world, ep, step, kind):
    streams = [kind(world.rank(r).create_stream()) for r in range(4)]
    outputs = run(ep, step, streams)
    for r in range(4):
        ep.synchronize(r, stream=streams[r])
    check(outputs, step)
    with pytest.raises(sy.InvalidArgument, match="a stream is given, but no rank"):
        ep.synchronize(stream=streams[0])


@pytest.mark.parametrize("protocol", ["slotted", "direct"])
def test_wide_ids_and_rows_with_gaps(world, step, protocol):
    ep = sy.ExpertParallel(world, protocol=protocol, **SHAPE)
    wide = [np.concatenate([tokens, tokens], axis=1)[:, :256] for tokens in step.tokens]
    ids = [ids.astype(np.int64) for ids in step.topk_ids]
    outputs = [np.zeros((16, 512), BF16)[:, :256] for _ in range(4)]
    sent = [ep.dispatch(r, wide[r], ids[r]) for r in range(4)]
    for r in range(4):
        ep.combine(r, sent[r].rows, None if r % 2 else ids[r], step.weights[r], out=outputs[r])
    ep.synchronize()
    for output, tokens in zip(outputs, step.tokens):
        np.testing.assert_array_equal(output, tokens)


@pytest.mark.parametrize("name,scale_dtype", [("fp8", np.float32), ("fp8-ue8m0", ml_dtypes.float8_e8m0fnu)])
def test_tokens_that_are_encoded_are_sent_as_they_are(world, step, name, scale_dtype):
    ep = sy.ExpertParallel(world, protocol="direct", dispatch_format=name, **SHAPE)
    random = np.random.default_rng(3)
    codes = [random.standard_normal((16, 256)).astype(ml_dtypes.float8_e4m3fn) for _ in range(4)]
    scales = [np.exp2(random.integers(-3, 4, (16, 2))).astype(np.float32).astype(scale_dtype) for _ in range(4)]
    sent = [ep.dispatch(r, codes[r], step.topk_ids[r], scales=scales[r], src_ranks=True) for r in range(4)]
    ep.synchronize()
    for rows in sent:
        for row in range(int(rows.row_counts.numpy()[0])):
            source, token = rows.src_ranks.numpy()[row], rows.src_info.numpy()[row, 0]
            np.testing.assert_array_equal(rows.rows.numpy()[row].view("u1"), codes[source][token].view("u1"))
            found = np.ascontiguousarray(rows.scales.numpy()[:, row]).view("u1")[: 2 * scales[source].itemsize]
            np.testing.assert_array_equal(found, scales[source][token].view("u1"))
    with pytest.raises(sy.InvalidArgument, match="scales has dtype float64"):
        ep.dispatch_async(0, codes[0], step.topk_ids[0], scales=np.zeros((16, 2)))
    plain = sy.ExpertParallel(world, **SHAPE)
    with pytest.raises(sy.InvalidArgument, match="scales must be None"):
        plain.dispatch(0, step.tokens[0], step.topk_ids[0], scales=scales[0])


def test_rows_per_rank_have_experts_and_weights(world, step):
    ep = sy.ExpertParallel(world, row_layout="per-rank", **SHAPE)
    rows = len(ep.row_buffers(0).rows)
    experts = [world.rank(r).empty((rows, 2), "int32") for r in range(4)]
    weights = [world.rank(r).empty((rows, 2), "float32") for r in range(4)]
    ranges = [np.zeros((1, 4), np.int64) for _ in range(4)]
    totals = [np.full(1, 5, np.int32) for _ in range(4)]
    for r in range(4):
        sent = ep.dispatch(r, step.tokens[r], step.topk_ids[r], step.weights[r], row_experts=experts[r],
                           row_weights=weights[r], source_ranges=ranges[r], row_totals=totals[r])
    ep.synchronize()
    for r in range(4):
        count = int(ep.row_buffers(r).row_counts.numpy()[0])
        local = [ids[(ids // 2 == r).any(axis=1)] - 2 * r for ids in step.topk_ids]
        expected = np.concatenate(local)
        expected[(expected < 0) | (expected > 1)] = -1
        np.testing.assert_array_equal(experts[r].numpy()[:count], expected)
        np.testing.assert_array_equal(weights[r].numpy()[:count], np.where(expected >= 0, 0.5, 0))
        assert totals[r][0] == 5 + count and ((ranges[r] & 0xFFFFFFFF) == [len(part) for part in local]).all()
    assert sent is ep.row_buffers(3)
    outputs = [ep.combine(r, ep.row_buffers(r).rows) for r in range(4)]
    ep.synchronize()
    num_ranks = (step.topk_ids[0][:, 0] // 2 != step.topk_ids[0][:, 1] // 2) + 1
    expected = step.tokens[0].astype(np.float32) * num_ranks[:, None]
    np.testing.assert_array_equal(outputs[0].numpy(), expected.astype(BF16))


def test_steps_are_abandoned_and_reopened(world, step):
    ep = sy.ExpertParallel(world, protocol="direct", **SHAPE)
    other = Step(seed=7)
    for r in range(4):
        ep.dispatch(r, other.tokens[r], other.topk_ids[r])
    for r in range(4):
        ep.abandon_step(r)
    check_all = run(ep, step)
    for r in range(4):
        ep.reopen_step(r)
    ep.synchronize()
    check(check_all, step)
    twice = [ep.row_buffers(r).rows.numpy() * BF16(2) for r in range(4)]
    for r in range(4):
        ep.store_expert_rows(r, twice[r])
    outputs = [ep.combine(r, None, step.topk_ids[r], step.weights[r]) for r in range(4)]
    ep.synchronize()
    check(outputs, step, 2)
    with pytest.raises(sy.FailedPrecondition, match="abandon_step on rank 0 after a finished step"):
        ep.abandon_step(0)


def test_flights_are_steps_at_once(world, step):
    ep = sy.ExpertParallel(world, steps_in_flight=2, **SHAPE)
    other, second = Step(seed=5), ep.flight(1)
    sent = [[flight.dispatch(r, given.tokens[r], given.topk_ids[r]) for r in range(4)]
            for flight, given in ((ep, step), (second, other))]
    outputs = [[flight.combine(r, sent[i][r].rows, given.topk_ids[r], given.weights[r]) for r in range(4)]
               for i, flight, given in ((1, second, other), (0, ep, step))]
    ep.synchronize()
    check(outputs[0], other)
    check(outputs[1], step)
    assert ep.config["steps_in_flight"] == 2
    with pytest.raises(sy.InvalidArgument, match="2"):
        ep.flight(2)


def test_polls_and_warm_ups(world, step):
    ep = sy.ExpertParallel(world, timeout=0.2, first_timeout=0.3, **SHAPE)
    assert ep.config["first_timeout"] == 0.3
    ep.warm_up()
    ep.poll(0)
    outputs = step.run(ep)
    ep.synchronize()
    ep.poll(0)
    check(outputs, step)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])
    with pytest.raises(sy.DeadlineExceeded):
        ep.synchronize(0)
    with pytest.raises(sy.DeadlineExceeded) as caught:
        ep.poll(0)
    assert caught.value.waiting_rank == 0
    ep.reset()
    outputs = run(ep, step)
    ep.synchronize()
    check(outputs, step)


def test_views_of_tensors(world):
    tensor = world.rank(0).empty((4, 8), "bfloat16")
    assert tensor.view("uint16").numpy().dtype == np.uint16 and tensor.view("uint16").data_ptr == tensor.data_ptr
    with pytest.raises(sy.InvalidArgument, match="view: dtype is float32, of 4 bytes; it must have 2"):
        tensor.view("float32")
