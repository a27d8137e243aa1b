"""Jobs of kind `untethered`: a program is staged on the phone and runs alone while its port has no power."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from shlex import quote
from typing import Any

from farm.adb.push import SyncSession
from farm.common.errors import Code, PhoneError, UserError
from farm.devices.server.phone_paths import UNTETHERED
from farm.devices.server.program_files import work_folder
from farm.devices.server.rpc_server import script_error
from farm.devices.untether import RETURN_S
from farm.jobs.executor import AttemptContext, Executor
from farm.kinds.energy.cycles import CyclePlan, even_plan, to_wire
from farm.kinds.energy.executor import BY_PHYSICS
from farm.kinds.execution import ExecutorParts, about_phone, epoch_of, is_virtual, quiet_lease
from farm.kinds.program.phone import InstalledProgram, WantedProgram, call_program, install_programs, with_traces
from farm.kinds.untethered.record import energy_of, read_marks
from farm.kinds.untethered.spec import UntetheredSpec
from farm.programs.description import command_line

LEAD_S = 15.0  # until the first cycle: switches take up to 5 s, and gauges notice the change some seconds later
NAP_S = 0.25  # of the gauge's reader
SLACK_S = 5.0
CALLS_LONGER = 1.5  # times as long as with the cable in, at most
SHELL_S = 15.0
FOLDER = work_folder(1)  # of the script; the program works in that of side 0
MAX_RECORD_BYTES = 32 << 20
SIMULATED = "a virtual phone: its battery is simulated"


@dataclass(frozen=True, slots=True)
class UntetheredExecutor(Executor):
    """Runs attempts of kind untethered."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The result: joules of one run of the program, or why the gauge does not resolve them.

        Raises:
            UserError: the phone's port cannot be switched, its gauge does not tell its power, or the program fails.
            PowerError: the port's power could not be cut, or does not come back.
            PhoneError: the phone does not come back, rebooted or slept.
        """
        spec, parts = context.spec, self.parts
        assert isinstance(spec, UntetheredSpec)
        parts.fleet.untether.check(context.view.name)
        return await with_traces(parts, context, lambda: self._measured(context, spec))

    async def _measured(self, context: AttemptContext, spec: UntetheredSpec) -> Mapping[str, Any]:
        parts, view, started_at = self.parts, context.view, datetime.now(UTC)
        wanted = WantedProgram(spec.program, spec.model, spec.name, spec.settings, spec.runs)
        (program,) = await install_programs(parts, context, [wanted])
        assert program is not None
        context.progress("calling the program with the cable in")
        begun_s = time.monotonic()
        await call_program(parts.client, view.serial, program)
        planned = even_plan(spec.measure_s)
        away_s = LEAD_S + planned.run_s + planned.cycles * CALLS_LONGER * (time.monotonic() - begun_s) + SLACK_S
        check_time(away_s, spec.timeout_s - (datetime.now(UTC) - started_at).total_seconds())
        quiet = quiet_lease(parts, context)
        try:
            await quiet.begin(away_s + RETURN_S)
            await self._started(view.serial, program, planned)
            context.progress(f"the phone works alone for {away_s:.0f} s")
            with parts.leasing.phone_away(context.lease.id):
                await parts.fleet.untether.cut(view.name, away_s)
            context.progress("reading what the phone wrote down")
            marks, gauge, boot = await self._record(view.serial)
        finally:
            await quiet.end()
        runs, half_width = program.use.runs, spec.half_width
        judged = partial(energy_of, read_marks(marks), gauge, planned, runs=runs, half_width=half_width, boot=boot)
        try:
            found, meter = await asyncio.to_thread(judged)
        except UserError as error:
            error.hint = BY_PHYSICS if is_virtual(view) else error.hint
            raise
        notes = [
            f"a run is one of {runs} in a call, the program's start is spread over them",
            *([SIMULATED] if is_virtual(view) else []),
            *quiet.notes(),
        ]
        certificate = {
            "meter": meter, "runs": runs, "quiesce": quiet.to_wire(), "notes": notes,
            "epoch": epoch_of(view), "started_at": started_at.isoformat(),
            "seconds": (datetime.now(UTC) - started_at).total_seconds(),
        }  # fmt: skip
        runtime = {name: getattr(program.description, name) for name in ("name", "version", "license")}
        return {**about_phone(view), "runtime": runtime, **to_wire(found), "certificate": certificate}

    async def _started(self, serial: str, program: InstalledProgram, planned: CyclePlan) -> None:
        line = command_line(program.description, program.places, program.use.runs, program.use.settings)
        words = f"{planned.cycles} {planned.window_s:.2f} {LEAD_S:g} {NAP_S:g}"
        said = await self.parts.client.shell(
            serial,
            f"rm -rf {FOLDER}; mkdir -p {FOLDER} && printf '%s\\n' {quote(line)} >{FOLDER}/call && "
            f"sh {UNTETHERED} start {FOLDER} {words}",
            timeout_s=SHELL_S,
        )
        if said.text.strip() != "started":
            raise script_error("untethered.sh did not start", evidence=said.output[:2000])

    async def _record(self, serial: str) -> tuple[str, str, str]:
        """The marks, the gauge's lines and the boot's id."""
        boot = await self.parts.client.shell(
            serial, f". {UNTETHERED.rpartition('/')[0]}/processes.sh; boot_id", timeout_s=SHELL_S
        )
        async with await SyncSession.open(self.parts.client, serial) as session:
            marks, gauge = [await _text(session, f"{FOLDER}/{name}") for name in ("marks", "gauge")]
        return marks, gauge, boot.text.strip()


def check_time(away_s: float, left_s: float) -> None:
    """Whether the attempt has the time for a phone that is away so long. Pure.

    Raises:
        UserError: its time limit would end it before.
    """
    if away_s >= left_s:
        raise UserError(
            f"the phone would be away for {away_s:.0f} s, and the attempt may last {left_s:.0f} s more",
            Code.POWER_NOT_MEASURABLE, hint="fewer --runs, so that a call is shorter, or a longer --timeout",
        )  # fmt: skip


async def _text(session: SyncSession, path: str) -> str:
    data = await session.receive_some(path, MAX_RECORD_BYTES) or b""
    if len(data) > MAX_RECORD_BYTES:
        raise PhoneError(
            f"the phone's record has more than {MAX_RECORD_BYTES >> 20} MiB", Code.UNTETHERED_FAILED,
            hint="a shorter --measure",
        )  # fmt: skip
    return data.decode("utf-8", "replace")
