"""The CPUs' tensor intrinsics in place of all of them; the others are there when somebody asks for them by name."""

import subprocess
import sys

import pytest

pytest.importorskip("tvm")

from tests.support.tvm import environment

LOADED = """
import sys
from farm.tuning.stock import load_intrinsics
load_intrinsics()
import tvm
from tvm.s_tir import TensorIntrin, meta_schedule  # meta_schedule imports the package when it tunes
import tvm.s_tir.tensor_intrin as package
assert TensorIntrin.get("dot_4x4_i8i8s32_sdot") is not None
assert not {"tvm.s_tir.tensor_intrin.cuda", "tvm.s_tir.tensor_intrin.metal"} & sys.modules.keys()
try:
    package.no_such_part
except AttributeError as error:
    print(error)
print(package.metal.__name__)
"""


def test_other_parts_come_when_they_are_asked_for():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "module 'tvm.s_tir.tensor_intrin' has no attribute 'no_such_part'",
        "tvm.s_tir.tensor_intrin.metal",
    ]
