"""Whole layers against NumPy."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16

EXPERTS, TOP_K, HIDDEN, WIDTH = 8, 2, 256, 64
SHAPE = dict(n_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, max_tokens_per_rank=16, expert_width=WIDTH)


def silu(x):
    return x / (1 + np.exp(-x))


class Layer:
    """Weights of all experts, split over the ranks, and what becomes of a token."""

    def __init__(self, n_ranks=4, has_bias=False, seed=0):
        random = np.random.default_rng(seed)
        self.gate_up = (random.standard_normal((EXPERTS, 2 * WIDTH, HIDDEN)) / 16).astype(BF16)
        self.down = (random.standard_normal((EXPERTS, HIDDEN, WIDTH)) / 8).astype(BF16)
        shape = (EXPERTS, 2 * WIDTH), (EXPERTS, HIDDEN)
        self.bias = [random.standard_normal(of).astype(np.float32) * has_bias for of in shape]
        each = EXPERTS // n_ranks
        self.weights = []
        for rank in range(n_ranks):
            mine = slice(rank * each, (rank + 1) * each)
            biases = dict(gate_up_bias=self.bias[0][mine], down_bias=self.bias[1][mine]) if has_bias else {}
            self.weights.append(sy.ExpertWeights(self.gate_up[mine].copy(), self.down[mine].copy(), **biases))
        self.tokens = [random.standard_normal((3 + 4 * r, HIDDEN)).astype(BF16) for r in range(n_ranks)]
        self.logits = [random.standard_normal((len(of), EXPERTS)).astype(np.float32) for of in self.tokens]
        self.ids = [np.argsort(-of, axis=1)[:, :TOP_K].astype(np.int32) for of in self.logits]
        chosen = [np.exp(np.take_along_axis(of, ids, 1)) for of, ids in zip(self.logits, self.ids)]
        self.topk_weights = [(of / of.sum(1, keepdims=True)).astype(np.float32) for of in chosen]

    def expert(self, expert, token):
        both = self.gate_up[expert].astype(np.float64) @ token.astype(np.float64) + self.bias[0][expert]
        activated = silu(both[:WIDTH]) * both[WIDTH:]
        return self.down[expert].astype(np.float64) @ activated + self.bias[1][expert]

    def expected(self, rank):
        return np.stack(
            [
                sum(w * self.expert(e, token) for e, w in zip(ids, weights) if e >= 0)
                for token, ids, weights in zip(self.tokens[rank], self.ids[rank], self.topk_weights[rank])
            ]
        )

    def check(self, rank, out):
        expected = self.expected(rank)
        error = np.linalg.norm(out.numpy().astype(np.float64) - expected, axis=1)
        assert (error <= 0.01 * np.linalg.norm(expected, axis=1)).all(), (rank, error)


@pytest.mark.parametrize("options", [{}, dict(protocol="direct", launches="split"), dict(gate_up_start="with-rows")])
def test_router_to_output(world, options):
    case = Layer()
    layer = sy.MoeLayer(world, case.weights, **SHAPE, **options)
    out = [layer.run(r, case.tokens[r], logits=case.logits[r]) for r in range(4)]
    layer.ep.synchronize()
    for rank in range(4):
        case.check(rank, out[rank])


@pytest.mark.parametrize("ids_type", [np.int32, np.int64])
def test_choices_of_the_callers_and_biases(world, ids_type):
    case = Layer(has_bias=True)
    case.ids[1][0, 1] = -1
    case.tokens[3] = case.tokens[3][:0]  # a rank without tokens
    layer = sy.MoeLayer(world, case.weights, steps_in_flight=2, **SHAPE)
    for of_flight in (layer, layer.flight(1)):
        out = [np.zeros((len(of), 2 * HIDDEN), BF16)[:, :HIDDEN] for of in case.tokens]  # rows with gaps
        for r in range(4):
            ids, weights = case.ids[r][: len(case.tokens[r])], case.topk_weights[r][: len(case.tokens[r])]
            given = of_flight.run(
                r, case.tokens[r], topk_ids=ids.astype(ids_type), topk_weights=weights, out=out[r]
            )
            assert given is out[r]
        of_flight.ep.synchronize()
        for rank in range(3):
            expected = case.expected(rank)
            np.testing.assert_allclose(out[rank].astype(np.float64), expected, atol=0.02 * np.abs(expected).max())


def test_parts_one_by_one(world):
    case = Layer()
    layer = sy.MoeLayer(world, case.weights, protocol="direct", launches="split", **SHAPE)
    assert layer.parts == [
        "route",
        "dispatch_async",
        "dispatch_wait",
        "gate_up",
        "down",
        "combine_async",
        "combine_wait",
    ]
    out = [world.rank(r).empty((len(case.tokens[r]), HIDDEN)) for r in range(4)]
    for part in layer.parts:
        for r in range(4):
            layer.run(r, case.tokens[r], logits=case.logits[r], out=out[r], part=part)
    layer.ep.synchronize()
    for rank in range(4):
        case.check(rank, out[rank])
    with pytest.raises(sy.InvalidArgument, match="part is 'dispatch'; it must be one of: route, dispatch_async"):
        layer.run(0, case.tokens[0], logits=case.logits[0], out=out[0], part="dispatch")
    with pytest.raises(sy.InvalidArgument, match="out is None"):
        layer.run(0, case.tokens[0], logits=case.logits[0], part="route")


def test_captured_steps(world):
    case = Layer()
    layer = sy.MoeLayer(world, case.weights, **SHAPE)
    out = [world.rank(r).empty((len(case.tokens[r]), HIDDEN)) for r in range(4)]
    graph = world.capture(
        lambda: [layer.run(r, case.tokens[r], logits=case.logits[r], out=out[r]) for r in range(4)]
    )
    ep = layer.ep
    del layer, case.weights  # the graph keeps them
    gc.collect()
    for _ in range(3):
        graph.launch()
    graph.synchronize()
    ep.synchronize()
    for rank in range(4):
        case.check(rank, out[rank])


def test_a_refused_step_leaves_the_one_under_way_as_it_is(world):
    case = Layer()
    layer = sy.MoeLayer(world, case.weights, protocol="direct", **SHAPE)
    out = [world.rank(r).empty((len(case.tokens[r]), HIDDEN)) for r in range(4)]
    for part in layer.parts:
        for r in range(4):
            layer.run(r, case.tokens[r], logits=case.logits[r], out=out[r], part=part)
        if part == "dispatch":
            for parts in (dict(), dict(part="route")):
                with pytest.raises(sy.FailedPrecondition, match="dispatch on rank 0 after dispatch; next must come"):
                    layer.run(0, case.tokens[0], logits=-case.logits[0], out=out[0], **parts)
    layer.ep.synchronize()
    for rank in range(4):
        case.check(rank, out[rank])


def test_weights_go_with_the_layer(world):
    case = Layer()
    array = np.array(case.weights[0].gate_up)
    gone = weakref.ref(array)
    case.weights[0] = sy.ExpertWeights(array, case.weights[0].down)
    del array
    layer = sy.MoeLayer(world, case.weights, **SHAPE)
    case.weights.clear()
    out = [layer.run(r, case.tokens[r], logits=case.logits[r]) for r in range(4)]
    ep = layer.ep
    del layer
    gc.collect()
    assert gone() is not None  # kernels may still read them
    ep.synchronize()
    case.check(0, out[0])
    del ep
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("as_bytes", [False, True])
def test_weights_and_rows_of_fp8(world, as_bytes):
    case = Layer()
    one = ml_dtypes.float8_e4m3fn

    def codes(values):
        """Codes of a power of two for each expert, which the scales undo: weights that are fp8 exactly."""
        values = values.astype(np.float32).astype(one)
        return values.view(np.uint8) if as_bytes else values

    weights = []
    for rank in range(4):
        mine = slice(2 * rank, 2 * rank + 2)
        weights.append(
            sy.ExpertWeights(
                codes(case.gate_up[mine].astype(np.float32) * 16),
                codes(case.down[mine].astype(np.float32) * 8),
                gate_up_scales=np.full((2, 1, 2), 1 / 16, np.float32),
                down_scales=np.full((2, 2, 1), 1 / 8, np.float32),
            )
        )
    case.gate_up = (case.gate_up.astype(np.float32) * 16).astype(one).astype(np.float32) / 16
    case.down = (case.down.astype(np.float32) * 8).astype(one).astype(np.float32) / 8
    layer = sy.MoeLayer(world, weights, dispatch_format="fp8", **SHAPE)
    out = [layer.run(r, case.tokens[r], logits=case.logits[r]) for r in range(4)]
    layer.ep.synchronize()
    for rank in range(4):
        expected = case.expected(rank)
        error = np.linalg.norm(out[rank].numpy().astype(np.float64) - expected, axis=1)
        assert (error <= 0.08 * np.linalg.norm(expected, axis=1)).all()


def test_weights_that_are_codes(world):
    case = Layer()
    ones = 0x22  # two codes of e2m1 that are 1
    weights = [
        sy.ExpertWeights(
            np.full((2, 2 * WIDTH, HIDDEN // 2), ones, np.uint8),
            np.full((2, HIDDEN, WIDTH // 2), ones, np.uint8),
            gate_up_scales=np.full((2, 2 * WIDTH, HIDDEN // 32), 127 - 8, np.uint8),
            down_scales=np.full((2, HIDDEN, WIDTH // 32), 127 - 6, np.uint8),
        )
        for _ in range(4)
    ]
    layer = sy.MoeLayer(world, weights, weight_format="mxfp4", **SHAPE)
    assert layer.config["weight_format"] == "mxfp4" and layer.config["expert_width"] == WIDTH
    tokens = [np.ones((2, HIDDEN), BF16) for _ in range(4)]
    out = [layer.run(r, tokens[r], logits=case.logits[r][:2]) for r in range(4)]
    layer.ep.synchronize()
    # A gate and an up are 256 / 2^8; 64 of silu(1) / 2^6 are one.
    for of in out:
        np.testing.assert_allclose(of.numpy().astype(np.float64), silu(1.0), rtol=0.01)


def test_what_is_wrong_is_named(world):
    case = Layer()
    with pytest.raises(sy.InvalidArgument, match="weights has 3 elements; this process has 4 ranks"):
        sy.MoeLayer(world, case.weights[:3], **SHAPE)
    with pytest.raises(sy.InvalidArgument, match=r"gate_up has shape .*; it must be \(num_groups, 2 \* expert_width"):
        sy.MoeLayer(world, case.weights, **{**SHAPE, "expert_width": 128})
    with pytest.raises(sy.InvalidArgument, match="gate_up has dtype bfloat16; it must be float8_e4m3fn"):
        sy.MoeLayer(world, case.weights, dispatch_format="fp8", **SHAPE)
    with pytest.raises(sy.InvalidArgument, match="activation is 'relu'; it must be one of"):
        sy.MoeLayer(world, case.weights, activation="relu", **SHAPE)
    with pytest.raises(sy.InvalidArgument, match="n_experts"):
        sy.MoeLayer(world, case.weights, **{**SHAPE, "n_experts": 0})
    with pytest.raises(TypeError, match="NoneType"):
        sy.ExpertWeights(case.gate_up, None)
    codes = [np.zeros(shape, ml_dtypes.float8_e4m3fn) for shape in ((2, 2 * WIDTH, HIDDEN), (2, HIDDEN, WIDTH))]
    with pytest.raises(sy.InvalidArgument, match="gate_up_scales of rank 0 must not be null"):
        sy.MoeLayer(world, [sy.ExpertWeights(*codes)] * 4, dispatch_format="fp8", **SHAPE)
    with pytest.raises(TypeError, match="unexpected option 'width'"):
        sy.MoeLayer(world, case.weights, width=1, **SHAPE)
    with pytest.raises(TypeError, match=r"weights\[1\] is a int; it must be ExpertWeights"):
        sy.MoeLayer(world, [case.weights[0], 2, 3, 4], **SHAPE)
    layer = sy.MoeLayer(world, case.weights, **SHAPE)
    tokens, logits, ids = case.tokens[0], case.logits[0], case.ids[0]
    for wrong, error in (
        (dict(), "topk_ids is a NoneType"),
        (dict(logits=logits, topk_ids=ids), "logits must be None"),
        (dict(topk_ids=ids), "topk_weights"),
        (dict(logits=logits[:, :4]), r"logits has shape .*; it must be \(num_tokens, n_experts\)"),
        (dict(logits=logits, out=np.zeros((1, HIDDEN), BF16)), "out has shape"),
        (dict(logits=logits, scales=np.zeros((3, 2), np.float32)), "run: scales must be None"),
    ):
        with pytest.raises((sy.InvalidArgument, TypeError), match=error):
            layer.run(0, tokens, **wrong)
    for rank in (-1, 4):
        with pytest.raises(sy.InvalidArgument, match=f"rank is {rank}"):
            layer.run(rank, tokens, logits=logits)
    with pytest.raises(sy.InvalidArgument, match="flight_idx is 1"):
        layer.flight(1)
    out = [layer.run(r, case.tokens[r], logits=case.logits[r]) for r in range(4)]  # none of these began a step
    layer.ep.synchronize()
    case.check(0, out[0])
    world.close()
    with pytest.raises(sy.FailedPrecondition, match="closed"):
        layer.run(0, tokens, logits=logits)


def test_a_layer_of_other_ranks_is_made_anew(world):
    case = Layer()
    layer = sy.MoeLayer(world, case.weights, **SHAPE)
    layer.ep.reset([0, 1])
    with pytest.raises(sy.FailedPrecondition, match="create the layer anew"):
        layer.run(0, case.tokens[0], logits=case.logits[0])


def test_a_late_rank_is_named():
    case = Layer(2)
    with sy.World(n_ranks=2, target="host") as world:
        layer = sy.MoeLayer(world, case.weights, timeout=0.3, **SHAPE)
        layer.run(0, case.tokens[0], logits=case.logits[0])
        with pytest.raises(sy.DeadlineExceeded) as error:
            layer.ep.synchronize(0)
        assert error.value.late_rank == 1
        layer.ep.reset()
        out = [layer.run(r, case.tokens[r], logits=case.logits[r]) for r in range(2)]
        layer.ep.synchronize()
        case.check(1, out[1])
