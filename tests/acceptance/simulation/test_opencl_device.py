"""The OpenCL device of virtual phones, farm's or TVM's: what it cannot give a kernel is named."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.support.opencl import load_opencl


@pytest.fixture(scope="module")
def device():
    return load_opencl()


def compiled(kind, path):
    """y = x + number, loaded from a library; the number is an argument of the kernel."""

    @T.prim_func
    def add(a: T.handle, b: T.handle, number: kind):
        x = T.match_buffer(a, (4,), "float32")
        y = T.match_buffer(b, (4,), "float32")
        for i in T.thread_binding(4, thread="threadIdx.x"):
            y[i] = x[i] + T.cast(number, "float32")

    tvm.compile(add, target=tvm.target.Target("opencl", host="llvm")).export_library(str(path))
    return tvm.runtime.load_module(str(path))["add"]


@pytest.mark.parametrize(("kind", "number"), [(T.int32, 3), (T.int64, -3), (T.float32, 2.5)])
def test_numbers_are_arguments_of_kernels(device, tmp_path, kind, number):
    x, y = (tvm.runtime.tensor(np.arange(4, dtype=np.float32), device) for _ in range(2))
    compiled(kind, tmp_path / "add.so")(x, y, number)
    np.testing.assert_array_equal(y.numpy(), np.arange(4) + np.float32(number))


@pytest.mark.parametrize(("kind", "name"), [(T.int8, "int8"), (T.int16, "int16")])
def test_a_number_of_another_size_is_named(device, tmp_path, kind, name):
    x, y = (tvm.runtime.tensor(np.zeros(4, np.float32), device) for _ in range(2))
    tvms = f"Cannot handle {name} as device function argument"
    farms = f"argument [0-2] of a kernel is a number of the type {name}, not of 32 or 64"
    with pytest.raises((ValueError, tvm.error.InternalError), match=f"{tvms}|{farms}"):
        compiled(kind, tmp_path / "add.so")(x, y, 1)
