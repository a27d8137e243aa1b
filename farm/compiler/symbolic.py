"""Relax functions whose shapes have names in them: the names of a model's open dimensions, and what fixes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from farm.compiler.model import IRModule, ShapeError, TensorSpec, numpy_dtype


def dimensions(kind: Any) -> tuple[int | str, ...]:
    """A Relax tensor type's shape; what is no number is shown as TVM writes it, what is not known as "?"."""
    if kind.shape is None:
        return ("?",) * max(0, int(kind.ndim))
    return tuple(int(size) if isinstance(size, tvm.tirx.IntImm) else str(size) for size in kind.shape.values)


def parameters(function: Any) -> tuple[TensorSpec, ...]:
    """A Relax function's parameters, all of them tensors with a shape."""
    return tuple(
        TensorSpec(each.name, dimensions(each.ty), numpy_dtype(str(each.ty.dtype))) for each in function.params
    )


def sizes_by_name(
    model: str, inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, str]]:
    """The size of every open dimension, and an input that has it.

    Raises:
        ShapeError: one name stands for two sizes.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        for dimension, (wanted, size) in enumerate(zip(spec.shape, shapes[spec.name], strict=True)):
            if isinstance(wanted, int):
                continue
            first, where = sizes.setdefault(wanted, (size, spec.name))
            if first != size:
                raise ShapeError(
                    f"{model}: dimension {dimension} ({wanted!r}) of input {spec.name!r} is {size}, and {first} "
                    f"in {where!r}",
                    hint="it is one dimension of the model: give the same size everywhere",
                )
    return sizes


def bound(module: IRModule, sizes: Mapping[str, tuple[int, str]]) -> IRModule:
    """The module with these sizes for names in `main`; names that it does not have are left out."""
    names = {str(each) for each in relax.analysis.defined_symbolic_vars(module["main"])}
    wanted = {name: size for name, (size, _) in sizes.items() if name in names}
    return relax.transform.BindSymbolicVars(wanted, "main")(module) if wanted else module
