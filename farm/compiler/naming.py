"""Names of variables that say for which part of a model's file TVM's front ends made them.

Relax keeps the names of variables from pass to pass, and nothing else of where they come from.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

_PART = re.compile(r"part(\d+)_")  # TVM adds digits to a name that is taken


@dataclass(slots=True)
class SourceNames:
    """The part that is converted now."""

    number: int | None = None  # None: no part

    @property
    def hint(self) -> str:
        """The name of its variables."""
        return "" if self.number is None else f"part{self.number}_"


def numbers(variables: Iterable[str]) -> set[int]:
    """The parts for which variables were made."""
    return {int(found[1]) for each in variables if (found := _PART.match(each))}


def bound(builder: Any, value: Any) -> Any:
    """A tensor that a front end computes, or several, bound to variables of their own; other values as they are."""
    if not isinstance(value, tvm.ir.Call):
        return value
    if isinstance(value.ty, relax.TensorType):
        return builder.emit(value)
    if isinstance(value.ty, tvm.ir.TupleType):
        held = builder.emit(value)
        return relax.Tuple([builder.emit(relax.TupleGetItem(held, at)) for at in range(len(value.ty.fields))])
    return value


@contextlib.contextmanager
def variables_named() -> Iterator[SourceNames]:
    """Within, front ends name variables by the part that is set in what this gives."""
    builder, parts = relax.BlockBuilder, SourceNames()
    emit, emit_output = builder.emit, builder.emit_output

    def emit_named(self: Any, expression: Any, name_hint: str = "") -> Any:
        return emit(self, expression, name_hint or parts.hint)

    def emit_output_named(self: Any, output: Any, name_hint: str = "") -> Any:
        return emit_output(self, output, name_hint or (output.name if isinstance(output, tvm.ir.Var) else ""))

    builder.emit, builder.emit_output = emit_named, emit_output_named
    try:
        yield parts
    finally:
        builder.emit, builder.emit_output = emit, emit_output
