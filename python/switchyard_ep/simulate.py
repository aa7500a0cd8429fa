"""Steps in the emulator's simulated mode: one core, virtual time, weak memory, and an interleaving that a seed decides.
The same seed gives the same run. (`switchyard simulate` draws more: shapes, formats, faults.)"""

from __future__ import annotations

from typing import Any, Iterable, List, NamedTuple

from . import _core
from .errors import SwitchyardError


class Failure(NamedTuple):
    """A seed that did not pass, and why."""

    seed: int
    reason: str


def simulate(
    seeds: Iterable[int], *, n_ranks: int = 4, num_tokens: int = 4, weak: bool = True, **options: Any
) -> List[Failure]:
    """Runs a step of random tokens and ids for each seed, with experts that return what they get, and returns the seeds
    whose output is not what it must be. options are those of ExpertParallel; its shape may be left out. Needs NumPy and
    ml_dtypes."""
    shape = dict(n_experts=2 * n_ranks, top_k=2, hidden=64, max_tokens_per_rank=num_tokens)
    failures = []
    for seed in seeds:
        reason = _run(seed, n_ranks, num_tokens, weak, {**shape, **options})
        if reason:
            failures.append(Failure(seed, reason))
    return failures


def _run(seed: int, n_ranks: int, num_tokens: int, weak: bool, options: dict) -> str:
    import numpy

    random = numpy.random.default_rng(seed)
    n_experts, top_k, hidden = options["n_experts"], options["top_k"], options["hidden"]
    # Kernels may touch memory of ranks only. Weights of a power of two keep the sum exact.
    world = _core.World(n_ranks, target="host", mode="simulated", seed=seed, weak=weak)
    ep = _core.ExpertParallel(world, **options)
    ranks = [world.rank(rank) for rank in range(n_ranks)]
    tokens = [random.integers(-8, 9, (num_tokens, hidden)) for _ in ranks]
    ids = [random.integers(-1, n_experts, (num_tokens, top_k)) for _ in ranks]
    inputs = [rank.array(tokens[rank.index], "bfloat16") for rank in ranks]
    topk_ids = [rank.array(ids[rank.index], "int32") for rank in ranks]
    weights = [rank.array(numpy.full((num_tokens, top_k), 0.5), "float32") for rank in ranks]
    try:
        outputs = []
        for rank in range(n_ranks):
            sent = ep.dispatch(rank, inputs[rank], topk_ids[rank])
            outputs.append(ep.combine(rank, sent.rows, topk_ids[rank], weights[rank]))
        ep.synchronize()
    except SwitchyardError as error:
        return str(error)
    for rank in range(n_ranks):
        expected = tokens[rank] * (0.5 * (ids[rank] >= 0).sum(axis=1, keepdims=True))
        if (outputs[rank].numpy().astype(numpy.float64) != expected).any():
            return f"rank {rank}: the output differs"
    return ""
