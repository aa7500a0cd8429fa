"""NumPy's arrays and PyTorch's tensors behind one set of words, which switchyard_ep.deep_ep is written in."""

from __future__ import annotations

import weakref
from typing import Any, List, Sequence

from . import _core

# What NumPy has from ml_dtypes alone, and what DLPack may not carry, by bytes of an element.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}

_ALIGNMENT = 16  # bytes, of what kernels are given
_TORCH_DTYPES = ("bfloat16", "float8_e4m3fn", "float32", "int32", "int64", "bool")


class NumpyArrays:
    """Arrays of NumPy, with bfloat16 and fp8 of ml_dtypes. All calls are complete when they return."""

    is_host = True

    def __init__(self) -> None:
        import ml_dtypes
        import numpy

        self._numpy, self._ml_dtypes = numpy, ml_dtypes
        self.where = numpy.where

    def _dtype(self, name: str) -> Any:
        return self._numpy.dtype(getattr(self._ml_dtypes, name) if name in _BITS else name)

    def take(self, array: Any, name: str, *dtypes: str) -> Any:
        """The array with rows of contiguous elements, aligned, which must have one of the dtypes."""
        values = self._numpy.asarray(array)
        if values.dtype not in [self._dtype(dtype) for dtype in dtypes]:
            raise ValueError(f"{name} has dtype {values.dtype}; it must be {' or '.join(dtypes)}")
        values = self._numpy.ascontiguousarray(values)
        return values if values.ctypes.data % _ALIGNMENT == 0 else self.copy(values)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self._numpy.empty(shape, self._dtype(dtype))

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Any:
        return self._numpy.full(shape, value, self._dtype(dtype))

    def from_list(self, values: List[Any], dtype: str) -> Any:
        return self._numpy.array(values, self._dtype(dtype))

    def arange(self, end: int) -> Any:
        return self._numpy.arange(end)

    def cast(self, array: Any, dtype: str) -> Any:
        """A copy."""
        return array.astype(self._dtype(dtype))

    def copy(self, array: Any) -> Any:
        """A contiguous copy."""
        return self._numpy.array(array, order="C")

    def copy_if_strided(self, array: Any) -> Any:
        return self._numpy.ascontiguousarray(array)

    def view(self, tensor: _core.Tensor, dtype: str = "") -> Any:
        """The memory of the Tensor."""
        values = tensor.numpy()
        return values.view(self._dtype(dtype)) if dtype else values

    def bits(self, array: Any, dtype: str) -> Any:
        """The same memory as elements of another dtype."""
        return array.view(self._dtype(dtype))

    def permuted(self, array: Any, *axes: int) -> Any:
        return array.transpose(axes)

    def tolist(self, array: Any) -> List[Any]:
        return array.tolist()

    def pointer(self, array: Any) -> int:
        return array.ctypes.data

    def num_sms(self) -> int:
        return 0

    def use_here(self, array: Any) -> None:
        """In front of a use on the current stream of an array that was allocated on another one."""

    def lend(self, tensor: _core.Tensor) -> Any:
        """The memory of the Tensor, and a weak reference that ends with the last array that shares it."""
        return self.view(tensor), weakref.ref(tensor)


class TorchArrays:
    """Tensors of PyTorch on one device. On a GPU everything is enqueued on PyTorch's current stream."""

    def __init__(self, device: Any) -> None:
        import torch

        self.torch, self.device = torch, device
        self.is_host = device.type == "cpu"
        self._of_name = {name: getattr(torch, name) for name in _TORCH_DTYPES if hasattr(torch, name)}

    def _dtype(self, name: str) -> Any:
        return getattr(self.torch, name)

    def take(self, array: Any, name: str, *dtypes: str) -> Any:
        if (
            array.dtype is self._of_name.get(dtypes[0])
            and array.is_contiguous()
            and array.data_ptr() % _ALIGNMENT == 0
        ):
            return array  # calls say so if it is elsewhere
        if str(array.dtype)[6:] not in dtypes:
            raise ValueError(f"{name} has dtype {array.dtype}; it must be {' or '.join(dtypes)}")
        if array.device != self.device:
            raise ValueError(f"{name} is on {array.device}; it must be on {self.device}")
        values = array.detach()
        strides = values.stride()
        has_rows = values.dim() == 2 and strides[1] == 1 and strides[0] * values.element_size() % 16 == 0
        values = values if has_rows and strides[0] >= values.shape[1] else values.contiguous()
        return values if values.data_ptr() % _ALIGNMENT == 0 else self.copy(values)

    def where(self, condition: Any, chosen: Any, other: Any) -> Any:
        return self.torch.where(condition, chosen, other)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.empty(shape, dtype=self._dtype(dtype), device=self.device)

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Any:
        return self.torch.full(shape, value, dtype=self._dtype(dtype), device=self.device)

    def from_list(self, values: List[Any], dtype: str) -> Any:
        return self.torch.tensor(values, dtype=self._dtype(dtype), device=self.device)

    def arange(self, end: int) -> Any:
        return self.torch.arange(end, dtype=self.torch.int64, device=self.device)

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to(self._dtype(dtype), copy=True, memory_format=self.torch.contiguous_format)

    def copy(self, array: Any) -> Any:
        return array.clone(memory_format=self.torch.contiguous_format)

    def copy_if_strided(self, array: Any) -> Any:
        return array.contiguous()

    def view(self, tensor: _core.Tensor, dtype: str = "") -> Any:
        bits = _BITS.get(tensor.dtype)
        shared = self.torch.from_dlpack(tensor.view(bits) if bits else tensor)
        return shared.view(self._dtype(dtype or tensor.dtype)) if dtype or bits else shared

    def bits(self, array: Any, dtype: str) -> Any:
        return array.view(self._dtype(dtype))

    def permuted(self, array: Any, *axes: int) -> Any:
        return array.permute(axes)

    def tolist(self, array: Any) -> List[Any]:
        """Waits for the current stream."""
        return array.tolist()

    def pointer(self, array: Any) -> int:
        return array.data_ptr()

    def lend(self, tensor: _core.Tensor) -> Any:
        bits = _BITS.get(tensor.dtype)
        carrier = tensor.view(bits) if bits else tensor
        # Of a capsule PyTorch asks neither device nor stream, which takes longer than all the rest.
        shared = self.torch.utils.dlpack.from_dlpack(carrier.__dlpack__())
        return shared.view(self._dtype(tensor.dtype)) if bits else shared, weakref.ref(carrier)

    def use_here(self, array: Any) -> None:
        if not self.is_host:
            array.record_stream(self.torch.cuda.current_stream(self.device))

    def num_sms(self) -> int:
        return 0 if self.is_host else self.torch.cuda.get_device_properties(self.device).multi_processor_count


def is_torch(array: Any) -> bool:
    return type(array).__module__.split(".")[0] == "torch"


def arrays_of(example: Any) -> Any:
    """Words for what the example is."""
    return TorchArrays(example.device) if is_torch(example) else NumpyArrays()
