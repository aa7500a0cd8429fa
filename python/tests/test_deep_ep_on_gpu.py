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


def is_lent(exchange, rows):
    """Whether the others have opened what the rows lie in, of an open step."""
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
    exchange = buffer._used[-1]
    exchange.reopen(torch.cuda.current_stream().cuda_stream)  # all ranks do
    assert all(is_lent(exchange, one) for one in held)
    # Rows of which only a part is given are copied, and so are those of a rank that may not lend.
    assert torch.equal(buffer.combine(rows[: len(rows)], handle)[0], expected.bfloat16())
    buffer.opens_memory = group.rank() > 0
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
    """Rows of which each combine must have read all when it ends. Rank 0 has its sums long before rank 1 has read."""
    rank, n_ranks = group.rank(), group.size()
    num_experts, num_tokens, most = 4 * n_ranks, (1, 512, 0)[rank], 512
    torch.manual_seed(rank)
    buffer = deep_ep.Buffer(group, low_latency_mode=True)
    x = torch.randn(num_tokens, HIDDEN, device="cuda").bfloat16()
    ids = torch.rand(num_tokens, num_experts, device="cuda").topk(TOP_K, -1).indices
    weights = torch.full((num_tokens, TOP_K), 1.0, device="cuda")
    expected = x.float() * TOP_K
    held = torch.empty(4, n_ranks * most, HIDDEN, dtype=torch.bfloat16, device="cuda")
    used = []
    for i in range(24):
        rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, most, num_experts, use_fp8=False)
        is_mixed, has_hook, has_out = i % 8 == 7, i % 5 == 4, i % 8 == 5
        scale = 1 if is_mixed else 2 ** (i % 3)
        torch.mul(rows, scale, out=held)
        # A rank decides for itself where its rows are.
        given, zero_copy = rows if is_mixed and rank else held, i % 8 == 3 and rank == 0
        if zero_copy:
            given = buffer.get_next_low_latency_combine_buffer(handle)
            given.copy_(held)
        output, event, hook = buffer.low_latency_combine(
            given,
            ids,
            weights,
            handle,
            zero_copy=zero_copy,
            async_finish=i % 4 == 0,
            return_recv_hook=has_hook,
            out=given[-1, :num_tokens] if has_out else None,
        )
        event.current_stream_wait()
        if not has_hook and not has_out:
            given.zero_()
        if hook is not None:
            held.zero_()  # it was copied, unlike what the dispatch returned and the combine buffer
            hook()
        torch.cuda.synchronize()
        assert torch.equal(output, (expected * scale).bfloat16()), i
        used.append(handle.exchange)
    for exchange in used[-2:]:
        exchange.reopen(torch.cuda.current_stream().cuda_stream)  # all ranks do
        assert is_lent(exchange, held.view(-1, HIDDEN))
    buffer.destroy()


def test_low_latency_rows_are_read_where_they_are():
    run(combine_low_latency, 3)
