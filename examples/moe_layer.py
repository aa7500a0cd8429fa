"""A whole layer over two processes, as an engine runs it: each process has a rank, its experts' weights and its tokens,
and a step is one call. A rank that does not come is named by the other."""

import multiprocessing
import os

import ml_dtypes
import numpy as np

import switchyard_ep as sy

RANKS, EXPERTS, TOP_K, HIDDEN, WIDTH, TOKENS = 2, 8, 2, 256, 64, 16
RENDEZVOUS = f"unix:@moe-layer-{os.getpid()}"


def weights_of(expert):
    random = np.random.default_rng(expert)
    gate_up = random.standard_normal((2 * WIDTH, HIDDEN)) / HIDDEN**0.5
    down = random.standard_normal((HIDDEN, WIDTH)) / WIDTH**0.5
    return gate_up.astype(ml_dtypes.bfloat16), down.astype(ml_dtypes.bfloat16)


def expected(token, logits):
    """The same in NumPy, from the weights of all experts."""
    chosen = np.argsort(-logits)[:TOP_K]
    shares = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
    output = np.zeros(HIDDEN)
    for expert, share in zip(chosen, shares):
        gate_up, down = (of.astype(np.float64) for of in weights_of(expert))
        gate, up = np.split(gate_up @ token, 2)
        output += share * (down @ (gate / (1 + np.exp(-gate)) * up))
    return output


def run(rank, rendezvous):
    world = sy.World.join(rank, RANKS, rendezvous=rendezvous, target="host")
    mine = [weights_of(expert) for expert in range(rank * EXPERTS // RANKS, (rank + 1) * EXPERTS // RANKS)]
    weights = sy.ExpertWeights(*(np.stack(of) for of in zip(*mine)))
    sizes = dict(n_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, max_tokens_per_rank=TOKENS)
    layer = sy.MoeLayer(world, [weights], expert_width=WIDTH, timeout=1.0, **sizes)

    random = np.random.default_rng(100 + rank)
    tokens = random.standard_normal((TOKENS, HIDDEN)).astype(ml_dtypes.bfloat16)
    logits = random.standard_normal((TOKENS, EXPERTS)).astype(np.float32)
    output = layer.run(rank, tokens, logits=logits)
    layer.ep.synchronize(rank)
    for row, token, of_token in zip(output.numpy(), tokens, logits):
        right = expected(token.astype(np.float64), of_token)
        assert np.linalg.norm(row.astype(np.float64) - right) <= 0.01 * np.linalg.norm(right)

    if rank == 0:  # the other rank takes no part in this step
        layer.run(rank, tokens, logits=logits)
        try:
            layer.ep.synchronize(rank)
        except sy.DeadlineExceeded as error:
            print(f"rank {rank}: right; then rank {error.late_rank} was {error.elapsed:.0f} s late in {error.phase}")
    world.all_gather(b"")  # no process leaves before the others


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=run, args=(rank, RENDEZVOUS)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(any(process.exitcode for process in processes))
