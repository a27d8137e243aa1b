"""How long each operator of a model takes on a phone, each timed by itself.

TVM 0.27 has no profiling VM, and `set_instrument` would call back over RPC twice per operator. But operators are
functions: compiled once more into a library of their own, they are timed one by one on tensors of their real shapes.
What that cannot see is said with the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from farm.common.durations import digits
from farm.compiler.build import Build
from farm.compiler.compile import compile_operators, lowered
from farm.compiler.inputs import import_with
from farm.compiler.link import exporter
from farm.compiler.load import read
from farm.compiler.package import is_package
from farm.compiler.targets import TargetRefusedError, abi_of
from farm.worker.session import PhoneSession, on_phone
from farm.worker.timing import MS, runs_per_sample

SAMPLES = 5  # of each operator; the median counts
MIN_SAMPLE_S = 0.002
VIEWS = ("relax.reshape", "relax.memory.view")
PACKAGED = "a package holds no operators, only their library: profile the model file"
ALONE = "each operator ran alone, on data warm in the cache and in the clock it found: only large shares tell"


@dataclass(frozen=True, slots=True)
class Operator:
    """A compiled function of a model, and how often one run calls it."""

    name: str
    shapes: tuple[tuple[tuple[int, ...], str], ...]  # of its tensors, inputs first: sizes and type
    calls: int


Timed = tuple[Operator, float]  # an operator on a phone, and the seconds of one call


def operators_of(module: Any) -> tuple[list[Operator], list[str]]:
    """The operators that `main` calls in a lowered module, and what else it calls that cannot be timed so."""
    found: dict[str, Operator] = {}
    others: list[str] = []
    seen = relax.transform.RewriteDataflowReshape()(module)  # as compiling does: these copy nothing
    for block in seen["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call):
                continue
            called = str(getattr(call.op, "name", "") or getattr(call.op, "name_hint", "another function"))
            if called in VIEWS:
                continue
            if called != "relax.call_tir":
                others.append(called)
                continue
            name, shapes = call.args[0].name_hint, _shapes(call, binding.var)
            if shapes is None:
                others.append(name)
                continue
            calls = found[name].calls if name in found else 0
            found[name] = Operator(name, shapes, calls + 1)
    return list(found.values()), sorted(set(others))


def profile(built: Build, data: bytes, session: PhoneSession, model_s: float) -> dict[str, Any]:
    """The field `profile` of a bench's result.

    Args:
        built: what was timed.
        data: its model file.
        session: to the phone it was timed on.
        model_s: how long one run took.

    Raises:
        PhoneError: the phone failed.
    """
    if is_package(data):
        return shaped([], model_s, [PACKAGED])
    shapes = {name: array.shape for name, array in built.inputs.items()}
    dtypes = {name: str(array.dtype) for name, array in built.inputs.items()}
    model, _ = import_with(read(data, built.name), None, shapes, dtypes)
    try:
        operators, others = operators_of(lowered(model, built.recipe))
    except TargetRefusedError:
        return shaped([], model_s, ["TVM schedules for that target in one go: there are no operators to take out"])
    notes = [f"not timed: {', '.join(others)}"] if others else []
    library = Path(f"{built.compiled.key[:16]}-operators.so")  # in the attempt's own folder
    compile_operators(model, built.recipe).export_library(str(library), fcompile=exporter(*abi_of(built.recipe.target)))
    return shaped(_time_all(operators, library, session, built.device, notes), model_s, notes)


def shaped(timed: Sequence[Timed], model_s: float, notes: Sequence[str]) -> dict[str, Any]:
    """Times as JSON, the largest first, with their sum."""
    total_s = sum(seconds * operator.calls for operator, seconds in timed)
    rows = [
        {
            "name": operator.name,
            "calls": operator.calls,
            "each_ms": seconds * MS,
            "total_ms": seconds * operator.calls * MS,
            "share": seconds * operator.calls / total_s,
            "shapes": [f"{'x'.join(map(str, sizes)) or 'scalar'} {dtype}" for sizes, dtype in operator.shapes],
        }
        for operator, seconds in sorted(timed, key=lambda each: -each[1] * each[0].calls)
    ]
    remarks = (
        [f"together {digits(total_s * MS)} ms; the whole model takes {digits(model_s * MS)} ms", ALONE] if rows else []
    )
    return {"operators": rows, "operators_ms": total_s * MS, "model_ms": model_s * MS, "notes": [*notes, *remarks]}


def _shapes(call: Any, result: Any) -> tuple[tuple[tuple[int, ...], str], ...] | None:
    """Of the tensors a function takes; None when one of them has no fixed shape, or it takes more than tensors."""
    if len(call.args) > 2:  # sizes that are known only when it runs
        return None
    arguments = call.args[1]
    given = list(arguments.fields) if isinstance(arguments, relax.Tuple) else [arguments]
    kinds = [each.ty for each in given]
    kinds += result.ty.fields if isinstance(result.ty, relax.TupleType) else [result.ty]
    shapes = []
    for kind in kinds:
        sizes = getattr(getattr(kind, "shape", None), "values", None)
        if sizes is None or not all(isinstance(size, tvm.tirx.IntImm) for size in sizes):
            return None
        shapes.append((tuple(int(size) for size in sizes), str(kind.dtype)))
    return tuple(shapes)


def _time_all(
    operators: Sequence[Operator], library: Path, session: PhoneSession, device_kind: str, notes: list[str]
) -> list[Timed]:
    device = session.device(device_kind)
    module = session.load(library, library.name)
    fill = session.function("tvm.contrib.random.random_fill_for_measure")
    timed = []
    for operator in operators:
        with on_phone(f"timing {operator.name}"):
            tensors = [_tensor(sizes, dtype, device, fill) for sizes, dtype in operator.shapes]
            once_s = _seconds(module, operator.name, device, tensors, 1)
            number = runs_per_sample(max(once_s, 1e-7), MIN_SAMPLE_S)
            timed.append((operator, _seconds(module, operator.name, device, tensors, number)))
    if not timed:
        notes.append("the model calls no operator that can be timed by itself")
    return timed


def _seconds(module: Any, name: str, device: Any, tensors: Sequence[Any], number: int) -> float:
    evaluate = module.time_evaluator(name, device, number=number, repeat=SAMPLES)
    return float(median(evaluate(*tensors).results))


def _tensor(sizes: tuple[int, ...], dtype: str, device: Any, fill: Any) -> Any:
    """Random numbers, made on the phone. Whole numbers may be indices: 0 is one in every tensor."""
    if not dtype.startswith(("float", "bfloat")):
        return tvm.runtime.tensor(np.zeros(sizes, dtype), device)
    tensor = tvm.runtime.empty(sizes, dtype, device)
    fill(tensor)
    return tensor
