"""Combines of the stand-in for DeepEP over memory of PyTorch's that processes on one GPU open of each other."""

import pytest

import switchyard_ep as sy
from processes import run
from switchyard_ep import deep_ep

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and sy.has_cuda()), reason="no GPU, or built without the CUDA target"
)
RANKS, TOKENS, EXPERTS, TOP_K, HIDDEN = 2, 64, 8, 3, 1024


def begin(group):
    """A buffer with a dispatch, and what its combine of unchanged rows returns."""
    torch.manual_seed(group.rank())
    deep_ep.Buffer.num_sms = 8
    buffer = deep_ep.Buffer(group)
    x = torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(TOKENS, EXPERTS, device="cuda").topk(TOP_K, -1).indices
    layout = buffer.get_dispatch_layout(ids, EXPERTS)
    weights = torch.rand(TOKENS, TOP_K, device="cuda")
    arrays = dict(num_tokens_per_rank=layout[0], is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])
    rows, _, _, _, handle, _ = buffer.dispatch(x, topk_idx=ids, topk_weights=weights, **arrays)
    return buffer, rows.clone(), handle, x.float() * layout[3].sum(1, keepdim=True)


def is_lent(buffer, rows):
    """Whether the others have opened what the rows lie in."""
    exchange = buffer._used[-1]
    return exchange.ep.offer_expert_rows(exchange.rank, rows, is_whole=True, stream="current")


def combine_the_callers_memory(group):
    buffer, rows, handle, expected = begin(group)
    held = [rows, rows * 2, rows * 4]  # of three allocations, or one, as PyTorch likes
    for i in range(24):
        scale = 2 ** (i % 3)
        # What is written behind a combine, peers must not read in it.
        given = held[i % 3].clone() if i % 2 else held[i % 3]
        output = buffer.combine(given, handle, async_finish=i % 4 == 0)
        output[2].current_stream_wait()
        if given is not held[i % 3]:
            given.zero_()
        assert torch.equal(output[0], (expected * scale).bfloat16()), i
    assert all(is_lent(buffer, one) for one in held)
    # Rows of which only a part is given are copied, and so are those of a rank that may not lend.
    assert torch.equal(buffer.combine(rows[: len(rows)], handle)[0], expected.bfloat16())
    buffer.opens_memory = False
    assert torch.equal(buffer.combine(rows, handle)[0], expected.bfloat16())
    buffer.destroy()


def capture_a_combine(group):
    buffer, rows, handle, expected = begin(group)
    for _ in range(3):
        buffer.combine(rows, handle)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = buffer.combine(rows, handle)[0]
    for scale in (1, 2, 4):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(output, (expected * scale).bfloat16()), scale
        rows *= 2
        torch.cuda.synchronize()
    del graph
    buffer.destroy()


def combine_what_cannot_be_opened(group):
    buffer, rows, handle, expected = begin(group)
    for scale in (1, 2, 4, 8):
        assert torch.equal(buffer.combine(rows * scale, handle)[0], (expected * scale).bfloat16()), scale
    buffer.destroy()


def test_rows_in_other_memory_are_copied(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    run(combine_what_cannot_be_opened, RANKS)


@pytest.mark.parametrize("function", [combine_the_callers_memory, capture_a_combine])
def test_rows_are_read_where_they_are(function):
    run(function, RANKS)


def combine_low_latency(group):
    """Rows of the caller's own memory, of which each combine must have read all when it ends."""
    torch.manual_seed(group.rank())
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    x = torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(TOKENS, EXPERTS, device="cuda").topk(TOP_K, -1).indices
    weights = torch.full((TOKENS, TOP_K), 1.0, device="cuda")
    expected = x.float() * TOP_K
    held = torch.empty(EXPERTS // RANKS, RANKS * TOKENS, HIDDEN, dtype=torch.bfloat16, device="cuda")
    used = []
    for i in range(24):
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, TOKENS, EXPERTS, use_fp8=False)
        is_mixed = i % 8 == 7
        scale = 1 if is_mixed else 2 ** (i % 3)
        torch.mul(rows, scale, out=held)
        given = rows if is_mixed and group.rank() else held  # a rank may give what the dispatch returned
        output, _, hook = buffer.low_latency_combine(
            given, ids, weights, handle, async_finish=i % 4 == 0, return_recv_hook=i % 5 == 4
        )
        if i % 5 != 4 and i % 4:  # with a hook the rows were copied, and stay where peers look for them
            held.zero_()
        if hook is not None:
            held.zero_()
            hook()
        torch.cuda.synchronize()
        assert torch.equal(output, (expected * scale).bfloat16()), i
        used.append(handle.exchange)
    assert all(
        one.ep.offer_expert_rows(one.rank, held.view(-1, HIDDEN), is_whole=True, stream="current") for one in used[-2:]
    )
    buffer.destroy()


def test_low_latency_rows_are_read_where_they_are():
    run(combine_low_latency, RANKS)
