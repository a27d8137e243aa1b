"""Jobs of kind `untethered`: a program is staged on the phone and runs alone while its port has no power."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from shlex import quote
from typing import Any

from farm.adb.push import SyncSession
from farm.common.errors import Code, FarmError, PhoneError, UserError
from farm.devices.server.phone_paths import UNTETHERED
from farm.devices.server.program_files import work_folder
from farm.devices.server.rpc_server import script_error
from farm.devices.untether import RETURN_S
from farm.jobs.executor import AttemptContext, Executor
from farm.kinds.energy.cycles import CyclePlan, CycleTimes, even_plan, joules, needed_window_s, to_wire, too_short
from farm.kinds.energy.executor import BY_PHYSICS
from farm.kinds.energy.meter import gauge_error, step_of
from farm.kinds.execution import ExecutorParts, about_phone, epoch_of, is_virtual, quiet_lease
from farm.kinds.program.executor import InstalledProgram, WantedProgram, call_program, install_programs, with_traces
from farm.kinds.untethered import UntetheredSpec
from farm.measure.energy import EnergyEstimate, EnergyNotResolved
from farm.measure.gauge import SETTLE_PERIODS, GaugeLine, GaugeUpdates, gauge_line, period_s, recognised, why_fed
from farm.programs.description import command_line

LEAD_S = 15.0  # until the first cycle: switches take up to 5 s, and gauges notice the change some seconds later
NAP_S = 0.25  # of the gauge's reader
SLACK_S = 5.0
CALLS_LONGER = 1.5  # times as long as with the cable in, at most
SHELL_S = 15.0
FOLDER = work_folder(1)  # of the script; the program works in that of side 0
MAX_RECORD_BYTES = 32 << 20
SIMULATED = "a virtual phone: its battery is simulated"
SLEPT_S = 5.0  # without a line: the script takes one four times a second, a service asked answers within 4 s
_WORDS = ("idle", "busy", "rest", "end")
_UPTIME, _COUNT = re.compile(r"[0-9]{1,12}(\.[0-9]+)?"), re.compile("[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class UntetheredExecutor(Executor):
    """Runs attempts of kind untethered."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The result: joules of one run of the program, or why the gauge does not resolve them."""
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
    """Whether the attempt has the time for a phone that is away so long. Pure."""
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


@dataclass(slots=True)
class RunRecord:
    """The marks of a run."""

    boot: str = ""
    cycles: list[tuple[list[float], int]] = field(default_factory=list)  # uptimes of idle, busy, rest, end; calls
    ended: str = ""  # "done", or why not; "" it did not end


def read_marks(text: str) -> RunRecord:
    """The marks; a cycle that is not whole is left out. Never raises."""
    record, uptimes, calls = RunRecord(), [0.0] * 0, 0
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "boot":
            record.boot = rest
        elif word in ("done", "failed"):
            record.ended = rest or word
        elif word in _WORDS and (numbers := rest.split()):
            uptimes = [] if word == "idle" else uptimes
            if len(uptimes) != _WORDS.index(word) or not _UPTIME.fullmatch(numbers[0]):
                continue
            uptimes.append(float(numbers[0]))
            calls = int(numbers[1]) if word == "rest" and len(numbers) > 1 and _COUNT.fullmatch(numbers[1]) else calls
            if word == "end" and calls > 0:
                record.cycles.append((uptimes, calls))
    return record


def energy_of(
    record: RunRecord, gauge: str, planned: CyclePlan, *, runs: int, half_width: float, boot: str
) -> tuple[EnergyEstimate | EnergyNotResolved, dict[str, Any]]:
    """The joules of one run, and what the certificate says of the gauge.

    Args:
        record: the marks.
        gauge: the lines of gauge.sh.
        planned: the cycles that were asked for.
        runs: of one call of the program.
        half_width: as of `estimate`.
        boot: the phone's boot now.
    """
    _check(record, planned, boot)
    name, lines = _lines(gauge)
    alone = _alone(lines, record)
    scale, period = recognised(alone), period_s(alone)
    if isinstance(scale, str):
        raise gauge_error(scale)
    if period is None:
        raise gauge_error("its gauge's figure did not change several times in the whole run")
    about = {**scale.about(name), "period_s": period}
    if needed_window_s(period, SETTLE_PERIODS) > planned.window_s:
        return too_short(planned.window_s, period, SETTLE_PERIODS), about
    updates = GaugeUpdates(scale, period)
    readings = [found for line in alone if (found := updates.reading(line, 0.0)) is not None]
    times = [
        CycleTimes(idle, busy, rest, end, (rest - busy) / (calls * runs))
        for (idle, busy, rest, end), calls in record.cycles
    ]
    settled = CyclePlan(planned.cycles, planned.window_s, SETTLE_PERIODS * period)
    step = step_of(readings) if scale.figure == "current" else 0.0
    return joules(readings, times, settled, half_width, step), about


def _check(record: RunRecord, planned: CyclePlan, boot: str) -> None:
    if not record.boot:
        raise _failed("the phone has no record of its run", "a full storage? farm device show NAME")
    if boot != record.boot:
        raise _failed("the phone rebooted while it was alone", "a battery that is worn or nearly empty gives way")
    if record.ended not in ("done", ""):
        raise UserError(
            f"while the phone was alone, {record.ended}", Code.PROGRAM_FAILED,
            hint="call it with the cable in: farm program run SPEC.toml --on NAME",
        )  # fmt: skip
    if not record.ended or len(record.cycles) != planned.cycles:
        raise _failed(
            f"the phone had done {len(record.cycles)} of {planned.cycles} cycles when its power returned",
            "calls became longer without a cable, or the phone slept: keep it awake (--quiesce gentle)",
        )


def _lines(text: str) -> tuple[str, list[GaugeLine]]:
    name, _, rest = text.partition("\n")
    whole = rest.rpartition("\n")[0]  # the last line may be torn
    found = [line for each in whole.splitlines() if (line := gauge_line(each)) is not None]
    return name.removeprefix("gauge ").strip(), found


def _alone(lines: Sequence[GaugeLine], record: RunRecord) -> list[GaugeLine]:
    """The lines of the cycles, and those before them since the power went."""
    begun_s, ended_s = record.cycles[0][0][0], record.cycles[-1][0][3]
    for before, after in pairwise([line for line in lines if line.uptime_s <= ended_s]):
        if after.uptime_s - before.uptime_s > SLEPT_S:
            raise _failed(
                f"the phone slept for {after.uptime_s - before.uptime_s:.0f} s while it was alone",
                "keep it awake: --quiesce gentle, which holds a wake lock or the screen",
            )
    first = next((line.uptime_s for line in lines if line.discharging), None)
    if first is None:
        raise gauge_error(f"{why_fed(lines) or 'it said nothing'}, though its port had no power")
    if first > begun_s:
        raise _failed(
            f"the phone noticed only {first - begun_s:.0f} s after the first cycle began that its power was gone",
            "a slow switch, or a slow gauge",
        )
    alone = [line for line in lines if first <= line.uptime_s <= ended_s]
    if fed := why_fed(alone):
        raise gauge_error(f"in the middle of the run {fed}")
    return alone


def _failed(what: str, hint: str) -> FarmError:
    return PhoneError(what, Code.UNTETHERED_FAILED, hint=hint)
