"""The bench worker: compile, upload, run, check the numbers, time; with `--profile` each operator by itself too.

`main` runs in the zygote's fork.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
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
from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.compiler.targets import TargetRefusedError, abi_of
from farm.kinds.bench.spec import BenchSpec
from farm.measure.assess import Assessment, assess, best, measure_again
from farm.measure.conditions import Conditions
from farm.model.specs import ModelTask, task_from_wire
from farm.worker.certificate import VIRTUAL, MeasuringRun, about_build, measured, plain
from farm.worker.channel import DaemonChannel
from farm.worker.session import FirstRun, PhoneSession, first_run, on_phone, prepare, session_to_phone
from farm.worker.textures import checked_textures
from farm.worker.timing import MS, SamplingPlan, TakenSamples, measure, runs_per_sample, timer_of

SHOWN_SAMPLES = 200  # of a standing: a histogram shows no more
OPERATOR_SAMPLES = 5  # of each operator; the median counts
OPERATOR_SAMPLE_S = 0.002
VIEWS = ("relax.reshape", "relax.memory.view")
PACKAGED = "a package holds no operators, only their library: profile the model file"
ALONE = "each operator ran alone, on data warm in the cache and in the clock it found: only large shares tell"


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Benchmark one model on one phone.

    Raises:
        ModelError: the model or its inputs cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = task_from_wire(ModelTask[BenchSpec], payload)
    build = partial(prepare, task, daemon, inputs=task.spec.inputs, all_or_none=True)
    built = build()
    kernel = reference_kernel(task.target, Path(task.cache))
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        built = checked_textures(built, session, daemon, build)
        ran = first_run(built, session, daemon.progress)
        numerics = built.judged(ran.outputs)
        with on_phone("loading the reference kernel"):
            read_kernel = load_kernel(session.raw, kernel)
        timed = _timed(task, ran, read_kernel, kernel.key, daemon)
        if task.spec.profile:
            daemon.progress("timing each operator")
            session.suspect = ""  # their library is another one
            timed["profile"] = profiled(
                built, daemon.artifact(task.spec.model), session, timed["latency"]["median_ms"] / MS
            )
    certificate = {**timed["certificate"], **about_build(built, task), "notes": [VIRTUAL] if task.virtual else []}
    return {**numerics, **timed, **built.about(), "certificate": certificate}


def _timed(
    task: ModelTask[BenchSpec],
    ran: FirstRun,
    read_kernel: Callable[[], float],
    kernel: str,
    daemon: DaemonChannel,
) -> dict[str, Any]:
    timer, plan, nominal_s = timer_of(ran.machine, ran.device), plan_of(task), task.nominals.get(kernel)
    remeasure = 0 if task.spec.repeat else task.spec.remeasure
    tries: list[MeasuringRun] = []
    now = daemon.conditions()
    while measure_again([each.assessment for each in tries], remeasure):
        step = _step(tries, remeasure)
        daemon.progress(step)
        started_at, started_s, before = datetime.now(UTC), time.monotonic(), now
        on_assessed = partial(_report_standing, daemon, step, task.spec.half_width)
        taken, _ = measure(timer, read_kernel, plan, nominal_s=nominal_s, on_assessed=on_assessed)
        seconds = time.monotonic() - started_s
        now = daemon.conditions()
        conditions = Conditions(before, (), now)
        found = assess(taken.series(), nominal_s, conditions=conditions, half_width=task.spec.half_width)
        tries.append(MeasuringRun(taken, found, started_at.isoformat(), seconds))
    chosen = best([each.assessment for each in tries])
    reported = next(each for each in tries if each.assessment is chosen)
    raw = json.dumps(plain({"tries": [each.taken.to_wire() for each in tries]})).encode()
    return {
        **measured(tries, reported, kernel, task.nominals, daemon.put_artifact(raw)),
        "environment": {
            "started_at": reported.started_at,
            "timing_s": sum(each.seconds for each in tries),
            "number": reported.taken.number,
            "repeat": task.spec.repeat,
            "min_repeat_ms": task.spec.min_repeat_ms,
            "host": platform.node(),
            "host_kernel": platform.release(),
            "host_cpus": os.cpu_count(),
            "host_load": os.getloadavg()[0],
        },
    }


def plan_of(task: ModelTask[BenchSpec]) -> SamplingPlan:
    """How much a task wants measured."""
    return SamplingPlan(
        half_width=task.spec.half_width,
        measure_s=task.spec.measure_s,
        min_sample_s=task.spec.min_repeat_ms / MS,
        number=task.spec.number,
        repeat=task.spec.repeat,
    )


def _report_standing(
    daemon: DaemonChannel, step: str, half_width: float, taken: TakenSamples, found: Assessment
) -> None:
    """Report the interval so far, and the latest samples as the clock showed them."""
    estimate = found.estimate
    standing = {
        "count": found.count,
        "median_ms": estimate.median_s * MS,
        "low_ms": estimate.low_s * MS,
        "high_ms": estimate.high_s * MS,
        "half_width": estimate.half_width,
        "wanted_half_width": half_width,
        "samples_ms": [round(seconds * MS, 6) for seconds in taken.seconds[-SHOWN_SAMPLES:]],
    }
    daemon.progress(step, timing=plain(standing))


def _step(tries: list[MeasuringRun], remeasure: int) -> str:
    if not tries:
        return "timing"
    why = tries[-1].assessment.reasons[0].sentence
    return f"timing again ({len(tries)} of {remeasure}): {tries[-1].assessment.verdict}, {why}"


@dataclass(frozen=True, slots=True)
class Operator:
    """A compiled function of a model, and how often one run calls it."""

    name: str
    shapes: tuple[tuple[tuple[int, ...], str], ...]  # of its tensors, inputs first: sizes and type
    calls: int


Timed = tuple[Operator, float]  # an operator on a phone, and the seconds of one call


def operators_of(module: Any) -> tuple[list[Operator], list[str]]:
    """The operators that `main` calls in a lowered module, and its other calls, which cannot be timed so."""
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


def profiled(built: Build, data: bytes, session: PhoneSession, model_s: float) -> dict[str, Any]:
    """The field `profile` of a bench's result: how long each operator takes on the phone, each timed by itself.

    TVM 0.27 has no profiling VM, and `set_instrument` would call back over RPC twice per operator. But operators are
    functions: compiled once more into a library of their own, they are timed one by one on tensors of their real
    shapes. What that cannot see is said with the result.

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
            number = runs_per_sample(max(once_s, 1e-7), OPERATOR_SAMPLE_S)
            timed.append((operator, _seconds(module, operator.name, device, tensors, number)))
    if not timed:
        notes.append("the model calls no operator that can be timed by itself")
    return timed


def _seconds(module: Any, name: str, device: Any, tensors: Sequence[Any], number: int) -> float:
    evaluate = module.time_evaluator(name, device, number=number, repeat=OPERATOR_SAMPLES)
    return float(median(evaluate(*tensors).results))


def _tensor(sizes: tuple[int, ...], dtype: str, device: Any, fill: Any) -> Any:
    """Random numbers, made on the phone. Whole numbers may be indices: 0 is one in every tensor."""
    if not dtype.startswith(("float", "bfloat")):
        return tvm.runtime.tensor(np.zeros(sizes, dtype), device)
    tensor = tvm.runtime.empty(sizes, dtype, device)
    fill(tensor)
    return tensor
