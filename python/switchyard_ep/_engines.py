"""What the adapters to engines share: the steps of one rank over arrays of NumPy or tensors of PyTorch."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _core
from .errors import FailedPrecondition, InvalidArgument


def library_of(array: Any) -> Any:
    """The module that the array is of: torch, or else numpy."""
    import importlib

    return importlib.import_module("torch" if type(array).__module__.split(".")[0] == "torch" else "numpy")


def is_torch(library: Any) -> bool:
    return library.__name__ == "torch"


def dtype_of(library: Any, name: str) -> Any:
    """The dtype of that name, as the library has it."""
    if is_torch(library):
        return getattr(library, name)
    import ml_dtypes

    return library.dtype(getattr(ml_dtypes, name, name))


def cast(library: Any, array: Any, name: str) -> Any:
    """The array itself if it has the dtype of that name, else a converted copy."""
    dtype = dtype_of(library, name)
    if array.dtype == dtype:
        return array
    return array.to(dtype) if is_torch(library) else array.astype(dtype)


def share(library: Any, tensor: _core.Tensor, name: str) -> Any:
    """The memory of a tensor as an array of the library, without a copy. The dtype has the size of the tensor's."""
    if tensor.device != "cpu":
        if name.startswith("float8"):  # which DLPack may not carry
            tensor = tensor.view("uint8")
        array = library.from_dlpack(tensor)
        return array if array.dtype == dtype_of(library, name) else array.view(dtype_of(library, name))
    array = tensor.numpy()
    if not is_torch(library):
        return array.view(dtype_of(library, name))
    bits = array.view({1: "uint8", 2: "int16", 4: "int32"}[array.dtype.itemsize])
    return library.from_numpy(bits).view(dtype_of(library, name))


def address_of(array: Any) -> int:
    return array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data


class Rows(NamedTuple):
    """What a rank has received. The memory is the exchange's; the next dispatch of the same micro-batch overwrites it."""

    rows: Any  # (max rows, hidden)
    scales: Optional[Any]  # (max rows, hidden / 128) of float32, a row's scales max rows apart
    counts: Any  # (local experts,) of int32
    offsets: Any  # (local experts + 1,) of int32
    expert_ids: Any  # (local experts,) of int32: their numbers in the model; -1 for a seat without one


class Exchange:
    """Dispatch and combine of one shape for one rank; many layers share it. Micro-batches, num_microbatches of them, are
    under way at once, each with memory of its own.

    All processes make the same exchanges in the same order. Calls enqueue on PyTorch's current stream on a GPU. On the host
    those that receive wait, and raise what went wrong."""

    def __init__(
        self,
        world: _core.World,
        *,
        n_experts: int,
        top_k: int,
        hidden: int,
        max_tokens_per_rank: int,
        is_masked: bool,
        dispatch_format: str = "bf16",
        num_microbatches: int = 1,
        **options: Any,
    ):
        if dispatch_format not in ("bf16", "fp8"):
            raise InvalidArgument(f"dispatch_format is '{dispatch_format}'; it must be one of: bf16, fp8")
        if num_microbatches < 1:
            raise InvalidArgument(f"num_microbatches is {num_microbatches}; it must be at least 1")
        if is_masked and dispatch_format == "fp8":  # groups begin where the scales of a row are aligned
            max_tokens_per_rank += -max_tokens_per_rank % 4
        options.update(
            n_experts=n_experts,
            top_k=top_k,
            hidden=hidden,
            max_tokens_per_rank=max_tokens_per_rank,
            dispatch_format=dispatch_format,
            protocol="direct",
        )
        if is_masked:
            options.update(row_layout="masked", max_rows_per_expert=world.n_ranks * max_tokens_per_rank)
        self.world, self.n_ranks, self.rank = world, world.n_ranks, world.local_ranks[0]
        self._is_host = world.target == "host"
        self.is_masked, self.dispatch_format = is_masked, dispatch_format
        # Flights share the multiprocessors of a GPU, so that all of them fit at once.
        self._ep = _core.ExpertParallel(world, steps_in_flight=num_microbatches, **options)
        self._eps = [self._ep.flight(index) for index in range(num_microbatches)]
        self._open: List[Optional[Any]] = [None] * num_microbatches  # the ids of a step that has no combine yet
        self._views: Dict[Tuple[int, str], Tuple[Rows, Any]] = {}  # of the memory, by micro-batch and library
        ep = self._eps[0]
        self.n_experts, self.top_k, self.hidden = n_experts, top_k, hidden
        self.max_tokens_per_rank = max_tokens_per_rank
        self.num_local_experts = ep.n_local_experts
        if not self._is_host:  # now, since a graph cannot capture the copies
            import torch

            for microbatch in range(num_microbatches):
                self._memory(microbatch, torch)

    def of_rank(self, rank: int) -> "Exchange":
        """The same exchange for another rank of this process."""
        if rank not in self.world.local_ranks:
            raise InvalidArgument(f"rank is {rank}; ranks of this process are {self.world.local_ranks}")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, rank=rank, _open=[None] * len(self._eps), _views={})
        return other

    @property
    def local_expert_ids(self) -> Sequence[int]:
        """The number in the model of each local expert; -1 for a seat that this rank has and does not need."""
        held = self._eps[0].placement[self.rank]
        return held + [-1] * (self.num_local_experts - len(held))

    def reset(self) -> None:
        """After a fault: forgets the broken steps and makes all memory ready again. All processes call it."""
        self._ep.reset()
        self._open = [None] * len(self._eps)

    def poll(self) -> None:
        """Raises what has gone wrong so far, without waiting; also while graphs replay."""
        self._ep.poll(self.rank)

    def _on_stream(self) -> Dict[str, Any]:
        if self._is_host:
            return {}
        import torch

        return {"stream": torch.cuda.current_stream().cuda_stream}

    def _settle(self, ep: _core.ExpertParallel) -> None:
        """On the host: the arrays may be read when this returns."""
        if self._is_host:
            ep.synchronize(self.rank)

    def _use(self, microbatch: int) -> _core.ExpertParallel:
        if not 0 <= microbatch < len(self._eps):
            raise InvalidArgument(f"microbatch is {microbatch}; it must be 0..{len(self._eps) - 1}")
        return self._eps[microbatch]

    def send(self, microbatch: int, tokens: Any, topk_ids: Any) -> None:
        """Sends tokens, (tokens, hidden) of bfloat16, to their experts, topk_ids, (tokens, top_k) of int32."""
        ep = self._use(microbatch)
        if str(topk_ids.dtype).split(".")[-1] != "int32":
            raise InvalidArgument(f"topk_ids has dtype {topk_ids.dtype}; it must be int32")
        ep.dispatch_async(self.rank, tokens, topk_ids, **self._on_stream())
        self._open[microbatch] = topk_ids

    def _on_device(self, library: Any, numbers: Sequence[int]) -> Any:
        where = {} if self._is_host else {"device": self._eps[0].row_buffers(self.rank).rows.device}
        return library.asarray(list(numbers), dtype=dtype_of(library, "int32"), **where)

    def _memory(self, microbatch: int, library: Any) -> Tuple[Rows, Any]:
        """What dispatch writes and what combine reads, as arrays of the library."""
        key = (microbatch, library.__name__)
        if key not in self._views:
            memory, is_fp8 = self._use(microbatch).row_buffers(self.rank), self.dispatch_format == "fp8"
            scales = None
            if memory.scales is not None:
                scales = share(library, memory.scales, "float32")[:, : len(memory.rows)].T
            assert memory.expert_outputs is not None
            rows = Rows(
                share(library, memory.rows, "float8_e4m3fn" if is_fp8 else "bfloat16"),
                scales,
                share(library, memory.row_counts, "int32"),
                share(library, memory.row_offsets, "int32"),
                self._on_device(library, self.local_expert_ids),
            )
            self._views[key] = rows, share(library, memory.expert_outputs, "bfloat16")
        return self._views[key]

    def receive(self, microbatch: int, library: Any) -> Rows:
        ep = self._use(microbatch)
        ep.dispatch_wait(self.rank, **self._on_stream())
        self._settle(ep)
        return self._memory(microbatch, library)[0]

    def by_expert(self, rows: Any, scales: Optional[Any], library: Any) -> Tuple[Any, Optional[Any]]:
        """Masked rows as (local experts, rows of each, hidden), and their scales alike; neighbours in memory are the scales
        of neighbouring rows."""
        rows = rows.reshape(self.num_local_experts, -1, rows.shape[-1])
        if scales is None or scales.ndim != 2:
            return rows, scales
        scales = scales.T.reshape(scales.shape[1], self.num_local_experts, -1)
        return rows, scales.permute(1, 2, 0) if is_torch(library) else scales.transpose(1, 2, 0)

    def expert_outputs(self, microbatch: int, library: Any) -> Any:
        """(max rows, hidden) of bfloat16: what experts leave here needs no copy to be sent."""
        return self._memory(microbatch, library)[1]

    def _store(self, ep: _core.ExpertParallel, expert_rows: Any) -> None:
        """Copies rows to where combine reads them, as many as the step has."""
        if self.is_masked:
            expert_rows = expert_rows.reshape(self.num_local_experts, -1, self.hidden)
        ep.store_expert_rows(self.rank, expert_rows, **self._on_stream())

    def send_back(self, microbatch: int, expert_rows: Any, library: Any) -> None:
        """Sends expert_rows, (rows, hidden) of bfloat16, for each row that was received, back."""
        ep, outputs = self._use(microbatch), self.expert_outputs(microbatch, library)
        if self._open[microbatch] is None:
            raise FailedPrecondition(
                f"micro-batch {microbatch} of rank {self.rank} has nothing to send back; next must come dispatch"
            )
        if tuple(expert_rows.shape) != tuple(outputs.shape) or expert_rows.dtype != outputs.dtype:
            raise InvalidArgument(
                f"expert_rows has shape {tuple(expert_rows.shape)} and dtype {expert_rows.dtype}; it must be "
                f"{tuple(outputs.shape)} and {outputs.dtype}"
            )
        if address_of(expert_rows) != address_of(outputs):
            self._store(ep, expert_rows)
        ep.combine_async(self.rank, None, **self._on_stream())

    def receive_back(self, microbatch: int, topk_weights: Any, out: Any) -> None:
        """Leaves the sum of each token's rows times topk_weights, (tokens, top_k) of float32, in out, (tokens, hidden)."""
        ep, topk_ids = self._use(microbatch), self._open[microbatch]
        ep.combine_wait(self.rank, topk_ids, topk_weights, out=out, **self._on_stream())
        self._open[microbatch] = None
        self._settle(ep)
