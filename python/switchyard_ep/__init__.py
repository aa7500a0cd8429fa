"""Switchyard: expert-parallel dispatch and combine, attention and grouped matmul, on GPUs and on any CPU.

    import switchyard_ep as sy

    world = sy.World(n_ranks=4)
    ep = sy.ExpertParallel(world, n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16)
    sent = ep.dispatch(rank, tokens, topk_ids)
    output = ep.combine(rank, sent.rows, topk_ids, topk_weights)
    ep.synchronize()

docs/python.md says more.
"""

import atexit as _atexit

from ._core import (
    Attention,
    DispatchedRows,
    ExpertParallel,
    ExpertWeights,
    FaultRecord,
    Graph,
    GroupedMatmul,
    MoeLayer,
    Rank,
    Tensor,
    World,
    VERSION as __version__,
    has_cuda,
    token_formats,
)
from . import _core, plots, trace
from .errors import (
    Deadlock,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    SwitchyardError,
    Unavailable,
)
from .simulate import simulate

# Kernels may still use memory of Python's.
_atexit.register(_core._drain)

__all__ = [
    "Attention",
    "Deadlock",
    "DeadlineExceeded",
    "DispatchedRows",
    "ExpertParallel",
    "ExpertWeights",
    "FailedPrecondition",
    "FaultRecord",
    "Graph",
    "GroupedMatmul",
    "Internal",
    "InvalidArgument",
    "MoeLayer",
    "Rank",
    "ResourceExhausted",
    "SwitchyardError",
    "Tensor",
    "Unavailable",
    "World",
    "__version__",
    "has_cuda",
    "plots",
    "simulate",
    "token_formats",
    "trace",
]
