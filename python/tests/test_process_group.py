"""Worlds from process groups of torch.distributed: the operators, and deep_ep with a rank that is masked. CPU tensors and
gloo, a process for each rank."""

import os

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import switchyard_ep as sy  # noqa: E402
from switchyard_ep import deep_ep  # noqa: E402

RANKS, HIDDEN, TOKENS = 3, 256, 8


def run_operators(rank, group):
    import switchyard_ep.torch as sy_torch

    world = sy.World.from_process_group(group, target="host")
    assert (world.n_ranks, world.local_ranks, world.transport) == (RANKS, [rank], "process")
    layer = sy_torch.ExpertParallel(world, n_experts=6, top_k=2, hidden=HIDDEN, max_tokens_per_rank=TOKENS)
    tokens, ids = torch.randn(TOKENS, HIDDEN).bfloat16(), torch.rand(TOKENS, 6).topk(2).indices
    output = layer.combine(layer.dispatch(tokens, ids).rows, ids, torch.full((TOKENS, 2), 0.5))
    assert torch.equal(output, tokens)


def low_latency_step(buffer, tokens, ids, masked):
    stats = torch.full((RANKS,), 5)
    rows, counts, handle, _, _ = buffer.low_latency_dispatch(
        tokens, ids, TOKENS, 6, use_fp8=False, dispatch_wait_recv_cost_stats=stats
    )
    # A call that is made again counts once, and ranks that are masked are not waited for.
    assert stats[masked].tolist() == [5] * len(masked) and stats[buffer.rank] == 5
    assert all(5 <= wait_ns < 60e9 for wait_ns in stats.tolist())
    status = torch.zeros(RANKS, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.nonzero().flatten().tolist() == masked
    assert (handle[1] & 0xFFFFFFFF).sum().item() == counts.sum().item()
    assert not handle[1][:, masked].any()
    return rows, handle


def combine(buffer, tokens, ids, rows, handle, masked):
    weights = torch.ones(TOKENS, 2)
    stats = torch.full((RANKS,), 5)
    output, _, _ = buffer.low_latency_combine(
        rows.clone(), ids, weights, handle, combine_wait_recv_cost_stats=stats
    )
    assert stats[masked].tolist() == [5] * len(masked) and stats[buffer.rank] == 5
    alive = torch.tensor([[rank not in masked for rank in row] for row in (ids // 2).tolist()])
    assert torch.equal(output, (tokens.float() * alive.sum(1, keepdim=True)).bfloat16())


def first_step(rank, group):
    """A buffer whose ranks can be masked, behind a step of all of them."""
    deep_ep.Buffer.shrink_timeout = 1.0
    buffer = deep_ep.Buffer(group, low_latency_mode=True, enable_shrink=True, target="host")
    torch.manual_seed(rank)
    tokens, ids = torch.randn(TOKENS, HIDDEN).bfloat16(), torch.rand(TOKENS, 6).topk(2).indices
    rows, handle = low_latency_step(buffer, tokens, ids, [])
    combine(buffer, tokens, ids, rows, handle, [])
    return buffer, tokens, ids


# Rank 1 stays away from the second dispatch on; rank 2 from the combine behind it.
def run_masks(rank, group):
    buffer, tokens, ids = first_step(rank, group)
    if rank == 1:
        return
    rows, handle = low_latency_step(buffer, tokens, ids, [1])
    if rank == 2:
        return
    combine(buffer, tokens, ids, rows, handle, [1, 2])
    buffer.get_next_low_latency_combine_buffer(handle)[:] = rows
    output, _, _ = buffer.low_latency_combine(rows, ids, torch.ones(TOKENS, 2), handle, zero_copy=True)
    assert torch.equal(output, (tokens.float() * (ids // 2 == 0).sum(1, keepdim=True)).bfloat16())


# The others go on without rank 1, and then with it again.
def run_way_back(rank, group):
    buffer, tokens, ids = first_step(rank, group)
    if rank == 1:
        with pytest.raises(sy.errors.Unavailable, match="rank 1 has been masked"):
            buffer.low_latency_dispatch(tokens, ids, TOKENS, 6, use_fp8=False)
    else:
        buffer.low_latency_update_mask_buffer(1, True)
        rows, handle = low_latency_step(buffer, tokens, ids, [1])
        combine(buffer, tokens, ids, rows, handle, [1])
    buffer.low_latency_update_mask_buffer(1, False)
    for _ in range(2):
        rows, handle = low_latency_step(buffer, tokens, ids, [])
        combine(buffer, tokens, ids, rows, handle, [])
    with pytest.raises(ValueError, match="rank_to_mask is 7"):
        buffer.low_latency_update_mask_buffer(7, True)


def work(rank, port):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    run_operators(rank, dist.group.WORLD)
    run_way_back(rank, dist.group.WORLD)
    run_masks(rank, dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()


def test_a_world_of_a_process_group_and_masked_ranks():
    torch.multiprocessing.spawn(work, args=(20000 + os.getpid() % 20000,), nprocs=RANKS)
