"""What the calls of switchyard_ep.deep_ep return, and write beside rows."""

from __future__ import annotations

from typing import Any, Dict, List

from ._deep_ep import SCALE_GROUP, Exchange, LowLatencyHandle, Routing

# Normal mode.


class Wanted:
    """What a dispatch writes beside rows."""

    def __init__(
        self,
        exchange: Exchange,
        routed: Routing,
        num_ranks: int,
        has_choices: bool,
        has_handle: bool,
        num_worst_tokens: int,
    ):
        arrays = exchange.arrays
        self.num_rows = routed.num_recv_tokens  # None: the host waits for it
        if num_worst_tokens:
            self.num_rows = num_worst_tokens
            if num_worst_tokens > exchange.rows_per_set:
                raise ValueError(
                    f"num_worst_tokens is {num_worst_tokens}; at most {exchange.rows_per_set} tokens can arrive"
                )
        elif has_handle and self.num_rows is None:
            self.num_rows = len(routed.recv_src_idx)
        self.experts = self.weights = self.totals = self.ranges = None
        if has_choices:
            shape = (exchange.rows_per_set, routed.ids.shape[1])
            self.experts, self.weights = arrays.empty(shape, "int32"), arrays.empty(shape, "float32")
            if num_worst_tokens:  # rows that do not come
                self.experts[:], self.weights[:] = -1, 0
        if not has_handle:
            self.ranges = arrays.empty((1, num_ranks), "int64")
        if self.num_rows is None:
            self.totals = arrays.full((1 + routed.num_experts // num_ranks,), 0, "int32")

    def outputs(self) -> Dict[str, Any]:
        return dict(
            row_experts=self.experts,
            row_weights=self.weights,
            source_ranges=self.ranges,
            expert_totals=self.totals,
        )


def prefix_matrix(arrays: Any, ranges: Any, rank: int) -> Any:
    num_ranks = ranges.shape[1]
    arrays.use_here(ranges)  # somebody looks at it at any time, on any stream
    matrix = arrays.full((num_ranks, num_ranks), 0, "int32")
    matrix[:, rank] = (ranges[0] & 0xFFFFFFFF).cumsum(0)
    return matrix


def widen(arrays: Any, scales: Any, num_columns: int) -> Any:
    """Scales as float32, as many for each token as the format has. They are only moved, so their bits may mean anything."""
    if scales.shape[1:] == (num_columns,):
        return arrays.bits(scales, "float32")
    wide = arrays.full((len(scales), num_columns), 0, "float32")
    words = scales if len(scales.shape) == 2 else scales[:, None]
    arrays.bits(wide, "int32")[:, : words.shape[1]] = arrays.bits(words, "int32")
    return wide


def narrow(arrays: Any, wide: Any, given: Any) -> Any:
    """The other way round: scales like those that were given."""
    dtype = str(given.dtype).split(".")[-1]
    if given.shape[1:] == wide.shape[1:]:
        return wide if dtype == "float32" else arrays.bits(wide, dtype)
    words = arrays.copy(wide[:, 0] if len(given.shape) == 1 else wide[:, : given.shape[1]])
    return arrays.bits(words, dtype)


# Low latency.


def masked(exchange: Exchange, rows: Any, num_rows: int) -> Any:
    """(all rows, ..) as (local experts, num_rows, ..)."""
    num_local = len(exchange.counts)
    return rows.reshape(num_local, len(rows) // num_local, *rows.shape[1:])[:, :num_rows]


class RankWaits:
    """What a call adds its waits for each rank to: the caller's stats, or zeros where a kernel cannot write, ranks are
    masked, or the call may have to be repeated, since a rank may end in it."""

    def __init__(self, arrays: Any, stats: Any, members: List[int], may_repeat: bool):
        self._arrays, self._stats, self._members = arrays, stats, members
        self.of_members = stats
        if stats is not None and (may_repeat or arrays.pointer(stats) % 16):
            self.of_members = arrays.full((len(members),), 0, "int64")

    def complete(self) -> None:
        """Behind the call; a hook may be called on another stream."""
        if self.of_members is self._stats:
            return
        self._arrays.use_here(self.of_members)
        if len(self._members) == len(self._stats):
            self._stats += self.of_members
        else:
            self._stats[self._members] += self.of_members


class ReceivedRows:
    """What a dispatch returns, over the memory of its Exchange, made once. Where ranks may be masked, which needs the
    ranges behind the end of a world, dispatch writes them; else they are made when somebody looks at the handle's."""

    def __init__(self, exchange: Exchange, num_ranks: int, members: List[int], num_max: int, has_ranges: bool):
        self._exchange, self._num_max, self._num_rows = exchange, num_max, num_ranks * num_max
        self._hidden, self._members = exchange.outputs.shape[1], tuple(members)
        num_local, arrays = len(exchange.counts), exchange.arrays
        self.ranges_of_members = arrays.empty((num_local, len(members)), "int64") if has_ranges else None
        self.ranges = self.ranges_of_members
        if has_ranges and len(members) < num_ranks:
            self.ranges = arrays.full((num_local, num_ranks), 0, "int64")
        self._src_info = masked(exchange, exchange.src_info, self._num_rows)[:, :, 0]
        self.rows = masked(exchange, exchange.rows, self._num_rows)
        if exchange.scales is not None:
            self.rows = (self.rows, self._scale_words())

    def handle(self, num_experts: int) -> LowLatencyHandle:
        exchange, layout = self._exchange, self._exchange.layout
        ranges = self.ranges if self.ranges is not None else lambda: self._find_ranges(layout)
        items = (self._src_info, ranges, self._num_max, self._hidden, num_experts)
        return LowLatencyHandle.of(items, exchange, self._members)

    def _find_ranges(self, layout: int) -> Any:
        """Waits for the dispatch."""
        exchange, arrays = self._exchange, self._exchange.arrays
        if exchange.layout != layout or exchange.num_reopened or exchange.is_gone:
            raise ValueError(
                "the handle's layout range is valid until the dispatch after the next, or a second combine"
            )
        exchange.settle()
        first_rows, counts = exchange.ep.source_row_offsets(exchange.rank), arrays.tolist(exchange.counts)
        num_ranks, rows_per_expert = len(self._members), len(exchange.rows) // len(counts)
        ranges = []
        for local, count in enumerate(counts):
            begin = local * rows_per_expert
            rows = [*first_rows[local * num_ranks : (local + 1) * num_ranks], begin + count]
            ranges.append([(row - begin) << 32 | (after - row) for row, after in zip(rows, rows[1:])])
        return arrays.from_list(ranges, "int64")

    def totals_for(self, stats: Any) -> Any:
        """What dispatch adds the counts to: stats, or zeros where a kernel cannot write, or the call may have to be
        repeated, since a rank may end in it."""
        arrays = self._exchange.arrays
        if stats is not None and (self.ranges_of_members is not None or arrays.pointer(stats) % 16):
            return arrays.full((len(stats),), 0, "int32")
        return stats

    def make_float_scales(self) -> Any:
        shape = (len(self._exchange.counts), self._num_rows, self._hidden // SCALE_GROUP)
        return self._exchange.arrays.empty(shape, "float32")

    def _scale_words(self) -> Any:
        """(scales, all rows) as (local experts, rows, scales), without a copy."""
        words, num_local = self._exchange.scales, len(self._exchange.counts)
        num_rows = len(self._exchange.rows)
        by_expert = words[:, :num_rows].reshape(len(words), num_local, num_rows // num_local)
        return self._exchange.arrays.permuted(by_expert, 1, 2, 0)[:, : self._num_rows]

    def complete(self, stats: Any, totals: Any, float_scales: Any) -> None:
        """Behind the dispatch: what its kernels do not write."""
        arrays = self._exchange.arrays
        if totals is not stats:
            stats += totals
        if self.ranges is not self.ranges_of_members:
            for number, rank in enumerate(self._members):
                self.ranges[:, rank] = self.ranges_of_members[:, number]
        if float_scales is None:
            return
        # An exponent is the upper bits of a float32.
        octets = arrays.bits(arrays.copy(self._scale_words()), "uint8")
        exponents = arrays.cast(octets, "int32")[..., : float_scales.shape[2]] << 23
        float_scales[:] = arrays.bits(arrays.copy(exponents), "float32")
