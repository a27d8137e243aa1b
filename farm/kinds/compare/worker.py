"""The compare worker: two builds on one phone, both checked, then timed in turns. `main` runs in the zygote's fork."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from farm.common.errors import FarmError
from farm.compiler.build import Build
from farm.compiler.model import Array
from farm.compiler.reference import flatten
from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.kinds.compare import CompareSpec, CompareTask
from farm.kinds.program import ProgramUse
from farm.measure.comparison import compare
from farm.measure.conditions import Conditions, ratio_words
from farm.measure.interval import summarise
from farm.model.specs import BundleUse, ModelTask, task_from_wire
from farm.programs.description import HALF
from farm.programs.work_placement import placement_of
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import VIRTUAL, about_build, about_conditions, latency_ms, plain
from farm.worker.outputs import differences
from farm.worker.programs import PhoneProgram
from farm.worker.quality import compared_quality, judged_beside_quality, quality_task
from farm.worker.session import FirstRun, PhoneSession, first_run, on_phone, prepare, session_to_phone
from farm.worker.textures import checked_textures
from farm.worker.timing import (
    ANY_RUNS,
    BundleTurn,
    BundleTurns,
    PairedSamples,
    RunLimits,
    Timer,
    check_versions,
    time_pairs,
    timer_of,
)

NOT_COMPARED = "whether A and B compute the same numbers from the same inputs was not checked"
OTHER_SIZE = "outputs were not compared: the first output has {} numbers in A, {} in B"
REFERENCE = "the reference kernel takes {} times as long under B; no time was corrected by it"
BLOCKS = "a pair is a block of samples under either bundle; the phone's RPC server was started again between the two"


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Compare two builds on one phone."""
    task = task_from_wire(CompareTask, payload)
    if task.programs:
        return _runtimes(task, task.programs, daemon)
    return _bundles(task, task.bundles, daemon) if task.bundles else _builds(task, daemon)


def _builds(task: CompareTask, daemon: DaemonChannel) -> dict[str, Any]:
    sides, spec = sides_of(task), task.spec
    judged = judged_beside_quality if spec.quality else Build.judged
    labelled = []
    for side, name in zip(sides, "AB", strict=True):
        with _prefixed(name):
            labelled.append(quality_task(side, daemon, spec.quality, spec.metric))
    inputs = [each.inputs.first_npz() if each else spec.inputs for each in labelled]
    builds = [
        partial(prepare, side, daemon, inputs=some, require_all_inputs=True)
        for side, some in zip(sides, inputs, strict=True)
    ]
    with _prefixed("A"):
        a = builds[0]()
    with _prefixed("B"):
        b = builds[1]()
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        with _prefixed("A"):
            a = checked_textures(a, session, daemon, builds[0])
            ran_a, about_a = _checked(a, sides[0], "a", session, daemon.progress, judged=judged)
        with _prefixed("B"):
            b = checked_textures(b, session, daemon, builds[1])
            ran_b, about_b = _checked(b, sides[1], "b", session, daemon.progress, judged=judged)
        daemon.progress("timing both in turns")
        timer_a, timer_b = timer_of(ran_a.machine, ran_a.device), timer_of(ran_b.machine, ran_b.device)
        pairs, certificate = _timed(timer_a, timer_b, task, daemon)
        certificate["notes"] += _coarse(about_a, about_b)
        quality = compared_quality(spec.quality, labelled, ((a, ran_a), (b, ran_b)), daemon)
    certificate["raw"] = daemon.put_artifact(json.dumps({"a_s": pairs.a_s, "b_s": pairs.b_s}).encode())
    inputs_a, inputs_b = (tuple(each.inputs.values()) for each in (a, b))
    unlike = differences(inputs_a, ran_a.outputs, inputs_b, ran_b.outputs)
    return {"unlike": unlike, **quality} | _report(pairs, certificate, (about_a, about_b), (pairs.a_s, pairs.b_s))


def _bundles(task: CompareTask, bundles: tuple[BundleUse, BundleUse], daemon: DaemonChannel) -> dict[str, Any]:
    check_versions(bundles, str(tvm.__version__))
    side, _ = sides_of(task)
    built = prepare(side, daemon, inputs=task.spec.inputs, require_all_inputs=True)
    kernel = reference_kernel(task.target, Path(task.cache))
    about: list[dict[str, Any]] = [{}, {}]

    @contextlib.contextmanager
    def turn(which: int) -> Iterator[BundleTurn]:
        with _prefixed(f"under bundle {bundles[which].name}"), session_to_phone(daemon) as session:
            ran, facts = _checked(built, side, "", session)
            about[which] = {**facts, "bundle": asdict(bundles[which])}
            with on_phone("loading the reference kernel"):
                read_kernel = load_kernel(session.raw, kernel)

            def reading() -> float:
                with on_phone("timing the reference kernel"):
                    return read_kernel()

            yield timer_of(ran.machine, ran.device), reading

    daemon.progress(f"timing under {bundles[0].name} and {bundles[1].name} in turns")
    turns = BundleTurns(bundles, daemon.use_bundle, turn)
    pairs, certificate = _timed(turns.timer(0), turns.timer(1), task, daemon)
    blocks = [taken[1:] for taken in turns.blocks]  # the first found out how many runs make a sample
    raw = {name: [block.to_wire() for block in taken] for name, taken in zip("ab", blocks, strict=True)}
    certificate["raw"] = daemon.put_artifact(json.dumps(raw).encode())
    certificate["notes"].append(BLOCKS)
    certificate["notes"].append(REFERENCE.format(ratio_words(turns.reference_ratio())))
    samples_a, samples_b = ([sample for block in taken for sample in block.samples_s] for taken in blocks)
    return _report(pairs, certificate, (about[0], about[1]), (samples_a, samples_b))


@dataclass(frozen=True, slots=True)
class TimedSide:
    """One of two runtimes, ready to be timed."""

    timer: Timer
    about: dict[str, Any]
    limits: RunLimits = ANY_RUNS  # of the runs in a sample
    inputs: str = HALF  # for which `output` are the numbers
    output: Callable[[], Array | None] = lambda: None  # the first one's numbers; None: there are none


def _runtimes(
    task: CompareTask, uses: tuple[ProgramUse | None, ProgramUse | None], daemon: DaemonChannel
) -> dict[str, Any]:
    """A model under two runtimes: TVM's side is built and checked, a program's is called."""
    tasks, sides = sides_of(task), []
    build_sides = [partial(prepare, side, daemon, inputs=task.spec.inputs, require_all_inputs=True) for side in tasks]
    builds: list[Build | None] = []
    for build_side, use, name in zip(build_sides, uses, "AB", strict=True):
        with _prefixed(name):
            builds.append(None if use else build_side())
    outputs: dict[str, Any] = {}
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        for place, name in enumerate("AB"):
            with _prefixed(name):
                if (build := builds[place]) is None:
                    sides.append(_program_side(daemon, uses[place], place, tasks[place].spec))
                else:
                    build = checked_textures(build, session, daemon, build_sides[place])
                    sides.append(_tvm_side(build, tasks[place], name.lower(), session, daemon))
        outputs = _outputs_of(sides)
        daemon.progress("timing both in turns")
        limits = sides[0].limits, sides[1].limits
        pairs, certificate = _timed(sides[0].timer, sides[1].timer, task, daemon, limits)
    certificate["raw"] = daemon.put_artifact(json.dumps({"a_s": pairs.a_s, "b_s": pairs.b_s}).encode())
    certificate["notes"] += outputs.pop("notes")
    return outputs | _report(pairs, certificate, (sides[0].about, sides[1].about), (pairs.a_s, pairs.b_s))


def _outputs_of(sides: Sequence[TimedSide]) -> dict[str, Any]:
    """The largest difference between the first outputs of A and B for the same inputs, as fields of a result.

    `outputs` is None, with the reason in `notes`, where one of them writes none, or for other inputs.
    """
    a, b = sides
    one = a.output() if a.inputs == b.inputs else None
    other = b.output() if one is not None else None
    if one is None or other is None:
        return {"outputs": None, "unlike": [], "notes": [NOT_COMPARED]}
    if one.size != other.size:
        return {"outputs": None, "unlike": [], "notes": [OTHER_SIZE.format(one.size, other.size)]}
    one, other = (each.astype(np.float64).ravel() for each in (one, other))
    found = {
        "max_abs_error": float(np.abs(one - other).max(initial=0.0)),
        "largest": float(np.abs(one).max(initial=0.0)),
        "count": int(one.size),
    }
    return {"outputs": plain(found), "unlike": differences((), [one], (), [other]), "notes": []}


def _tvm_side(built: Build, side: ModelTask[Any], name: str, session: PhoneSession, daemon: DaemonChannel) -> TimedSide:
    ran, about = _checked(built, side, name, session, daemon.progress)
    ran_on = placement_of("kernels", ((unit, count, None) for unit, count in built.compiled.kernels.items()))
    return TimedSide(
        timer_of(ran.machine, ran.device),
        {
            **about,
            "runtime": {"name": "tvm", "version": str(tvm.__version__)},
            "ran_on": ran_on.words if ran_on else "",
        },
        output=partial(_output_for_halves, built, ran),
    )


def _output_for_halves(built: Build, ran: FirstRun) -> Array:
    """The first output for inputs of 0.5, or 1 for whole numbers; the inputs are the build's again afterwards."""
    halves = [np.full(each.shape, 1 if each.dtype.kind in "iub" else 0.5, each.dtype) for each in built.inputs.values()]
    with on_phone("running the model"):
        ran.machine.set_input("main", *(tvm.runtime.tensor(array, ran.device) for array in halves))
        ran.machine.invoke_stateful("main")
        first: Array = flatten(ran.machine.get_outputs("main"))[0]
        ran.machine.set_input("main", *(tvm.runtime.tensor(array, ran.device) for array in built.inputs.values()))
    return first


def _program_side(daemon: DaemonChannel, use: ProgramUse | None, place: int, spec: CompareSpec) -> TimedSide:
    program = PhoneProgram(daemon, use, place)
    daemon.progress(f"running {program.description.name}")
    error = program.first_call()
    about = {**program.about(), "model": spec.name, "model_sha256": spec.model, "max_abs_error": error}
    written = program.description.written
    return TimedSide(program.timer(), about, program.limits(), written.inputs if written else HALF, program.outputs)


def _timed(
    a: Timer,
    b: Timer,
    task: CompareTask,
    daemon: DaemonChannel,
    limits: tuple[RunLimits, RunLimits] = (ANY_RUNS, ANY_RUNS),
) -> tuple[PairedSamples, dict[str, Any]]:
    """The pairs, and their certificate but for `raw`."""
    before = daemon.conditions()
    started_at = datetime.now(UTC)
    spec = task.spec
    pairs = time_pairs(
        a, b, measure_s=spec.measure_s, min_effect=spec.min_effect, shuffled=not task.bundles, limits=limits
    )
    seconds = (datetime.now(UTC) - started_at).total_seconds()
    conditions = Conditions(before, (), daemon.conditions())
    compared = compare(pairs.a_s, pairs.b_s, min_effect=spec.min_effect, conditions=conditions, doubts=pairs.doubts)
    return replace(pairs, comparison=compared), {
        **about_conditions(conditions),
        "notes": [VIRTUAL] if task.virtual else [],
        "started_at": started_at.isoformat(),
        "seconds": seconds,
    }


def _report(
    pairs: PairedSamples,
    certificate: Mapping[str, Any],
    about: tuple[Mapping[str, Any], Mapping[str, Any]],
    samples_s: tuple[Sequence[float], Sequence[float]],
) -> dict[str, Any]:
    return {
        "comparison": plain(pairs.comparison.to_wire()),
        "a": {**about[0], "latency": latency_ms(summarise(samples_s[0])), "number": pairs.number_a},
        "b": {**about[1], "latency": latency_ms(summarise(samples_s[1])), "number": pairs.number_b},
        "certificate": dict(certificate),
    }


def sides_of(task: CompareTask) -> tuple[ModelTask[Any], ModelTask[Any]]:
    """The tasks of A and of B, each of one build."""
    a, b = task.spec.builds()
    sides = ((a, task.target), (b, task.target_b))
    first, second = (ModelTask(spec=spec, target=target, cache=task.cache) for spec, target in sides)
    return first, second


def _checked(
    built: Build,
    task: ModelTask[Any],
    side: str,
    session: PhoneSession,
    report: Callable[[str], None] = lambda _: None,
    *,
    judged: Callable[[Build, Sequence[Array]], dict[str, Any]] = Build.judged,
) -> tuple[FirstRun, dict[str, Any]]:
    ran = first_run(built, session, report, side=side)
    return ran, {**judged(built, ran.outputs), **built.about(), **about_build(built, task)}


def _coarse(*sides: Mapping[str, Any]) -> list[str]:
    """Notes on sides whose precision is too coarse, which were not refused."""
    return [
        f"{name}: {about['numerics']['note']}"
        for name, about in zip("AB", sides, strict=True)
        if about["max_abs_error"] is None
    ]


@contextlib.contextmanager
def _prefixed(side: str) -> Iterator[None]:
    """Errors of the block name the side that they are about."""
    try:
        yield
    except FarmError as error:
        error.args = (f"{side}: {error.message}",)
        raise
