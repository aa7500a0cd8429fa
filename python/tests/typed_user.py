"""What a type checker makes of the package: scripts/python.sh runs mypy --strict over this file. A line that must be
refused says so, and a refusal that does not come is an error, too."""

from typing import Any, Callable, List

import numpy
import switchyard_ep as sy
from switchyard_ep import deep_ep


def step(world: sy.World, tokens: Any, ids: Any, out: "numpy.ndarray[Any, Any]") -> sy.Tensor:
    ep = sy.ExpertParallel(
        world, n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16, placement=[[0, 1], [2, 3]], timeout=1
    )
    sent = ep.dispatch(0, tokens, ids)
    rows: sy.Tensor = sent.rows
    given: "numpy.ndarray[Any, Any]" = ep.combine(0, rows, ids, out=out)
    assert given is out
    needed: int = sy.ExpertParallel.memory_needed(2, n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16)["total"]
    assert needed > 0
    return ep.combine(0, rows, ids)


def kernels(world: sy.World, rows: sy.Tensor, out: sy.Tensor) -> List[sy.Tensor]:
    attention = sy.Attention(
        world, 0, head_dim=64, num_heads=1, num_kv_heads=1, max_query_len=16, max_key_len=16, causal=True
    )
    matmul = sy.GroupedMatmul(world, 0, num_groups=1, inner=64, columns=64, max_rows=16)
    coded = sy.GroupedMatmul(world, 0, num_groups=1, inner=64, columns=64, max_rows=16, row_format="nvfp4")
    return [
        attention.run(rows, rows, rows),
        matmul.run(rows, rows, rows, out=out),
        coded.run(rows, rows, rows, row_scales=rows, row_tensor_scale=0.5, row_tensor_scales=rows),
    ]


def layer(rows: sy.Tensor, out: "numpy.ndarray[Any, Any]") -> sy.Tensor:
    world = sy.World(n_ranks=1, memory=(lambda size, gpu, stream: 0, lambda address, size, gpu, stream: None))
    weights = [sy.ExpertWeights(rows, rows, gate_up_bias=rows)]
    made = sy.MoeLayer(world, weights, expert_width=64, n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16)
    given: "numpy.ndarray[Any, Any]" = made.run(0, rows, logits=rows, out=out, part=made.parts[0])
    ep: sy.ExpertParallel = made.flight(1).ep
    assert given is out and ep.n_ranks == 1
    return made.run(0, rows, topk_ids=rows, topk_weights=rows)


def stand_in(buffer: deep_ep.Buffer, x: Any, ids: Any, weights: Any) -> Any:
    rows, counts, handle, event, hook = buffer.low_latency_dispatch(x, ids, 16, 8)
    receive: "Callable[[], None] | None" = hook
    assert receive is None and counts is not None
    event.current_stream_wait()
    buffer.low_latency_dispatch(x, ids, 16, 8, use_fp4=True)  # type: ignore[call-arg]
    buffer.dispatch()  # type: ignore[call-arg]
    return buffer.low_latency_combine(rows, ids, weights, handle)[0]


def must_be_refused(world: sy.World) -> None:
    sy.ExpertParallel(world, n_expert="x")  # type: ignore[call-arg]
    sy.ExpertParallel(world, n_experts="8", top_k=2, hidden=256, max_tokens_per_rank=16)  # type: ignore[arg-type]
    sy.ExpertParallel(world, n_experts=8, top_k=2, hidden=256)  # type: ignore[call-arg]
    sy.MoeLayer(world, [], n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16)  # type: ignore[call-arg]
    ep = sy.ExpertParallel(world, n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16)
    ep.combine("0", None)  # type: ignore[call-overload]
    number: int = ep.combine(0, None)  # type: ignore[assignment]
    assert number
