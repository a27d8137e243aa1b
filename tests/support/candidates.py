"""Tuning candidates that behave as asked: small libraries with one kernel, and what runners and builders take."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXTENT = 16

SOURCE = """
@I.ir_module
class Module:
    @T.prim_func
    def main(a: T.Buffer(({extent},), "float32"), b: T.Buffer(({extent},), "float32")):
        T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
        {body}
        for i in range({extent}):
            b[i] = a[i] + T.float32({addend})
"""
BODIES = {
    "add": "T.evaluate(0)",
    "endless build": "for n in T.unroll(1 << 30):\n            b[n % 16] = b[n % 16] + a[n % 16]",
    "abort": 'T.evaluate(T.call_extern("int32", "abort"))',
    # SIGTERM (15) is ignored (1): only SIGKILL ends it.
    "stubborn": 'T.evaluate(T.call_extern("int32", "signal", 15, T.uint64(1)))\n'
    '        while T.bool(True):\n            T.evaluate(T.call_extern("int32", "usleep", 1000))',
}


def target() -> Any:
    """This host, as virtual phones and HostPhones run it."""
    import platform

    import tvm

    return tvm.target.Target({"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu", "num-cores": 2})


def module(kind: str = "add", addend: float = 1.0) -> Any:
    """An IRModule of a kind in BODIES, or `sleep MS`: it waits so long without using a processor.

    `abort` and `stubborn` misbehave on the phone, `endless build` in the compiler.
    """
    from tvm.script import from_source

    body = BODIES.get(kind)
    if body is None:
        word, _, milliseconds = kind.partition(" ")
        assert word == "sleep"
        body = f'T.evaluate(T.call_extern("int32", "usleep", {int(milliseconds) * 1000}))'
    return from_source(SOURCE.format(extent=EXTENT, body=body, addend=addend))


def library(folder: Path, kind: str = "add", addend: float = 1.0) -> Path:
    """The same, built."""
    import tvm

    path = folder / f"{kind.replace(' ', '-')}-{addend}.so"
    if not path.exists():
        tvm.tirx.build(module(kind, addend), target=target()).export_library(str(path), fcompile=_linker())
    return path


@functools.cache
def _linker() -> Any:
    from farm.compiler.link import exporter
    from farm.compiler.targets import abi_of

    return exporter(*abi_of(target()))


def runner_inputs(paths: Sequence[Path]) -> list[Any]:
    """As MetaSchedule gives them to a runner."""
    from tvm.s_tir.meta_schedule.arg_info import TensorInfo
    from tvm.s_tir.meta_schedule.runner import RunnerInput

    info = [TensorInfo("float32", (EXTENT,)), TensorInfo("float32", (EXTENT,))]
    return [RunnerInput(str(path), "cpu", info) for path in paths]


def builder_inputs(modules: Sequence[Any]) -> list[Any]:
    """As MetaSchedule gives them to a builder."""
    from tvm.s_tir.meta_schedule.builder import BuilderInput

    return [BuilderInput(each, target()) for each in modules]
