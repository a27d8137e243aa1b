"""One model on one phone, up to right outputs: what every worker that takes a model to a phone has in common."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tvm

from farm.compiler.build import Build, Wanted, build
from farm.compiler.compile import Recipe
from farm.compiler.fitting import unpack
from farm.compiler.inputs import Fill
from farm.compiler.model import Array
from farm.compiler.reference import flatten
from farm.core.errors import FarmError, ModelError, PhoneError
from farm.core.target_key import target_key
from farm.jobs.tasks import ModelTask
from farm.worker.daemon import Daemon
from farm.worker.session import PhoneProcessError, PhoneSession, on_phone, opened

RECORDS = Path("records")  # unpacked, in the attempt's own folder


class Hears(Protocol):
    """Who is told what comes next: the daemon, or a terminal."""

    def progress(self, step: str, **facts: Any) -> None:
        """It comes now."""


class PoisonedError(ModelError):
    """The library has killed what ran it before."""

    code = "poisoned"


@dataclass(frozen=True, slots=True)
class FirstRun:
    """A model on a phone that has run once."""

    machine: Any  # relax.VirtualMachine
    device: Any  # tvm.runtime.Device
    outputs: list[Array]
    timings: dict[str, float]  # seconds as this host saw them, the link to the phone included


def prepare(
    task: ModelTask, daemon: Daemon, *, inputs: str | None, fill: Fill = "random", all_or_none: bool = False
) -> Build:
    """Everything that needs no phone: a library for it, inputs, and what its outputs should be; or all from the cache.

    Args:
        task: which model, and how.
        daemon: has the artifacts.
        inputs: the artifact of an .npz.
        fill: what inputs are made of that it does not give.
        all_or_none: refuse an .npz that gives only some.

    Raises:
        PoisonedError: the library has killed what ran it, twice.
        FarmError: as `farm.compiler.build.build`.
    """
    daemon.progress("reading the model")
    wanted = Wanted(
        recipe=Recipe(task.target, task.precision, _records(task, daemon)),
        shapes=task.shapes,
        dtypes=task.dtypes,
        npz=daemon.artifact(inputs) if inputs else None,
        fill=fill,
        all_or_none=all_or_none,
    )

    def say(step: str) -> None:
        daemon.progress(f"{step} for {task.target_name}" if step == "compiling" else step)

    built = build(daemon.artifact(task.model), task.name, wanted, Path(task.cache), say)
    if task.records is not None and built.compiled.scheduled < built.compiled.operators:
        with_record = f"{built.compiled.scheduled} of {built.compiled.operators} operators have one"
        daemon.log(f"tuning records: {with_record}; the others are compiled as without")
    if daemon.poisoned([built.compiled.sha256]):
        raise PoisonedError(
            f"{built.name}: this build has killed what ran it twice, and is not run any more",
            hint="compile it otherwise (--precision, --target), or farm poison list and farm poison forget",
        )
    return built


@contextlib.contextmanager
def session_to_phone(daemon: Daemon) -> Iterator[PhoneSession]:
    """A session of the attempt. When the phone fails in it, the daemon looks at the phone.

    Raises:
        PhoneError: it did.
    """
    suspect = ""
    try:
        with opened(daemon.open_session()) as session:
            try:
                yield session
            finally:
                suspect = session.suspect
    except PhoneError as error:
        if not (suspect and isinstance(error, PhoneProcessError) and _killed(daemon, suspect, error.message)):
            daemon.abort_session(error.message)
        raise


def first_run(built: Build, session: PhoneSession, daemon: Hears, *, side: str = "") -> FirstRun:
    """Upload the library and run the model once.

    `side` tells libraries of one session apart: one that is loaded must not be written again, even with the same bytes.

    Raises:
        PhoneOutOfMemoryError: it does not fit into the phone.
        PhoneError: the phone failed.
    """
    device = session.device(built.device)
    daemon.progress("uploading")
    session.suspect = built.compiled.sha256
    times_s = [time.monotonic()]
    name = f"{built.compiled.key[:16]}{side}.so"
    with on_phone("loading the model", built.least_bytes):
        machine = session.virtual_machine(session.load(built.compiled.library, name), device)
    times_s.append(time.monotonic())
    daemon.progress("running")
    with on_phone("running the model", built.least_bytes):
        machine.set_input("main", *(tvm.runtime.tensor(array, device) for array in built.inputs.values()))
        device.sync()
        times_s.append(time.monotonic())
        machine.invoke_stateful("main")
        device.sync()
        times_s.append(time.monotonic())
        outputs = flatten(machine.get_outputs("main"))
        times_s.append(time.monotonic())
    if not session.alone:
        session.suspect = ""  # from now on it may be either of two
    session.alone = False
    names = ("upload_s", "send_inputs_s", "run_s", "fetch_outputs_s")
    timings = {name: times_s[i + 1] - times_s[i] for i, name in enumerate(names)}
    return FirstRun(machine, device, outputs, timings)


def _killed(daemon: Daemon, artifact: str, what: str) -> bool:
    """Whether the daemon holds the library guilty; the phone is looked after then."""
    try:
        return daemon.suspect(artifact, what)
    except FarmError:
        return False


def _records(task: ModelTask, daemon: Daemon) -> Path | None:
    if task.records is None:
        return None
    folder = RECORDS / f"{task.records[:16]}-{target_key(task.target)}"  # two sides may be for two targets
    for line in unpack(daemon.artifact(task.records), task.target, folder, "the tuning records"):
        daemon.log(f"tuning records: {line}", "warning")
    return folder
