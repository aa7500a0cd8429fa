"""Worlds from process groups of torch.distributed, and from whatever has rank(), size() and all_gather()."""

from __future__ import annotations

from typing import Any, Callable, List

from . import _core


def all_gather_of(group: Any) -> Callable[[bytes], List[bytes]]:
    """The group's own all_gather(bytes) -> list[bytes]; of a torch.distributed group, one over tensors: on the host with
    gloo, on the current GPU with nccl."""
    if hasattr(group, "all_gather"):
        return group.all_gather
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"

    def all_gather(mine: bytes) -> List[bytes]:
        size = torch.tensor([len(mine)], dtype=torch.int64, device=device)
        sizes = [torch.zeros_like(size) for _ in range(group.size())]
        dist.all_gather(sizes, size, group=group)
        most = int(max(int(other) for other in sizes))
        padded = torch.zeros(most, dtype=torch.uint8, device=device)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
        parts = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return [bytes(part[: int(other)].tolist()) for part, other in zip(parts, sizes)]

    return all_gather


def join(group: Any, **options: Any) -> _core.World:
    """World.join() with the rank, the size and the all-gather of the group. On CUDA, the rank's GPU is the current one of
    PyTorch."""
    if options.get("target", "auto") != "host" and "gpu" not in options and not hasattr(group, "all_gather"):
        import torch

        if torch.cuda.is_available():
            options["gpu"] = torch.cuda.current_device()
    return _core.World.join(group.rank(), group.size(), all_gather=all_gather_of(group), **options)
