"""PyTorch's operators: CPU tensors on the host target, and, where there is a GPU, its streams and graphs."""

import time

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import switchyard_ep as sy  # noqa: E402
import switchyard_ep.torch as sy_torch  # noqa: E402

SHAPE = dict(n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16)
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and sy.has_cuda() else [])


class Tokens:
    def __init__(self, device, num_tokens=16, id_dtype=torch.int32):
        torch.manual_seed(0)
        self.tokens = torch.randn(num_tokens, 256, device=device).bfloat16()
        self.ids = torch.rand(num_tokens, 8, device=device).topk(2).indices.to(id_dtype)
        self.weights = torch.full((num_tokens, 2), 0.5, device=device)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def world(device):
    with sy.World(n_ranks=1, target="host" if device == "cpu" else "cuda") as world:
        yield world


@pytest.fixture(params=["direct", "slotted"])
def layer(request, world):
    return sy_torch.ExpertParallel(world, protocol=request.param, **SHAPE)


def step(layer, tokens, ids, weights):
    sent = layer.dispatch(tokens, ids)
    return layer.combine(sent.rows, ids, weights)


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_a_step_returns_what_went_in(layer, device, id_dtype):
    given = Tokens(device, id_dtype=id_dtype)
    output = step(layer, given.tokens, given.ids, given.weights)
    layer.synchronize()
    layer.poll()
    assert torch.equal(output, given.tokens) and output.device.type == device


def test_too_few_rows_are_refused(layer, device):
    given = Tokens(device)
    for _ in range(2):
        layer.combine(layer.dispatch(given.tokens, given.ids).rows * 2, given.ids, given.weights)
    layer.dispatch(given.tokens, given.ids)
    with pytest.raises(sy.InvalidArgument, match="expert_rows has 3 rows|rows of rank 0 end at row 3"):
        layer.combine(torch.zeros(3, 256, device=device).bfloat16(), given.ids, given.weights)
        layer.synchronize()


def test_other_memory_is_copied_where_the_protocol_needs_it(layer, device):
    given = Tokens(device)
    sent = layer.dispatch(given.tokens, given.ids)
    counts = sent.row_counts.tolist()
    assert sum(counts) == 32 and sent.row_offsets.tolist()[0] == 0
    output = layer.combine(sent.rows * 2, given.ids, given.weights)
    layer.synchronize()
    assert torch.equal(output, given.tokens * 2)


def test_masked_rows_elsewhere_are_copied_group_by_group(world, device):
    layer = sy_torch.ExpertParallel(world, protocol="direct", row_layout="masked", **SHAPE)
    given = Tokens(device)
    for shape in ((-1, 256), (8, -1, 256)):
        rows = layer.dispatch(given.tokens, given.ids).rows * 2
        output = layer.combine(rows.reshape(shape), given.ids, given.weights)
        layer.synchronize()
        assert torch.equal(output, given.tokens * 2)


def test_an_operator_that_is_passed_copies_fills_them(layer, device):
    given = Tokens(device)
    copies = [part.clone() for part in layer._memory]
    name = layer._name
    torch.ops.switchyard.dispatch.default(layer._state, *copies, name, given.tokens, given.ids, None, None)
    output = torch.ops.switchyard.combine.default(layer._state, name, copies[0], given.ids, given.weights)
    layer.synchronize()
    assert torch.equal(output, given.tokens)
    assert torch.equal(copies[2], layer._memory[2]) and copies[2].sum() == 32


def test_torch_compile_traces_the_operators(layer, device):
    given = Tokens(device)
    compiled = torch.compile(lambda *given: step(layer, *given) + 1, fullgraph=True, backend="aot_eager")
    output = compiled(given.tokens, given.ids, given.weights)
    layer.synchronize()
    assert torch.equal(output, given.tokens + 1)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_a_graph_of_pytorch_replays_bit_equal():
    with sy.World(n_ranks=1, target="cuda") as world:
        layer = sy_torch.ExpertParallel(world, **SHAPE)
        given = Tokens("cuda")
        step(layer, given.tokens, given.ids, given.weights)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = step(layer, given.tokens, given.ids, given.weights)
        for seed in range(1000):
            if seed % 100 == 0:
                given.tokens.copy_(torch.randn(16, 256, device="cuda").bfloat16())
            graph.replay()
        torch.cuda.synchronize()
        layer.poll()
        assert torch.equal(output, given.tokens)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_calls_enqueue_in_microseconds(capsys):
    with sy.World(n_ranks=1, target="cuda") as world:
        layer = sy_torch.ExpertParallel(world, **SHAPE)
        given, stream = Tokens("cuda"), torch.cuda.current_stream().cuda_stream
        out = torch.empty_like(given.tokens)

        def bare():
            layer.ep.dispatch(0, given.tokens, given.ids, stream=stream)
            layer.ep.combine(0, layer.memory.rows, given.ids, given.weights, out=out, stream=stream)

        times = {}
        for name, call in (("bare", bare), ("operators", lambda: step(layer, given.tokens, given.ids, given.weights))):
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                call()
            times[name] = (time.perf_counter() - start) / 200 * 1e6
            torch.cuda.synchronize()
        with capsys.disabled():
            print("\nmicroseconds of a call:", {name: round(value, 1) for name, value in times.items()})
        assert times["bare"] < 100
