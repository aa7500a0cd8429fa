"""The normal mode of switchyard_ep.deep_ep.Buffer: a token travels once to each rank that holds any of its experts, with
its weights; an ExpertParallel whose rows are per rank moves it. Without ids, the ranks of a token are its experts."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Dict, List, Optional, Tuple, Union

from ._deep_ep import SCALE_GROUP, Config, EventOverlap, Exchange, Handle, Routing, check_tokens, not_here
from ._deep_ep_base import BufferBase, Call, in_one_thread
from ._deep_ep_outputs import Wanted, narrow, prefix_matrix, widen
from .errors import FailedPrecondition, ResourceExhausted


class NormalMode(BufferBase):
    # What dispatch returns is memory that the next dispatch overwrites, which saves every copy of rows.
    shares_rows: bool = os.environ.get("SWITCHYARD_DEEP_EP_SHARE_ROWS", "0") == "1"
    # The rows of so many dispatches, and their scales, may be returned where they are, as long as anybody holds them; with
    # more, and with async_finish, what is returned is a copy. Each has memory for every token of every rank.
    lent_dispatches: int = int(os.environ.get("SWITCHYARD_DEEP_EP_LENT_DISPATCHES", "2"))
    # The most tokens of any rank; None: memory grows when a rank comes with more than any did before.
    max_tokens_per_rank: Optional[int] = None
    _capacity = 0  # tokens per rank that there is room for; the same on all ranks
    _none: Any = None
    _num_own_sms = 0

    @in_one_thread
    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Optional[Any], Any, Any, EventOverlap]:
        """Returns tokens per rank, per RDMA rank (None inside a node), per expert, is_token_in_rank and an event."""
        if num_experts < 1 or num_experts % self.group_size:
            raise ValueError(f"num_experts is {num_experts}; it must be a multiple of the {self.group_size} ranks")
        arrays = self._arrays(topk_idx)
        ids = arrays.take(topk_idx, "topk_idx", "int64")
        if arrays.is_host and len(ids) and (ids.min() < -1 or ids.max() >= num_experts):
            raise ValueError(f"topk_idx holds {ids.min()}..{ids.max()}; it must be -1..{num_experts - 1}")
        self._check_all_are_members()
        first_expert = -(-self.group_size // 4) * 4  # what kernels write begins at 16 bytes
        with self._call(arrays, previous_event, async_finish, topk_idx) as call:
            totals = arrays.full((first_expert + num_experts,), 0, "int32")
            per_rank, per_expert = totals[: self.group_size], totals[first_expert:]
            in_rank = arrays.empty((len(ids), self.group_size), "uint8")
            self._use().count_routing(
                self.rank,
                arrays.copy_if_strided(ids),
                num_experts,
                tokens_of_rank=per_rank,
                choices_of_expert=per_expert,
                is_token_in_rank=in_rank,
                stream=call.stream,
            )
            if arrays.is_host:
                self._use().rank(self.rank).synchronize()
            in_rank = arrays.bits(in_rank, "bool")
        self._hand_over(async_finish, per_rank, per_expert, in_rank)
        return per_rank, None, per_expert, in_rank, call.event

    # The library's ExpertParallels.

    def _check_all_are_members(self) -> None:
        if len(self._members) < self.group_size:
            raise not_here("normal mode where ranks are masked", "use low latency, or make a new Buffer")

    def _reserve(self, num_tokens: int, row_bytes: int, num_worst_tokens: int, is_cached: bool) -> bool:
        """Makes room for the tokens of every rank as far as all ranks know of it. Returns False if this rank has more
        tokens than there is room for, of which the others do not know."""
        self._check_all_are_members()
        known = self.max_tokens_per_rank or -(-num_worst_tokens // self.group_size)
        if is_cached:
            known = max(known, num_tokens if self._capacity == 0 else 0)
        if known:
            self._make_room(known)
        elif not is_cached and self._capacity == 0:
            self._agree_on_room(num_tokens, row_bytes)
        if num_worst_tokens and num_tokens > self._capacity:
            raise ValueError(
                f"num_worst_tokens is {num_worst_tokens}, which makes room for {self._capacity} tokens of each of the "
                f"{self.group_size} ranks, and rank {self.rank} has {num_tokens}; set Buffer.max_tokens_per_rank"
            )
        return is_cached or self._is_capturing or num_tokens <= self._capacity

    def _agree_on_room(self, num_tokens: int, row_bytes: int) -> None:
        """Makes room for the tokens of the rank that has most. All ranks call this."""
        mine = num_tokens.to_bytes(8, "little") + row_bytes.to_bytes(8, "little")
        gathered = self._use().all_gather(mine)
        widths = sorted({int.from_bytes(part[8:], "little") for part in gathered})
        if len(widths) > 1:
            raise ValueError(f"ranks differ in the bytes of a token, its scales, ids and weights: {widths}")
        self._make_room(max(int.from_bytes(part[:8], "little") for part in gathered))

    def _make_room(self, needed: int) -> None:
        """Memory that graphs hold the steps of stays: they may be replayed at any time."""
        if needed <= self._capacity:
            return
        if self._is_capturing:
            raise FailedPrecondition(
                f"a call is captured that needs room for {needed} tokens of each rank, and there is room for"
                f" {self._capacity}; make it once before the capture"
            )
        for key in [key for key in self._exchanges if key[0] in ("rows", "weights")]:
            exchange = self._exchanges.pop(key)
            if exchange in self._used:
                self._used.remove(exchange)
        self._capacity = max(16, 1 << (needed - 1).bit_length())

    def _rows_exchange(
        self, arrays: Any, hidden: int, is_fp8: bool, num_experts: int, top_k: int, config: Optional[Config]
    ) -> Exchange:
        n_sms = 0
        if not arrays.is_host:
            n_sms = min(self.num_sms if config is None else config.num_sms, self._share_of_sms(arrays))

        def options() -> Dict[str, Any]:
            return dict(
                n_experts=num_experts,
                top_k=top_k,
                hidden=hidden,
                max_tokens_per_rank=self._capacity,
                row_layout="per-rank",
                protocol="direct",
                dispatch_format="fp8-by-row" if is_fp8 else "bf16",
                row_sets=row_sets,
                n_sms=n_sms,
            )

        row_sets = 1 if self.shares_rows else 1 + self.lent_dispatches
        key = ("rows", self._capacity, hidden, is_fp8, num_experts, top_k, n_sms, row_sets)
        return self._exchange(arrays, key, options)

    def _share_of_sms(self, arrays: Any) -> int:
        if self._num_own_sms == 0:
            self._num_own_sms = arrays.num_sms() // self._use().num_ranks_on_device_of(self.rank)
        return self._num_own_sms

    def _weights_exchange(self, arrays: Any, width: int) -> Exchange:
        """For weights on their way back: ranks are experts, and rows come back one by one."""

        def options() -> Dict[str, Any]:
            return dict(
                n_experts=self.group_size,
                top_k=self.group_size,
                hidden=width,
                max_tokens_per_rank=self._capacity,
                protocol="direct",
            )

        return self._exchange(arrays, ("weights", self._capacity, width), options)

    # dispatch.

    @in_one_thread
    def dispatch(
        self,
        x: Union[Any, Tuple[Any, Any]],
        handle: Optional[Handle] = None,
        num_tokens_per_rank: Optional[Any] = None,
        num_tokens_per_rdma_rank: Optional[Any] = None,
        is_token_in_rank: Optional[Any] = None,
        num_tokens_per_expert: Optional[Any] = None,
        topk_idx: Optional[Any] = None,
        topk_weights: Optional[Any] = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Optional[Any], Optional[Any], Optional[List[int]], Optional[Handle], EventOverlap]:
        """Sends each token once to every rank that holds one of its experts. x is bfloat16, (tokens, hidden), or a pair of
        fp8 (e4m3) and scales, (tokens, hidden / 128) of float32, or fewer columns, or int32, which are moved as they are.
        Returns what arrived, by source rank and token: x, ids as local numbers (-1: an expert of another rank),
        weights, the tokens of each local expert (rounded up to expert_alignment), a handle and an event. With a handle
        the layout is that of its dispatch, and ids, weights, the list and the handle that are returned are None.
        num_worst_tokens: the arrays have so many rows, the last ones with ids of -1, the list is empty, and the host does
        not wait; nor does it with a handle."""
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        arrays = self._arrays(tokens)
        check_tokens(
            self.group_size, tokens, scales, handle, is_token_in_rank, topk_idx, topk_weights, num_tokens_per_expert
        )
        inputs = (tokens, scales, is_token_in_rank, topk_idx, topk_weights)
        with self._call(arrays, previous_event, async_finish, *inputs) as call:
            tokens = arrays.take(tokens, "x", "bfloat16" if scales is None else "float8_e4m3fn")
            given = scales
            if scales is not None:
                taken = arrays.take(scales, "the scales", "float32", "int32")
                scales = widen(arrays, taken, tokens.shape[1] // SCALE_GROUP)
            num_experts = 0 if num_tokens_per_expert is None else len(num_tokens_per_expert)
            if handle is None:
                routed = self._route(arrays, is_token_in_rank, topk_idx, topk_weights, num_experts)
            else:
                routed = handle.routing
            has_choices, is_cached, may_lend = topk_idx is not None, handle is not None, not async_finish
            received = None
            while received is None:
                received = self._try_dispatch(
                    call, tokens, scales, routed, has_choices, num_worst_tokens, is_cached, config, may_lend
                )
            rows, ids, weights, listed, new_handle = received
            if given is not None:
                rows = (rows[0], narrow(arrays, rows[1], given))
            if handle is None and topk_idx is None and not num_worst_tokens:
                listed = self._expert_list(arrays, num_tokens_per_expert)
        self._hand_over(async_finish, *(rows if isinstance(rows, tuple) else (rows,)), ids, weights)
        if handle is not None:
            return rows, None, None, None, None, call.event
        listed = [-(-num // expert_alignment) * expert_alignment for num in listed]
        return rows, ids, weights, listed, new_handle, call.event

    def _try_dispatch(
        self,
        call: Call,
        tokens: Any,
        scales: Any,
        routed: Routing,
        has_choices: bool,
        num_worst_tokens: int,
        is_cached: bool,
        config: Optional[Config],
        may_lend: bool,
    ) -> Optional[Tuple[Any, Any, Any, List[int], Optional[Handle]]]:
        """Returns None if a rank has called the step off, since there was no room for its tokens; now there is."""
        arrays, top_k = self._arrays(tokens), routed.ids.shape[1]
        row_bytes = tokens.shape[1] * tokens.itemsize + 4 * top_k
        has_room = self._reserve(len(tokens), row_bytes, num_worst_tokens, is_cached)
        exchange = self._rows_exchange(arrays, tokens.shape[1], scales is not None, routed.num_experts, top_k, config)
        wanted = Wanted(exchange, routed, self.group_size, has_choices, is_cached, num_worst_tokens)
        try:
            if has_room:
                self._send(exchange, call, tokens, scales, routed, wanted.outputs(), may_lend)
            else:
                self._call_off(exchange, call)
            return self._receive(exchange, routed, wanted, may_lend)
        except ResourceExhausted as error:
            if error.fault is None or error.fault.kind != "called off":
                raise
            with contextlib.suppress(ResourceExhausted):  # another rank has called it off, too
                exchange.ep.synchronize(self.rank)  # the step has ended then
            exchange.state = "closed"
            self._agree_on_room(len(tokens), row_bytes)
            return None

    def _call_off(self, exchange: Exchange, call: Call) -> None:
        exchange.begin(self._new_layout())
        exchange.enqueue("call_off_step", "open", stream=call.stream)  # until the step has been reported
        exchange.ep.synchronize(self.rank)  # raises what the other ranks are told

    def _route(self, arrays: Any, in_rank: Any, topk_idx: Any, topk_weights: Any, num_experts: int) -> Routing:
        """Where tokens go, by ids and weights as they were given."""
        in_rank = arrays.take(in_rank, "is_token_in_rank", "bool")
        if topk_idx is None:
            num_experts = self.group_size
            ids = arrays.where(in_rank, arrays.arange(self.group_size), -1)
            weights = arrays.full(ids.shape, 1, "float32")
        else:
            ids = arrays.copy_if_strided(arrays.take(topk_idx, "topk_idx", "int64"))
            weights = arrays.copy_if_strided(arrays.take(topk_weights, "topk_weights", "float32"))
        return Routing(ids, weights, in_rank, num_experts, self._new_layout(), {})

    def _no_matrix(self, arrays: Any) -> Any:
        """In the place of DeepEP's matrices of channels, of which there are none."""
        if self._none is None:
            self._none = arrays.empty((self.group_size, 0), "int32")
        return self._none

    def _send(
        self,
        exchange: Exchange,
        call: Call,
        tokens: Any,
        scales: Any,
        routed: Routing,
        outputs: Dict[str, Any],
        may_lend: bool,
    ) -> None:
        exchange.begin(routed.layout)
        exchange.choose_set(may_lend)
        exchange.enqueue(
            "dispatch",
            "open",
            tokens,
            routed.ids,
            routed.weights,
            scales=scales,
            row_set=exchange.row_set,
            stream=call.stream,
            **outputs,
        )
        exchange.check()
        self._note_use(exchange)

    def _receive(
        self, exchange: Exchange, routed: Routing, wanted: Wanted, may_lend: bool
    ) -> Tuple[Any, Any, Any, List[int], Optional[Handle]]:
        """Does what it can while the dispatch runs, before the host waits for the number of rows: for as many as could
        have come."""
        arrays, first_row, listed = exchange.arrays, exchange.first_row, []
        num_rows = wanted.num_rows
        most = exchange.rows_per_set if num_rows is None else num_rows
        ids = None if wanted.experts is None else arrays.cast(wanted.experts[:most], "int64")
        lent = exchange.lend() if may_lend and not self.shares_rows else None
        is_new, handle = routed.recv_src_idx is None, None
        if is_new:
            sources = arrays.copy(exchange.src_info[first_row : first_row + most, 0])
            routed = routed._replace(ids=arrays.cast(routed.ids, "int32"), weights=arrays.copy(routed.weights))
        if num_rows is None:
            num_rows, *listed = arrays.tolist(wanted.totals)  # waits
            exchange.ep.poll(self.rank)
        if is_new:
            known = None if wanted.totals is None else num_rows
            routed = routed._replace(num_recv_tokens=known, recv_src_idx=sources[:num_rows])
            make_matrix = functools.partial(prefix_matrix, arrays, wanted.ranges, self.rank)
            handle = Handle.of(routed, make_matrix, self._no_matrix(arrays))
        parts = [part[:num_rows] for part in (exchange.last_set() if lent is None else lent)]
        if lent is None and not self.shares_rows:
            parts = [arrays.copy(part) for part in parts]
        rows = parts[0] if len(parts) == 1 else tuple(parts)
        if ids is None:
            return rows, None, None, [], handle
        return rows, ids[:num_rows], wanted.weights[:num_rows], listed, handle

    def _expert_list(self, arrays: Any, per_expert: Any) -> List[int]:
        """Without ids only the ranks together know how many tokens each expert has."""
        num_local = len(per_expert) // self.group_size
        mine = b"".join(count.to_bytes(4, "little") for count in arrays.tolist(per_expert))
        totals = [0] * num_local
        for part in self._use().all_gather(mine):
            for local in range(num_local):
                at = 4 * (self.rank * num_local + local)
                totals[local] += int.from_bytes(part[at : at + 4], "little")
        return totals

    # combine.

    @in_one_thread
    def combine(
        self,
        x: Any,
        handle: Handle,
        topk_weights: Optional[Any] = None,
        bias: Union[None, Any, Tuple[Any, Any]] = None,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Optional[Any], EventOverlap]:
        """Sends x, (received, hidden) of bfloat16, a row for each token that dispatch brought, back to the tokens' ranks,
        and returns the sum over the ranks of each token, in fp32 and rounded once, plus bias, one or two of (tokens,
        hidden); and the sum of topk_weights, (received, top_k), if given."""
        arrays = self._arrays(x)
        routing = handle.routing
        num_rows = routing.num_recv_tokens or 0
        if len(x.shape) != 2 or len(x) < num_rows:
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be (at least {num_rows} rows, hidden)")
        biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
        with self._call(arrays, previous_event, async_finish, x, topk_weights, *biases) as call:
            rows = arrays.copy_if_strided(arrays.take(x, "x", "bfloat16"))
            exchange = self._open_for(arrays, routing, rows.shape[1], config, call)
            awaits = self._awaits_rows(exchange)
            given = None
            if len(rows):
                lends = awaits and self._opens(exchange) and len(rows) >= self._num_rows(routing)
                given = (exchange.offer if lends else exchange.store)(rows, call.stream)
            combined = arrays.empty((len(routing.ids), rows.shape[1]), "bfloat16")
            exchange.enqueue("combine", "closed", given, out=combined, awaits_readers=awaits, stream=call.stream)
            exchange.check()
            sums = None
            if topk_weights is not None:
                sums = self._combine_weights(arrays, routing, topk_weights, call)
            if biases:
                total = arrays.cast(combined, "float32")
                for one in biases:
                    total = total + arrays.cast(arrays.take(one, "bias", "bfloat16"), "float32")
                combined = arrays.cast(total, "bfloat16")
        self._hand_over(async_finish, combined, sums)
        return combined, sums, call.event

    @in_one_thread
    def get_combine_buffer(self, handle: Handle, hidden: int) -> Any:
        """Returns memory for the rows of a combine of the handle, (received, hidden) of bfloat16, which combine then reads
        where they are. DeepEP has none. It may be written behind what is on the current stream, and is the buffer's: the
        next dispatch or combine takes it back."""
        arrays = self._arrays(handle.routing.ids)
        with self._call(arrays, None, False) as call:
            exchange = self._open_for(arrays, handle.routing, hidden, None, call)
        exchange.gave_outputs = True
        return exchange.outputs[: self._num_rows(handle.routing)]

    @staticmethod
    def _num_rows(routing: Routing) -> int:
        """That combine reads, at most."""
        return len(routing.recv_src_idx) if routing.num_recv_tokens is None else routing.num_recv_tokens

    def _awaits_rows(self, exchange: Exchange) -> bool:
        """Whether combine ends when all ranks have read its rows, so that peers may read x where it is. The answer is
        the same on all ranks, whatever memory x lies in on each of them."""
        is_shared = self.shares_rows or exchange.gave_outputs
        return self.group_size > 1 and not exchange.arrays.is_host and not is_shared and not exchange.has_wire

    def _open_for(
        self, arrays: Any, routing: Routing, hidden: int, config: Optional[Config], call: Call
    ) -> Exchange:
        """An Exchange with the handle's layout, ready for its combine: the last one that had it, else a dispatch of
        nothing with the same layout."""
        for exchange in reversed(self._used):
            is_like = exchange.layout == routing.layout and exchange.is_captured == self._is_capturing
            if is_like and exchange.outputs.shape[1] == hidden:
                exchange.reopen(call.stream)
                return exchange
        self._reserve(len(routing.ids), 0, 0, True)
        exchange = self._rows_exchange(arrays, hidden, False, routing.num_experts, routing.ids.shape[1], config)
        nothing = arrays.full((len(routing.ids), hidden), 0, "bfloat16")
        self._send(exchange, call, nothing, None, routing, {}, False)
        return exchange

    def _combine_weights(self, arrays: Any, routing: Routing, topk_weights: Any, call: Call) -> Any:
        """The bits of the weights travel as rows of two-byte elements, and come back as they are."""
        weights = arrays.take(topk_weights, "topk_weights", "float32")
        top_k = weights.shape[1]
        width = -(-2 * top_k // 8) * 8
        exchange = self._weights_exchange(arrays, width)
        ids = routing.made.get("ranks")
        if ids is None:
            ids = arrays.cast(arrays.where(routing.is_token_in_rank, arrays.arange(self.group_size), -1), "int32")
            if not self._is_capturing:  # else they exist when the graph is replayed
                routing.made["ranks"] = ids
        if exchange.layout == routing.layout:
            exchange.reopen(call.stream)
        else:
            exchange.begin(routing.layout)
            nothing = arrays.full((len(ids), width), 0, "bfloat16")
            exchange.enqueue("dispatch", "open", nothing, ids, stream=call.stream)
            exchange.check()
        num_rows = len(weights) if routing.num_recv_tokens is None else routing.num_recv_tokens
        arrays.bits(exchange.outputs, "float32")[:num_rows, :top_k] = weights[:num_rows]
        by_rank = arrays.empty((len(ids), self.group_size, width), "bfloat16")
        exchange.enqueue("combine", "closed", None, ids, out=by_rank, reduction="unreduced", stream=call.stream)
        exchange.check()
        return arrays.bits(by_rank, "float32")[:, :, :top_k].sum(1)

