"""The low latency mode of switchyard_ep.deep_ep.Buffer: an ExpertParallel with the model's experts and masked rows, which
are returned where they are. There are two of each shape, which take turns, so that the arrays of a dispatch are valid until
the dispatch after the next."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _core
from ._deep_ep import SCALE_GROUP, EventOverlap, Exchange, LowLatencyHandle, not_here
from ._deep_ep_base import BufferBase, Call


def low_latency_options(
    num_max: int, hidden: int, num_ranks: int, num_experts: int, top_k: int, dispatch_format: str
) -> Dict[str, Any]:
    """An ExpertParallel whose rows are masked: room for every token of every rank at each expert."""
    return dict(
        n_experts=num_experts,
        top_k=top_k,
        hidden=hidden,
        max_tokens_per_rank=num_max,
        protocol="direct",
        row_layout="masked",
        max_rows_per_expert=num_ranks * num_max,
        dispatch_format=dispatch_format,
    )


class LowLatencyMode(BufferBase):
    _turn = 0
    _loose_rows: Any = None  # of a handle whose world is gone

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Returns the bytes that a rank needs with a top-k of 8. Nothing is allocated before the shape is known."""
        options = low_latency_options(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts, 8, "bf16")
        return 2 * _core.ExpertParallel.memory_needed(num_ranks, **options)["total"]

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Does nothing, since no step needs buffers to be cleaned; with enable_shrink, finds ranks that do not come."""
        self._call_survivors(lambda: None)

    def _call_survivors(self, function: Callable[[], Any]) -> Any:
        return function() if self._survivors is None else self._survivors.call(function)

    def _low_latency_exchange(
        self, arrays: Any, num_max: int, hidden: int, num_experts: int, top_k: int, dispatch_format: str
    ) -> Exchange:
        self._turn ^= 1
        key = ("low latency", num_max, hidden, num_experts, top_k, dispatch_format, self._turn)
        num_members = len(self._members)

        def options() -> Dict[str, Any]:
            num_left = num_experts // self.group_size * num_members
            return low_latency_options(num_max, hidden, self.group_size, num_left, top_k, dispatch_format)

        return self._exchange(arrays, key, options)

    def _ids(self, arrays: Any, topk_idx: Any, num_experts: int) -> Any:
        """The experts as the world numbers them; those of masked ranks are padding."""
        ids = arrays.take(topk_idx, "topk_idx", "int64")
        if len(self._members) == self.group_size:
            return ids
        num_local = num_experts // self.group_size
        numbers = arrays.full((self.group_size + 1,), -1, "int64")  # the last one is padding's
        for number, rank in enumerate(self._members):
            numbers[rank] = number
        owners = numbers[arrays.where(ids >= 0, ids // num_local, self.group_size)]
        return arrays.cast(arrays.where(owners >= 0, owners * num_local + ids % num_local, -1), "int64")

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Optional[Any] = None,
        dispatch_wait_recv_cost_stats: Optional[Any] = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> Tuple[Any, Any, LowLatencyHandle, EventOverlap, Optional[Callable[[], None]]]:
        """Sends each token to its experts. Returns rows, (local experts, ranks x max tokens, hidden) of bfloat16, or a pair
        of fp8 and scales, (local experts, ranks x max tokens, hidden / 128) of float32; how many of them each expert has;
        a handle, an event and a hook. With return_recv_hook only the sending half is enqueued, and the hook enqueues the
        other. round_scale: scales are powers of two; use_ue8m0: they are exponents, four in an int32. The counts are added
        to cumulative_local_expert_recv_stats."""
        if dispatch_wait_recv_cost_stats is not None:
            raise not_here("statistics of waits", "ExpertParallel.enable_trace() records every wait")
        if use_ue8m0 and not round_scale:
            raise ValueError("use_ue8m0 is True; round_scale must be, too")
        num_max = num_max_dispatch_tokens_per_rank
        if len(x.shape) != 2 or len(x) > num_max or len(topk_idx) != len(x):
            raise ValueError(
                f"x has shape {tuple(x.shape)} and topk_idx {tuple(topk_idx.shape)}; both must have the same number of "
                f"tokens, at most {num_max}"
            )
        dispatch_format = "bf16" if not use_fp8 else "fp8-ue8m0" if round_scale else "fp8"
        return self._call_survivors(
            lambda: self._low_latency_dispatch(
                x,
                topk_idx,
                num_max,
                num_experts,
                cumulative_local_expert_recv_stats,
                dispatch_format,
                round_scale and not use_ue8m0,
                async_finish,
                return_recv_hook,
            )
        )

    def _low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max: int,
        num_experts: int,
        stats: Any,
        dispatch_format: str,
        wants_float_scales: bool,
        async_finish: bool,
        return_recv_hook: bool,
    ) -> Tuple[Any, Any, LowLatencyHandle, EventOverlap, Optional[Callable[[], None]]]:
        arrays = self._arrays(x)
        with self._call(arrays, None, async_finish, x, topk_idx) as call:
            tokens = arrays.take(x, "x", "bfloat16")
            ids = self._ids(arrays, topk_idx, num_experts)
            exchange = self._low_latency_exchange(
                arrays, num_max, x.shape[1], num_experts, ids.shape[1], dispatch_format
            )
            exchange.begin(self._new_layout())
            step = ReceivedRows(exchange, self.group_size, self._members, num_max, wants_float_scales)
            wanted = step.wanted(stats)
            hook = None
            if return_recv_hook:
                exchange.ep.dispatch_async(exchange.rank, tokens, ids, stream=call.stream)
                exchange.state = "sent"

                def finish(stream: Any) -> None:
                    exchange.ep.dispatch_wait(exchange.rank, stream=stream, **wanted)
                    exchange.state = "open"
                    exchange.check()
                    step.complete(stats)

                hook = self._hook(exchange, finish)
            else:
                exchange.ep.dispatch(exchange.rank, tokens, ids, stream=call.stream, **wanted)
                exchange.check()
                step.complete(stats)
        self._hand_over(async_finish, step.ranges, step.float_scales)
        return step.rows(), exchange.counts, step.handle(num_experts), call.event, hook

    def _hook(self, exchange: Exchange, finish: Callable[[Any], None]) -> Callable[[], None]:
        """What enqueues the receiving half on the stream that is current then; once."""

        def run() -> None:
            if exchange.finish is run:
                exchange.finish = None
                with self._call(exchange.arrays, None, False) as call:
                    finish(call.stream)

        exchange.finish = run
        return run

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Any:
        """Returns the memory, (local experts, ranks x max tokens, hidden) of bfloat16, that a low_latency_combine with
        zero_copy reads. It may be written behind what is on the current stream."""
        exchange, arrays = handle.exchange, handle.exchange.arrays
        num_rows = self.group_size * handle.num_max_dispatch_tokens_per_rank
        if exchange.is_gone:  # what is written here finds its way by the handle
            self._loose_rows = arrays.empty((len(exchange.counts), num_rows, handle.hidden), "bfloat16")
            return self._loose_rows
        with self._call(arrays, None, False) as call:
            self._open_low_latency(exchange, handle, None, call)
        return masked(exchange, exchange.outputs, num_rows)

    def _open_low_latency(self, exchange: Exchange, handle: LowLatencyHandle, topk_idx: Any, call: Call) -> None:
        if exchange.layout == handle.layout:
            return exchange.reopen(call.stream)
        if topk_idx is None:
            raise ValueError("the handle is older than the last two dispatches, whose memory there is")
        # The rows of that dispatch are no longer on their way back: the same layout once more, with nothing in it.
        arrays = exchange.arrays
        exchange.begin(handle.layout)
        nothing = arrays.full((len(topk_idx), handle.hidden), 0, "bfloat16")
        ids = self._ids(arrays, topk_idx, handle.num_experts)
        exchange.ep.dispatch(exchange.rank, nothing, ids, stream=call.stream)

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Optional[Any] = None,
        combine_wait_recv_cost_stats: Optional[Any] = None,
    ) -> Tuple[Any, EventOverlap, Optional[Callable[[], None]]]:
        """Sends x, a row of bfloat16 for each row of the dispatch, back, and returns the sum of each token's rows times
        topk_weights, an event and a hook. zero_copy: the rows are in get_next_low_latency_combine_buffer(handle), and x is
        not read. With return_recv_hook the hook enqueues the receiving half."""
        if use_logfmt or combine_wait_recv_cost_stats is not None:
            raise not_here(
                "logfmt or statistics of waits",
                "ExpertParallel has combine_format='fp8' and enable_trace(); use those",
            )
        num_max, hidden, num_experts = handle[2:5]
        shape = (num_experts // self.group_size, self.group_size * num_max, hidden)
        if tuple(x.shape) != shape:
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be {shape}")
        return self._call_survivors(
            lambda: self._low_latency_combine(
                x, topk_idx, topk_weights, handle, zero_copy, async_finish, return_recv_hook, out
            )
        )

    def _low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: LowLatencyHandle,
        zero_copy: bool,
        async_finish: bool,
        return_recv_hook: bool,
        out: Optional[Any],
    ) -> Tuple[Any, EventOverlap, Optional[Callable[[], None]]]:
        hidden = handle.hidden
        exchange, arrays = handle.exchange, self._arrays(x)
        with self._call(arrays, None, async_finish, x, topk_idx, topk_weights, out) as call:
            weights = arrays.take(topk_weights, "topk_weights", "float32")
            if exchange.is_gone:
                exchange = self._move(arrays, handle, topk_idx, self._loose_rows if zero_copy else x, call)
                rows = exchange.memory.expert_outputs
            else:
                self._open_low_latency(exchange, handle, topk_idx, call)
                rows = exchange.memory.expert_outputs
                if not zero_copy:
                    rows = exchange.store(arrays.copy_if_strided(x), call.stream)
            combined = arrays.empty((len(topk_idx), hidden), "bfloat16") if out is None else out
            hook = None
            if return_recv_hook:
                exchange.ep.combine_async(exchange.rank, rows, stream=call.stream)
                exchange.state = "returned"

                def finish(stream: Any) -> None:
                    exchange.ep.combine_wait(exchange.rank, None, weights, out=combined, stream=stream)
                    exchange.state = "closed"
                    exchange.check()

                hook = self._hook(exchange, finish)
            else:
                exchange.ep.combine(exchange.rank, rows, None, weights, out=combined, stream=call.stream)
                exchange.state = "closed"
                exchange.check()
        self._hand_over(async_finish, combined)
        return combined, call.event, hook

    def _move(self, arrays: Any, handle: LowLatencyHandle, topk_idx: Any, x: Any, call: Call) -> Exchange:
        """Opens a step of the ranks that are left, with the layout of a handle from before, and brings x there: rows of
        ranks that are masked now are left out."""
        num_max, hidden, num_experts = handle[2:5]
        ids = self._ids(arrays, topk_idx, num_experts)
        exchange = self._low_latency_exchange(arrays, num_max, hidden, num_experts, ids.shape[1], "bf16")
        exchange.begin(self._new_layout())
        step = ReceivedRows(exchange, self.group_size, self._members, num_max, False)
        nothing = arrays.full((len(ids), hidden), 0, "bfloat16")
        exchange.ep.dispatch(exchange.rank, nothing, ids, stream=call.stream, **step.wanted(None))
        exchange.check()
        step.complete(None)
        outputs = masked(exchange, exchange.outputs, self.group_size * num_max)
        before, now = arrays.tolist(handle.packed_recv_layout_range), arrays.tolist(step.ranges)
        for local in range(len(now)):
            for rank in self._members:
                count = now[local][rank] & 0xFFFFFFFF
                to, since = now[local][rank] >> 32, before[local][rank] >> 32
                outputs[local, to : to + count] = x[local, since : since + count]
        return exchange

    # Ranks that are left out.

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """From the next call on the others go on without the rank. All of them ask for it."""
        if self._survivors is None:
            raise ValueError("ranks can be masked only if the buffer was made with enable_shrink=True")
        if not mask:
            raise not_here("way back for a masked rank", "make a new Buffer with all ranks")
        self._survivors.mask(rank_to_mask)

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Writes 1 for each rank that is masked to mask_status, (ranks,) of int32, and 0 for the others."""
        mask_status[:] = 1
        for rank in self._members:
            mask_status[rank] = 0

    def low_latency_clean_mask_buffer(self) -> None:
        """Does nothing as long as no rank is masked."""
        if len(self._members) < self.group_size:
            raise not_here("way back for a masked rank", "make a new Buffer with all ranks")


def masked(exchange: Exchange, rows: Any, num_rows: int) -> Any:
    """(all rows, ..) as (local experts, num_rows, ..)."""
    num_local = len(exchange.counts)
    return rows.reshape(num_local, len(rows) // num_local, *rows.shape[1:])[:, :num_rows]


class ReceivedRows:
    """What a dispatch returns, over the memory of its Exchange."""

    def __init__(
        self, exchange: Exchange, num_ranks: int, members: List[int], num_max: int, wants_float_scales: bool
    ):
        self._exchange, self._num_max, self._num_rows = exchange, num_max, num_ranks * num_max
        self._hidden, self._members = exchange.outputs.shape[1], tuple(members)
        num_local, arrays = len(exchange.counts), exchange.arrays
        self._ranges_of_members = arrays.empty((num_local, len(members)), "int64")
        self.ranges = self._ranges_of_members
        if len(members) < num_ranks:
            self.ranges = arrays.full((num_local, num_ranks), 0, "int64")
        self.float_scales = None
        if wants_float_scales:
            self.float_scales = arrays.empty((num_local, self._num_rows, self._hidden // SCALE_GROUP), "float32")
        self._totals: Any = None

    def handle(self, num_experts: int) -> LowLatencyHandle:
        exchange = self._exchange
        src_info = masked(exchange, exchange.src_info, self._num_rows)[:, :, 0]
        return LowLatencyHandle(
            src_info, self.ranges, self._num_max, self._hidden, num_experts, exchange, exchange.layout, self._members
        )

    def wanted(self, stats: Any) -> Dict[str, Any]:
        """What else dispatch is to write."""
        arrays = self._exchange.arrays
        self._totals = stats
        if stats is not None and arrays.pointer(stats) % 16:
            self._totals = arrays.full((len(stats),), 0, "int32")
        return dict(source_ranges=self._ranges_of_members, row_totals=self._totals)

    def _scale_words(self) -> Any:
        """(scales, all rows) as (local experts, rows, scales), without a copy."""
        words, num_local = self._exchange.scales, len(self._exchange.counts)
        num_rows = len(self._exchange.rows)
        by_expert = words[:, :num_rows].reshape(len(words), num_local, num_rows // num_local)
        return self._exchange.arrays.permuted(by_expert, 1, 2, 0)[:, : self._num_rows]

    def rows(self) -> Any:
        rows = masked(self._exchange, self._exchange.rows, self._num_rows)
        if self._exchange.scales is None:
            return rows
        return rows, self._scale_words() if self.float_scales is None else self.float_scales

    def complete(self, stats: Any) -> None:
        """Behind the dispatch: what its kernels do not write."""
        arrays = self._exchange.arrays
        if self._totals is not stats:
            stats += self._totals
        if self.ranges is not self._ranges_of_members:
            for number, rank in enumerate(self._members):
                self.ranges[:, rank] = self._ranges_of_members[:, number]
        if self.float_scales is None:
            return
        # An exponent is the upper bits of a float32.
        octets = arrays.bits(arrays.copy(self._scale_words()), "uint8")
        exponents = arrays.cast(octets, "int32")[..., : self.float_scales.shape[2]] << 23
        self.float_scales[:] = arrays.bits(arrays.copy(exponents), "float32")
