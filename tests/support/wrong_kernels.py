"""A kernel that computes wrong numbers: one function of a module, changed where it writes its result.

All of it is wrong, or one element of four, as by a vector with a wrong lane.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from farm.compiler.cut import OpenModel
from farm.compiler.model import Array
from farm.compiler.reference import flatten

FACTOR, SUMMAND = 1.5, 0.25  # beyond every limit, whether the numbers are large or small
STEPS = 3  # of integers
LANES = 4
NOISE = {"float32": 4 * 2.0**-23, "float16": 2.0**-10}  # of a right number: some units in the last place


def kernels(module: Any) -> list[str]:
    """The functions of a module that can be made wrong."""
    functions = {variable.name_hint: each for variable, each in module.functions.items()}
    return [name for name, each in functions.items() if isinstance(each, tirx.PrimFunc) and _stores(each)]


def with_wrong_kernel(module: Any, kernel: str, *, lane: bool = False) -> Any:
    """The module with that function, or what became of it with textures, writing other numbers.

    `lane`: only in each fourth place of its result's longest axis, if it has one of four.
    """
    wanted = re.compile(rf"{re.escape(kernel)}(_texture\d*)?")
    variables = [each for each in module.get_global_vars() if wanted.fullmatch(each.name_hint)]
    made = tvm.IRModule(dict(module.functions.items()), attrs=module.attrs, global_infos=module.global_infos)
    assert variables, kernel
    for variable in variables:
        made.update_func(variable, _wrong(module[variable], lane=lane))
    return made


def with_noise(module: Any) -> Any:
    """The module with each float that a function writes, but for sums on their way, off in its last digits."""
    made = tvm.IRModule(dict(module.functions.items()), attrs=module.attrs, global_infos=module.global_infos)
    for variable in module.get_global_vars():
        if variable.name_hint in kernels(module):
            made.update_func(variable, _noisy(module[variable]))
    return made


def _noisy(function: Any) -> Any:
    result = _result(function)

    def changed(store: Any) -> Any:
        dtype = str(store.value.ty.dtype)
        if not store.buffer.same_as(result) or dtype not in NOISE or f"{result.name}[" in str(store.value):
            return store
        value = store.value * tvm.tirx.const(1 + NOISE[dtype], dtype)
        return tirx.BufferStore(store.buffer, value, store.indices)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.BufferStore, changed), order="post"))


def _result(function: Any) -> Any:
    return function.params[-1]


def _stores(function: Any) -> Sequence[Any]:
    found: list[Any] = []

    def visit(store: Any) -> None:
        if store.buffer.same_as(_result(function)) and _other(store.value) is not None:
            found.append(store)

    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, visit), order="post")
    return found


def _other(value: Any) -> Any:
    """Another number; None: there is none of its type."""
    dtype = str(value.ty.dtype)
    if dtype == "bool" or "x" in dtype:
        return None
    number = tvm.tirx.const
    if dtype.startswith("float"):
        return value * number(FACTOR, dtype) + number(SUMMAND, dtype)
    return value + number(STEPS, dtype)


def _wrong(function: Any, *, lane: bool) -> Any:
    shape = [int(size) for size in _result(function).shape]
    axis = max(range(len(shape)), key=shape.__getitem__, default=None)
    lane = lane and axis is not None and shape[axis] >= LANES

    def changed(store: Any) -> Any:
        other = _other(store.value) if store.buffer.same_as(_result(function)) else None
        if other is None:
            return store
        if lane:
            here = tirx.floormod(store.indices[axis], LANES) == LANES - 1
            other = tirx.Select(here, other, store.value)
        return tirx.BufferStore(store.buffer, other, store.indices)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.BufferStore, changed), order="post"))


class PhoneHere:
    """Runs cuts of a model on a device of this process."""

    _numbers = count()

    def __init__(self, opened: OpenModel, folder: Path, device: Any = None) -> None:
        self.opened, self.folder, self.device = opened, folder, device or tvm.cpu()
        self.uploads = 0
        self.library = folder / "cut.so"  # the newest

    def run(self, wanted: Sequence[int], given: Sequence[int], arrays: Sequence[Array]) -> list[Array]:
        """As `farm.kinds.run.locate.Uploads.run`."""
        self.uploads += 1
        self.opened.for_phone(wanted, given, self.library)
        loaded = self.folder / f"{next(self._numbers)}.so"  # a library of one path is loaded once
        loaded.write_bytes(self.library.read_bytes())
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(loaded)), self.device)
        return flatten(machine["main"](*(tvm.runtime.tensor(array, self.device) for array in arrays)))
