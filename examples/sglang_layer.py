"""A layer of experts behind SGLang's token dispatcher, without SGLang: two processes, a batch with prompts in normal mode and one
of decoding in low latency. The experts multiply by their number plus one, so that it is easy to say what must come out."""

import multiprocessing
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from switchyard_ep import sglang

RANKS, EXPERTS, TOP_K, HIDDEN = 2, 4, 2, 256
NUM_LOCAL = EXPERTS // RANKS
BF16 = ml_dtypes.bfloat16


class Group:
    """Two processes that can tell each other bytes; a process group of torch.distributed serves as well."""

    def __init__(self, rank, pipe):
        self.rank, self.size, self._pipe = lambda: rank, lambda: RANKS, pipe

    def all_gather(self, mine):
        self._pipe.send(mine)
        other = self._pipe.recv()
        return [mine, other] if self.rank() == 0 else [other, mine]


def run_experts(rank, received):
    """The input of combine, for what dispatch has returned in either mode."""
    rows, first = received.hidden_states.astype(np.float32), NUM_LOCAL * rank
    if received.format.is_deepep_ll():  # (local experts, rows of each, hidden), of which each expert has masked_m
        factors = np.arange(first, first + NUM_LOCAL)[:, None, None] + 1
        kind = sglang.LowLatencyCombineInput
    else:  # a row for each token; its experts' outputs are weighted and added up here
        factors = np.where(received.topk_ids >= 0, received.topk_weights * (first + received.topk_ids + 1), 0)
        factors = factors.sum(axis=1, keepdims=True)
        kind = sglang.NormalCombineInput
    return kind((rows * factors).astype(BF16), received.topk_ids, received.topk_weights)


def run_rank(rank, pipe):
    random, group, has_prompts = np.random.default_rng(rank), Group(rank, pipe), True
    dispatcher = sglang.Dispatcher(
        group,
        router_topk=TOP_K,
        num_experts=EXPERTS,
        hidden_size=HIDDEN,
        deepep_mode="auto",
        num_max_dispatch_tokens_per_rank=8,
        is_extend_in_batch=lambda: has_prompts,  # which SGLang says itself where it is there
    )
    for has_prompts, num_tokens in ((True, 40), (False, 8)):
        tokens = random.standard_normal((num_tokens, HIDDEN)).astype(BF16)
        ids = np.argsort(random.random((num_tokens, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int32)
        weights = np.full((num_tokens, TOP_K), 0.5, np.float32)
        received = dispatcher.dispatch(tokens, SimpleNamespace(topk_ids=ids, topk_weights=weights))
        combined = dispatcher.combine(run_experts(rank, received))
        expected = tokens.astype(np.float32) * (0.5 * (ids + 1)).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(combined.astype(np.float32), expected, rtol=0.02, atol=0.02)
        print(f"rank {rank}: {num_tokens} tokens, {received.format.value}: right", flush=True)
    sglang.release(group)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=run_rank, args=(rank, end)) for rank, end in enumerate(context.Pipe())]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(1)
