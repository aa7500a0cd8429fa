"""vLLM's prepare and finalize over Switchyard: what FusedMoEPrepareAndFinalizeModular asks for, in both activation formats.

    exchange = Exchange(world, n_experts=256, top_k=8, hidden=7168, max_tokens_per_rank=128, activation_format="batched_experts")
    prepare_finalize = PrepareAndFinalize(exchange)          # one for each layer; all of them share the exchange

The module can be imported without vLLM. Where vLLM is there, the classes derive from its own. docs/vllm.md says more.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _core
from . import _engines, _process_group
from ._engines import cast, dtype_of, is_torch, library_of
from .errors import FailedPrecondition, InvalidArgument, SwitchyardError

__all__ = ["ActivationFormat", "All2AllManager", "Exchange", "ExpertTokensMetadata", "PrepareAndFinalize"]

try:
    from vllm.model_executor.layers.fused_moe.modular_kernel import (
        ExpertTokensMetadata,
        FusedMoEActivationFormat as ActivationFormat,
        FusedMoEPrepareAndFinalizeModular as _Base,
    )
except ImportError:
    import dataclasses
    import enum

    class ActivationFormat(enum.Enum):  # type: ignore[no-redef]
        """How prepare leaves rows: (rows, hidden), or (local experts, rows of each, hidden)."""

        Standard = ("standard",)
        BatchedExperts = ("batched_experts",)

    @dataclasses.dataclass
    class ExpertTokensMetadata:  # type: ignore[no-redef]
        """How many rows each local expert has: on the device, and on the host if that is known there."""

        expert_num_tokens: Any
        expert_num_tokens_cpu: Optional[Any]

    class _Base:  # type: ignore[no-redef]
        pass


try:
    from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase as _ManagerBase
except ImportError:

    class _ManagerBase:  # type: ignore[no-redef]
        def __init__(self, cpu_group: Any, tcp_store_group: Any = None):
            self.cpu_group, self.tcp_store_group = cpu_group, tcp_store_group
            self.rank, self.world_size = cpu_group.rank(), cpu_group.size()
            self.internode = self.support_fault_tolerance = False


# rows, their scales, counts, ids and weights
Prepared = Tuple[Any, Optional[Any], Optional[ExpertTokensMetadata], Optional[Any], Optional[Any]]


def _current_microbatch() -> int:
    try:
        from vllm.v1.worker.ubatching import dbo_current_ubatch_id
    except ImportError:
        return 0
    return dbo_current_ubatch_id()


def _quantize_as_vllm(rows: Any, quant_config: Any) -> Tuple[Any, Optional[Any]]:
    from vllm.model_executor.layers.fused_moe.utils import moe_kernel_quantize_input

    return moe_kernel_quantize_input(
        rows,
        quant_config.a1_scale,
        quant_config.quant_dtype,
        quant_config.per_act_token_quant,
        quant_config.block_shape,
    )


class Exchange(_engines.Exchange):
    """Dispatch and combine of one shape, which the layers of a model share.

    activation_format is 'standard' or 'batched_experts'; dispatch_format is 'bf16', or 'fp8' with a scale for each 128
    elements of a row. num_microbatches is 2 where vLLM overlaps two micro-batches. placement lists the experts of each
    rank; without it, each rank has as many, in ascending order. Other options are those of ExpertParallel."""

    def __init__(
        self,
        world: _core.World,
        *,
        n_experts: int,
        top_k: int,
        hidden: int,
        max_tokens_per_rank: int,
        activation_format: str = "standard",
        dispatch_format: str = "bf16",
        num_microbatches: int = 1,
        **options: Any,
    ):
        formats = {one.value[0]: one for one in ActivationFormat}
        if activation_format not in formats:
            raise InvalidArgument(
                f"activation_format is '{activation_format}'; it must be one of: {', '.join(formats)}"
            )
        self.activation_format = formats[activation_format]
        super().__init__(
            world,
            n_experts=n_experts,
            top_k=top_k,
            hidden=hidden,
            max_tokens_per_rank=max_tokens_per_rank,
            is_masked=activation_format == "batched_experts",
            dispatch_format=dispatch_format,
            num_microbatches=num_microbatches,
            **options,
        )


class _Step(NamedTuple):
    """What finalize needs of its prepare."""

    library: Any
    topk_weights: Any


class PrepareAndFinalize(_Base):
    """The prepare and finalize of one layer.

    microbatch returns the number of the present micro-batch; without it, vLLM is asked. quantize(rows, quant_config) ->
    (rows, scales) is called where the experts want rows quantised that were sent as bfloat16; without it, vLLM's is.

    Weights do not travel: combine applies them, in float32, on the token's own rank. So the weights that prepare returns in
    the standard format are ones, and experts that apply them change nothing."""

    def __init__(
        self,
        exchange: Exchange,
        *,
        microbatch: Callable[[], int] = _current_microbatch,
        quantize: Callable[[Any, Any], Tuple[Any, Optional[Any]]] = _quantize_as_vllm,
    ):
        super().__init__()
        self.exchange, self._microbatch, self._quantize = exchange, microbatch, quantize
        self._steps: Dict[int, _Step] = {}  # by micro-batch

    # What vLLM asks before it calls.

    @property
    def activation_format(self) -> ActivationFormat:
        return self.exchange.activation_format

    def topk_indices_dtype(self) -> Any:
        try:
            import torch
        except ImportError:
            import numpy

            return numpy.dtype("int32")
        return torch.int32

    def max_num_tokens_per_rank(self) -> Optional[int]:
        return self.exchange.max_tokens_per_rank

    def num_dispatchers(self) -> int:
        return self.exchange.n_ranks

    def output_is_reduced(self) -> bool:
        return True

    def supports_async(self) -> bool:
        return True

    # Dispatch.

    def prepare_async(
        self,
        a1: Any,
        topk_weights: Any,
        topk_ids: Any,
        num_experts: int,
        expert_map: Optional[Any],
        apply_router_weight_on_input: bool,
        quant_config: Any,
        defer_input_quant: bool = False,
    ) -> Tuple[Callable[[], None], Callable[[], Prepared]]:
        """Sends, and returns a hook, which receives, and a function that returns what prepare does. expert_map is not read:
        the exchange knows where experts are."""
        exchange, microbatch, library = self.exchange, self._microbatch(), library_of(a1)
        if num_experts != exchange.n_experts:
            raise InvalidArgument(f"num_experts is {num_experts}; the exchange has {exchange.n_experts}")
        weights = cast(library, topk_weights, "float32")
        if apply_router_weight_on_input:
            if topk_ids.shape[1] != 1:
                raise InvalidArgument(f"apply_router_weight_on_input needs a top-k of 1; it is {topk_ids.shape[1]}")
            a1 = a1 * cast(library, topk_weights, "bfloat16")
            weights = library.ones_like(weights)
        exchange.send(microbatch, a1, topk_ids)
        self._steps[microbatch] = _Step(library, weights)
        received: List[_engines.Rows] = []

        def hook() -> None:
            if not received:
                received.append(exchange.receive(microbatch, library))

        def receiver() -> Prepared:
            hook()
            return self._prepared(library, received[0], quant_config, defer_input_quant)

        return hook, receiver

    def prepare(
        self,
        a1: Any,
        topk_weights: Any,
        topk_ids: Any,
        num_experts: int,
        expert_map: Optional[Any],
        apply_router_weight_on_input: bool,
        quant_config: Any,
        defer_input_quant: bool = False,
    ) -> Prepared:
        """Sends a1, (tokens, hidden) of bfloat16, to its experts, topk_ids, (tokens, top_k) of int32 with -1 as padding, and
        returns what arrived: rows, scales or None, counts, ids and weights (standard) or None (batched experts)."""
        _, receiver = self.prepare_async(
            a1,
            topk_weights,
            topk_ids,
            num_experts,
            expert_map,
            apply_router_weight_on_input,
            quant_config,
            defer_input_quant,
        )
        return receiver()

    def _prepared(self, library: Any, got: _engines.Rows, quant_config: Any, defer_input_quant: bool) -> Prepared:
        exchange = self.exchange
        rows, scales = self._quantized(got.rows, got.scales, quant_config, defer_input_quant)
        counts = ExpertTokensMetadata(expert_num_tokens=got.counts, expert_num_tokens_cpu=None)
        if not exchange.is_masked:
            ids = self._ids_of_rows(library, got)
            return rows, scales, counts, ids, library.ones_like(cast(library, ids, "float32"))
        rows, scales = exchange.by_expert(rows, scales, library)
        return rows, scales, counts, None, None

    def _quantized(
        self, rows: Any, scales: Optional[Any], quant_config: Any, is_deferred: bool
    ) -> Tuple[Any, Optional[Any]]:
        block_shape = getattr(quant_config, "block_shape", None)
        is_wanted = getattr(quant_config, "quant_dtype", None) is not None and not is_deferred
        if self.exchange.dispatch_format == "fp8":
            if not is_wanted or block_shape is None or block_shape[1] != 128:
                raise InvalidArgument(
                    f"the exchange sends fp8 with a scale for each 128 elements; the experts want block_shape {block_shape}"
                    f"{' of what they quantise themselves' if is_deferred else ''}: use dispatch_format='bf16'"
                )
            return rows, scales
        return self._quantize(rows, quant_config) if is_wanted else (rows, None)

    def _ids_of_rows(self, library: Any, got: _engines.Rows) -> Any:
        """(rows, 1) of int32: the expert of each row, as the model numbers it; -1 for a row that nobody wrote."""
        where = dict(device=got.offsets.device) if is_torch(library) else {}
        row = library.arange(len(got.rows), dtype=dtype_of(library, "int32"), **where)
        group = library.searchsorted(got.offsets[1:], row, side="right")
        group = library.clip(group, 0, self.exchange.num_local_experts - 1)
        ids = got.expert_ids[group]
        is_written = row < got.offsets[group] + got.counts[group]
        return library.where(is_written, ids, library.full_like(ids, -1)).reshape(-1, 1)

    # Combine.

    def expert_outputs(self, like: Any) -> Any:
        """The memory from which the present micro-batch sends: experts that write here save finalize a copy. `like` is an
        array of the library wanted."""
        exchange, library = self.exchange, library_of(like)
        outputs = exchange.expert_outputs(self._microbatch(), library)
        return outputs.reshape(exchange.num_local_experts, -1, exchange.hidden) if exchange.is_masked else outputs

    def finalize_async(
        self,
        output: Any,
        fused_expert_output: Any,
        topk_weights: Any,
        topk_ids: Any,
        apply_router_weight_on_input: bool,
        weight_and_reduce_impl: Any,
    ) -> Tuple[Callable[[], None], Callable[[], None]]:
        """Sends the experts' results back, and returns a hook, which receives, and a function to call when output is
        wanted. topk_weights and topk_ids are those of prepare, which are known, or what prepare returned."""
        exchange, microbatch = self.exchange, self._microbatch()
        step = self._steps.pop(microbatch, None)
        if step is None:
            raise FailedPrecondition(f"finalize: micro-batch {microbatch} has not been prepared")
        rows = fused_expert_output
        # A delegate leaves weights and sums to combine, which does both; the others have one row for each of ours.
        if not exchange.is_masked and not type(weight_and_reduce_impl).__name__.endswith(("Delegate", "NoneType")):
            rows = weight_and_reduce_impl.apply(
                output=None,
                fused_expert_output=rows,
                topk_weights=topk_weights,
                topk_ids=topk_ids,
                apply_router_weight_on_input=apply_router_weight_on_input,
            )
        exchange.send_back(microbatch, rows.reshape(-1, exchange.hidden), step.library)
        is_received: List[bool] = []

        def hook() -> None:
            if not is_received:
                is_received.append(True)
                exchange.receive_back(microbatch, step.topk_weights, output)

        return hook, hook

    def finalize(
        self,
        output: Any,
        fused_expert_output: Any,
        topk_weights: Any,
        topk_ids: Any,
        apply_router_weight_on_input: bool,
        weight_and_reduce_impl: Any,
    ) -> None:
        """Sends the experts' results back, and leaves in output, (tokens, hidden) of bfloat16, the weighted sum of each
        token's."""
        hook, _ = self.finalize_async(
            output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input, weight_and_reduce_impl
        )
        hook()


class All2AllManager(_ManagerBase):
    """What vLLM's managers do for a backend: one world for a group of processes, and one exchange for each shape.

    cpu_group is a process group of torch.distributed, or has rank(), size() and all_gather(bytes) -> list[bytes]. No rank
    is masked: a fault ends the group's steps until clean_buffers()."""

    def __init__(self, cpu_group: Any, tcp_store_group: Any = None, *, target: str = "auto"):
        # Older versions of vLLM take one group.
        super().__init__(*((cpu_group,) if tcp_store_group is None else (cpu_group, tcp_store_group)))
        if self.internode:
            raise NotImplementedError(
                "the ranks are on several machines; give PrepareAndFinalize an Exchange over"
                " switchyard_ep.World.join(transport='shmem')"
            )
        self._world: Optional[_core.World] = _process_group.join(cpu_group, target=target)
        self._handles: Dict[Any, Exchange] = {}

    def get_handle(self, kwargs: Dict[str, Union[int, str]]) -> Exchange:
        """The exchange of these options, made when they are first asked for, by all ranks alike."""
        if self._world is None:
            raise FailedPrecondition("get_handle: the manager has been destroyed")
        key = tuple(sorted(kwargs.items()))
        if key not in self._handles:
            self._handles[key] = Exchange(self._world, **kwargs)  # type: ignore[arg-type]
        return self._handles[key]

    def set_num_sms(self, num_sms: int) -> None:
        """Does nothing: a handle keeps the blocks that it was made with, its option n_sms."""

    def max_sms_used(self) -> Optional[int]:
        """None: vLLM does not ask for fewer then."""
        return None

    def _numbers(self, values: Sequence[int], dtype: str) -> Any:
        try:
            import torch
        except ImportError:
            import numpy

            return numpy.array(values, dtype)
        is_cuda = self._world is not None and self._world.target == "cuda"
        return torch.tensor(values, dtype=getattr(torch, dtype), device="cuda" if is_cuda else "cpu")

    def query_active_mask(self) -> Any:
        """(ranks,) of int32: 0, since all of them are live."""
        return self._numbers([0] * self.world_size, "int32")

    def query_fault(self) -> Any:
        """Whether a step of any handle has gone wrong, as a bool on the device. Nothing is waited for."""
        has_failed = False
        for exchange in self._handles.values():
            try:
                exchange.poll()
            except SwitchyardError:
                has_failed = True
        return self._numbers([has_failed], "bool")[0]

    def clean_buffers(self) -> None:
        """After a fault: makes all handles ready for the next step. All processes call it."""
        for exchange in self._handles.values():
            exchange.reset()

    def destroy(self) -> None:
        self._handles.clear()
        if self._world is not None:
            self._world.close()
        self._world = None
