"""A stand-in for DeepEP V1's Python interface: Buffer, EventOverlap, EventHandle and Config with its methods, arguments,
attributes, shapes and dtypes, over switchyard_ep. Code that says `import deep_ep` can say `import switchyard_ep.deep_ep as deep_ep`, or stay as
it is behind `switchyard_ep.deep_ep.install()`.

Dispatch and combine inside a node, and low latency, over tensors of PyTorch on GPUs and, on the host target, over CPU
tensors or arrays of NumPy. Everything else raises NotImplementedError, which says what to use instead. docs/deepep.md says
what differs.
"""

from __future__ import annotations

import sys
from typing import Any

from .._deep_ep import Config, EventHandle, EventOverlap
from ..errors import FailedPrecondition
from . import buffer, utils
from .buffer import Buffer

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "buffer", "install", "topk_idx_t", "utils"]


def __getattr__(name: str) -> Any:
    """topk_idx_t: the dtype of ids, PyTorch's, or NumPy's where there is no PyTorch."""
    if name != "topk_idx_t":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch

        return torch.int64
    except ImportError:
        import numpy

        return numpy.dtype("int64")


def install() -> None:
    """Has `import deep_ep` give this module from now on, in this process, whether or not DeepEP is installed. To be called
    before anybody imports deep_ep."""
    here = {"deep_ep": sys.modules[__name__], "deep_ep.buffer": buffer, "deep_ep.utils": utils}
    for name, module in here.items():
        if sys.modules.get(name, module) is not module:
            where = getattr(sys.modules[name], "__file__", None)
            raise FailedPrecondition(f"{name} has been imported from {where}; call install() before that")
    sys.modules.update(here)
