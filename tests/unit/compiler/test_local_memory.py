"""The local memory of kernels, read from a library that TVM compiled."""

from farm.compiler.compile import Recipe, compile_library
from farm.compiler.load import load
from farm.worker.session import most_local_memory
from tests.support.compiling import HOST
from tests.support.tiny_model import tiny_onnx


def test_the_kernel_with_the_most_is_named():
    library = (
        b"\0// Function: a_kernel\n  __local half s[8];\n__local int t[2];// Function: b_kernel\n__local float4 s[4];\0"
    )
    assert most_local_memory(library) == ("b_kernel", 64)
    assert most_local_memory(b"\0// Function: a_kernel\n((__local float*)s)[0];") == ("", 0)


def test_tvm_keeps_the_sizes_in_a_library(tmp_path):
    model = load(tiny_onnx(), name="tiny.onnx")
    compiled = compile_library(model, Recipe({"kind": "opencl", "host": HOST}), tmp_path)
    assert most_local_memory(compiled.library.read_bytes()) == ("fused_conv2d_add_relu_kernel", 2 * 256 * 4)
