"""The arrays that the tests of adapters run over: NumPy's, and CPU tensors of PyTorch where it is installed."""

import ml_dtypes
import numpy as np
import pytest


class InNumpy:
    def need(self, dtype):
        """Skips the test where there is no such dtype."""

    def array(self, values):
        return values

    def numpy(self, array):
        return array


class InTorch:
    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def need(self, dtype):
        if not hasattr(self.torch, dtype):
            pytest.skip(f"PyTorch {self.torch.__version__} has no {dtype}")

    def array(self, values):
        name = values.dtype.name
        if not hasattr(ml_dtypes, name):
            return self.torch.from_numpy(values)
        bits = values.view({1: np.uint8, 2: np.int16}[values.dtype.itemsize])
        return self.torch.from_numpy(bits).view(getattr(self.torch, name))

    def numpy(self, array):
        name = str(array.dtype).split(".")[-1]
        if not hasattr(ml_dtypes, name):
            return array.numpy()
        bits = {1: self.torch.uint8, 2: self.torch.int16}[array.element_size()]
        return array.view(bits).numpy().view(getattr(ml_dtypes, name))


@pytest.fixture(params=[InNumpy, InTorch], ids=["numpy", "torch"])
def library(request):
    return request.param()
