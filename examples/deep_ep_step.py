"""DeepEP's calls over Switchyard: two processes, a dispatch and a combine. A program of DeepEP's differs in its first import,
and in that its arrays are tensors on a GPU."""

import multiprocessing

import ml_dtypes
import numpy as np

import switchyard_ep.deep_ep as deep_ep

RANKS, EXPERTS, TOP_K, HIDDEN, TOKENS = 2, 8, 2, 256, 16


class Group:
    """Two processes that can tell each other bytes; a process group of torch.distributed serves as well."""

    def __init__(self, rank, pipe):
        self.rank, self.size, self._pipe = lambda: rank, lambda: RANKS, pipe

    def all_gather(self, mine):
        self._pipe.send(mine)
        other = self._pipe.recv()
        return [mine, other] if self.rank() == 0 else [other, mine]


def run_rank(rank, pipe):
    random = np.random.default_rng(rank)
    x = random.standard_normal((TOKENS, HIDDEN)).astype(ml_dtypes.bfloat16)
    topk_idx = np.argsort(random.random((TOKENS, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int64)
    topk_weights = np.full((TOKENS, TOP_K), 0.5, np.float32)

    buffer = deep_ep.Buffer(Group(rank, pipe), target="host")
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, EXPERTS)
    received, ids, weights, counts, handle, _ = buffer.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=topk_idx,
        topk_weights=topk_weights,
    )
    # Experts that return what they get: a row times the weights of its experts on this rank.
    rows = (received.astype(np.float32) * weights.sum(axis=1, keepdims=True)).astype(ml_dtypes.bfloat16)
    combined, _, _ = buffer.combine(rows, handle)
    np.testing.assert_array_equal(combined, x)
    print(f"rank {rank}: {len(received)} tokens received, {counts} for each expert; all came back: right")
    buffer.destroy()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=run_rank, args=(rank, end)) for rank, end in enumerate(context.Pipe())]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(1)
