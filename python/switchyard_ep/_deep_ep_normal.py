"""The normal mode of switchyard_ep.deep_ep.Buffer: a token travels once to each rank that holds any of its experts, with
its weights; an ExpertParallel whose rows are per rank moves it. Without ids, the ranks of a token are its experts."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple, Union

from ._deep_ep import SCALE_GROUP, Config, EventOverlap, Exchange, Handle, check_tokens, not_here
from ._deep_ep_base import BufferBase, Call


class NormalMode(BufferBase):
    # What dispatch returns is memory that the next dispatch overwrites, which saves every copy of rows.
    shares_rows: bool = os.environ.get("SWITCHYARD_DEEP_EP_SHARE_ROWS", "0") == "1"
    # The rows of bfloat16 of so many dispatches may be returned where they are, as long as anybody holds them; with more,
    # and with async_finish, what is returned is a copy. Each has memory for every token of every rank.
    lent_dispatches: int = int(os.environ.get("SWITCHYARD_DEEP_EP_LENT_DISPATCHES", "2"))
    # Combine lets other processes open the memory that x lies in, so that they read it there.
    opens_memory: bool = os.environ.get("SWITCHYARD_DEEP_EP_OPEN_MEMORY", "1") == "1"
    # The most tokens of any rank; None: ranks ask each other at every dispatch that has neither a handle nor
    # num_worst_tokens.
    max_tokens_per_rank: Optional[int] = None
    _capacity = 0  # tokens per rank that there is room for; the same on all ranks

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
        with self._call(arrays, previous_event, async_finish, topk_idx) as call:
            per_expert = arrays.count(ids, num_experts)
            # In whole numbers, -1 stays negative.
            ranks = ids // (num_experts // self.group_size)
            in_rank = (ranks[:, :, None] == arrays.arange(self.group_size)).any(1)
            per_rank = arrays.cast(in_rank.sum(0), "int32")
        self._hand_over(async_finish, per_rank, per_expert, in_rank)
        return per_rank, None, per_expert, in_rank, call.event

    # The library's ExpertParallels.

    def _reserve(self, num_tokens: int, row_bytes: int, num_worst_tokens: int, handle: Optional[Handle]) -> None:
        """Makes room for the tokens of every rank."""
        if len(self._members) < self.group_size:
            raise not_here("normal mode where ranks are masked", "use low latency, or make a new Buffer")
        needed = self.max_tokens_per_rank or -(-num_worst_tokens // self.group_size)
        if handle is not None:
            needed = max(needed, num_tokens if self._capacity == 0 else 0)
        elif needed == 0:
            mine = num_tokens.to_bytes(8, "little") + row_bytes.to_bytes(8, "little")
            gathered = self._use().all_gather(mine)
            widths = sorted({int.from_bytes(part[8:], "little") for part in gathered})
            if len(widths) > 1:
                raise ValueError(f"ranks differ in the bytes of a token, its scales, ids and weights: {widths}")
            needed = max(int.from_bytes(part[:8], "little") for part in gathered)
        if needed <= self._capacity:
            return
        for held in (self._exchanges, self._captured):
            for key in [key for key in held if key[0] in ("rows", "weights")]:
                exchange = held.pop(key)
                if exchange in self._used:
                    self._used.remove(exchange)
        self._capacity = max(16, 1 << (needed - 1).bit_length())

    def _rows_exchange(
        self, arrays: Any, hidden: int, is_fp8: bool, num_experts: int, top_k: int, config: Optional[Config]
    ) -> Exchange:
        n_sms = 0
        if arrays.num_sms():
            share = arrays.num_sms() // self._use().num_ranks_on_device_of(self.rank)
            n_sms = min((config or Config(self.num_sms)).num_sms, share)

        def options() -> Dict[str, Any]:
            return dict(
                n_experts=num_experts,
                top_k=top_k,
                hidden=hidden,
                max_tokens_per_rank=self._capacity,
                row_layout="per-rank",
                protocol="direct",
                dispatch_format="fp8" if is_fp8 else "bf16",
                row_sets=row_sets,
                n_sms=n_sms,
            )

        # The scales of fp8 interleave rows, and so have one set.
        row_sets = 1 if is_fp8 or self.shares_rows else 1 + self.lent_dispatches
        key = ("rows", self._capacity, hidden, is_fp8, num_experts, top_k, n_sms, row_sets)
        return self._exchange(arrays, key, options)

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
    ) -> Tuple[Any, Optional[Any], Optional[Any], List[int], Any, EventOverlap]:
        """Sends each token once to every rank that holds one of its experts. x is bfloat16, (tokens, hidden), or a pair of
        fp8 (e4m3) and float32 scales, (tokens, hidden / 128). Returns what arrived, by source rank and token: x,
        ids as local numbers (-1: an expert of another rank), weights, the tokens of each local expert (rounded up to
        expert_alignment), a handle and an event. With a handle the layout is that of its dispatch, and ids, weights and
        the list are left out. num_worst_tokens: the arrays have so many rows, the last ones with ids of -1, the list is
        empty, and the host does not wait; nor does it with a handle."""
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        arrays = self._arrays(tokens)
        check_tokens(
            self.group_size, tokens, scales, handle, is_token_in_rank, topk_idx, topk_weights, num_tokens_per_expert
        )
        inputs = (tokens, scales, is_token_in_rank, topk_idx, topk_weights)
        with self._call(arrays, previous_event, async_finish, *inputs) as call:
            tokens = arrays.take(tokens, "x", "bfloat16" if scales is None else "float8_e4m3fn")
            if scales is not None:
                scales = arrays.take(scales, "the scales", "float32")
            num_experts = 0 if num_tokens_per_expert is None else len(num_tokens_per_expert)
            routed = handle or self._route(arrays, is_token_in_rank, topk_idx, topk_weights, num_experts)
            row_bytes = tokens.shape[1] * tokens.itemsize + 4 * routed.ids.shape[1]
            self._reserve(len(tokens), row_bytes, num_worst_tokens, handle)
            exchange = self._rows_exchange(
                arrays, tokens.shape[1], scales is not None, routed.num_experts, routed.ids.shape[1], config
            )
            choices = None
            if topk_idx is not None:
                shape = (exchange.rows_per_set, routed.ids.shape[1])
                choices = (arrays.full(shape, -1, "int32"), arrays.full(shape, 0, "float32"))
            ranges = None if handle is not None else arrays.empty((1, self.group_size), "int64")
            self._send(exchange, call, tokens, scales, routed, choices, ranges, not async_finish)
            if handle is None:
                routed = routed._replace(rank_prefix_matrix=self._prefix_matrix(arrays, ranges))
            received = self._receive(
                exchange, routed, choices, expert_alignment, num_worst_tokens, not async_finish
            )
            if handle is None and topk_idx is None and not num_worst_tokens:
                received[3].extend(self._expert_list(arrays, num_tokens_per_expert, expert_alignment))
        parts = received[0] if isinstance(received[0], tuple) else (received[0],)
        self._hand_over(async_finish, *parts, *received[1:3])
        return (*received, call.event)

    def _route(self, arrays: Any, in_rank: Any, topk_idx: Any, topk_weights: Any, num_experts: int) -> Handle:
        """Where tokens go. What is kept of ids and weights are copies."""
        in_rank = arrays.take(in_rank, "is_token_in_rank", "bool")
        if topk_idx is None:
            num_experts = self.group_size
            ids = arrays.cast(arrays.where(in_rank, arrays.arange(self.group_size), -1), "int32")
            weights = arrays.full(ids.shape, 1, "float32")
        else:
            ids = arrays.cast(arrays.take(topk_idx, "topk_idx", "int64"), "int32")
            weights = arrays.copy(arrays.take(topk_weights, "topk_weights", "float32"))
        none = arrays.empty((self.group_size, 0), "int32")
        return Handle(None, none, none, None, in_rank, none, ids, weights, num_experts, None, self._new_layout(), {})

    def _send(
        self,
        exchange: Exchange,
        call: Call,
        tokens: Any,
        scales: Any,
        routed: Handle,
        choices: Any,
        ranges: Any,
        may_lend: bool,
    ) -> None:
        exchange.begin(routed.layout)
        exchange.choose_set(may_lend)
        exchange.ep.dispatch(
            self.rank,
            tokens,
            routed.ids,
            routed.weights,
            scales=scales,
            row_experts=None if choices is None else choices[0],
            row_weights=None if choices is None else choices[1],
            source_ranges=ranges,
            row_set=exchange.row_set,
            stream=call.stream,
        )
        exchange.state = "open"
        exchange.check()
        self._note_use(exchange)

    def _prefix_matrix(self, arrays: Any, ranges: Any) -> Any:
        matrix = arrays.full((self.group_size, self.group_size), 0, "int32")
        matrix[:, self.rank] = (ranges[0] & 0xFFFFFFFF).cumsum(0)
        return matrix

    def _receive(
        self,
        exchange: Exchange,
        routed: Handle,
        choices: Any,
        alignment: int,
        num_worst_tokens: int,
        may_lend: bool,
    ) -> Tuple[Any, Any, Any, List[int], Handle]:
        arrays = exchange.arrays
        num_local = routed.num_experts // self.group_size
        num_rows, listed = routed.num_recv_tokens, []
        if num_worst_tokens:
            num_rows = num_worst_tokens
            if num_rows > exchange.rows_per_set:
                raise ValueError(f"num_worst_tokens is {num_rows}; at most {exchange.rows_per_set} tokens can arrive")
        elif num_rows is None and routed.recv_src_idx is not None:
            num_rows = len(routed.recv_src_idx)
        elif num_rows is None:
            counts = exchange.counts[-1:]
            if choices is not None:
                counts = _joined(arrays, counts, arrays.count(choices[0], num_local))
            num_rows, *listed = arrays.tolist(counts)  # waits
            routed = routed._replace(num_recv_tokens=num_rows)
        first_row = exchange.first_row
        rows = exchange.lend(num_rows) if may_lend and not self.shares_rows else None
        if rows is None:
            rows = exchange.rows[first_row : first_row + num_rows]
            rows = rows if self.shares_rows else arrays.copy(rows)
        if routed.recv_src_idx is None:
            sources = arrays.copy(exchange.src_info[first_row : first_row + num_rows, 0])
            routed = routed._replace(recv_src_idx=sources)
        if exchange.scales is not None:
            num_scales = exchange.rows.shape[1] // SCALE_GROUP
            rows = (rows, arrays.copy(exchange.scales[:num_scales, :num_rows].T))
        if choices is None:
            return rows, None, None, [], routed
        ids, weights = arrays.cast(choices[0][:num_rows], "int64"), choices[1][:num_rows]
        return rows, ids, weights, [-(-n // alignment) * alignment for n in listed], routed

    def _expert_list(self, arrays: Any, per_expert: Any, alignment: int) -> List[int]:
        """Without ids only the ranks together know how many tokens each expert has."""
        num_local = len(per_expert) // self.group_size
        mine = b"".join(count.to_bytes(4, "little") for count in arrays.tolist(per_expert))
        totals = [0] * num_local
        for part in self._use().all_gather(mine):
            for local in range(num_local):
                at = 4 * (self.rank * num_local + local)
                totals[local] += int.from_bytes(part[at : at + 4], "little")
        return [-(-n // alignment) * alignment for n in totals]

    # combine.

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
        num_rows = handle.num_recv_tokens or 0
        if len(x.shape) != 2 or len(x) < num_rows:
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be (at least {num_rows} rows, hidden)")
        biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
        with self._call(arrays, previous_event, async_finish, x, topk_weights, *biases) as call:
            rows = arrays.copy_if_strided(arrays.take(x, "x", "bfloat16"))
            exchange = self._open_for(arrays, handle, rows.shape[1], config, call)
            lends = self._lends(exchange)
            given = None
            if len(rows):
                is_whole = len(rows) >= self._num_rows(handle)
                given = (exchange.offer if lends and is_whole else exchange.store)(rows, call.stream)
            combined = arrays.empty((len(handle.ids), rows.shape[1]), "bfloat16")
            exchange.ep.combine(self.rank, given, out=combined, stream=call.stream)
            exchange.state = "closed"
            if lends:  # when this step has ended, nobody reads x any more
                exchange.reopen(call.stream)
            else:
                exchange.check()
            sums = None
            if topk_weights is not None:
                sums = self._combine_weights(arrays, handle, topk_weights, call)
            if biases:
                total = arrays.cast(combined, "float32")
                for one in biases:
                    total = total + arrays.cast(arrays.take(one, "bias", "bfloat16"), "float32")
                combined = arrays.cast(total, "bfloat16")
        self._hand_over(async_finish, combined, sums)
        return combined, sums, call.event

    def get_combine_buffer(self, handle: Handle, hidden: int) -> Any:
        """Returns memory for the rows of a combine of the handle, (received, hidden) of bfloat16, which combine then reads
        where they are. DeepEP has none. It may be written behind what is on the current stream, and is the buffer's: the
        next dispatch or combine takes it back."""
        arrays = self._arrays(handle.ids)
        with self._call(arrays, None, False) as call:
            exchange = self._open_for(arrays, handle, hidden, None, call)
        exchange.gave_outputs = True
        return exchange.outputs[: self._num_rows(handle)]

    @staticmethod
    def _num_rows(handle: Handle) -> int:
        """That combine reads, at most."""
        return len(handle.recv_src_idx) if handle.num_recv_tokens is None else handle.num_recv_tokens

    def _lends(self, exchange: Exchange) -> bool:
        """Whether peers may read x where it is. The answer is the same on all ranks, whatever each of them finds x in:
        such a combine ends when all of them have read."""
        is_shared = self.shares_rows or exchange.gave_outputs
        return self.opens_memory and self.group_size > 1 and not exchange.arrays.is_host and not is_shared

    def _open_for(
        self, arrays: Any, handle: Handle, hidden: int, config: Optional[Config], call: Call
    ) -> Exchange:
        """An Exchange with the handle's layout, ready for its combine: the last one that had it, else a dispatch of
        nothing with the same layout."""
        for exchange in reversed(self._used):
            is_like = exchange.layout == handle.layout and exchange.is_captured == self._is_capturing
            if is_like and exchange.outputs.shape[1] == hidden:
                exchange.reopen(call.stream)
                return exchange
        self._reserve(len(handle.ids), 0, 0, handle)
        exchange = self._rows_exchange(arrays, hidden, False, handle.num_experts, handle.ids.shape[1], config)
        nothing = arrays.full((len(handle.ids), hidden), 0, "bfloat16")
        self._send(exchange, call, nothing, None, handle, None, None, False)
        return exchange

    def _combine_weights(self, arrays: Any, handle: Handle, topk_weights: Any, call: Call) -> Any:
        """The bits of the weights travel as rows of two-byte elements, and come back as they are."""
        weights = arrays.take(topk_weights, "topk_weights", "float32")
        top_k = weights.shape[1]
        width = -(-2 * top_k // 8) * 8
        exchange = self._weights_exchange(arrays, width)
        ids = handle.made.get("ranks")
        if ids is None:
            ids = arrays.cast(arrays.where(handle.is_token_in_rank, arrays.arange(self.group_size), -1), "int32")
            if not self._is_capturing:  # else they exist when the graph is replayed
                handle.made["ranks"] = ids
        if exchange.layout == handle.layout:
            exchange.reopen(call.stream)
        else:
            exchange.begin(handle.layout)
            nothing = arrays.full((len(ids), width), 0, "bfloat16")
            exchange.ep.dispatch(self.rank, nothing, ids, stream=call.stream)
            exchange.state = "open"
            exchange.check()
        num_rows = len(weights) if handle.num_recv_tokens is None else handle.num_recv_tokens
        arrays.bits(exchange.outputs, "float32")[:num_rows, :top_k] = weights[:num_rows]
        by_rank = arrays.empty((len(ids), self.group_size, width), "bfloat16")
        exchange.ep.combine(self.rank, None, ids, out=by_rank, reduction="unreduced", stream=call.stream)
        exchange.state = "closed"
        exchange.check()
        return arrays.bits(by_rank, "float32")[:, :, :top_k].sum(1)


def _joined(arrays: Any, first: Any, second: Any) -> Any:
    both = arrays.empty((len(first) + len(second),), "int32")
    both[: len(first)], both[len(first) :] = first, second
    return both
