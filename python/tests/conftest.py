"""What the tests share: a world, and steps whose experts return what they get."""

import signal

import ml_dtypes
import numpy as np
import pytest

import switchyard_ep as sy

BF16 = ml_dtypes.bfloat16
SHAPE = dict(n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16)

# A shell starts what runs in the background with Ctrl-C ignored, and Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Step:
    """Random tokens of every rank, each for two experts of weight a half."""

    def __init__(self, n_ranks=4, num_tokens=16, seed=0):
        random = np.random.default_rng(seed)
        self.tokens = [random.standard_normal((num_tokens, 256)).astype(BF16) for _ in range(n_ranks)]
        self.topk_ids = [random.integers(0, 8, (num_tokens, 2), dtype=np.int32) for _ in range(n_ranks)]
        self.weights = [np.full((num_tokens, 2), 0.5, np.float32) for _ in range(n_ranks)]

    def run(self, ep):
        """A step of all ranks, from this thread. Returns what combine returns."""
        ranks = range(len(self.tokens))
        sent = [ep.dispatch(r, self.tokens[r], self.topk_ids[r]) for r in ranks]
        return [ep.combine(r, sent[r].rows, self.topk_ids[r], self.weights[r]) for r in ranks]


@pytest.fixture
def world():
    with sy.World(n_ranks=4, target="host") as world:
        yield world


@pytest.fixture
def ep(world):
    return sy.ExpertParallel(world, **SHAPE)


@pytest.fixture
def step():
    return Step()
