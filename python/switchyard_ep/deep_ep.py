"""A stand-in for DeepEP V1's Python interface: Buffer, EventOverlap and Config with its methods, arguments, shapes and
dtypes, over switchyard_ep. Code that says `import deep_ep` can say `import switchyard_ep.deep_ep as deep_ep`.

So far: dispatch and combine inside a node, and low latency, on the host target, over arrays of NumPy or CPU tensors of
PyTorch. Everything else raises NotImplementedError, which says what to use instead.

dispatch: a token travels once to each rank that holds any of its experts, with its ids and weights behind it. To the
library ranks are experts: an ExpertParallel with one expert per rank moves the rows and brings the results back.
low_latency_dispatch: an ExpertParallel with the model's experts and masked rows.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from . import _core
from ._deep_ep import (
    Arrays,
    Config,
    EventOverlap,
    Handle,
    Lanes,
    LowLatencyHandle,
    OpenStep,
    all_gather_of,
    check_tokens,
    destinations_of,
    low_latency_options,
    not_here,
)
from .errors import FailedPrecondition

__all__ = ["Buffer", "Config", "EventOverlap"]


class Buffer:
    """DeepEP's Buffer.

    group is a process group of torch.distributed, or any object that has rank(), size() and all_gather(bytes) ->
    list[bytes]. The sizes of memory are DeepEP's business and have no effect: memory grows with the largest step.
    """

    num_sms: int = 20

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
        self._world: Optional[_core.World] = _core.World.join(
            self.rank, self.group_size, all_gather=all_gather_of(group), target="host"
        )
        self._eps: Dict[Any, _core.ExpertParallel] = {}  # by the elements of a row, or by the shape of low latency
        self._open: Optional[OpenStep] = None
        self._num_layouts = 0

    # The library's steps. Ranks make the same calls in the same order, so all of them decide alike.

    def _use(self) -> _core.World:
        if self._world is None:
            raise FailedPrecondition("the buffer has been destroyed")
        return self._world

    def _reserve(self, num_elements: int, num_tokens: int) -> _core.ExpertParallel:
        """An ExpertParallel for rows of so many elements, and for the most tokens of any rank."""
        world = self._use()
        gathered = world.all_gather(num_tokens.to_bytes(8, "little") + num_elements.to_bytes(8, "little"))
        widths = {int.from_bytes(part[8:], "little") for part in gathered}
        if len(widths) > 1:
            raise ValueError(
                f"ranks differ in the bytes of a token, its scales, ids and weights: {sorted(2 * w for w in widths)}"
            )
        most = max(int.from_bytes(part[:8], "little") for part in gathered)
        ep = self._eps.get(num_elements)
        if ep is None or ep.config["max_tokens_per_rank"] < most:
            self._close_step()
            self._eps.pop(num_elements, None)
            self._eps[num_elements] = ep = _core.ExpertParallel(
                world,
                n_experts=self.group_size,
                top_k=self.group_size,
                hidden=num_elements,
                max_tokens_per_rank=max(16, 1 << max(most - 1, 0).bit_length()),
                protocol="direct",
                capacity_factor=float(self.group_size),
            )
        return ep

    def _close_step(self) -> None:
        """Ends a step that nobody combines."""
        if self._open is None:
            return
        import numpy

        step, self._open = self._open, None
        step.ep.combine(self.rank, None, step.destinations, numpy.zeros(step.destinations.shape, numpy.float32))
        step.ep.synchronize(self.rank)

    def _open_step(self, ep: _core.ExpertParallel, rows: Any, destinations: Any, layout: int) -> _core.DispatchedRows:
        self._close_step()
        sent = ep.dispatch(self.rank, rows, destinations)
        ep.synchronize(self.rank)
        self._open = OpenStep(ep, layout, destinations)
        return sent

    # DeepEP's methods.

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Kept; the host target has none."""
        if new_num_sms % 2:
            raise ValueError(f"new_num_sms is {new_num_sms}; it must be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """Returns the event of now."""
        return EventOverlap()

    @staticmethod
    def is_sm90_compiled() -> bool:
        return _core.has_cuda()

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    def destroy(self) -> None:
        """Leaves the world; the buffer is of no use then."""
        if self._world is None:
            return
        self._close_step()
        self._eps.clear()
        self._world.close()
        self._world = None

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Optional[Any], Any, Any, EventOverlap]:
        """Returns tokens per rank, per RDMA rank (None inside a node), per expert, is_token_in_rank and an event."""
        import numpy

        arrays = Arrays(topk_idx)
        ids = arrays.to_numpy(topk_idx, "int64")
        if num_experts < 1 or num_experts % self.group_size:
            raise ValueError(f"num_experts is {num_experts}; it must be a multiple of the {self.group_size} ranks")
        if ids.size and (ids.min() < -1 or ids.max() >= num_experts):
            raise ValueError(f"topk_idx holds {ids.min()}..{ids.max()}; it must be -1..{num_experts - 1}")
        per_expert = numpy.bincount(ids[ids >= 0], minlength=num_experts).astype(numpy.int32)
        ranks = numpy.where(ids >= 0, ids // (num_experts // self.group_size), -1)
        in_rank = (ranks[:, :, None] == numpy.arange(self.group_size)).any(axis=1)
        per_rank = in_rank.sum(axis=0, dtype=numpy.int32)
        out = arrays.from_numpy
        return out(per_rank), None, out(per_expert), out(in_rank), EventOverlap()

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
        the list are left out. num_worst_tokens: the arrays have so many rows, the last ones with ids of -1, and the list
        is empty."""
        import numpy

        is_fp8 = isinstance(x, tuple)
        arrays = Arrays(x[0] if is_fp8 else x)
        tokens = arrays.to_numpy(x[0] if is_fp8 else x, "float8_e4m3fn" if is_fp8 else "bfloat16")
        scales = arrays.to_numpy(x[1], "float32") if is_fp8 else None
        check_tokens(
            self.group_size, tokens, scales, handle, is_token_in_rank, topk_idx, topk_weights, num_tokens_per_expert
        )
        num_tokens, hidden = tokens.shape
        ids = weights = None
        if handle is None and topk_idx is not None:
            ids = arrays.to_numpy(topk_idx, "int64").astype(numpy.int32)
            weights = arrays.to_numpy(topk_weights, "float32")
        num_topk = 0 if ids is None else ids.shape[1]
        lanes = Lanes(tokens.itemsize * hidden, 0 if scales is None else scales.shape[1], num_topk)
        in_rank = arrays.to_numpy(is_token_in_rank if handle is None else handle.is_token_in_rank, "bool")
        destinations = destinations_of(in_rank) if handle is None else handle.destinations
        layout = self._num_layouts = self._num_layouts + 1
        ep = self._reserve(lanes.num_elements, num_tokens)
        sent = self._open_step(ep, lanes.pack([tokens, scales, ids, weights]), destinations, layout)

        num_received = int(sent.row_counts.numpy()[0])
        rows = sent.rows.numpy()[:num_received]
        padding = max(num_worst_tokens - num_received, 0)
        if num_worst_tokens and num_received > num_worst_tokens:
            raise ValueError(f"num_worst_tokens is {num_worst_tokens}; {num_received} tokens have arrived")

        def part(index: int, dtype: Any, fill: float = 0) -> Any:
            values = lanes.unpack(rows, index, dtype)
            return (
                numpy.concatenate([values, numpy.full((padding, values.shape[1]), fill, dtype)]) if padding else values
            )

        received = arrays.from_numpy(part(0, tokens.dtype))
        if is_fp8:
            received = (received, arrays.from_numpy(part(1, numpy.float32)))
        if handle is not None:
            same = handle._replace(layout=layout)
            return received, None, None, [], same, EventOverlap()
        made = self._make_handle(arrays, sent, ep, num_received, in_rank, destinations, layout)
        if ids is None:
            return received, None, None, [], made, EventOverlap()
        assert num_tokens_per_expert is not None
        num_local = len(num_tokens_per_expert) // self.group_size
        local = part(2, numpy.int32, -1).astype(numpy.int64) - self.rank * num_local
        is_local = (local >= 0) & (local < num_local)
        is_local[num_received:] = False
        local = numpy.where(is_local, local, -1)
        counts = numpy.bincount(local[is_local], minlength=num_local)
        listed = [] if num_worst_tokens else [int(-(-n // expert_alignment) * expert_alignment) for n in counts]
        local_weights = numpy.where(is_local, part(3, numpy.float32), numpy.float32(0))
        return received, arrays.from_numpy(local), arrays.from_numpy(local_weights), listed, made, EventOverlap()

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
        import ml_dtypes
        import numpy

        arrays = Arrays(x)
        values = arrays.to_numpy(x, "bfloat16")
        if values.ndim != 2 or len(values) < handle.num_recv_tokens:
            raise ValueError(f"x has shape {values.shape}; it must be (at least {handle.num_recv_tokens} rows, hidden)")
        values = values[: handle.num_recv_tokens]
        weights = None
        if topk_weights is not None:
            weights = arrays.to_numpy(topk_weights, "float32")[: handle.num_recv_tokens]
        hidden = values.shape[1]
        lanes = Lanes(2 * hidden, 0, 0 if weights is None else weights.shape[1])
        num_tokens = len(handle.destinations)
        step = self._open
        if step is None or step.layout != handle.layout or step.ep.config["hidden"] < lanes.num_elements:
            # The rows of that dispatch are no longer on their way back: the same layout once more, with nothing in it.
            ep = self._reserve(lanes.num_elements, num_tokens)
            nothing = numpy.zeros((num_tokens, lanes.num_elements), ml_dtypes.bfloat16)
            self._open_step(ep, nothing, handle.destinations, handle.layout)
            step = self._open
        assert step is not None
        self._open = None
        outputs = step.ep.row_buffers(self.rank).expert_outputs
        assert outputs is not None
        outputs.numpy()[: len(values), : lanes.num_elements] = lanes.pack([values, None, None, weights])
        by_rank = step.ep.combine(self.rank, None, handle.destinations, reduction="unreduced")
        step.ep.synchronize(self.rank)
        rows = by_rank.numpy()

        def total(part: int, dtype: Any, start: Any) -> Any:
            for k in range(rows.shape[1]):  # in the order of ranks; padding is 0
                start = start + lanes.unpack(rows[:, k], part, dtype).astype(numpy.float32)
            return start

        start = numpy.zeros((num_tokens, hidden), numpy.float32)
        for one in () if bias is None else bias if isinstance(bias, tuple) else (bias,):
            start = start + arrays.to_numpy(one, "bfloat16").astype(numpy.float32)
        combined = total(0, ml_dtypes.bfloat16, start).astype(ml_dtypes.bfloat16)
        if weights is None:
            return arrays.from_numpy(combined), None, EventOverlap()
        sums = total(3, numpy.float32, numpy.zeros((num_tokens, weights.shape[1]), numpy.float32))
        return arrays.from_numpy(combined), arrays.from_numpy(sums), EventOverlap()

    # What dispatch is made of.

    def _make_handle(
        self, arrays: Arrays, sent: Any, ep: Any, num_received: int, in_rank: Any, destinations: Any, layout: int
    ) -> Handle:
        import numpy

        mine = in_rank.sum(axis=0, dtype=numpy.int32).tobytes()
        per_rank = numpy.stack([numpy.frombuffer(part, numpy.int32) for part in self._use().all_gather(mine)])
        source = numpy.ascontiguousarray(sent.src_info.numpy()[:num_received, 0])
        none = numpy.zeros((self.group_size, 0), numpy.int32)
        out = arrays.from_numpy
        return Handle(
            out(numpy.cumsum(per_rank, axis=0, dtype=numpy.int32)),
            out(none),
            out(none),
            out(source),
            out(in_rank),
            out(numpy.zeros((len(in_rank), self.group_size), numpy.int32)),
            destinations,
            num_received,
            layout,
        )

    # Low latency.

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Returns the bytes that a rank needs with a top-k of 8. Nothing is allocated before the shape is known."""
        options = low_latency_options(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts, 8, False)
        return _core.ExpertParallel.memory_needed(num_ranks, **options)["total"]

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Does nothing: no step needs buffers to be cleaned."""

    def _low_latency_ep(
        self, num_max: int, hidden: int, num_experts: int, top_k: int, use_fp8: bool
    ) -> _core.ExpertParallel:
        world, key = self._use(), (num_max, hidden, num_experts, top_k, use_fp8)
        if key not in self._eps:
            self._close_step()
            options = low_latency_options(num_max, hidden, self.group_size, num_experts, top_k, use_fp8)
            self._eps[key] = _core.ExpertParallel(world, **options)
        return self._eps[key]

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
        of fp8 and float32 scales, (local experts, ranks x max tokens, hidden / 128); how many of them each expert has; a
        handle, an event and a hook, which has nothing left to do. The counts are added to
        cumulative_local_expert_recv_stats."""
        import numpy

        if round_scale or use_ue8m0:
            raise not_here("scales that are powers of two", "use switchyard_ep.ExpertParallel(dispatch_format='mxfp8')")
        if dispatch_wait_recv_cost_stats is not None:
            raise not_here("statistics of waits", "ExpertParallel.enable_trace() records every wait")
        arrays = Arrays(x)
        tokens = arrays.to_numpy(x, "bfloat16")
        ids = arrays.to_numpy(topk_idx, "int64").astype(numpy.int32)
        if tokens.ndim != 2 or len(tokens) > num_max_dispatch_tokens_per_rank or len(ids) != len(tokens):
            raise ValueError(
                f"x has shape {tokens.shape} and topk_idx {ids.shape}; both must have the same number of tokens, at most "
                f"{num_max_dispatch_tokens_per_rank}"
            )
        hidden, num_rows = tokens.shape[1], self.group_size * num_max_dispatch_tokens_per_rank
        ep = self._low_latency_ep(num_max_dispatch_tokens_per_rank, hidden, num_experts, ids.shape[1], use_fp8)
        layout = self._num_layouts = self._num_layouts + 1
        sent = self._open_step(ep, tokens, ids, layout)
        num_local, capacity = ep.n_local_experts, ep.config["max_rows_per_expert"]

        def masked(rows: Any) -> Any:
            return rows.reshape(num_local, capacity, *rows.shape[1:])[:, :num_rows].copy()

        counts = sent.row_counts.numpy().astype(numpy.int32)
        received = arrays.from_numpy(masked(sent.rows.numpy()))
        if use_fp8:
            assert sent.scales is not None
            scales = sent.scales.numpy()[:, : num_local * capacity].T
            received = (received, arrays.from_numpy(masked(scales)))
        begins = numpy.array(ep.source_row_offsets(self.rank), numpy.int64).reshape(num_local, self.group_size)
        begins -= capacity * numpy.arange(num_local)[:, None]
        ends = numpy.concatenate([begins[:, 1:], counts[:, None].astype(numpy.int64)], axis=1)
        handle = LowLatencyHandle(
            arrays.from_numpy(masked(sent.src_info.numpy()[:, :1])[:, :, 0].copy()),
            arrays.from_numpy(begins << 32 | (ends - begins)),
            num_max_dispatch_tokens_per_rank,
            hidden,
            num_experts,
            ids,
            layout,
        )
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += arrays.from_numpy(counts)
        hook = (lambda: None) if return_recv_hook else None
        return received, arrays.from_numpy(counts), handle, EventOverlap(), hook

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
        topk_weights, an event and a hook, which has nothing left to do."""
        import ml_dtypes
        import numpy

        if use_logfmt or zero_copy or combine_wait_recv_cost_stats is not None:
            raise not_here(
                "logfmt, zero copy or statistics of waits",
                "ExpertParallel has combine_format='fp8', " "expert_outputs and enable_trace(); use those",
            )
        arrays = Arrays(x)
        values = arrays.to_numpy(x, "bfloat16")
        num_max, hidden, num_experts = handle[2:5]
        shape = (num_experts // self.group_size, self.group_size * num_max, hidden)
        if values.shape != shape:
            raise ValueError(f"x has shape {values.shape}; it must be {shape}")
        step = self._open
        if step is None or step.layout != handle.layout:
            ep = self._low_latency_ep(num_max, hidden, num_experts, handle.topk_ids.shape[1], False)
            nothing = numpy.zeros((len(handle.topk_ids), hidden), ml_dtypes.bfloat16)
            self._open_step(ep, nothing, handle.topk_ids, handle.layout)
            step = self._open
        assert step is not None
        self._open = None
        outputs = step.ep.row_buffers(self.rank).expert_outputs
        assert outputs is not None
        outputs.numpy().reshape(shape[0], -1, hidden)[:, : shape[1]] = values
        combined = step.ep.combine(self.rank, None, handle.topk_ids, arrays.to_numpy(topk_weights, "float32"))
        step.ep.synchronize(self.rank)
        result = arrays.from_numpy(combined.numpy().copy())
        if out is not None:
            out[:] = result
            result = out
        return result, EventOverlap(), (lambda: None) if return_recv_hook else None

    # What is not there yet.

    def get_comm_stream(self) -> Any:
        raise not_here("stream for communication", "calls are complete when they return on the host target")

    def get_local_buffer_tensor(self, *_: Any, **__: Any) -> Any:
        raise not_here("access to its memory", "use switchyard_ep.ExpertParallel, whose rows are in DispatchedRows")

    def internode_dispatch(self, *_: Any, **__: Any) -> Any:
        raise not_here("dispatch between nodes", "use switchyard_ep.World.join(transport='shmem') with ExpertParallel")

    def internode_combine(self, *_: Any, **__: Any) -> Any:
        raise not_here("combine between nodes", "use switchyard_ep.World.join(transport='shmem') with ExpertParallel")

    def low_latency_update_mask_buffer(self, *_: Any, **__: Any) -> None:
        raise not_here("mask of ranks", "ExpertParallel.reset(survivors) goes on without ranks that have ended")

    def low_latency_query_mask_buffer(self, *_: Any, **__: Any) -> None:
        raise not_here("mask of ranks", "ExpertParallel.fault(rank) names a rank that has ended")

    def low_latency_clean_mask_buffer(self, *_: Any, **__: Any) -> None:
        raise not_here("mask of ranks", "ExpertParallel.reset_to(world_ranks) takes ranks back")

    def get_next_low_latency_combine_buffer(self, *_: Any, **__: Any) -> Any:
        raise not_here("low latency mode", "DispatchedRows.expert_outputs is memory that combine reads without a copy")
