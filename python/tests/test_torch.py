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


class Experts:
    """A layer of eight experts of width 64, and what it makes of tokens in plain PyTorch."""

    def __init__(self, world, device, **options):
        torch.manual_seed(1)
        self.gate_up = (torch.randn(8, 128, 256, device=device) / 16).bfloat16()
        self.down = (torch.randn(8, 256, 64, device=device) / 8).bfloat16()
        weights = sy.ExpertWeights(self.gate_up, self.down)
        self.layer = sy_torch.MoeLayer(world, weights, expert_width=64, **SHAPE, **options)
        self.logits = torch.randn(16, 8, device=device)

    def expected(self, tokens):
        chosen, ids = self.logits[: len(tokens)].topk(2)
        gates, ups = torch.einsum("th,ech->tec", tokens.float(), self.gate_up.float()).chunk(2, -1)
        all_outputs = torch.einsum("tew,ehw->teh", torch.nn.functional.silu(gates) * ups, self.down.float())
        return torch.einsum("tk,tkh->th", chosen.softmax(-1), all_outputs.take_along_dim(ids[..., None], 1))

    def check(self, output, tokens):
        expected = self.expected(tokens)
        assert ((output.float() - expected).norm(dim=-1) <= 0.01 * expected.norm(dim=-1)).all()


def test_a_layer_is_one_call(world, device):
    given, experts = Tokens(device), Experts(world, device)
    tokens, logits = given.tokens[:9], experts.logits[:9]
    for _ in range(2):
        output = experts.layer(tokens, logits)
        experts.layer.synchronize()
        experts.check(output, tokens)
    chosen, ids = logits.topk(2)
    output = experts.layer(tokens, topk_ids=ids, topk_weights=chosen.softmax(-1))
    experts.layer.poll()
    experts.layer.synchronize()
    experts.check(output, tokens)
    assert experts.layer(tokens[:0], logits[:0]).shape == (0, 256)
    with pytest.raises(sy.InvalidArgument, match="logits has dtype bfloat16"):
        experts.layer(tokens, logits.bfloat16())


def test_torch_compile_traces_a_layer(world, device):
    given, experts = Tokens(device), Experts(world, device)
    compiled = torch.compile(lambda *given: experts.layer(*given) * 2, fullgraph=True, backend="aot_eager")
    output = compiled(given.tokens, experts.logits)
    experts.layer.synchronize()
    experts.check(output / 2, given.tokens)


def test_torch_compile_traces_a_layer_for_any_number_of_tokens(world, device):
    given, experts = Tokens(device), Experts(world, device)
    compiled = torch.compile(lambda *given: experts.layer(*given) * 2, fullgraph=True, backend="aot_eager", dynamic=True)
    for num_tokens in (3, 16, 7):
        output = compiled(given.tokens[:num_tokens], experts.logits[:num_tokens])
        experts.layer.synchronize()
        experts.check(output / 2, given.tokens[:num_tokens])


def test_the_operator_of_a_layer_is_what_its_schema_says(world, device):
    given, experts = Tokens(device), Experts(world, device)
    layer = experts.layer
    arguments = (layer._state, layer._name, given.tokens, experts.logits, None, None, None)
    checks = torch.library.opcheck(torch.ops.switchyard.moe_layer.default, arguments)
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_a_graph_of_pytorch_replays_a_layer():
    with sy.World(n_ranks=1, target="cuda") as world:
        given, experts = Tokens("cuda"), Experts(world, "cuda")
        experts.layer(given.tokens, experts.logits)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = experts.layer(given.tokens, experts.logits)
        for _ in range(100):
            given.tokens.copy_(torch.randn(16, 256, device="cuda").bfloat16())
            output.zero_()
            graph.replay()
            torch.cuda.synchronize()
            experts.check(output, given.tokens)
        experts.layer.poll()


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
