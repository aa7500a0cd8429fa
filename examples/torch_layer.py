"""A mixture-of-experts layer of PyTorch over two processes: router, dispatch, experts, combine. The processes have GPUs, or the
CPU where there is none."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

import switchyard_ep as sy
import switchyard_ep.torch as sy_torch

RANKS, EXPERTS, TOP_K, HIDDEN, INNER, TOKENS = 2, 8, 2, 256, 128, 16
NUM_LOCAL = EXPERTS // RANKS


class Layer(nn.Module):
    """Every rank has the router and its own experts."""

    def __init__(self, world, rank):
        super().__init__()
        torch.manual_seed(0)  # the same numbers on all ranks, so that each can check the others' work
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / HIDDEN**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) / INNER**0.5)
        self.to(torch.bfloat16)
        self.own = slice(NUM_LOCAL * rank, NUM_LOCAL * (rank + 1))
        # Room for every token at each expert, so that the experts are one batch of matmuls.
        self.exchange = sy_torch.ExpertParallel(
            world,
            n_experts=EXPERTS,
            top_k=TOP_K,
            hidden=HIDDEN,
            max_tokens_per_rank=TOKENS,
            row_layout="masked",
            protocol="direct",
        )

    def route(self, tokens):
        weights, ids = self.router(tokens).float().softmax(-1).topk(TOP_K)
        return ids, weights / weights.sum(-1, keepdim=True)

    def experts(self, rows, which):
        return torch.relu(rows @ self.up[which]) @ self.down[which]

    def forward(self, tokens):
        ids, weights = self.route(tokens)
        sent = self.exchange.dispatch(tokens, ids)
        rows = sent.rows.view(NUM_LOCAL, -1, HIDDEN)  # of which each expert has the first sent.row_counts
        outputs = self.experts(rows, self.own)
        return self.exchange.combine(outputs.view(-1, HIDDEN), ids, weights)

    def reference(self, tokens):
        """All experts here, for all tokens."""
        ids, weights = self.route(tokens)
        every = self.experts(tokens.expand(EXPERTS, *tokens.shape), slice(None)).float()
        chosen = every[ids, torch.arange(len(tokens), device=tokens.device)[:, None]]
        return (chosen * weights[..., None]).sum(1)


@torch.no_grad()
def run_rank(rank, store):
    device = "cpu"
    if torch.cuda.is_available() and sy.has_cuda():
        torch.cuda.set_device(rank % torch.cuda.device_count())
        device = "cuda"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    world = sy.World.from_process_group(dist.group.WORLD)
    with torch.device(device):
        layer = Layer(world, rank)
        torch.manual_seed(1 + rank)
        tokens = torch.randn(TOKENS, HIDDEN).bfloat16()
    output = layer(tokens)
    layer.exchange.synchronize()
    torch.testing.assert_close(output.float(), layer.reference(tokens), rtol=0.05, atol=0.05)
    print(f"rank {rank}: {TOKENS} tokens on {device} through {EXPERTS} experts: right", flush=True)
    world.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run_rank, args=(os.path.join(folder, "store"),), nprocs=RANKS)
