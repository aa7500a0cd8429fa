"""SGLang's token dispatcher over Switchyard: normal mode for prompts, low latency for decoding, each in halves (_a, _b) for
two-batch overlap.

    dispatcher = Dispatcher(group, router_topk=8, num_experts=256, hidden_size=7168, deepep_mode="auto")

The module can be imported without SGLang. Where SGLang is there, the classes derive from its own. docs/sglang.md says more.
"""

from __future__ import annotations

import enum
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import _core, _engines, _process_group, deep_ep
from ._engines import cast, library_of
from .errors import FailedPrecondition, InvalidArgument

__all__ = [
    "CombineInputFormat",
    "Dispatcher",
    "DispatchOutputFormat",
    "LowLatencyCombineInput",
    "LowLatencyDispatchOutput",
    "NormalCombineInput",
    "NormalDispatchOutput",
    "release",
]

try:
    from sglang.srt.layers.moe.token_dispatcher.base import (
        BaseDispatcher as _Base,
        CombineInputFormat,
        DispatchOutputFormat,
    )
    from sglang.srt.layers.moe.token_dispatcher.deepep import (
        DeepEPLLCombineInput as LowLatencyCombineInput,
        DeepEPLLDispatchOutput as LowLatencyDispatchOutput,
        DeepEPNormalCombineInput as NormalCombineInput,
        DeepEPNormalDispatchOutput as NormalDispatchOutput,
    )
except ImportError:

    class DispatchOutputFormat(enum.Enum):  # type: ignore[no-redef]
        DEEPEP_NORMAL = "deepep_normal"
        DEEPEP_LL = "deepep_ll"

        def is_deepep_normal(self) -> bool:
            return self is DispatchOutputFormat.DEEPEP_NORMAL

        def is_deepep_ll(self) -> bool:
            return self is DispatchOutputFormat.DEEPEP_LL

    class CombineInputFormat(enum.Enum):  # type: ignore[no-redef]
        DEEPEP_NORMAL = "deepep_normal"
        DEEPEP_LL = "deepep_ll"

    class NormalDispatchOutput(NamedTuple):  # type: ignore[no-redef]
        """Each token once: rows, scales or None, local ids (-1: an expert of another rank), weights, rows of each expert."""

        hidden_states: Any
        hidden_states_scale: Optional[Any]
        topk_ids: Any
        topk_weights: Any
        num_recv_tokens_per_expert: List[int]

        @property
        def format(self) -> DispatchOutputFormat:
            return DispatchOutputFormat.DEEPEP_NORMAL

    class LowLatencyDispatchOutput(NamedTuple):  # type: ignore[no-redef]
        """(local experts, rows of each, hidden), scales or None, ids and weights as given, the rows of each expert, and how
        many each would have if all had as many."""

        hidden_states: Any
        hidden_states_scale: Optional[Any]
        topk_ids: Any
        topk_weights: Any
        masked_m: Any
        expected_m: int

        @property
        def format(self) -> DispatchOutputFormat:
            return DispatchOutputFormat.DEEPEP_LL

    class NormalCombineInput(NamedTuple):  # type: ignore[no-redef]
        """One row for each that was received, weighted and summed over the local experts."""

        hidden_states: Any
        topk_ids: Any
        topk_weights: Any

        @property
        def format(self) -> CombineInputFormat:
            return CombineInputFormat.DEEPEP_NORMAL

    class LowLatencyCombineInput(NamedTuple):  # type: ignore[no-redef]
        """One row for each that was received, not weighted."""

        hidden_states: Any
        topk_ids: Any
        topk_weights: Any

        @property
        def format(self) -> CombineInputFormat:
            return CombineInputFormat.DEEPEP_LL

    class _Base:  # type: ignore[no-redef]
        def __init__(self) -> None:
            self.quant_config: Dict[str, Any] = {}

        def set_quant_config(self, quant_config: Dict[str, Any]) -> None:
            self.quant_config = quant_config


def _is_extend_in_sglang() -> bool:
    from sglang.srt.layers.dp_attention import get_is_extend_in_batch

    return get_is_extend_in_batch()


def _quantize_as_sglang(hidden_states: Any) -> Tuple[Any, Any]:
    from sglang.kernels.ops.quantization.fp8_kernel import sglang_per_token_group_quant_fp8

    return sglang_per_token_group_quant_fp8(hidden_states, 128)


class _Shared:
    """What all dispatchers of a group share: layers come one after the other."""

    def __init__(self, group: Any, target: str):
        self.group, self._target = group, target
        self._buffers: Dict[int, deep_ep.Buffer] = {}  # by micro-batch
        self._world: Optional[_core.World] = None
        self._exchanges: Dict[Tuple[Any, ...], _engines.Exchange] = {}

    def buffer(self, microbatch: int) -> deep_ep.Buffer:
        """One for each micro-batch: a combine of any but a buffer's last dispatch would move rows twice."""
        if microbatch not in self._buffers:
            self._buffers[microbatch] = deep_ep.Buffer(self.group, target=self._target)
        return self._buffers[microbatch]

    def exchange(self, **options: Any) -> _engines.Exchange:
        if self._world is None:
            self._world = _process_group.join(self.group, target=self._target)
        key = tuple(sorted(options.items()))
        if key not in self._exchanges:
            self._exchanges[key] = _engines.Exchange(self._world, is_masked=True, **options)
        return self._exchanges[key]

    def close(self) -> None:
        self._exchanges.clear()
        for buffer in self._buffers.values():
            buffer.destroy()
        if self._world is not None:
            self._world.close()


_shared: Dict[int, _Shared] = {}  # by the group's identity; each holds its group


def release(group: Any) -> None:
    """Leaves the worlds of a group. All its processes call it, when no dispatcher of the group is used any more."""
    shared = _shared.pop(id(group), None)
    if shared is not None:
        shared.close()


class _Stage(enum.Enum):
    """What must come next."""

    DISPATCH_A = "dispatch_a"
    DISPATCH_B = "dispatch_b"
    COMBINE_A = "combine_a"
    COMBINE_B = "combine_b"


class Dispatcher(_Base):
    """The dispatcher of one layer. The arguments up to return_recv_hook are those of SGLang's DeepEP dispatcher.

    group is a process group of torch.distributed, or has rank(), size() and all_gather(bytes) -> list[bytes]. deepep_mode
    is 'normal', 'low_latency' or 'auto', or SGLang's enumerator: normal where is_extend_in_batch() says that there are
    prompts in the batch. use_fp8: rows travel as fp8 with a scale for each 128 elements; in normal mode quantize() makes
    them, which is SGLang's unless given. Two dispatchers that overlap have microbatch 0 and 1, and num_microbatches 2.
    """

    def __init__(
        self,
        group: Any,
        router_topk: int,
        permute_fusion: bool = False,
        num_experts: int = 0,
        num_local_experts: int = 0,
        hidden_size: int = 0,
        params_dtype: Any = None,
        deepep_mode: Any = "auto",
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        num_max_dispatch_tokens_per_rank: int = 128,
        use_fp8: bool = False,
        expert_alignment: int = 1,
        microbatch: int = 0,
        num_microbatches: int = 1,
        is_extend_in_batch: Callable[[], bool] = _is_extend_in_sglang,
        quantize: Callable[[Any], Tuple[Any, Any]] = _quantize_as_sglang,
        target: str = "auto",
    ):
        super().__init__()
        mode = getattr(deepep_mode, "value", deepep_mode)
        if mode not in ("normal", "low_latency", "auto"):
            raise InvalidArgument(f"deepep_mode is '{mode}'; it must be one of: normal, low_latency, auto")
        if num_experts < 1 or num_experts % group.size():
            raise InvalidArgument(f"num_experts is {num_experts}; it must be a multiple of the {group.size()} ranks")
        if num_local_experts and num_local_experts != num_experts // group.size():
            raise InvalidArgument(
                f"num_local_experts is {num_local_experts}; {num_experts} experts on {group.size()} ranks are "
                f"{num_experts // group.size()} each"
            )
        if not 0 <= microbatch < num_microbatches:
            raise InvalidArgument(f"microbatch is {microbatch}; it must be 0..{num_microbatches - 1}")
        self.group, self.router_topk, self.num_experts, self.hidden_size = group, router_topk, num_experts, hidden_size
        self.use_fp8, self.expert_alignment = use_fp8, expert_alignment
        self._mode, self._is_extend, self._quantize, self._microbatch = mode, is_extend_in_batch, quantize, microbatch
        self._shared = _shared.setdefault(id(group), _Shared(group, target))
        self._low_latency_options = dict(
            n_experts=num_experts,
            top_k=router_topk,
            hidden=hidden_size,
            max_tokens_per_rank=num_max_dispatch_tokens_per_rank,
            dispatch_format="fp8" if use_fp8 else "bf16",
            num_microbatches=num_microbatches,
        )
        self._stage, self._is_low_latency = _Stage.DISPATCH_A, False
        self._library: Any = None
        self._arguments: Tuple[Any, ...] = ()  # of dispatch
        self._handle: Any = None  # normal
        self._combined: Any = None

    def _expect(self, call: _Stage) -> None:
        if self._stage is not call:
            raise FailedPrecondition(f"{call.value} has been called; next must come {self._stage.value}")

    def reset(self) -> None:
        """After a fault in low latency: makes the group's ranks ready for the next dispatch. All processes call it."""
        self._stage, self._handle, self._combined, self._arguments = _Stage.DISPATCH_A, None, None, ()
        if self._is_low_latency:
            self._exchange().reset()

    def _exchange(self) -> _engines.Exchange:
        return self._shared.exchange(**self._low_latency_options)

    # Dispatch.

    def dispatch(self, hidden_states: Any, topk_output: Any) -> Any:
        """Sends hidden_states, (tokens, hidden) of bfloat16, to their experts, topk_output.topk_ids with -1 as padding, and
        returns what arrived."""
        self.dispatch_a(hidden_states, topk_output)
        return self.dispatch_b()

    def dispatch_a(self, hidden_states: Any, topk_output: Any) -> None:
        """The half that sends; in normal mode, where all is done in the second half, it quantises."""
        self._expect(_Stage.DISPATCH_A)
        self._is_low_latency = self._mode == "low_latency" or self._mode == "auto" and not self._is_extend()
        self._library = library = library_of(hidden_states)
        ids, weights = topk_output.topk_ids, cast(library, topk_output.topk_weights, "float32")
        if self._is_low_latency:
            self._exchange().send(self._microbatch, hidden_states, cast(library, ids, "int32"))
        elif self.use_fp8:
            hidden_states = self._quantize(hidden_states)
        self._arguments = (hidden_states, cast(library, ids, "int64"), weights)
        self._stage = _Stage.DISPATCH_B

    def dispatch_b(self) -> Any:
        """The half that receives."""
        self._expect(_Stage.DISPATCH_B)
        received = self._receive_low_latency() if self._is_low_latency else self._receive_normal()
        self._stage = _Stage.COMBINE_A
        return received

    def _receive_low_latency(self) -> Any:
        tokens, topk_ids, topk_weights = self._arguments
        exchange, library = self._exchange(), self._library
        got = exchange.receive(self._microbatch, library)
        rows, scales = exchange.by_expert(got.rows, got.scales, library)
        num_rows = len(tokens) * exchange.n_ranks * self.router_topk
        expected = (num_rows + self.num_experts) // self.num_experts
        return LowLatencyDispatchOutput(rows, scales, topk_ids, topk_weights, got.counts, expected)

    def _receive_normal(self) -> Any:
        tokens, topk_ids, topk_weights = self._arguments
        buffer = self._shared.buffer(self._microbatch)
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_ids, self.num_experts)
        received, ids, weights, counts, self._handle, event = buffer.dispatch(
            tokens,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_ids,
            topk_weights=topk_weights,
            expert_alignment=self.expert_alignment,
        )
        event.current_stream_wait()
        rows, scales = received if isinstance(received, tuple) else (received, None)
        return NormalDispatchOutput(rows, scales, ids, weights, counts)

    # Combine.

    def combine(self, combine_input: Any) -> Any:
        """Sends the experts' results back and returns, (tokens, hidden) of bfloat16, what each token's add up to."""
        self.combine_a(combine_input)
        return self.combine_b()

    def combine_a(self, combine_input: Any) -> None:
        """The half that sends; in normal mode all is done in the second half."""
        self._expect(_Stage.COMBINE_A)
        rows, _, weights = combine_input
        if self._is_low_latency:
            self._exchange().send_back(self._microbatch, rows.reshape(-1, self.hidden_size), self._library)
        self._combined = (rows, weights)
        self._stage = _Stage.COMBINE_B

    def combine_b(self) -> Any:
        """The half that receives."""
        self._expect(_Stage.COMBINE_B)
        rows, weights = self._combined
        if self._is_low_latency:
            combined = self._library.empty_like(self._arguments[0])
            self._exchange().receive_back(self._microbatch, cast(self._library, weights, "float32"), combined)
        else:
            combined, _, event = self._shared.buffer(self._microbatch).combine(rows, self._handle)
            event.current_stream_wait()
        self._stage, self._handle, self._combined, self._arguments = _Stage.DISPATCH_A, None, None, ()
        return combined
