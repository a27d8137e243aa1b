"""The memory worker: one phase of a model's life after the other, the phone's memory read between them.

`main` runs in the zygote's fork. What TVM's RPC server needs to take a library or inputs is in no phase: no app has it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import tvm

from farm.compiler.build import Build
from farm.compiler.reference import flatten
from farm.kinds.memory import MemorySpec
from farm.kinds.memory.phases import (
    FIRST_LOAD,
    FIRST_RUN,
    INIT,
    LATER_LOAD,
    STEADY_RUN,
    MemoryReading,
    ModelPhase,
    in_order,
    notes_on,
    peak_bytes,
    values_in,
)
from farm.measure.conditions import Conditions, verdict_fields
from farm.model.specs import ModelTask, task_from_wire
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import VIRTUAL, circumstances, doubts_about
from farm.worker.session import PhoneSession, check_local_memory, on_phone, prepare, session_to_phone
from farm.worker.textures import checked_textures
from farm.worker.timing import SamplingPlan, measure, timer_of


class PhaseWatch:
    """Reads the memory before and after each phase. Between two phases the phone has nothing to do."""

    def __init__(self, daemon: DaemonChannel, *, gpu: bool) -> None:
        self._daemon, self._gpu = daemon, gpu
        self._readings: list[MemoryReading] = []
        self.phases: list[ModelPhase] = []

    def begin(self) -> None:
        """Read the memory before a phase: what the phone did since the last one belongs to no phase."""
        since = self._readings[-1].now_s if self._readings else 0
        self._readings.append(MemoryReading(**self._daemon.call("memory", gpu=self._gpu, since=since)))

    def end(self, name: str, seconds: float, interval_s: tuple[float, float] | None = None) -> None:
        """Read the memory after a phase, and note the phase with the `seconds` that it took."""
        before = self._readings[-1:]
        self.begin()
        after = self._readings[-1]
        self.phases.append(ModelPhase(name, seconds, before[0] if before else after, after, interval_s))

    def notes(self) -> list[str]:
        """The readings that the phone did not give, a sentence each."""
        return list(notes_on(self._readings, on_gpu=self._gpu))


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Take one model through its phases on one phone."""
    task = task_from_wire(ModelTask[MemorySpec], payload)
    build = partial(prepare, task, daemon, inputs=task.spec.inputs, require_all_inputs=True)
    built = build()
    if built.compiled.checks is not None:
        daemon.progress("opening a session")
        with session_to_phone(daemon) as session:
            built = checked_textures(built, session, daemon, build)
    watch = PhaseWatch(daemon, gpu=built.device != "cpu")
    daemon.progress(INIT)
    before, started_at = daemon.conditions(), datetime.now(UTC)
    with session_to_phone(daemon) as session:
        device = _init(session, built, watch)
        machine = _loaded(FIRST_LOAD, session, built, device, watch, daemon)
        numerics = _first_run(machine, built, device, watch, daemon)
        samples_s = _steady_run(machine, device, task.spec, watch, daemon)
    with session_to_phone(daemon) as session:
        device = session.device(built.device)
        _loaded(LATER_LOAD, session, built, device, watch, daemon)
    rows = in_order(watch.phases)
    conditions = Conditions(before, (), daemon.conditions(), virtual=task.virtual)
    certificate = {
        **circumstances(built, task, conditions, started_at),
        **verdict_fields(doubts_about(conditions)),
        "values": values_in(rows),
        "notes": [*([VIRTUAL] if task.virtual else []), *watch.notes()],
    }
    return {
        **numerics,
        **built.about(),
        "phases": rows,
        "peak_bytes": peak_bytes(rows),
        "library_bytes": built.compiled.library.stat().st_size,
        "samples_s": samples_s,
        "certificate": certificate,
    }


def _init(session: PhoneSession, built: Build, watch: PhaseWatch) -> Any:
    """The first phase: a process that serves the session, with the device's driver."""
    begun_s = time.monotonic()
    device = session.device(built.device)
    watch.end(INIT, session.opened_s + time.monotonic() - begun_s)
    check_local_memory(built, device)
    return device


def _loaded(
    phase: str, session: PhoneSession, built: Build, device: Any, watch: PhaseWatch, daemon: DaemonChannel
) -> Any:
    """The Relax VM, its library loaded from the phone's storage."""
    daemon.progress(phase)
    session.suspect = built.compiled.sha256
    name = f"{built.compiled.key[:16]}.so"
    session.upload(built.compiled.library, name)
    watch.begin()
    begun_s = time.monotonic()
    with on_phone("loading the model", built.least_bytes):
        machine = session.virtual_machine(session.load_uploaded(name), device)
        device.sync()
    watch.end(phase, time.monotonic() - begun_s)
    return machine


def _first_run(machine: Any, built: Build, device: Any, watch: PhaseWatch, daemon: DaemonChannel) -> dict[str, Any]:
    """Run the model once; returns how its numbers differ from the reference."""
    daemon.progress(FIRST_RUN)
    with on_phone("running the model", built.least_bytes):
        machine.set_input("main", *(tvm.runtime.tensor(array, device) for array in built.inputs.values()))
        device.sync()
        watch.begin()
        begun_s = time.monotonic()
        machine.invoke_stateful("main")
        device.sync()
        seconds = time.monotonic() - begun_s
        watch.end(FIRST_RUN, seconds)
        outputs = flatten(machine.get_outputs("main"))
    return built.judged(outputs)


def _steady_run(machine: Any, device: Any, spec: MemorySpec, watch: PhaseWatch, daemon: DaemonChannel) -> list[float]:
    """The median of many runs, by the phone's clock; returns the samples, seconds."""
    daemon.progress(STEADY_RUN)
    watch.begin()
    plan = SamplingPlan(half_width=spec.half_width, measure_s=spec.measure_s)
    taken, found = measure(timer_of(machine, device), None, plan)
    watch.end(STEADY_RUN, found.estimate.median_s, found.estimate.interval_s)
    return taken.seconds
