"""The adapters over tensors on a GPU: ranks of one process, each on a stream of its own, and a step in torch.cuda.graph."""

import pytest

import switchyard_ep as sy
from libraries import InTorch
from switchyard_ep.vllm import Exchange, PrepareAndFinalize
from test_vllm import FORMATS, FP8, PLAIN, SHAPE, Tokens, factor_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and sy.has_cuda()), reason="no GPU, or built without the CUDA target"
)


def run_experts(adapter, prepared):
    """The experts of a rank, on its stream."""
    rows, scales, _, ids, _ = prepared
    values = rows.float() if scales is None else rows.float() * scales.repeat_interleave(128, dim=-1)
    if ids is None:
        held = torch.tensor(adapter.exchange.local_expert_ids, device="cuda")
        return (values * factor_of(held.float())[:, None, None]).bfloat16()
    return (values * torch.where(ids >= 0, factor_of(ids.float()), torch.zeros_like(ids).float())).bfloat16()


def on_gpu(tokens):
    library = InTorch()
    return [library.array(values).cuda() for values in (tokens.x, tokens.weights, tokens.ids)]


@pytest.mark.parametrize("dispatch_format", ["bf16", "fp8"])
@pytest.mark.parametrize("activation_format", FORMATS)
def test_a_step_of_ranks_on_one_gpu(activation_format, dispatch_format, n_ranks=4):
    with sy.World(n_ranks=n_ranks, target="cuda", num_gpus=1) as world:
        exchange = Exchange(
            world, **SHAPE, activation_format=activation_format, dispatch_format=dispatch_format, num_microbatches=2
        )
        adapters = [PrepareAndFinalize(exchange.of_rank(rank)) for rank in range(n_ranks)]
        every, streams = [Tokens(rank) for rank in range(n_ranks)], [torch.cuda.Stream() for _ in range(n_ranks)]
        inputs = [on_gpu(tokens) for tokens in every]
        outputs = [torch.empty_like(arrays[0]) for arrays in inputs]
        torch.cuda.synchronize()
        quant_config = FP8 if dispatch_format == "fp8" else PLAIN
        begun, ended = [], []
        for adapter, arrays, stream in zip(adapters, inputs, streams):
            with torch.cuda.stream(stream):
                begun.append(adapter.prepare_async(*arrays, SHAPE["n_experts"], None, False, quant_config, False))
        for adapter, arrays, stream, output, (hook, receiver) in zip(adapters, inputs, streams, outputs, begun):
            with torch.cuda.stream(stream):
                hook()
                prepared = receiver()
                weights, ids = (arrays[1], arrays[2]) if prepared[3] is None else (prepared[4], prepared[3])
                rows = run_experts(adapter, prepared)
                ended.append(adapter.finalize_async(output, rows, weights, ids, False, None))
        for stream, (hook, _) in zip(streams, ended):
            with torch.cuda.stream(stream):
                hook()
        torch.cuda.synchronize()
        for adapter, tokens, output in zip(adapters, every, outputs):
            adapter.exchange.poll()
            tokens.check(InTorch().numpy(output.cpu()), 0.3 if dispatch_format == "fp8" else 0.02)
        del exchange, adapters, begun, ended, prepared, rows, hook, receiver


@pytest.mark.parametrize("activation_format", FORMATS)
def test_a_step_is_captured(activation_format):
    tokens = Tokens(0)
    with sy.World(n_ranks=1, target="cuda", num_gpus=1) as world:
        adapter = PrepareAndFinalize(Exchange(world, **SHAPE, activation_format=activation_format))
        arrays = on_gpu(tokens)
        output = torch.zeros_like(arrays[0])
        held = factor_of(torch.arange(SHAPE["n_experts"], device="cuda").float())

        def run():
            rows, _, _, ids, weights = adapter.prepare(*arrays, SHAPE["n_experts"], None, False, PLAIN, False)
            if ids is None:
                made, weights, ids = rows.float() * held[:, None, None], arrays[1], arrays[2]
            else:
                made = rows.float() * held[ids.long().clamp(min=0)]
            adapter.finalize(output, made.bfloat16(), weights, ids, False, None)

        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for _ in range(3):
            output.zero_()
            graph.replay()
            torch.cuda.synchronize()
            adapter.exchange.poll()
            tokens.check(InTorch().numpy(output.cpu()))
        del graph, adapter
