"""Dispatch and combine as operators of PyTorch: on its current stream, under torch.cuda.graph, and traced by torch.compile.

    import switchyard_ep as sy
    import switchyard_ep.torch as sy_torch

    world = sy.World.from_process_group(torch.distributed.group.WORLD)
    layer = sy_torch.ExpertParallel(world, n_experts=256, top_k=8, hidden=7168, max_tokens_per_rank=128)
    sent = layer.dispatch(tokens, topk_ids)
    output = layer.combine(experts(sent.rows, sent.row_offsets), topk_ids, topk_weights)

A whole layer, with the experts' matmuls, is one call:

    layer = sy_torch.MoeLayer(world, sy.ExpertWeights(gate_up, down), expert_width=2048, n_experts=256, ..)
    output = layer(tokens, logits)

The operators are dispatch, combine and moe_layer of torch.ops.switchyard. There are no gradients.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple, Optional, Sequence, Union

import torch

from . import _core
from ._arrays import TorchArrays

__all__ = ["ExpertParallel", "MoeLayer", "Sent"]


class Sent(NamedTuple):
    """What dispatch wrote, in memory of the ExpertParallel's, which its next dispatch overwrites."""

    rows: torch.Tensor  # (max_rows, hidden) in the dispatch format
    row_offsets: torch.Tensor  # (num_groups + 1,) of int32: the rows of group g begin there
    row_counts: torch.Tensor  # (num_groups,) of int32
    src_info: torch.Tensor  # (max_rows, 2) of int32: the source token and k of each row
    scales: Optional[torch.Tensor]  # of formats that have them


class _Steps:
    """The steps of one rank of this process, which operators find by a name."""

    def __init__(self, world: _core.World, ep: _core.ExpertParallel, rank: Optional[int]):
        self.rank = world.local_ranks[0] if rank is None else rank
        self.ep = ep
        self._waits = world.target == "host" and len(world.local_ranks) == 1
        if len(world.local_ranks) == 1:
            ep.warm_up()
        self.memory = ep.row_buffers(self.rank)
        self._arrays = TorchArrays(torch.device(self.memory.rows.device))
        self._stream = None if self._arrays.is_host else "current"
        # Operators of a layer that write to the same tensor stay in order.
        self._state = torch.zeros(1, dtype=torch.int32, device=self._arrays.device)
        self._name = f"layer {next(_numbers)}"
        _layers[self._name] = self

    def stream(self) -> Optional[int]:
        return None if self._arrays.is_host else torch.cuda.current_stream().cuda_stream

    def poll(self) -> None:
        """Raises what has gone wrong so far, without waiting; also while graphs replay."""
        self.ep.poll(self.rank)

    def synchronize(self) -> None:
        """Waits for the current stream, and raises what went wrong."""
        self.ep.synchronize(self.rank, stream=self.stream())

    def _enqueued(self) -> None:
        if self._waits:
            self.ep.synchronize(self.rank)


class ExpertParallel(_Steps):
    """switchyard_ep.ExpertParallel for one rank of this process. Options are those of that class. All processes of the
    world make it together."""

    def __init__(self, world: _core.World, rank: Optional[int] = None, **options: Any):
        super().__init__(world, _core.ExpertParallel(world, **options), rank)
        arrays = self._arrays
        self._is_direct = self.ep.config["protocol"] == "direct"
        scales = self.memory.scales
        self._memory = (
            arrays.view(self.memory.rows),
            arrays.view(self.memory.row_offsets, "int32"),
            arrays.view(self.memory.row_counts, "int32"),
            arrays.view(self.memory.src_info),
            arrays.empty((0,), "float32")
            if scales is None
            else arrays.view(scales, "int32" if scales.dtype == "uint32" else ""),
        )
        self._sent = Sent(*self._memory[:4], None if scales is None else self._memory[4])
        self._addresses = tuple(part.data_ptr() for part in self._memory)
        self.expert_outputs = arrays.view(self.memory.expert_outputs)
        self._hidden = self.expert_outputs.shape[1]
        self._masked_groups = self.ep.num_groups if self.ep.config["row_layout"] == "masked" else 0
        # By the addresses of what combine reads where it is.
        self._readable = {tensor.data_ptr: tensor for tensor in (self.memory.rows, self.memory.expert_outputs)}

    def dispatch(
        self,
        tokens: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: Optional[torch.Tensor] = None,
        scales: Optional[torch.Tensor] = None,
    ) -> Sent:
        """Sends tokens, (num_tokens, hidden) of bfloat16, or in the dispatch format beside their scales, to the ranks of
        their experts, topk_ids of int32 or int64. Per rank, topk_weights travel with them."""
        if torch.compiler.is_compiling():
            given = (self._name, tokens, topk_ids, topk_weights, scales)
            torch.ops.switchyard.dispatch.default(self._state, *self._memory, *given)
        else:  # the same, without the microseconds of an operator
            self._dispatch(tokens, topk_ids, topk_weights, scales)
        return self._sent

    def combine(
        self, expert_rows: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        """Sends expert_rows, (rows, hidden) of bfloat16, back, and returns the sum of each token's rows times their
        weights, (num_tokens, hidden). With the direct protocol rows that are neither sent.rows nor expert_outputs are
        copied there first; if there are fewer than the step has, it fails: at once on the host, at a poll() or
        synchronize() on a GPU."""
        if torch.compiler.is_compiling():
            given = (self._name, expert_rows, topk_ids, topk_weights)
            return torch.ops.switchyard.combine.default(self._state, *given)
        return self._combine(expert_rows, topk_ids, topk_weights)

    def _dispatch(
        self,
        tokens: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: Optional[torch.Tensor],
        scales: Optional[torch.Tensor],
    ) -> None:
        self.ep.dispatch(self.rank, tokens, topk_ids, topk_weights, scales=scales, stream=self._stream)
        self._enqueued()

    def _combine(
        self, expert_rows: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        out = torch.empty((topk_ids.shape[0], self._hidden), dtype=torch.bfloat16, device=expert_rows.device)
        shared = self._shared(expert_rows)
        self.ep.combine(self.rank, shared, topk_ids, topk_weights, out=out, stream=self._stream)
        self._enqueued()
        return out

    def _shared(self, expert_rows: torch.Tensor) -> Any:
        """Expert rows where combine can read them."""
        tensor = self._readable.get(expert_rows.data_ptr())
        if tensor is not None or not self._is_direct:
            return expert_rows if tensor is None else tensor
        if self._masked_groups:
            expert_rows = expert_rows.reshape(self._masked_groups, -1, self._hidden)
        self.ep.store_expert_rows(self.rank, expert_rows.contiguous(), stream=self._stream)
        return self.memory.expert_outputs


class MoeLayer(_Steps):
    """switchyard_ep.MoeLayer for one rank of this process. weights are the ExpertWeights of that rank, or, where several
    ranks live in this process, of each of them. Options are those of that class. All processes of the world make it
    together."""

    def __init__(
        self,
        world: _core.World,
        weights: Union[_core.ExpertWeights, Sequence[_core.ExpertWeights]],
        rank: Optional[int] = None,
        **options: Any,
    ):
        of_ranks = [weights] if isinstance(weights, _core.ExpertWeights) else weights
        self.layer = _core.MoeLayer(world, of_ranks, **options)
        super().__init__(world, self.layer.ep, rank)
        self._hidden = self.layer.config["hidden"]

    def __call__(
        self,
        tokens: torch.Tensor,
        logits: Optional[torch.Tensor] = None,
        topk_ids: Optional[torch.Tensor] = None,
        topk_weights: Optional[torch.Tensor] = None,
        scales: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Returns the layer's output, (num_tokens, hidden) of bfloat16, for tokens as dispatch takes them. Their experts
        are chosen by logits, (num_tokens, n_experts) of float32, or are topk_ids, with topk_weights."""
        given = (tokens, logits, topk_ids, topk_weights, scales)
        if torch.compiler.is_compiling():
            return torch.ops.switchyard.moe_layer.default(self._state, self._name, *given)
        return self._run(*given)

    def _run(
        self,
        tokens: torch.Tensor,
        logits: Optional[torch.Tensor],
        topk_ids: Optional[torch.Tensor],
        topk_weights: Optional[torch.Tensor],
        scales: Optional[torch.Tensor],
    ) -> torch.Tensor:
        out = self._output_of(tokens)
        self.layer.run(
            self.rank,
            tokens,
            logits=logits,
            topk_ids=topk_ids,
            topk_weights=topk_weights,
            scales=scales,
            out=out,
            stream=self._stream,
        )
        self._enqueued()
        return out

    def _output_of(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.new_empty((tokens.shape[0], self._hidden), dtype=torch.bfloat16)


_numbers = itertools.count()
_layers: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()


# What dispatch writes is memory of the layer's that is passed to it, so that a compiler knows whose it is.
_library = torch.library.Library("switchyard", "DEF")
_library.define(
    "dispatch(Tensor(a!) state, Tensor(b!) rows, Tensor(c!) row_offsets, Tensor(d!) row_counts, Tensor(e!) src_info, "
    "Tensor(f!) row_scales, str layer, Tensor tokens, Tensor topk_ids, Tensor? topk_weights, Tensor? scales) -> ()"
)
_library.define(
    "combine(Tensor(a!) state, str layer, Tensor expert_rows, Tensor topk_ids, Tensor topk_weights) -> Tensor"
)
_library.define(
    "moe_layer(Tensor(a!) state, str layer, Tensor tokens, Tensor? logits, Tensor? topk_ids, Tensor? topk_weights, "
    "Tensor? scales) -> Tensor"
)


@torch.library.impl(_library, "dispatch", "CompositeExplicitAutograd")
def _dispatch(
    state: torch.Tensor,
    rows: torch.Tensor,
    row_offsets: torch.Tensor,
    row_counts: torch.Tensor,
    src_info: torch.Tensor,
    row_scales: torch.Tensor,
    layer: str,
    tokens: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: Optional[torch.Tensor],
    scales: Optional[torch.Tensor],
) -> None:
    here = _layers[layer]
    here._dispatch(tokens, topk_ids, topk_weights, scales)
    # A compiler that could not keep them in place has passed copies.
    for given, own, address in zip(
        (rows, row_offsets, row_counts, src_info, row_scales), here._memory, here._addresses
    ):
        if given.data_ptr() != address:
            given.copy_(own)


@torch.library.register_fake("switchyard::dispatch", lib=_library)
def _fake_dispatch(*_: Any) -> None:
    return None


@torch.library.impl(_library, "combine", "CompositeExplicitAutograd")
def _combine(
    state: torch.Tensor, layer: str, expert_rows: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
) -> torch.Tensor:
    return _layers[layer]._combine(expert_rows, topk_ids, topk_weights)


@torch.library.register_fake("switchyard::combine", lib=_library)
def _fake_combine(
    state: torch.Tensor, layer: str, expert_rows: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
) -> torch.Tensor:
    return expert_rows.new_empty((topk_ids.shape[0], _layers[layer].expert_outputs.shape[1]), dtype=torch.bfloat16)


@torch.library.impl(_library, "moe_layer", "CompositeExplicitAutograd")
def _moe_layer(
    state: torch.Tensor,
    layer: str,
    tokens: torch.Tensor,
    logits: Optional[torch.Tensor],
    topk_ids: Optional[torch.Tensor],
    topk_weights: Optional[torch.Tensor],
    scales: Optional[torch.Tensor],
) -> torch.Tensor:
    return _layers[layer]._run(tokens, logits, topk_ids, topk_weights, scales)


@torch.library.register_fake("switchyard::moe_layer", lib=_library)
def _fake_moe_layer(state: torch.Tensor, layer: str, tokens: torch.Tensor, *_: Any) -> torch.Tensor:
    return _layers[layer]._output_of(tokens)
