"""What switchyard_ep.deep_ep is made of: arrays of NumPy and PyTorch, rows that carry ids and weights, handles."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import _core


def not_here(what: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f"switchyard_ep.deep_ep has no {what} yet; {instead}")


_SCALE_GROUP = 128  # fp8: elements that share a scale


class Config:
    """DeepEP's tuning numbers. They are kept and have no effect: Switchyard chooses by shape."""

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


class EventOverlap:
    """What a call that finishes asynchronously returns. On the host target calls are complete when they return, so there
    is nothing to wait for."""

    def __init__(self, event: Any = None, extra_tensors: Optional[tuple] = None):
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        """The current stream waits for the event."""

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()


class Arrays:
    """NumPy arrays of what was passed, and arrays of the same library to return."""

    def __init__(self, example: Any):
        self._torch = None
        if type(example).__module__.split(".")[0] == "torch":
            import torch

            self._torch = torch
            if example.is_cuda:
                raise not_here("CUDA tensors", "use switchyard_ep.ExpertParallel with them, or pass CPU tensors")

    def to_numpy(self, array: Any, dtype: str) -> Any:
        """The memory as an array of this dtype, which it must have."""
        import ml_dtypes
        import numpy

        wanted = numpy.dtype(getattr(ml_dtypes, dtype, dtype))
        if self._torch is None:
            values = numpy.asarray(array)
        else:
            name = str(array.dtype).split(".")[-1]
            integer = {1: self._torch.uint8, 2: self._torch.int16}.get(array.element_size())
            values = array.detach().contiguous()
            values = (
                values.view(integer).numpy().view(wanted)
                if name == dtype and hasattr(ml_dtypes, name)
                else values.numpy()
            )
        if values.dtype != wanted:
            raise ValueError(f"an array has dtype {values.dtype}; it must be {dtype}")
        return numpy.ascontiguousarray(values)

    def from_numpy(self, values: Any) -> Any:
        if self._torch is None:
            return values
        name = values.dtype.name
        if not hasattr(self._torch, name) or name.startswith(("bfloat", "float8")):
            integer = {1: "uint8", 2: "int16"}[values.dtype.itemsize]
            return self._torch.from_numpy(values.view(integer)).view(getattr(self._torch, name))
        return self._torch.from_numpy(values)


class Handle(NamedTuple):
    """What combine, and a dispatch of the same layout, need. The first fields are DeepEP's, by position."""

    rank_prefix_matrix: Any  # (ranks, ranks) of int32: [i][j], how many tokens ranks 0..i send to rank j
    channel_prefix_matrix: Any
    recv_channel_prefix_matrix: Any
    recv_src_idx: Any  # (received,) of int32: the source token of each row
    is_token_in_rank: Any  # (tokens, ranks) of bool
    send_head: Any
    destinations: Any  # (tokens, ranks) of int32: the ranks of each token, ascending, then -1
    num_recv_tokens: int
    layout: int  # tells one dispatch from another


class LowLatencyHandle(NamedTuple):
    """What low_latency_combine needs. The first fields are DeepEP's, by position."""

    packed_recv_src_info: Any  # (local experts, ranks x max tokens) of int32: the source token of each row
    packed_recv_layout_range: Any  # (local experts, ranks) of int64: begin << 32 | count
    num_max_dispatch_tokens_per_rank: int
    hidden: int
    num_experts: int
    topk_ids: Any
    layout: int


class OpenStep(NamedTuple):
    """A dispatch that has no combine yet."""

    ep: _core.ExpertParallel
    layout: int
    destinations: Any


class Lanes:
    """How a row is laid out in elements of two bytes: the token, its scales, ids, weights."""

    def __init__(self, hidden_bytes: int, num_scales: int, num_topk: int):
        self.hidden_bytes, self.num_scales, self.num_topk = hidden_bytes, num_scales, num_topk
        parts = [hidden_bytes, 4 * num_scales, 4 * num_topk, 4 * num_topk]
        self.ends = [sum(parts[: i + 1]) for i in range(4)]
        self.num_elements = -(-self.ends[-1] // 16) * 8  # whole 16 bytes

    def pack(self, parts: List[Any]) -> Any:
        """One row of bytes per token."""
        import ml_dtypes
        import numpy

        rows = numpy.zeros((len(parts[0]), 2 * self.num_elements), numpy.uint8)
        for part, end in zip(parts, self.ends):
            if part is not None and part.size:
                octets = numpy.ascontiguousarray(part).view(numpy.uint8).reshape(len(part), -1)
                rows[:, end - octets.shape[1] : end] = octets
        return rows.view(ml_dtypes.bfloat16)

    def unpack(self, rows: Any, part: int, dtype: Any) -> Any:
        """One part of all rows, as a copy."""
        import numpy

        begin = self.ends[part - 1] if part else 0
        octets = rows.view(numpy.uint8)[:, begin : self.ends[part]]
        return numpy.ascontiguousarray(octets).view(dtype)


def low_latency_options(
    num_max: int, hidden: int, num_ranks: int, num_experts: int, top_k: int, use_fp8: bool
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
        dispatch_format="fp8" if use_fp8 else "bf16",
    )


def all_gather_of(group: Any) -> Callable[[bytes], List[bytes]]:
    if hasattr(group, "all_gather"):
        return group.all_gather
    import torch.distributed

    def all_gather(mine: bytes) -> List[bytes]:
        parts: List[Any] = [None] * group.size()
        torch.distributed.all_gather_object(parts, mine, group=group)
        return parts

    return all_gather


def destinations_of(in_rank: Any) -> Any:
    """The ranks of each token, ascending, then -1."""
    import numpy

    ranks = numpy.where(in_rank, numpy.arange(in_rank.shape[1]), in_rank.shape[1])
    ranks.sort(axis=1)
    return numpy.where(ranks < in_rank.shape[1], ranks, -1).astype(numpy.int32)


def check_tokens(
    num_ranks: int, tokens: Any, scales: Any, handle: Any, in_rank: Any, ids: Any, weights: Any, per_expert: Any
) -> None:
    if tokens.ndim != 2:
        raise ValueError(f"x has shape {tokens.shape}; it must be (tokens, hidden)")
    if scales is not None and scales.shape != (len(tokens), tokens.shape[1] // _SCALE_GROUP):
        raise ValueError(
            f"the scales have shape {scales.shape}; they must be {(len(tokens), tokens.shape[1] // _SCALE_GROUP)}"
        )
    if handle is not None:
        if ids is not None or weights is not None:
            raise ValueError("with a handle, topk_idx and topk_weights must be None")
        if len(handle.destinations) != len(tokens):
            raise ValueError(f"x has {len(tokens)} tokens; the handle's dispatch had {len(handle.destinations)}")
        return
    if in_rank is None or per_expert is None:
        raise ValueError(
            "without a handle, is_token_in_rank and num_tokens_per_expert must be given (get_dispatch_layout)"
        )
    if (ids is None) != (weights is None):
        raise ValueError("topk_idx and topk_weights must be given together")
    if tuple(in_rank.shape) != (len(tokens), num_ranks):
        raise ValueError(f"is_token_in_rank has shape {tuple(in_rank.shape)}; it must be {(len(tokens), num_ranks)}")
