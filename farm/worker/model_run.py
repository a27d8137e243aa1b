"""One model on one phone, up to right outputs: what `bench` and `run` have in common."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from farm.compiler.compile import Compiled, Recipe, compile_library
from farm.compiler.inputs import shapes_of
from farm.compiler.model import Array, ImportedModel
from farm.compiler.reference import Reference, flatten, reference_for
from farm.compiler.targets import target_from
from farm.core.errors import PhoneError
from farm.jobs.tasks import ModelTask
from farm.worker.daemon import Daemon
from farm.worker.session import PhoneSession, on_phone, opened


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that needs no phone."""

    model: ImportedModel
    inputs: dict[str, Array]
    compiled: Compiled
    reference: Reference

    def about(self, target: object) -> dict[str, Any]:
        """What was compiled how, as a result's fields."""
        compiled, model = self.compiled, self.model
        return {
            "compile": {
                "seconds": compiled.seconds, "cached": compiled.cached, "linker": compiled.linker,
                "library_sha256": compiled.sha256, "key": compiled.key, "target": target,
            },
            "model": {"name": model.name, "sha256": model.sha256, "inputs": shapes_of(self.inputs)},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class FirstRun:
    """A model on a phone that has run once."""

    machine: Any  # relax.VirtualMachine
    device: Any  # tvm.runtime.Device
    outputs: list[Array]
    timings: dict[str, float]  # seconds as this host saw them, the link to the phone included


def prepare(task: ModelTask, model: ImportedModel, inputs: dict[str, Array], daemon: Daemon) -> Prepared:
    """Compile the model for the phone and compute what its outputs should be, or find both in the cache.

    Raises:
        ModelError: TVM cannot compile it.
        NoLinkerError: the host cannot link for the phone.
    """
    cache = Path(task.cache)
    daemon.progress(f"compiling for {task.target_name}")
    compiled = compile_library(model, Recipe(task.target, task.precision), cache)
    daemon.progress("computing the reference")
    return Prepared(model, inputs, compiled, reference_for(model, inputs, cache))


@contextlib.contextmanager
def session_to_phone(daemon: Daemon) -> Iterator[PhoneSession]:
    """The attempt's session. When the phone fails in it, the daemon looks at the phone.

    Raises:
        PhoneError: it did.
    """
    daemon.progress("opening a session")
    try:
        with opened(daemon.open_session()) as session:
            yield session
    except PhoneError as error:
        daemon.abort_session(error.message)
        raise


def first_run(task: ModelTask, prepared: Prepared, session: PhoneSession, daemon: Daemon) -> FirstRun:
    """Upload the library and run the model once.

    Raises:
        PhoneError: the phone failed.
    """
    model, compiled, inputs = prepared.model, prepared.compiled, prepared.inputs
    device = session.device(target_from(task.target).kind.name)
    daemon.progress("uploading")
    times_s = [time.monotonic()]
    machine = session.virtual_machine(session.load(compiled.library, f"{compiled.key[:16]}.so"), device)
    times_s.append(time.monotonic())
    daemon.progress("running")
    with on_phone("running the model"):
        machine.set_input("main", *(tvm.runtime.tensor(inputs[spec.name], device) for spec in model.inputs))
        device.sync()
        times_s.append(time.monotonic())
        machine.invoke_stateful("main")
        device.sync()
        times_s.append(time.monotonic())
        outputs = flatten(machine.get_outputs("main"))
        times_s.append(time.monotonic())
    names = ("upload_s", "send_inputs_s", "run_s", "fetch_outputs_s")
    timings = {name: times_s[i + 1] - times_s[i] for i, name in enumerate(names)}
    return FirstRun(machine, device, outputs, timings)
