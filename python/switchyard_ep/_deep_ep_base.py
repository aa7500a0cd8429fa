"""What both modes of switchyard_ep.deep_ep.Buffer need: a world, streams, and ExpertParallels by shape."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, List, Optional

from . import _core, _process_group
from ._arrays import arrays_of
from ._deep_ep import EventOverlap, Exchange, not_here
from ._deep_ep_survivors import Survivors
from .errors import FailedPrecondition, SwitchyardError


class Call:
    """What a method enqueues on, and the event that it returns."""

    def __init__(self, stream: Any):
        self.stream, self.event = stream, EventOverlap()


class BufferBase:
    num_sms: int = 20
    # Seconds that a rank waits for another; DeepEP's are 100.
    timeout: float = float(os.environ.get("SWITCHYARD_DEEP_EP_TIMEOUT", "100"))
    # With enable_shrink: seconds until a rank that does not come is masked.
    shrink_timeout: float = float(os.environ.get("SWITCHYARD_DEEP_EP_SHRINK_TIMEOUT", "5"))

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ):
        if group is None:
            raise not_here(
                "bootstrap from an MPI communicator", "pass a group that has rank(), size() and all_gather()"
            )
        self.rank, self.group_size, self.group = group.rank(), group.size(), group
        self.explicitly_destroy = explicitly_destroy
        self._world: Optional[_core.World] = _process_group.join(group, **self._join_options())
        self._members = list(range(self.group_size))  # the rank here of each rank of the world
        self._survivors = Survivors(self, group, self.shrink_timeout) if enable_shrink else None
        self._exchanges: Dict[Any, Exchange] = {}
        self._used: List[Exchange] = []  # the last one is the last that was dispatched to
        self._num_layouts = 0
        self._comm_stream: Any = None
        self._last_stream: Any = None
        self._last_was_captured = False

    @staticmethod
    def _join_options() -> Dict[str, Any]:
        try:
            import torch
        except ImportError:
            return {"target": "host"}
        return {"gpu": torch.cuda.current_device()} if torch.cuda.is_available() else {"target": "host"}

    @property
    def _index(self) -> int:
        """This rank among those of the world."""
        return self._members.index(self.rank)

    def _use(self) -> _core.World:
        if self._world is None:
            raise FailedPrecondition("the buffer has been destroyed")
        return self._world

    def destroy(self) -> None:
        """Leaves the world, when all ranks have called this; the buffer is of no use then."""
        if self._world is not None and self._survivors is None:
            with contextlib.suppress(SwitchyardError):  # whoever does not come is not waited for any longer
                self._world.synchronize()
                for exchange in self._exchanges.values():
                    exchange.ep.synchronize(exchange.rank)
                self._world.all_gather(b"")
        self._leave_world()

    def _leave_world(self) -> None:
        """Waits for what this rank has enqueued."""
        if self._world is None:
            return
        for exchange in self._exchanges.values():
            exchange.is_gone = True
        self._exchanges.clear()
        self._used.clear()
        self._world.close()
        self._world = None

    def _arrays(self, example: Any) -> Any:
        """Words for the caller's arrays, which must be where the world is."""
        arrays = arrays_of(example)
        target = self._use().target
        if arrays.is_host != (target == "host"):
            raise ValueError(f"x is on {'the host' if arrays.is_host else 'a GPU'}; the buffer's world is on {target}")
        return arrays

    @contextlib.contextmanager
    def _call(
        self, arrays: Any, previous_event: Optional[EventOverlap], async_finish: bool, *inputs: Any
    ) -> Iterator[Call]:
        """Everything inside is enqueued on PyTorch's current stream, or, if the call finishes asynchronously, on one for
        communication, behind previous_event or what is on the current stream. Calls keep their order on any streams."""
        if arrays.is_host:
            yield Call(None)
            return
        torch = arrays.torch
        current = torch.cuda.current_stream()
        stream = self.get_comm_stream() if async_finish else current
        if previous_event is not None and previous_event.event is not None:
            stream.wait_event(previous_event.event)
        elif async_finish:
            stream.wait_stream(current)
        is_captured = torch.cuda.is_current_stream_capturing()
        if self._last_stream not in (None, stream) and is_captured == self._last_was_captured:
            stream.wait_stream(self._last_stream)
        self._last_stream, self._last_was_captured = stream, is_captured
        call = Call(stream.cuda_stream)
        with torch.cuda.stream(stream) if async_finish else contextlib.nullcontext():
            yield call
        if async_finish:
            for tensor in inputs:
                if tensor is not None:
                    tensor.record_stream(stream)
            event = torch.cuda.Event()
            event.record(stream)
            call.event = EventOverlap(event)

    def _hand_over(self, async_finish: bool, *outputs: Any) -> None:
        """What was allocated on the stream for communication is used on the current one."""
        if not async_finish or self._comm_stream is None:
            return
        import torch

        for tensor in outputs:
            if tensor is not None:
                tensor.record_stream(torch.cuda.current_stream())

    def get_comm_stream(self) -> Any:
        """The stream that calls with async_finish enqueue on."""
        if self._use().target == "host":
            raise not_here("stream for communication on the host", "calls are complete when they return there")
        if self._comm_stream is None:
            import torch

            self._comm_stream = torch.cuda.Stream()
        return self._comm_stream

    def _exchange(self, arrays: Any, key: Any, options: Callable[[], Dict[str, Any]]) -> Exchange:
        if key not in self._exchanges:
            waits = self._survivors is not None
            made = Exchange(self._use(), arrays, self._index, waits, {"timeout": self.timeout, **options()})
            self._exchanges[key] = made
        return self._exchanges[key]

    def _new_layout(self) -> int:
        self._num_layouts += 1
        return self._num_layouts

    def _note_use(self, exchange: Exchange) -> None:
        if exchange in self._used:
            self._used.remove(exchange)
        self._used.append(exchange)
