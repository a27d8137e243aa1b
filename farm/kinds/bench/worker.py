"""The bench worker: compile, upload, run, check the numbers, time; with `--profile` each operator too.

`main` runs in the zygote's fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from farm.common.durations import digits, in_one_unit
from farm.common.errors import Code, PhoneError
from farm.compiler.build import Build
from farm.compiler.compile import CPU, GPU, OFFLOADED, compile_stamped
from farm.compiler.inputs import import_with
from farm.compiler.link import exporter
from farm.compiler.load import read
from farm.compiler.package import is_package
from farm.compiler.reference import flatten
from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.compiler.stamps import StampedCall, nanoseconds
from farm.compiler.targets import TargetRefusedError, abi_of
from farm.kinds.bench import BenchSpec
from farm.measure.amounts import follows_between
from farm.measure.comparison import Comparison
from farm.model.specs import ModelTask, task_from_wire
from farm.programs.work_placement import WorkPlacement, placement_of
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import VIRTUAL, ReferenceTimer, about_build, checked_model, measure_until_trusted
from farm.worker.session import FirstRun, PhoneSession, on_phone, place
from farm.worker.timing import MS, SamplingPlan, Timer, time_pairs, timer_of

TURNS_S = 10.0  # for the plain build and the one that notes, at most
OVERHEAD_KNOWN = 0.03  # turns continue until it is known whether noting costs more
PACKAGED = "a package holds no operators, only their library: profile the model file"
WAITED = (
    "after each operator the phone waited for the GPU: the time of a wait for nothing, {us} us, is subtracted, the time"
    " of an operator's launch is not"
)


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Benchmark one model on one phone."""
    task = task_from_wire(ModelTask[BenchSpec], payload)
    kernel = reference_kernel(task.target, Path(task.cache))
    with checked_model(task, daemon) as model:
        with on_phone("loading the reference kernel"):
            read_kernel = load_kernel(model.session.raw, kernel)
        threads = [place(model.session, daemon, each).words for each in task.placements]
        built = (model.built.compiled.sha256, "".join(threads), kernel.key)
        alike = [each for each in task.earlier if (each.library, each.placement, each.kernel) == built]
        follows = follows_between([each.median_s for each in alike], [each.reference_s for each in alike])
        reference = ReferenceTimer(kernel.key, read_kernel, task.nominals, follows)
        timed = _timed(task, model.timer(), reference, daemon)
        if task.spec.profile:
            daemon.progress("timing each operator")
            model.session.suspect = ""  # the build that notes times is another library
            model_s = timed["latency"]["median_ms"] / MS
            source = daemon.artifact(task.spec.model)
            timed["profile"] = profiled(model.built, source, model.session, model.ran, model_s)
    ran_on = ran_on_of(model.built.compiled.kernels, timed.get("profile", {}).get("operators", ()))
    timed["ran_on"] = ran_on.to_wire() if ran_on else None
    certificate = {**timed["certificate"], **about_build(model.built, task), "placement": "".join(threads)}
    certificate |= {"ran_on": ran_on.words, "offloaded": ran_on.offloaded} if ran_on else {}
    certificate["notes"] = [*threads, *([VIRTUAL] if task.virtual else [])]
    return {**model.numerics, **timed, **model.built.about(), "certificate": certificate}


def _timed(
    task: ModelTask[BenchSpec], timer: Timer, reference: ReferenceTimer, daemon: DaemonChannel
) -> dict[str, Any]:
    spec = task.spec
    remeasure = 0 if spec.repeat else spec.remeasure
    timed = measure_until_trusted(timer, reference, plan_of(task), remeasure, daemon, virtual=task.virtual)
    return {
        **timed,
        "environment": {
            **timed["environment"],
            "repeat": spec.repeat,
            "min_repeat_ms": spec.min_repeat_ms,
        },
    }


def ran_on_of(kernels: Mapping[str, int], operators: Sequence[Mapping[str, Any]]) -> WorkPlacement | None:
    """Where the kernels of a run were; their times, which are in a profile, count where there is one. Pure.

    Args:
        kernels: calls of a run by unit; empty: not known.
        operators: of a profile; empty: there is none.
    """
    if operators:
        return placement_of("kernels", ((each["unit"], each["calls"], each["total_ms"]) for each in operators))
    return placement_of("kernels", ((unit, count, None) for unit, count in kernels.items()))


def plan_of(task: ModelTask[BenchSpec]) -> SamplingPlan:
    """How much a task wants measured."""
    return SamplingPlan(
        half_width=task.spec.half_width,
        measure_s=task.spec.measure_s,
        min_sample_s=task.spec.min_repeat_ms / MS,
        number=task.spec.number,
        repeat=task.spec.repeat,
    )


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The time of an operator, of all its calls in one run."""

    name: str
    unit: str
    calls: int
    total_s: float
    shapes: tuple[str, ...]


def profiled(built: Build, data: bytes, session: PhoneSession, ran: FirstRun, model_s: float) -> dict[str, Any]:
    """Time the operators of a model that was just timed.

    Args:
        built: what was timed.
        data: its model file.
        session: to the phone it was timed on.
        ran: the model there.
        model_s: how long one run took.
    """
    if is_package(data):
        return shaped([], model_s, [PACKAGED])
    shapes = {name: array.shape for name, array in built.inputs.items()}
    dtypes = {name: str(array.dtype) for name, array in built.inputs.items()}
    model, _ = import_with(read(data, built.name), None, shapes, dtypes)
    try:
        return _inside(built, model, session, ran, model_s)
    except TargetRefusedError:
        return shaped([], model_s, ["TVM schedules for that target in one go: there are no operators to note"])


def _inside(built: Build, model: Any, session: PhoneSession, ran: FirstRun, model_s: float) -> dict[str, Any]:
    executable, calls = compile_stamped(model, built.recipe)
    library = Path(f"{built.compiled.key[:16]}-stamped.so")  # in the attempt's own folder
    executable.export_library(str(library), fcompile=exporter(*abi_of(built.recipe.target)))
    machine = session.virtual_machine(session.load(library, library.name), ran.device)
    with on_phone("running the build that notes times"):
        machine.set_input("main", *(tvm.runtime.tensor(array, ran.device) for array in built.inputs.values()))
        machine.invoke_stateful("main")
        outputs, _ = machine.get_outputs("main")
        built.judged(flatten(outputs))
    taken: list[npt.NDArray[np.int64]] = []
    waits = built.device != CPU
    found = time_pairs(
        timer_of(ran.machine, ran.device), _noting(machine, timer_of(machine, ran.device), len(calls) + waits, taken),
        measure_s=TURNS_S, min_effect=OVERHEAD_KNOWN,
    )  # fmt: skip
    return profile_of(calls, taken, found.comparison, model_s, waits=waits)


def _noting(machine: Any, model: Timer, stamps: int, taken: list[npt.NDArray[np.int64]]) -> Timer:
    """The build that notes, as something to time; the notes of the last run of each call are added to `taken`."""

    def timed(number: int, repeat: int) -> Sequence[float]:
        samples = model(number, repeat)
        with on_phone("reading the times"):
            noted = machine.get_outputs("main")[1].numpy()
        times = nanoseconds(noted)
        if int(noted[0]) != stamps or bool((np.diff(times) < 0).any()):
            raise PhoneError(f"the phone noted {int(noted[0])} times of {stamps}", Code.PHONE_CLOCK_WRONG)
        taken.append(times)
        return samples

    return timed


def profile_of(
    calls: Sequence[StampedCall],
    taken: Sequence[npt.NDArray[np.int64]],
    overhead: Comparison,
    model_s: float,
    *,
    waits: bool,
) -> dict[str, Any]:
    """The profile of runs that noted their times, as JSON. Pure.

    Args:
        calls: of a run, in order.
        taken: the times of each run, ns: its start, with `waits` after a wait for nothing, and after each call.
        overhead: the build that notes (B) against the plain one.
        model_s: how long one run of the plain one took.
        waits: whether the model ran on a GPU, which each note waited for.
    """
    spans = np.diff(np.stack(taken), axis=1)
    typical = taken[int(np.argsort(spans.sum(axis=1))[len(taken) // 2])][int(waits) :]
    medians_ns: npt.NDArray[np.float64] = np.median(spans, axis=0)
    wait_ns = float(medians_ns[0]) if waits else 0.0
    own_ns = np.maximum(medians_ns[int(waits) :] - wait_ns, 0.0)
    of_tvm, external = (GPU, CPU) if waits else (CPU, OFFLOADED)
    found: dict[str, OperatorTime] = {}
    for call, seconds in zip(calls, own_ns / 1e9, strict=True):
        known = found.get(call.name)
        found[call.name] = OperatorTime(
            call.name,
            external if call.external else of_tvm,
            known.calls + 1 if known else 1,
            float(seconds) + (known.total_s if known else 0.0),
            known.shapes if known else call.shapes,
        )
    slower, low, high = (f"{100 * (each - 1):+.1f}" for each in (overhead.ratio, overhead.low, overhead.high))
    notes = [f"timed in {len(taken)} runs of a build that notes times: {slower} % to the plain one ({low} .. {high})"]
    if waits:
        notes.append(WAITED.format(us=digits(wait_ns / 1e3)))
    return {
        **shaped(list(found.values()), model_s, notes),
        "overhead": {"ratio": overhead.ratio, "low": overhead.low, "high": overhead.high, "pairs": overhead.pairs},
        "run": [
            {"name": call.name, "start_us": (begun - int(typical[0])) / 1e3, "us": (ended - begun) / 1e3}
            for call, begun, ended in zip(calls, map(int, typical[:-1]), map(int, typical[1:]), strict=True)
        ],
    }


def shaped(timed: Sequence[OperatorTime], model_s: float, notes: Sequence[str]) -> dict[str, Any]:
    """Times as JSON, the largest first, with their sum and the share of each unit. Pure."""
    total_s = sum(each.total_s for each in timed)
    rows = [
        {
            "name": each.name,
            "unit": each.unit,
            "calls": each.calls,
            "each_ms": each.total_s / each.calls * MS,
            "total_ms": each.total_s * MS,
            "share": each.total_s / total_s,
            "shapes": list(each.shapes),
        }
        for each in sorted(timed, key=lambda each: -each.total_s)
    ]
    together, whole = in_one_unit([total_s * MS, model_s * MS], aligned=False)
    sum_of = f"together {together}; the whole model takes {whole}"
    return {
        "operators": rows,
        "units": _shares(rows),
        "operators_ms": total_s * MS,
        "model_ms": model_s * MS,
        "notes": [*notes, *([sum_of] if rows else [])],
    }


def _shares(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["unit"]] = shares.get(row["unit"], 0.0) + row["share"]
    return shares
