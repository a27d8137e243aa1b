"""A library for arm64 virtual phones made by stock TVM, which is told of one linker that the host has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.tvm import environment

COMPILE_LIMIT_S = 60.0

COMPILE = """\
import subprocess, sys, tvm
from tvm import te

def link(output, objects, options=None):
    subprocess.run(["ld.lld", "-m", "aarch64linux", "-shared", "-o", output, *objects], check=True)

link.output_format = "so"
a = te.placeholder((1024,), name="a")
b = te.compute((1024,), lambda i: a[i] + 1.0, name="b")
function = te.create_prim_func([a, b]).with_attr("global_symbol", "add_one")
target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}
tvm.compile(function, target=target).export_library(sys.argv[1], fcompile=link)
"""


def compile_arm64_kernel(folder: Path) -> Path:
    """`add_one` of tests.support.stock_client, cross-compiled by stock TVM."""
    library = folder / "add_one.so"
    subprocess.run(
        [sys.executable, "-c", COMPILE, str(library)], check=True, env=environment(), timeout=COMPILE_LIMIT_S
    )
    return library
