"""What both modes of switchyard_ep.deep_ep.Buffer need: a world, streams, and ExpertParallels by shape."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar, cast

from . import _core, _process_group
from ._arrays import arrays_of, is_torch
from ._deep_ep import EventHandle, EventOverlap, Exchange, not_here
from ._deep_ep_survivors import Survivors
from .errors import FailedPrecondition, SwitchyardError


F = TypeVar("F", bound=Callable[..., Any])


class Gate:
    """Lets one thread at a time into the calls of a Buffer, also from one call into another. Ctrl-C may come between
    enter() and the call: the thread then holds the gate at depth 0, and its next call lets others in again."""

    def __init__(self) -> None:
        self.holder: Dict[str, int] = {}  # the thread that is in a call
        self.depth = 0  # of calls that it is in
        _gates.add(self)

    def enter(self) -> bool:
        """False: another thread is in a call."""
        me = threading.get_ident()
        return self.holder.setdefault("thread", me) == me  # finds and sets at once, as no `if` does


_gates: "weakref.WeakSet[Gate]" = weakref.WeakSet()


def _open_gates() -> None:
    """In a process that was forked while another thread was in a call: that thread is not here."""
    for gate in list(_gates):
        gate.depth = 0
        gate.holder.clear()


os.register_at_fork(after_in_child=_open_gates)


def in_one_thread(method: F) -> F:
    """Calls of a Buffer must not overlap: a thread that comes while another is in one gets an exception."""
    name = {"_run_hook": "a hook"}.get(method.__name__, method.__name__)

    @functools.wraps(method)
    def guarded(self: "BufferBase", *args: Any, **kwargs: Any) -> Any:
        gate = self._gate
        if not gate.enter():
            raise FailedPrecondition(f"{name} is called while another thread is in a call of this Buffer")
        depth = gate.depth
        try:
            gate.depth = depth + 1
            return method(self, *args, **kwargs)
        finally:  # Python looks for Ctrl-C where functions are called: none is before the gate is open
            gate.depth = depth
            if depth == 0:
                gate.holder.clear()

    return cast(F, guarded)


class Call:
    """What a method enqueues on, a cudaStream_t, and the event that it returns. Inside, an asynchronous stream is
    current."""

    __slots__ = ("stream", "event", "_asynchronous", "_context", "_inputs")

    def __init__(self, stream: Optional[int], asynchronous: Any = None, inputs: Tuple[Any, ...] = ()):
        self.stream, self.event = stream, EventOverlap()
        self._asynchronous, self._context, self._inputs = asynchronous, None, inputs

    def __enter__(self) -> "Call":
        if self._asynchronous is not None:
            import torch

            self._context = torch.cuda.stream(self._asynchronous)
            self._context.__enter__()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._asynchronous is None:
            return
        self._context.__exit__(kind, value, trace)
        if kind is not None:
            return
        for tensor in self._inputs:
            if tensor is not None:
                tensor.record_stream(self._asynchronous)
        self.event = EventOverlap(EventHandle(self._asynchronous))


def _is_capturing(torch: Any, stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


class Communicator:
    """One of mpi4py as a group."""

    def __init__(self, comm: Any):
        self.rank, self.size, self.all_gather = comm.Get_rank, comm.Get_size, comm.allgather


class Runtime:
    """What callers ask DeepEP's own object: whether a Buffer has been destroyed, and where its node is among others."""

    def is_available(self) -> bool:
        return True

    def get_num_rdma_ranks(self) -> int:
        return 1

    def get_rdma_rank(self) -> int:
        return 0


class BufferBase:
    num_sms: int = 20
    # Seconds that a rank waits for another; DeepEP's are 100.
    timeout: float = float(os.environ.get("SWITCHYARD_DEEP_EP_TIMEOUT", "100"))
    # Combine lets other processes open the memory that x lies in, so that they read it there. Ranks may differ.
    opens_memory: bool = os.environ.get("SWITCHYARD_DEEP_EP_OPEN_MEMORY", "1") == "1"
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
        *,
        target: str = "auto",
    ):
        if group is None and comm is None:
            raise ValueError("group and comm are None; one of them must be given")
        self.group = comm if group is None else group
        group = Communicator(comm) if group is None else group
        self.rank, self.group_size = group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes  # no effect, but callers compare them
        self.low_latency_mode, self.enable_shrink = low_latency_mode, enable_shrink
        self.explicitly_destroy, self._target = explicitly_destroy, target
        self.runtime: Optional[Runtime] = Runtime()
        self._world: Optional[_core.World] = _process_group.join(group, **self._join_options())
        self._members = list(range(self.group_size))  # the rank here of each rank of the world
        self._survivors = Survivors(self, group, self.shrink_timeout) if enable_shrink else None
        self._exchanges: Dict[Any, Exchange] = {}
        self._pairs: Dict[Any, Tuple[Exchange, ...]] = {}  # of low latency, which take turns, by shape
        self._used: List[Exchange] = []  # the last one is the last that was dispatched to
        self._num_layouts = 0
        self._comm_stream: Any = None
        self._last_stream: Any = None
        self._last_raw_stream: Any = None
        self._is_capturing = False
        self._captured: Dict[Any, Exchange] = {}  # those that graphs hold the steps of
        self._arrays_of: Dict[Any, Any] = {}
        self._gate = Gate()

    def _join_options(self) -> Dict[str, Any]:
        """The current GPU of PyTorch if there is one and the target is not 'host'."""
        if self._target not in ("auto", "host", "cuda"):
            raise ValueError(f"target is '{self._target}'; it must be one of: auto, host, cuda")
        try:
            import torch
        except ImportError:
            return {"target": "host" if self._target == "auto" else self._target}
        if self._target == "host" or (self._target == "auto" and not torch.cuda.is_available()):
            return {"target": "host"}
        return {"target": "cuda", "gpu": torch.cuda.current_device()}

    @property
    def _index(self) -> int:
        """This rank among those of the world."""
        return self._members.index(self.rank)

    def _use(self) -> _core.World:
        if self._world is None:
            raise FailedPrecondition("the buffer has been destroyed")
        return self._world

    @in_one_thread
    def destroy(self) -> None:
        """Leaves the world, when all ranks have called this; the buffer is of no use then."""
        if self._world is not None and self._survivors is None:
            with contextlib.suppress(SwitchyardError):  # whoever does not come is not waited for any longer
                self._world.synchronize()
                for exchange in self._all_exchanges():
                    try:
                        exchange.ep.synchronize(exchange.rank)
                    except SwitchyardError as error:  # nobody has asked since
                        warnings.warn(f"a step of this Buffer has failed: {error}", RuntimeWarning, stacklevel=2)
                self._world.all_gather(b"")
        self.runtime = None
        self._leave_world()

    def _leave_world(self) -> None:
        """Waits for what this rank has enqueued."""
        if self._world is None:
            return
        for exchange in self._all_exchanges():
            exchange.is_gone = True
        self._exchanges.clear()
        self._pairs.clear()
        self._captured.clear()
        self._used.clear()
        self._world.close()
        self._world = None

    def _all_exchanges(self) -> List[Exchange]:
        return [*self._exchanges.values(), *self._captured.values()]

    def _arrays(self, example: Any) -> Any:
        """Words for the caller's arrays, which must be where the world is."""
        self._use()
        device = getattr(example, "device", None)
        arrays = self._arrays_of.get(device)
        if arrays is not None:
            return arrays
        arrays = arrays_of(example)
        target = self._use().target
        if arrays.is_host != (target == "host"):
            raise ValueError(f"x is on {'the host' if arrays.is_host else 'a GPU'}; the buffer's world is on {target}")
        if is_torch(example):  # NumPy's arrays may have a device, too
            self._arrays_of[device] = arrays
        return arrays

    def _call(
        self, arrays: Any, previous_event: Optional[EventOverlap], async_finish: bool, *inputs: Any
    ) -> Call:
        """Everything inside is enqueued on PyTorch's current stream, or, if the call finishes asynchronously, on one for
        communication, behind previous_event or what is on the current stream. Calls keep their order on any streams."""
        if arrays.is_host:
            return Call(None)
        torch = arrays.torch
        self._is_capturing = torch._C._cuda_isCurrentStreamCapturing()
        current = torch._C._cuda_getCurrentRawStream(arrays.device.index)
        event = None if previous_event is None else previous_event.recorded
        has_event = event is not None
        if not async_finish and not has_event and current == self._last_raw_stream:
            return Call(current)
        stream = self.get_comm_stream() if async_finish else torch.cuda.current_stream()
        if has_event:
            stream.wait_event(event)
        elif async_finish:
            stream.wait_stream(torch.cuda.current_stream())
        last = self._last_stream
        # What a graph has captured is not enqueued; what is enqueued, a graph cannot wait for.
        if last is not None and last != stream and _is_capturing(torch, last) == _is_capturing(torch, stream):
            stream.wait_stream(last)
        self._last_stream, self._last_raw_stream = stream, stream.cuda_stream
        return Call(self._last_raw_stream, stream if async_finish else None, inputs)

    def _hand_over(self, async_finish: bool, *outputs: Any) -> None:
        """What was allocated on the stream for communication is used on the current one."""
        if not async_finish or self._comm_stream is None:
            return
        import torch

        for tensor in outputs:
            if tensor is not None:
                tensor.record_stream(torch.cuda.current_stream())

    @in_one_thread
    def get_comm_stream(self) -> Any:
        """The stream that calls with async_finish enqueue on."""
        if self._use().target == "host":
            raise not_here("stream for communication on the host", "calls are complete when they return there")
        if self._comm_stream is None:
            import torch

            self._comm_stream = torch.cuda.Stream()
        return self._comm_stream

    def _exchange(self, arrays: Any, key: Any, options: Callable[[], Dict[str, Any]]) -> Exchange:
        """The ExpertParallel of this key. Calls that are captured have one of their own from then on, the one that there
        was before, since the host does not know what replays have done to it."""
        held = self._captured if self._is_capturing else self._exchanges
        if key in held:
            return held[key]
        if self._is_capturing:
            if key not in self._exchanges:
                raise FailedPrecondition("a call is captured whose shape has not been called before")
            made = self._exchanges.pop(key)
            self._pairs.clear()
            made.is_captured = True
        else:
            waits = self._survivors is not None
            made = Exchange(self._use(), arrays, self._index, waits, {"timeout": self.timeout, **options()})
        held[key] = made
        return made

    def _opens(self, exchange: Exchange) -> bool:
        """Whether combine asks peers to open the memory that x lies in."""
        return self.opens_memory and self.group_size > 1 and not exchange.arrays.is_host

    def _new_layout(self) -> int:
        self._num_layouts += 1
        return self._num_layouts

    def _note_use(self, exchange: Exchange) -> None:
        if exchange in self._used:
            self._used.remove(exchange)
        self._used.append(exchange)
