"""DeepEP's Buffer."""

from __future__ import annotations

from typing import Any

from .._deep_ep import Config, EventHandle, EventOverlap, not_here
from .._deep_ep_low_latency import LowLatencyMode
from .._deep_ep_normal import NormalMode
from .utils import check_nvlink_connections

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "check_nvlink_connections"]


class Buffer(NormalMode, LowLatencyMode):
    """DeepEP's Buffer.

    group is a process group of torch.distributed, or any object that has rank(), size() and all_gather(bytes) ->
    list[bytes]; comm, if there is no group, is a communicator of mpi4py. The sizes of memory are DeepEP's business and
    have no effect: memory grows with the largest step. All ranks must make the same calls in the same order. destroy()
    may be called with or without explicitly_destroy. target, which DeepEP does not have, is 'host', 'cuda' or 'auto': a
    GPU if PyTorch has one.
    """

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """The blocks of a kernel of the normal mode, at most; the host target has none."""
        if new_num_sms % 2:
            raise ValueError(f"new_num_sms is {new_num_sms}; it must be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """Returns the event of now, on PyTorch's current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether fp8 is to be had, which it is everywhere."""
        return True

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    # What is not there.

    def get_local_buffer_tensor(self, *_: Any, **__: Any) -> Any:
        raise not_here("access to its memory", "use switchyard_ep.ExpertParallel, whose rows are in DispatchedRows")

    def internode_dispatch(self, *_: Any, **__: Any) -> Any:
        raise not_here("dispatch between nodes", "use switchyard_ep.World.join(transport='shmem') with ExpertParallel")

    def internode_combine(self, *_: Any, **__: Any) -> Any:
        raise not_here("combine between nodes", "use switchyard_ep.World.join(transport='shmem') with ExpertParallel")
