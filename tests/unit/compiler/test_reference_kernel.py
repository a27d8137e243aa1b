"""The reference kernel: the same machine code for every phone of an ABI, compiled once."""

import numpy as np
import pytest
from tvm import rpc

from farm.compiler.reference_kernel import FUNCTION, ROUNDS, kernel_arguments, load_kernel, reference_kernel
from farm.compiler.targets import TargetError

HOST = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-android"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


def test_phones_of_one_abi_run_the_same_code_whatever_their_cores(cache):
    plain = reference_kernel(ARM, cache)
    large = reference_kernel(ARM | {"mcpu": "cortex-a78", "mattr": ["+neon", "+dotprod"], "num-cores": 4}, cache)
    assert large == plain
    assert reference_kernel(HOST, cache).key != plain.key


def test_a_gpu_has_a_kernel_of_its_own_whoever_made_it(cache):
    opencl = reference_kernel({"kind": "opencl", "host": ARM}, cache)
    adreno = reference_kernel({"tag": "qcom/adreno-opencl", "host": ARM | {"mcpu": "cortex-a78"}}, cache)
    assert (opencl.kind, adreno) == ("opencl", opencl)
    assert opencl.key != reference_kernel(ARM, cache).key


def test_it_is_compiled_once(cache):
    first = reference_kernel(HOST, cache)
    made = first.library.stat()
    again = reference_kernel(HOST, cache)
    assert (again, again.library.stat().st_ino) == (first, made.st_ino)


@pytest.mark.parametrize("left", [b"", b"\x7fELF torn"])
def test_a_kernel_that_a_power_cut_left_is_made_again(tmp_path, left):
    """A phone that cannot load it, or dies of it, would be blamed, and so would the model beside it."""
    first = reference_kernel(HOST, tmp_path)
    whole = first.library.read_bytes()
    first.library.write_bytes(left)
    again = reference_kernel(HOST, tmp_path)
    assert (again, len(again.library.read_bytes())) == (first, len(whole))
    assert load_kernel(rpc.LocalSession(), again)() > 0


def test_no_phone_is_like_that(cache):
    with pytest.raises(TargetError, match="cannot link for"):
        reference_kernel({"kind": "llvm", "mtriple": "mips-linux-gnu"}, cache)


def test_it_computes_and_takes_time(cache):
    session, kernel = rpc.LocalSession(), reference_kernel(HOST, cache)
    assert load_kernel(session, kernel)() > 0
    arguments = kernel_arguments(session.cpu(0))
    session.load_module(f"{kernel.library.stem}.so")[FUNCTION](*arguments)
    left, right, product = (tensor.numpy() for tensor in arguments)
    wanted = ROUNDS["cpu"] * left.astype("float64") @ right.astype("float64")
    assert np.allclose(product, wanted, atol=1e-3)
