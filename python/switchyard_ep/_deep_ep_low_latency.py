"""The low latency mode of switchyard_ep.deep_ep.Buffer: an ExpertParallel with the model's experts and masked rows, which
are returned where they are. There are two of each shape, which take turns, so that the arrays of a dispatch are valid until
the dispatch after the next."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Optional, Tuple

from . import _core
from ._deep_ep import EventOverlap, Exchange, LowLatencyHandle, not_here, overlap
from ._deep_ep_base import BufferBase, Call, in_one_thread
from ._deep_ep_outputs import RankWaits, ReceivedRows, masked


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

    @in_one_thread
    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Does nothing, since no step needs buffers to be cleaned; with enable_shrink, finds ranks that do not come."""
        if self._survivors is not None:
            self._survivors.call(lambda is_help: None)

    def _low_latency_exchange(
        self, arrays: Any, num_max: int, hidden: int, num_experts: int, top_k: int, dispatch_format: str
    ) -> Exchange:
        """The one whose turn it is."""
        turn = self._turn ^ 1
        key = ("low latency", num_max, hidden, num_experts, top_k, dispatch_format)
        if not self._is_capturing and key in self._pairs:
            return self._pairs[key][turn]
        num_members = len(self._members)

        def options() -> Dict[str, Any]:
            num_left = num_experts // self.group_size * num_members
            return low_latency_options(num_max, hidden, self.group_size, num_left, top_k, dispatch_format)

        if self._is_capturing:
            return self._exchange(arrays, (*key, turn), options)
        # Both, so that either can be captured. A rank that comes back may be at another turn than the others: what is
        # made second is used first.
        later = self._exchange(arrays, (*key, self._turn), options)
        now = self._exchange(arrays, (*key, turn), options)
        self._pairs[key] = (later, now) if turn else (now, later)
        return now

    def _enqueue_in_turn(self, exchange: Exchange, call: str, after: str, *arguments: Any, **options: Any) -> None:
        """Enqueues a dispatch. If it is refused, it remains this Exchange's turn, as it does on the other ranks."""
        self._turn ^= 1
        try:
            exchange.enqueue(call, after, *arguments, **options)
        except Exception:
            self._turn ^= 1
            raise

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

    @in_one_thread
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
        to cumulative_local_expert_recv_stats, and the nanoseconds for which this rank has waited for each other one to
        dispatch_wait_recv_cost_stats, (ranks,) of int64."""
        if use_ue8m0 and not round_scale:
            raise ValueError("use_ue8m0 is True; round_scale must be, too")
        num_max = num_max_dispatch_tokens_per_rank
        if len(x.shape) != 2 or x.shape[0] > num_max or topk_idx.shape[0] != x.shape[0]:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and topk_idx {tuple(topk_idx.shape)}; both must have the same number of "
                f"tokens, at most {num_max}"
            )
        dispatch_format = "bf16" if not use_fp8 else "fp8-ue8m0" if round_scale else "fp8"
        wants_float_scales = use_fp8 and round_scale and not use_ue8m0
        stats, wait_stats = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        num_local = num_experts // self.group_size
        check_stats("cumulative_local_expert_recv_stats", stats, num_local, "local experts", "int32")
        check_stats("dispatch_wait_recv_cost_stats", wait_stats, self.group_size, "ranks", "int64")
        given = (x, topk_idx, num_max, num_experts, dispatch_format, wants_float_scales, async_finish, return_recv_hook)
        if self._survivors is None:
            return self._low_latency_dispatch(stats, wait_stats, *given)
        # Who repeats a call so that another completes it has counted its rows, and its waits.
        return self._survivors.call(
            lambda is_help: self._low_latency_dispatch(*((None, None) if is_help else (stats, wait_stats)), *given)
        )

    def _rank_waits(self, arrays: Any, stats: Any) -> "RankWaits":
        return RankWaits(arrays, stats, self._members, self._survivors is not None)

    def _low_latency_dispatch(
        self,
        stats: Any,
        wait_stats: Any,
        x: Any,
        topk_idx: Any,
        num_max: int,
        num_experts: int,
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
            step = exchange.received
            if step is None:
                has_ranges = self._survivors is not None
                step = ReceivedRows(exchange, self.group_size, self._members, num_max, has_ranges)
                exchange.received = None if has_ranges else step
            scales = step.make_float_scales() if wants_float_scales else None
            totals = step.totals_for(stats)
            waits = self._rank_waits(arrays, wait_stats)
            received = dict(
                source_ranges=step.ranges_of_members, row_totals=totals, rank_wait_ns=waits.of_members
            )

            def complete() -> None:
                exchange.check_sometimes()
                step.complete(stats, totals, scales)
                waits.complete()

            def finish(stream: Any) -> None:
                exchange.enqueue("dispatch_wait", "open", **received, stream=stream)
                complete()

            hook = None
            if return_recv_hook:
                if arrays.is_host:  # the caller may write to them before they have been sent
                    tokens, ids = arrays.copy(tokens), arrays.copy(ids)
                hook = self._hook(exchange, finish)
                self._enqueue_in_turn(
                    exchange, "dispatch_async", "sent", tokens, ids, rank_wait_ns=waits.of_members, stream=call.stream
                )
            else:
                self._enqueue_in_turn(exchange, "dispatch", "open", tokens, ids, **received, stream=call.stream)
                complete()
        if async_finish:
            self._hand_over(async_finish, scales)
        rows = step.rows if scales is None else (step.rows[0], scales)
        return rows, exchange.counts, step.handle(num_experts), call.event, hook

    def _hook(self, exchange: Exchange, finish: Callable[[Any], None]) -> Callable[[], None]:
        """What enqueues the receiving half on the stream that is current then; once. It is made before the sending half
        is enqueued, behind which Ctrl-C may come."""

        def run() -> None:
            self._run_hook(exchange, run, finish)

        exchange.finish = run
        return run

    @in_one_thread
    def _run_hook(self, exchange: Exchange, hook: Callable[[], None], finish: Callable[[Any], None]) -> None:
        if exchange.finish is hook:
            with self._call(exchange.arrays, None, False) as call:
                finish(call.stream)

    @in_one_thread
    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Any:
        """Returns the memory, (local experts, ranks x max tokens, hidden) of bfloat16, that a low_latency_combine with
        zero_copy reads. It may be written behind what is on the current stream."""
        exchange, arrays = handle.exchange, handle.exchange.arrays
        num_rows = self.group_size * handle.num_max_dispatch_tokens_per_rank
        if exchange.is_gone:  # what is written here finds its way by the handle
            self._loose_rows = arrays.empty((len(exchange.counts), num_rows, handle.hidden), "bfloat16")
            return self._loose_rows
        with self._call(arrays, None, False) as call:
            exchange = self._open_low_latency(exchange, handle, None, call)
        return masked(exchange, exchange.outputs, num_rows)

    def _open_low_latency(
        self, exchange: Exchange, handle: LowLatencyHandle, topk_idx: Any, call: Call
    ) -> Exchange:
        """An Exchange with the handle's layout, ready for its combine."""
        if exchange.layout == handle.layout and exchange.is_captured == self._is_capturing:
            if exchange.state != "open":
                exchange.reopen(call.stream)
            return exchange
        if topk_idx is None:
            raise ValueError("the handle is older than the last two dispatches, whose memory there is")
        # The rows of that dispatch are no longer on their way back: the same layout once more, with nothing in it.
        arrays = exchange.arrays
        ids = self._ids(arrays, topk_idx, handle.num_experts)
        enqueue: Callable[..., None] = exchange.enqueue
        if exchange.is_captured != self._is_capturing:
            exchange = self._low_latency_exchange(
                arrays, handle.num_max_dispatch_tokens_per_rank, handle.hidden, handle.num_experts, ids.shape[1], "bf16"
            )
            enqueue = functools.partial(self._enqueue_in_turn, exchange)
        exchange.begin(handle.layout)
        nothing = arrays.full((len(topk_idx), handle.hidden), 0, "bfloat16")
        enqueue("dispatch", "open", nothing, ids, stream=call.stream)
        return exchange

    @in_one_thread
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
        not read. With return_recv_hook, which must be the same on all ranks, the hook enqueues the receiving half;
        without it the combine ends when all ranks have read its rows. out may be part of x. combine_wait_recv_cost_stats:
        as those of low_latency_dispatch."""
        if use_logfmt:
            raise not_here("logfmt", "ExpertParallel has combine_format='fp8'; use that")
        wait_stats = combine_wait_recv_cost_stats
        check_stats("combine_wait_recv_cost_stats", wait_stats, self.group_size, "ranks", "int64")
        num_max, hidden, num_experts = handle.shape()
        shape = (num_experts // self.group_size, self.group_size * num_max, hidden)
        if x.shape != shape:
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be {shape}")
        given = (x, topk_idx, topk_weights, handle, zero_copy, async_finish, return_recv_hook, out)
        if self._survivors is None:
            return self._low_latency_combine(wait_stats, *given)
        return self._survivors.call(
            lambda is_help: self._low_latency_combine(None if is_help else wait_stats, *given)
        )

    def _low_latency_combine(
        self,
        wait_stats: Any,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: LowLatencyHandle,
        zero_copy: bool,
        async_finish: bool,
        return_recv_hook: bool,
        out: Optional[Any],
    ) -> Tuple[Any, EventOverlap, Optional[Callable[[], None]]]:
        exchange, arrays = handle.exchange, self._arrays(x)
        with self._call(arrays, None, async_finish, x, topk_idx, topk_weights, out) as call:
            weights = arrays.take(topk_weights, "topk_weights", "float32")
            if exchange.is_gone:
                exchange = self._move(arrays, handle, topk_idx, self._loose_rows if zero_copy else x, call)
                rows, awaits = exchange.memory.expert_outputs, False
            else:
                exchange = self._open_low_latency(exchange, handle, topk_idx, call)
                awaits = not return_recv_hook and self._awaits_readers(exchange)
                rows = self._give_rows(exchange, x, zero_copy, awaits, out, call)
            combined = out
            if out is None:
                combined = arrays.empty((topk_idx.shape[0], handle.hidden), "bfloat16")
            elif awaits and overlap(arrays, out, rows):
                combined = arrays.empty(arrays.take(out, "out", "bfloat16").shape, "bfloat16")
            waits = self._rank_waits(arrays, wait_stats)
            summed = dict(out=combined, rank_wait_ns=waits.of_members)

            def complete() -> None:
                exchange.check_if_waiting()
                waits.complete()

            def finish(stream: Any) -> None:
                exchange.enqueue("combine_wait", "closed", None, weights, **summed, stream=stream)
                complete()

            hook = None
            if return_recv_hook:
                hook = self._hook(exchange, finish)
                exchange.enqueue("combine_async", "returned", rows, stream=call.stream)
                if arrays.is_host:  # x has been copied when this returns
                    exchange.check()
            else:
                exchange.enqueue(
                    "combine", "closed", rows, None, weights, **summed, awaits_readers=awaits, stream=call.stream
                )
                complete()
            if out is not None and combined is not out:
                out[:] = combined
                combined = out
        if async_finish:
            self._hand_over(async_finish, combined)
        return combined, call.event, hook

    def _awaits_readers(self, exchange: Exchange) -> bool:
        """Whether a combine without a hook ends when all ranks have read its rows. The answer is the same on all ranks,
        whatever memory the rows lie in on each of them. With enable_shrink a rank may end before it has read."""
        return self._survivors is None and not exchange.has_wire

    def _give_rows(
        self, exchange: Exchange, x: Any, zero_copy: bool, awaits: bool, out: Optional[Any], call: Call
    ) -> Any:
        """Brings the rows to where peers read them, and returns them there. They are x itself only if the combine awaits
        its readers."""
        arrays, outputs = exchange.arrays, exchange.memory.expert_outputs
        if zero_copy:
            rows = outputs
        elif awaits and self._opens(exchange) and x.shape[0] * x.shape[1] == len(exchange.outputs):
            rows = exchange.offer(arrays.copy_if_strided(x), call.stream)
        else:
            rows = exchange.store(arrays.copy_if_strided(x), call.stream)
        if awaits or out is None or not overlap(arrays, out, rows):
            return rows
        # Peers may still read when this rank has its sums.
        if rows.data_ptr == outputs.data_ptr:
            raise ValueError(
                "out lies in the combine buffer, which peers may still read when a combine with a hook, or with "
                "enable_shrink, writes its sums; out must be other memory"
            )
        exchange.ep.store_expert_rows(exchange.rank, arrays.copy_if_strided(x), stream=call.stream)
        return outputs

    def _move(self, arrays: Any, handle: LowLatencyHandle, topk_idx: Any, x: Any, call: Call) -> Exchange:
        """Opens a step of the ranks that are left, with the layout of a handle from before, and brings x there: rows of
        ranks that are masked now are left out."""
        num_max, hidden, num_experts = handle.shape()
        ids = self._ids(arrays, topk_idx, num_experts)
        exchange = self._low_latency_exchange(arrays, num_max, hidden, num_experts, ids.shape[1], "bf16")
        exchange.begin(self._new_layout())
        step = ReceivedRows(exchange, self.group_size, self._members, num_max, True)
        nothing = arrays.full((len(ids), hidden), 0, "bfloat16")
        self._enqueue_in_turn(
            exchange, "dispatch", "open", nothing, ids, source_ranges=step.ranges_of_members, stream=call.stream
        )
        exchange.check()
        step.complete(None, None, None)
        outputs = masked(exchange, exchange.outputs, self.group_size * num_max)
        before, now = arrays.tolist(handle.packed_recv_layout_range), arrays.tolist(step.ranges)
        for local in range(len(now)):
            for rank in self._members:
                count = now[local][rank] & 0xFFFFFFFF
                to, since = now[local][rank] >> 32, before[local][rank] >> 32
                outputs[local, to : to + count] = x[local, since : since + count]
        return exchange

    # Ranks that are left out.

    @in_one_thread
    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """With mask, the others go on without the rank from the next call on; without it, with the rank again. All of
        them ask for it, and a rank that is to come back asks for it, too."""
        if self._survivors is None:
            raise ValueError("ranks can be masked only if the buffer was made with enable_shrink=True")
        if not 0 <= rank_to_mask < self.group_size:
            raise ValueError(f"rank_to_mask is {rank_to_mask}; it must be 0..{self.group_size - 1}")
        if mask:
            self._survivors.mask(rank_to_mask)
        elif self._is_masked(rank_to_mask):
            self._survivors.unmask(rank_to_mask)

    def _is_masked(self, rank: int) -> bool:
        return rank not in self._members or (rank == self.rank and self._world is None)

    @in_one_thread
    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Writes 1 for each rank that is masked to mask_status, (ranks,) of int32, and 0 for the others."""
        mask_status[:] = 1
        for rank in self._members:
            mask_status[rank] = 0

    @in_one_thread
    def low_latency_clean_mask_buffer(self) -> None:
        """Unmasks all ranks."""
        if self._survivors is not None:
            for rank in range(self.group_size):
                self.low_latency_update_mask_buffer(rank, False)


def check_stats(name: str, stats: Any, length: int, of_what: str, expected: str) -> None:
    if stats is None:
        return
    dtype = str(stats.dtype).split(".")[-1]
    if tuple(stats.shape) != (length,) or dtype != expected:
        raise ValueError(
            f"{name} has shape {tuple(stats.shape)} and dtype {dtype}; it must be ({length},), the number of "
            f"{of_what}, of {expected}"
        )
