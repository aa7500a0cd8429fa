"""What switchyard_ep.deep_ep is made of: configurations, events, handles, and ExpertParallels with their last step."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import _core
from ._arrays import is_torch
from .errors import FailedPrecondition


def not_here(what: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f"switchyard_ep.deep_ep has no {what}; {instead}")


SCALE_GROUP = 128  # fp8: elements that share a scale


class Config:
    """DeepEP's tuning numbers. num_sms limits the blocks of a kernel; the others have no effect."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ):
        if num_sms < 1 or num_sms % 2:
            raise ValueError(f"num_sms is {num_sms}; it must be even and at least 2")
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns 0: memory is allocated when the shape is known."""
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns 0: memory is allocated when the shape is known."""
        return 0


class EventHandle:
    """What is on a stream of PyTorch's now, the current one unless it is given. Without a GPU there is nothing: calls are
    complete when they return."""

    def __init__(self, stream: Any = None):
        self.recorded: Any = None  # an event of PyTorch's
        try:
            import torch
        except ImportError:
            return
        if stream is not None or torch.cuda.is_available():
            self.recorded = torch.cuda.Event()
            self.recorded.record(torch.cuda.current_stream() if stream is None else stream)

    def current_stream_wait(self) -> None:
        """PyTorch's current stream waits for it."""
        EventOverlap(self).current_stream_wait()


class EventOverlap:
    """What a call that finishes asynchronously returns; `recorded` is None for one that does not, and on the host."""

    def __init__(self, event: Any = None, extra_tensors: Optional[tuple] = None):
        self.event, self.extra_tensors = event, extra_tensors

    @property
    def recorded(self) -> Any:
        """PyTorch's event, which may also have been given as such; None: there is nothing to wait for."""
        return self.event.recorded if isinstance(self.event, EventHandle) else self.event

    def current_stream_wait(self) -> None:
        """PyTorch's current stream waits for the event."""
        if self.recorded is not None:
            import torch

            torch.cuda.current_stream().wait_event(self.recorded)

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()


class _LazyTuple(tuple):
    """A tuple of which one item may be a function: it is called when somebody looks at that item."""

    _lazy_index = 0

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        is_lazy = index in (self._lazy_index, self._lazy_index - len(self))
        return found() if is_lazy and callable(found) else found

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))


def _field(index: int, doc: str = "") -> Any:
    return property(lambda self: self[index], doc=doc)


class Routing(NamedTuple):
    """Where the tokens of a dispatch go, and what is known of those that came."""

    ids: Any  # (tokens, top_k) of int32: the experts of each token, or its ranks
    weights: Any  # (tokens, top_k) of float32
    is_token_in_rank: Any  # (tokens, ranks) of bool
    num_experts: int
    layout: int  # tells one dispatch from another
    made: Dict[str, Any]  # of what is above, when it was first needed
    num_recv_tokens: Optional[int] = None  # None: the host does not know
    recv_src_idx: Any = None  # (received,) of int32: the source token of each row


class Handle(_LazyTuple):
    """What combine, and a dispatch of the same layout, need. The items are DeepEP's: rank_prefix_matrix, (ranks, ranks)
    of int32 ([i][rank]: how many tokens ranks 0..i send here; else 0), channel_prefix_matrix,
    recv_channel_prefix_matrix, recv_src_idx, is_token_in_rank and send_head."""

    routing: Routing
    rank_prefix_matrix = _field(0)
    recv_src_idx = _field(3, "(received,) of int32: the source token of each row")
    is_token_in_rank = _field(4, "(tokens, ranks) of bool")

    @classmethod
    def of(cls, routing: Routing, make_matrix: Any, none: Any) -> "Handle":
        """none: in the place of matrices of channels, of which there are none."""
        handle = cls((make_matrix, none, none, routing.recv_src_idx, routing.is_token_in_rank, none))
        handle.routing = routing
        return handle


class LowLatencyHandle(_LazyTuple):
    """What low_latency_combine needs. The items are DeepEP's: packed_recv_src_info, packed_recv_layout_range, the most
    tokens of a rank, hidden and the number of experts."""

    _lazy_index = 1
    exchange: "Exchange"
    layout: int
    members: Tuple[int, ...]  # the ranks that were not masked
    packed_recv_src_info = _field(0, "(local experts, ranks x max tokens) of int32: the source token of each row")
    packed_recv_layout_range = _field(1, "(local experts, ranks) of int64: begin << 32 | count")
    num_max_dispatch_tokens_per_rank = _field(2)
    hidden = _field(3)
    num_experts = _field(4)

    @classmethod
    def of(cls, items: Tuple[Any, ...], exchange: "Exchange", members: Tuple[int, ...]) -> "LowLatencyHandle":
        """Of the last dispatch of the Exchange."""
        handle = cls(items)
        handle.exchange, handle.layout, handle.members = exchange, exchange.layout, members
        return handle

    def shape(self) -> Tuple[int, int, int]:
        """The most tokens of a rank, hidden, and the number of experts."""
        return tuple.__getitem__(self, slice(2, 5))


class Exchange:
    """An ExpertParallel, its memory as arrays, and where its last step is.

    Ranks make the same calls in the same order, so all of them find an Exchange in the same state.
    """

    def __init__(self, world: _core.World, arrays: Any, rank: int, waits: bool, options: Dict[str, Any]):
        self.rank, self.arrays, self._waits = rank, arrays, waits or arrays.is_host
        self.ep = _core.ExpertParallel(world, **options)
        self.ep.warm_up()
        # Some ranks are reached over a wire, or there are too many for kernels without one.
        self.has_wire = world.n_ranks > 64 or 0 < self.ep.config["p2p_world_size"] < world.n_ranks
        self.memory = self.ep.row_buffers(rank)
        self.rows_per_set = self.ep.rows_per_set
        self.row_set = 0  # of the last dispatch
        # Of each set, while it is lent.
        self._holders: List[List[Any]] = [[] for _ in range(options.get("row_sets", 1))]
        self.rows = arrays.view(self.memory.rows)
        self.outputs = arrays.view(self.memory.expert_outputs)
        self.counts = arrays.view(self.memory.row_counts, "int32")
        self.src_info = arrays.view(self.memory.src_info)
        self.scales = None
        if self.memory.scales is not None:
            packed = self.memory.scales.dtype == "uint32"
            self.scales = arrays.view(self.memory.scales, "int32" if packed else "")
        self.layout = self._next_layout = 0  # of the last dispatch, or of the one that has begun; 0: none
        self.num_reopened = 0  # combines of it behind the first
        self.state = "closed"  # or "sent", "open", "returned"; "unsure" if a call was broken off
        self._num_checks = 0
        self.gave_outputs = False  # the caller has asked for the memory that a combine of the last dispatch reads
        self.finish: Any = None  # sent, returned: what is left to do
        self.is_gone = False  # the buffer has left the world
        self.is_captured = False  # graphs hold its steps, and may be replayed at any time
        self.received: Any = None  # low latency: what a dispatch returns
        outputs, rows = self.memory.expert_outputs, self.memory.rows
        # What peers may read in place. Rows that are lent are the caller's, who may write to them behind a combine, while
        # peers still read.
        self._readable = [outputs]
        if rows.dtype == "bfloat16" and len(self._holders) == 1:
            self._readable.append(rows)

    def check(self) -> None:
        """Raises what went wrong in an earlier step; on the host, and where ranks may be masked, in this one, too."""
        if self._waits:
            self.ep.synchronize(self.rank)
        else:
            self.ep.poll(self.rank)

    def check_sometimes(self) -> None:
        """The same, where nothing on the host waits in every eighth call: asking takes microseconds."""
        self._num_checks += 1
        if self._waits or self._num_checks % 8 == 0:
            self.check()

    def check_if_waiting(self) -> None:
        """The same, where nothing on the host waits left to the next dispatch."""
        if self._waits:
            self.ep.synchronize(self.rank)

    def enqueue(self, call: str, after: str, *arguments: Any, **options: Any) -> None:
        """Makes a call of the ExpertParallel, behind which the step is in the state `after`. If it raises, or Ctrl-C
        comes behind it, nobody here knows whether it was enqueued: settle() asks."""
        self.state = "unsure"
        getattr(self.ep, call)(self.rank, *arguments, **options)
        self.state, self.layout = after, self._next_layout
        if after not in ("sent", "returned"):
            self.finish = None

    def settle(self) -> None:
        """Does what a hook that nobody has called was to do."""
        is_unsure = self.state == "unsure"
        if self.finish is not None:
            try:
                self.finish()
            except Exception:
                if not is_unsure:
                    raise
                self.finish = None  # the half in front of it was not enqueued, or this one has been
        if self.state == "unsure":
            self.state = "open" if self._is_open() else "closed"

    def _is_open(self) -> bool:
        """What the library says: rows that lie where peers read are offered in an open step, and refused elsewhere."""
        with contextlib.suppress(FailedPrecondition):
            return self.ep.offer_expert_rows(self.rank, self.memory.expert_outputs, is_whole=True) is not None
        return False

    @property
    def first_row(self) -> int:
        """Of the last dispatch's rows."""
        return self.row_set * self.rows_per_set

    def choose_set(self, may_lend: bool) -> None:
        """Chooses a set of rows that nobody holds. The last one is never lent, so that there is always one. Who held
        another may have left kernels that read it on PyTorch's current stream."""
        self.row_set = len(self._holders) - 1
        for number, holders in enumerate(self._holders[:-1] if may_lend else ()):
            if all(holder() is None for holder in holders):
                self.row_set = number
                return

    def last_set(self) -> List[Any]:
        """The rows of the last dispatch's set, and their scales if they have any, which lie by row."""
        end = self.first_row + self.rows_per_set
        return [part[self.first_row : end] for part in (self.rows, self.scales) if part is not None]

    def lend(self) -> Optional[List[Any]]:
        """The same as arrays whose memory is not written to while anybody holds any of it; None: there is no such
        set."""
        if self.row_set == len(self._holders) - 1:
            return None
        end = self.first_row + self.rows_per_set
        parts = [part.part(self.first_row, end) for part in (self.memory.rows, self.memory.scales) if part is not None]
        lent = [self.arrays.lend(part) for part in parts]
        self._holders[self.row_set] = [holder for _, holder in lent]
        return [array for array, _ in lent]

    def begin(self, layout: int) -> None:
        """In front of a dispatch, whose layout this one has when it has been enqueued."""
        self.settle()
        if self.state == "open":
            self.ep.abandon_step(self.rank)
        self.state, self.num_reopened, self.gave_outputs = "closed", 0, False
        self.layout, self._next_layout = 0, layout

    def reopen(self, stream: Any) -> None:
        """In front of a combine of the last dispatch's rows."""
        self.settle()
        if self.state == "closed":
            self.num_reopened += 1
            self.enqueue("reopen_step", "open", stream=stream)
            self.check()  # the host may write expert rows only when no peer reads those of before

    def shares(self, array: Any) -> Optional[_core.Tensor]:
        """The memory that peers read, if the array begins where it does."""
        pointer = self.arrays.pointer(array)
        for tensor in self._readable:
            if pointer == tensor.data_ptr:
                return tensor
        return None

    def store(self, rows: Any, stream: Any) -> _core.Tensor:
        """Brings expert rows to where peers read them, and returns that."""
        shared = self.shares(rows)
        if shared is None:
            self.ep.store_expert_rows(self.rank, rows, stream=stream)
            return self.memory.expert_outputs
        return shared

    def offer(self, rows: Any, stream: Any) -> Any:
        """The same, where peers may read as many rows as the step has in the caller's memory."""
        if self.shares(rows) is None:
            by_row = rows.reshape(-1, rows.shape[-1])
            if self.ep.offer_expert_rows(self.rank, by_row, is_whole=True, stream=stream):
                return by_row
        return self.store(rows, stream)


def overlap(arrays: Any, array: Any, rows: Any) -> bool:
    """Whether an array shares memory with rows, which are an array or a Tensor, and contiguous."""
    here = arrays.pointer(array)
    begin = rows.data_ptr if isinstance(rows, _core.Tensor) else arrays.pointer(rows)
    if here >= begin + rows.nbytes or 0 in array.shape:
        return False
    strides = [size * array.itemsize for size in array.stride()] if is_torch(array) else array.strides
    return begin < here + sum((size - 1) * stride for size, stride in zip(array.shape, strides)) + array.itemsize


def check_tokens(
    num_ranks: int, tokens: Any, scales: Any, handle: Any, in_rank: Any, ids: Any, weights: Any, per_expert: Any
) -> None:
    if len(tokens.shape) != 2:
        raise ValueError(f"x has shape {tuple(tokens.shape)}; it must be (tokens, hidden)")
    num_tokens, hidden = tokens.shape
    if scales is not None:
        shape, most = tuple(scales.shape), hidden // SCALE_GROUP
        if len(shape) not in (1, 2) or shape[0] != num_tokens:
            raise ValueError(f"the scales have shape {shape}; it must be ({num_tokens}, at most {most})")
        if len(shape) == 2 and shape[1] > most:
            raise not_here(
                f"room for {shape[1]} scales of a token with hidden {hidden}",
                f"there may be {most}, one for each {SCALE_GROUP} elements; dispatch bfloat16, or use ExpertParallel in "
                "one of the formats of docs/formats.md",
            )
    if handle is not None:
        if ids is not None or weights is not None:
            raise ValueError("with a handle, topk_idx and topk_weights must be None")
        if len(handle.routing.ids) != num_tokens:
            raise ValueError(f"x has {num_tokens} tokens; the handle's dispatch had {len(handle.routing.ids)}")
        return
    if in_rank is None or per_expert is None:
        raise ValueError(
            "without a handle, is_token_in_rank and num_tokens_per_expert must be given (get_dispatch_layout)"
        )
    if (ids is None) != (weights is None):
        raise ValueError("topk_idx and topk_weights must be given together")
    if tuple(in_rank.shape) != (num_tokens, num_ranks):
        raise ValueError(f"is_token_in_rank has shape {tuple(in_rank.shape)}; it must be {(num_tokens, num_ranks)}")
