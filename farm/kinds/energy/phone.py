"""The daemon's side of an energy job's worker: reads the phone's fuel gauge or power rails while the model runs."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.adb.client import AdbClient
from farm.adb.errors import AdbFailed, AdbTimeout
from farm.adb.shell import ShellStream
from farm.common.errors import Code, PhoneError, ProtocolError
from farm.common.phone_text import LINE, plain
from farm.common.tasks import end_task
from farm.devices.server.phone_paths import GAUGE
from farm.kinds.energy.meter import rails_error
from farm.kinds.execution import MeasuringHost
from farm.measure.rails import POLL_S, period_of

LEAST_NAP_S, MOST_NAP_S = 0.1, 10.0
MOST_LINES = 50_000  # that wait for the worker
MOST_LINE_BYTES = 4096
LEARN_S, LEARN_LIMIT_S = 4.0, 20.0  # of the trace that shows whether a phone has rails, and at most with its overhead
MOST_TRACE_S = 2 * 3600.0  # at most
HAND_OUT_S = 30.0  # for a trace that has ended
MOST_TRACE_BYTES = 24 << 20  # the buffer has 16 MiB
MOST_SHORT_BYTES = 1 << 20  # of the trace that shows whether a phone has rails
PART_BYTES = 512 << 10  # of a trace, in an answer to the worker
UPTIMES, UPTIME_LIMIT_S = 5, 10.0
UPTIME = re.compile(r"[0-9]{1,10}\.[0-9]{2}(?= )")
# For a phone's perfetto, protos/perfetto/config/trace_config.proto. An hour of 32 rails has 10 MB. What a full buffer
# does not take is left out, and not what came first: the rails' names.
TRACE_CONFIG = (
    "duration_ms: {0:.0f} buffers {{ size_kb: 16384 fill_policy: DISCARD }}"
    ' data_sources {{ config {{ name: "android.power"'
    " android_power_config {{ battery_poll_ms: {1:.0f} collect_power_rails: true }} }} }}"
)
# It hands its buffer out when it is terminated, and its input is the configuration: so the shell waits for the end of
# ours, which comes when the trace is asked for or the link is lost. The end of perfetto itself ends the waiting, by
# SIGKILL: a subshell that has just begun may still have its parent's handler of SIGTERM, and wait on.
TRACE_UNTIL_ASKED = f"""exec 3<&0
echo '{TRACE_CONFIG.format(MOST_TRACE_S * 1e3, POLL_S * 1e3)}' | perfetto -c - --txt -o - 3<&- &
traces=$!
{{ read -r _ <&3; kill -TERM $traces; }} >/dev/null 2>&1 &
waits=$!
wait $traces
code=$?
kill -KILL $waits 2>/dev/null
exit $code"""


class GaugeReader:
    """Reads lines of a phone's gauge, with the time of their arrival, until it is closed."""

    def __init__(self, client: AdbClient, serial: str) -> None:
        self._client, self._serial = client, serial
        self._nap_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._lines: list[tuple[float, str]] = []

    async def lines(self, nap_s: float) -> list[tuple[float, str]]:
        """The lines since the last call, read every `nap_s`: seconds since 1970 by this host's clock, and the text.

        Raises:
            FarmError: phone or link failed.
        """
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
            await end_task(task)

    async def _read(self, nap_s: float) -> None:
        rest = b""
        async with await self._client.open_shell(self._serial, f"sh {GAUGE} {nap_s:.3f}") as stream:
            while chunk := await stream.read():
                arrived_s = time.time()
                *whole, rest = (rest + chunk).split(b"\n")
                self._lines += ((arrived_s, line.decode("ascii", "replace").strip()) for line in whole)
                del self._lines[:-MOST_LINES]
                rest = rest[-MOST_LINE_BYTES:]


class RailsTrace:
    """Has a phone count its power rails from the first `watch` to the first `read`."""

    def __init__(self, client: AdbClient, serial: str) -> None:
        self._client, self._serial = client, serial
        self._stream: ShellStream | None = None
        self._task: asyncio.Task[bytes] | None = None
        self._begun = (0.0, 0.0)  # seconds since 1970 by this host's clock, the phone's uptime
        self._ended: tuple[float, float] | None = None

    async def watch(self) -> None:
        """Begin, or see whether it goes on.

        Raises:
            PhoneError: it ended, or phone or link failed.
        """
        if self._task is None:
            self._begun = await uptime_of(self._client, self._serial)
            self._stream = await self._client.open_shell(self._serial, TRACE_UNTIL_ASKED)
            self._task = asyncio.create_task(self._collect(self._stream), name=f"rails of {self._serial}")
        elif self._task.done():
            await self._task

    async def read(self, offset: int) -> Mapping[str, Any]:
        """A part of the trace, which ends with the first call, and how the phone's clock stands to this host's.

        Raises:
            PhoneError: it was not begun, ended without a trace, or phone or link failed.
        """
        await self.watch()
        assert self._stream is not None, "begun above"
        assert self._task is not None, "begun above"
        if self._ended is None:
            self._ended = await uptime_of(self._client, self._serial)
            await self._stream.close_stdin()
        try:
            async with asyncio.timeout(HAND_OUT_S):
                trace = await self._task
        except TimeoutError as error:
            raise rails_error(f"its perfetto did not hand its trace out in {HAND_OUT_S:.0f} s") from error
        data = base64.b64encode(trace[offset : offset + PART_BYTES]).decode()
        return {"data": data, "total": len(trace), "clock": [self._begun, self._ended]}

    async def close(self) -> None:
        """End it."""
        task, self._task = self._task, None
        if task is not None:
            await end_task(task)
        if self._stream is not None:
            self._stream.close()

    async def _collect(self, stream: ShellStream) -> bytes:
        trace = bytearray()
        while chunk := await stream.read():
            trace += chunk
            if len(trace) > MOST_TRACE_BYTES:
                raise rails_error(f"its perfetto printed more than {MOST_TRACE_BYTES >> 20} MiB")
        if self._ended is None:
            said = stream.stderr.decode("utf-8", "replace")
            raise rails_error(f"its perfetto ended with {stream.exit_code} in the middle of the run", said)
        return bytes(trace)


async def rails_period(client: AdbClient, serial: str) -> float | str:
    """Seconds between two counts of a phone's power rails; a str: why it has none that serve, a clause.

    Raises:
        FarmError: the phone is away.
    """
    command = f"echo '{TRACE_CONFIG.format(LEARN_S * 1e3, POLL_S * 1e3)}' | perfetto -c - --txt -o -"
    try:
        done = await client.shell(serial, command, timeout_s=LEARN_LIMIT_S, most_bytes=MOST_SHORT_BYTES)
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
    """Seconds since 1970 by this host's clock, and the phone's uptime then: of several answers the quickest.

    Raises:
        FarmError: the phone is away, or has no uptime that can be read.
    """
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
    rails: RailsTrace

    async def serve(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """`gauge {nap_s}`: the lines since the last call; `rails.watch`, and `rails.read {offset}`: of the trace."""
        if verb == "rails.watch":
            await self.rails.watch()
            return {}
        if verb == "rails.read":
            offset = fields.get("offset")
            if type(offset) is not int or not 0 <= offset <= MOST_TRACE_BYTES:
                raise ProtocolError("a worker reads a trace from an offset")
            return await self.rails.read(offset)
        if verb != "gauge":
            return await MeasuringHost.serve(self, verb, fields)
        nap_s = fields.get("nap_s")
        if type(nap_s) is not float or not LEAST_NAP_S <= nap_s <= MOST_NAP_S:
            raise ProtocolError(f"a worker reads a gauge every {LEAST_NAP_S:g} to {MOST_NAP_S:g} s")
        return {"lines": await self.gauge.lines(nap_s)}
