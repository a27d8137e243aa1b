"""The program worker: judges the times of a program that the daemon calls. `main` runs in the zygote's fork.

The reference kernel runs in a session of TVM's, between two calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.kinds.program import ProgramTask
from farm.model.specs import task_from_wire
from farm.worker.channel import DaemonChannel
from farm.worker.measuring import VIRTUAL, ReferenceTimer, measure_until_trusted
from farm.worker.programs import PhoneProgram
from farm.worker.session import on_phone, session_to_phone

RAN_ON = "the work ran on {}"
UNKNOWN_PLACEMENT = "the program does not tell whether its work ran on the CPU or an accelerator"
UNCHECKED = "the program's numbers were not compared with any: its description expects none"


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Time one program on one phone."""
    task = task_from_wire(ProgramTask, payload)
    spec, program = task.spec, PhoneProgram(daemon, task.use)
    kernel = reference_kernel(task.target, Path(task.cache))
    daemon.progress("running")
    error = program.first_call()
    daemon.progress("opening a session")
    with session_to_phone(daemon) as session:
        with on_phone("loading the reference kernel"):
            reference = ReferenceTimer(kernel.key, load_kernel(session.raw, kernel), task.nominals)
        plan = program.plan(spec.half_width, spec.measure_s, spec.repeat)
        remeasure = 0 if spec.repeat else spec.remeasure
        timed = measure_until_trusted(program.timer(), reference, plan, remeasure, daemon, virtual=task.virtual)
    notes = ([VIRTUAL] if task.virtual else []) + ([UNCHECKED] if error is None else [])
    notes.append(RAN_ON.format(program.ran_on.words) if program.ran_on else UNKNOWN_PLACEMENT)
    about = {**program.about(), "model": spec.name, "model_sha256": spec.model or spec.program}
    certificate = {**timed["certificate"], **about, "precision": "", "tvm": "", "notes": notes}
    return {
        **timed,
        "target": program.description.name,
        "runtime": about["runtime"],
        "runs": program.runs,
        "ran_on": program.ran_on.to_wire() if program.ran_on else None,
        "max_abs_error": error,
        "certificate": certificate,
    }
