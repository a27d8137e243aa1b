"""Jobs of kind `energy`: joules of one inference, by a power meter, or the phone's own rails or fuel gauge."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from farm.adb.client import AdbClient
from farm.adb.errors import AdbFailed, AdbTimeout
from farm.adb.shell import ShellStream
from farm.common.errors import Code, PhoneError, UserError
from farm.common.phone_text import LINE, plain
from farm.common.tasks import end_tasks
from farm.common.verbs import verb
from farm.devices.health.probe_round import MOMENT_SECTIONS, probe
from farm.devices.server.phone_paths import GAUGE
from farm.jobs.executor import AttemptContext
from farm.kinds.energy import EnergyTask, PowerSource
from farm.kinds.energy.meter import rails_error
from farm.kinds.execution import MeasuringHost, ModelExecutor, is_virtual, measured, quiet_lease
from farm.measure.rails import POLL_S, period_of
from farm.model.device import DeviceView
from farm.model.health import Battery
from farm.model.specs import ModelTask

MIN_NAP_S, MAX_NAP_S = 0.1, 10.0
MAX_LINES = 50_000  # that wait for the worker
MAX_LINE_BYTES = 4096
LEARN_S, LEARN_LIMIT_S = 4.0, 20.0  # of the trace that shows whether a phone has rails, and at most with its overhead
TRACE_S = 30.0  # of those of a run
HAND_OUT_S = 45.0  # for the last one, which some phones end in its own time
MAX_TRACE_BYTES = 1 << 20
MAX_READY = 8  # traces that wait for the worker
UPTIMES, UPTIME_LIMIT_S = 5, 10.0
UPTIME = re.compile(r"[0-9]{1,10}\.[0-9]{2}(?= )")
# For a phone's perfetto, protos/perfetto/config/trace_config.proto. Half a minute of 32 rails has 80 kB. What a
# full buffer does not take is left out, and not what came first: the rails' names.
TRACE_CONFIG = (
    "duration_ms: {0:.0f} buffers {{ size_kb: 1024 fill_policy: DISCARD }}"
    ' data_sources {{ config {{ name: "android.power"'
    " android_power_config {{ battery_poll_ms: {1:.0f} collect_power_rails: true }} }} }}"
)
# It hands its buffer out when it is terminated, and its input is the configuration: so the shell waits for the end of
# ours, which comes when the trace is asked for or the link is lost. The end of perfetto itself ends the waiting, by
# SIGKILL: a subshell that has just begun may still have its parent's handler of SIGTERM, and wait on.
TRACE_UNTIL_ASKED = f"""exec 3<&0
echo '{TRACE_CONFIG.format(TRACE_S * 1e3, POLL_S * 1e3)}' | perfetto -c - --txt -o - 3<&- &
traces=$!
{{ read -r _ <&3; kill -TERM $traces; }} >/dev/null 2>&1 &
waits=$!
wait $traces
code=$?
kill -KILL $waits 2>/dev/null
exit $code"""
BATTERY_LIMIT_S = 10.0
CHARGING = "charging"
BY_PHYSICS = (
    "virtual phones discharge by physics: farm demo --stay --physics; farm demo fault PHONE charge mode=suspend"
)


class GaugeReader:
    """Reads lines of a phone's gauge, with the time of their arrival, until it is closed."""

    def __init__(self, client: AdbClient, serial: str) -> None:
        self._client, self._serial = client, serial
        self._nap_s = 0.0
        self._one = asyncio.Lock()  # each call of the worker has a task of its own
        self._task: asyncio.Task[None] | None = None
        self._lines: list[tuple[float, str]] = []

    async def lines(self, nap_s: float) -> list[tuple[float, str]]:
        """The lines since the last call, read every `nap_s`: seconds since 1970 by this host's clock, and the text."""
        async with self._one:
            if nap_s != self._nap_s:
                await self.close()
                self._nap_s = nap_s
                self._task = asyncio.create_task(self._read(nap_s), name=f"gauge of {self._serial}")
        lines, self._lines = self._lines, []
        if not lines and self._task is not None and self._task.done():
            await self._task
        return lines

    async def close(self) -> None:
        """End the reading."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)

    async def _read(self, nap_s: float) -> None:
        rest = b""
        async with await self._client.open_shell(self._serial, f"sh {GAUGE} {nap_s:.3f}") as stream:
            while chunk := await stream.read():
                arrived_s = time.time()
                *whole, rest = (rest + chunk).split(b"\n")
                self._lines += ((arrived_s, line.decode("ascii", "replace").strip()) for line in whole)
                del self._lines[:-MAX_LINES]
                rest = rest[-MAX_LINE_BYTES:]


class RailsTraces:
    """Has a phone count its power rails from the first `read` to the last one, in traces one after another.

    So neither the phone nor this host keeps more than a trace of it, and one that is lost costs its half minute.
    """

    def __init__(self, client: AdbClient, serial: str, trace_s: float = TRACE_S) -> None:
        """`trace_s`: a trace that ends earlier, and was not asked for, failed."""
        self._client, self._serial, self._least_s = client, serial, trace_s - 1
        self._stream: ShellStream | None = None
        self._one = asyncio.Lock()  # each call of the worker has a task of its own
        self._task: asyncio.Task[None] | None = None
        self._ready: deque[Mapping[str, Any]] = deque(maxlen=MAX_READY)
        self._ends = False

    async def read(self, *, last: bool) -> Mapping[str, Any]:
        """The next trace, and how the phone's clock stood to this host's at its begin and end; {}: there is none now.

        `last`: the one that continues ends, and no other begins.
        """
        async with self._one:
            if self._task is None:
                begun = await uptime_of(self._client, self._serial)
                running = self._run(begun, await self._open())
                self._task = asyncio.create_task(running, name=f"rails of {self._serial}")
        if last and not self._ends:
            self._ends = True
            if self._stream is not None:
                await self._stream.close_stdin()
        if not self._ready and (last or self._task.done()):
            try:
                async with asyncio.timeout(HAND_OUT_S):
                    await self._task
            except TimeoutError as error:
                raise rails_error(f"its perfetto did not hand its trace out in {HAND_OUT_S:.0f} s") from error
        return self._ready.popleft() if self._ready else {}

    async def close(self) -> None:
        """End it."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)
        if self._stream is not None:
            self._stream.close()

    async def _open(self) -> ShellStream:
        self._stream = await self._client.open_shell(self._serial, TRACE_UNTIL_ASKED)
        if self._ends:
            await self._stream.close_stdin()
        return self._stream

    async def _run(self, begun: tuple[float, float], stream: ShellStream) -> None:
        while True:
            trace = await self._collect(stream)
            self._stream = None
            stream.close()
            ended = await uptime_of(self._client, self._serial)
            self._ready.append({"trace": base64.b64encode(trace).decode(), "clock": [begun, ended]})
            if self._ends:
                return
            begun, stream = ended, await self._open()

    async def _collect(self, stream: ShellStream) -> bytes:
        trace, opened_s = bytearray(), time.monotonic()
        while chunk := await stream.read():
            trace += chunk
            if len(trace) > MAX_TRACE_BYTES:
                raise rails_error(f"its perfetto printed more than {MAX_TRACE_BYTES >> 20} MiB")
        if not self._ends and (stream.exit_code or time.monotonic() - opened_s < self._least_s):
            said = stream.stderr.decode("utf-8", "replace")
            raise rails_error(f"its perfetto ended with {stream.exit_code} in the middle of the run", said)
        return bytes(trace)


async def rails_period(client: AdbClient, serial: str) -> float | str:
    """Seconds between two counts of a phone's power rails; a str: why it has none that serve, a clause."""
    command = f"echo '{TRACE_CONFIG.format(LEARN_S * 1e3, POLL_S * 1e3)}' | perfetto -c - --txt -o -"
    try:
        done = await client.shell(serial, command, timeout_s=LEARN_LIMIT_S, most_bytes=MAX_TRACE_BYTES)
    except AdbTimeout:
        return f"its perfetto did not end in {LEARN_LIMIT_S:.0f} s"
    except AdbFailed as error:
        return error.message
    if done.exit_code:
        said = plain(" ".join(done.stderr.decode("utf-8", "replace").split())[-LINE:])
        return f"its perfetto ended with {done.exit_code}" + (f": {said}" if said else "")
    try:
        _, uptime_s = await uptime_of(client, serial)
    except PhoneError as error:
        if error.code != Code.GAUGE_FAILED:
            raise
        return "the phone has no uptime that can be read"
    return await asyncio.to_thread(period_of, done.stdout, uptime_s)


async def uptime_of(client: AdbClient, serial: str) -> tuple[float, float]:
    """Seconds since 1970 by this host's clock, and the phone's uptime then: of several answers the quickest."""
    found = []
    for _ in range(UPTIMES):
        asked_s = time.time()
        done = await client.shell(serial, "cat /proc/uptime", timeout_s=UPTIME_LIMIT_S)
        answered_s = time.time()
        uptime = UPTIME.match(done.text)
        if uptime is None:
            raise rails_error("the phone has no uptime that can be read", done.output[:200])
        found.append((answered_s - asked_s, (asked_s + answered_s) / 2, float(uptime[0])))
    _, at_s, uptime_s = min(found)
    return at_s, uptime_s


@dataclass(frozen=True, slots=True)
class PowerHost(MeasuringHost):
    """Reads the phone's gauge or rails for the worker."""

    gauge: GaugeReader
    rails: RailsTraces

    @verb("rails.read")
    async def read_rails(self, last: bool) -> Mapping[str, Any]:
        """The next trace; `last`: no more are asked for."""
        return await self.rails.read(last=last)

    @verb("gauge")
    async def read_gauge(self, nap_s: Annotated[float, Field(ge=MIN_NAP_S, le=MAX_NAP_S)]) -> Mapping[str, Any]:
        """The gauge's lines since the last call."""
        return {"lines": await self.gauge.lines(nap_s)}


class PowerExecutor(ModelExecutor):
    """Runs attempts whose worker reads the phone's power: by its meter, else its power rails, else its fuel gauge."""

    async def measured(self, context: AttemptContext, task: ModelTask[Any]) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate."""
        gauge = GaugeReader(self.parts.client, context.view.serial)
        rails = RailsTraces(self.parts.client, context.view.serial)
        host = PowerHost(context, self.parts, quiet_lease(self.parts, context), gauge, rails)
        worker = f"farm.kinds.{context.spec.kind}.worker"
        try:
            return await measured(self.parts.work, context, worker, task.to_wire(), host)
        finally:
            await gauge.close()
            await rails.close()

    async def source(self, view: DeviceView) -> PowerSource:
        """What a phone has that measures its power; `why_not` says whether it can now."""
        meter = tuple(self.parts.meters.get(view.name, ()))
        found = "" if meter else await rails_period(self.parts.client, view.serial)
        period_s, no_rails = (None, found) if isinstance(found, str) else (found, "")
        return PowerSource(meter=meter, rails_period_s=period_s, no_rails=no_rails)

    async def why_not(self, view: DeviceView, source: PowerSource) -> str:
        """Why a phone's power cannot be measured now, words that follow the phone's name; "" where it can.

        A gauge cannot while a cable feeds the phone, a meter not while the battery is charged.
        """
        if source.rails_period_s is not None:  # they see what the chip takes, from wherever it comes
            return ""
        health, _ = await probe(self.parts.client, view.serial, MOMENT_SECTIONS, timeout_s=BATTERY_LIMIT_S)
        battery = health.battery
        if source.meter:
            charging = battery.status == CHARGING
            return "charges its battery: its power meter sees the charging current, too" if charging else ""
        why = why_not_by_gauge(battery)
        missing = f"no power meter, no power rails that serve ({source.no_rails})"
        return f"has {missing}, and its own fuel gauge sees only what the battery gives: {why}" if why else ""


class EnergyExecutor(PowerExecutor):
    """Runs attempts of kind energy."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate."""
        task = await self.task(context)
        report = await self.measured(context, task)
        await self._require_measurable(context.view, task.power)
        return report

    async def task(self, context: AttemptContext) -> EnergyTask:
        """The worker's task."""
        source = await self.source(context.view)
        await self._require_measurable(context.view, source)
        return EnergyTask(**self.model(context), power=source)

    async def _require_measurable(self, view: DeviceView, source: PowerSource) -> None:
        why = await self.why_not(view, source)
        if not why:
            return
        if source.meter:
            hint = 'wait until it is full, or hold the charge back: [battery] window = "phone" (docs/health.md)'
        elif is_virtual(view):
            hint = BY_PHYSICS
        else:
            hint = f'name the command of a meter: [power.meter] "{view.name}" = ["COMMAND"], or let the battery feed it'
        raise UserError(f"{view.name} {why}", Code.POWER_NOT_MEASURABLE, hint=hint)


def why_not_by_gauge(battery: Battery) -> str:
    """Why the gauge does not see all that the phone takes, a clause; "" where it does. Pure."""
    if battery.powered_by:
        return f"it gets power by {' and '.join(battery.powered_by)}"
    if battery.status != "discharging":
        return f"its battery says {battery.status!r}" if battery.status else "its battery tells no status"
    return ""
