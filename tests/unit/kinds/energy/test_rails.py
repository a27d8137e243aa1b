"""Power rails as a meter: the worker's side over a daemon, the daemon's side over a phone, both of the tests."""

from __future__ import annotations

import asyncio
import base64
import math

import pytest

from farm.adb.errors import AdbTimeout
from farm.adb.shell import ShellResult
from farm.common.errors import Code
from farm.kinds.energy import phone as phone_side
from farm.kinds.energy.cycles import CyclePlan, CycleTimes
from farm.kinds.energy.phone import LEARN_S, RailsTrace, rails_period
from farm.kinds.energy.rails import RailsMeter
from farm.measure.energy import EnergyEstimate, EnergyNotResolved
from tests.support.errors import raises_code
from tests.support.rail_traces import NAMES, UPTIME_S, steady, trace

BEGUN_S, WINDOW_S, CYCLES = 1_764_266_400.0, 2.0, 20
PLAN = CyclePlan(CYCLES, WINDOW_S, 0.25)
IDLE_W, NET_W = (0.3, 0.2, 0.9, 1.5, 0.1), (2.0, 0.5, 0.0, 2.6, 0.0)


class FakeDaemon:
    """A daemon with a trace that it hands out in small parts."""

    def __init__(self, made):
        self.trace, self.verbs = made, []

    def call(self, verb, offset=None):
        self.verbs.append(verb)
        if verb == "rails.watch":
            return {}
        ended_s = WINDOW_S * 3 * CYCLES + 1
        clock = [[BEGUN_S, UPTIME_S], [BEGUN_S + ended_s, UPTIME_S + ended_s]]
        part = self.trace[offset : offset + 5000]
        return {"data": base64.b64encode(part).decode(), "total": len(self.trace), "clock": clock}


def counted(until_s=WINDOW_S * 3 * CYCLES + 1, poll_s=0.25):
    """What the rails counted: busy in the middle window of each cycle, with a little noise."""
    energies, counts = [1e9] * len(IDLE_W), []
    for poll in range(round(until_s / poll_s)):
        at_s = poll * poll_s
        busy = (at_s - poll_s / 2) // WINDOW_S % 3 == 1
        noise = 1 + 0.02 * ((poll * 7919) % 13 - 6) / 6
        energies = [
            each + 1e6 * poll_s * noise * (idle + busy * net)
            for each, idle, net in zip(energies, IDLE_W, NET_W, strict=True)
        ]
        counts.append((round((UPTIME_S + at_s) * 1e3), [round(each) for each in energies]))
    return counts


def measured(counts, names=NAMES):
    meter = RailsMeter(FakeDaemon(trace(counts, names)), 0.25)
    times = [
        CycleTimes(*(BEGUN_S + WINDOW_S * (3 * cycle + border) for border in range(4)), inference_s=0.02)
        for cycle in range(CYCLES)
    ]
    assert meter.period_s() == 0.25
    assert meter.until(BEGUN_S + 1) == []
    return meter.joules(times, PLAN, 0.1), meter.about()


def test_the_joules_are_those_of_the_rails_that_count():
    found, about = measured(counted())
    assert isinstance(found, EnergyEstimate)
    assert found.net_j == pytest.approx(2.5 * 0.02, rel=0.02)
    assert found.low_j <= 2.5 * 0.02 <= found.high_j
    assert found.idle_w == pytest.approx(0.6, rel=0.02)
    assert about["source"] == "power rails"
    net_j = {each["name"]: each["net_j"] for each in about["rails"]}
    assert net_j == pytest.approx(
        {name: net_w * 0.02 for (name, _), net_w in zip(NAMES, NET_W, strict=True)}, rel=0.02, abs=2e-4
    )
    own = [each["net_j"] for each in about["rails"] if each["counted"]]
    assert sum(own) == pytest.approx(found.net_j)


def test_a_rail_that_is_not_counted_may_tell_rarely():
    counts = [
        (at_ms, energies[:3] if place % 40 == 0 else energies[:2]) for place, (at_ms, energies) in enumerate(counted())
    ]
    found, about = measured(counts, NAMES[:3])
    assert isinstance(found, EnergyEstimate)
    assert [each["net_j"] is None for each in about["rails"]] == [False, False, True]


def test_a_trace_that_ends_too_early_is_no_number():
    found, about = measured(counted(until_s=60.0))
    assert found == EnergyNotResolved("the meter left out readings: a window has fewer than three", None)
    assert {each["net_j"] for each in about["rails"]} == {None}


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (b"perfetto: not found", "printed no trace"),
        (trace(counted()[:1], NAMES[2:4]), "its trace of the whole run names none"),
        (trace([*counted(), *steady(IDLE_W)]), "the counter of S2M_VDD_CPUCL2 went back"),
    ],
)
def test_a_trace_that_tells_nothing_is_an_error_of_the_phone(made, why):
    meter = RailsMeter(FakeDaemon(made), 0.25)
    with raises_code(Code.GAUGE_FAILED, match=why):
        meter.joules([], PLAN, 0.1)


class FakeStream:
    """A shell whose perfetto hands a trace out when its input ends, or ends before, or never does."""

    def __init__(self, parts, *, code=0, early=False, stuck=False):
        self._parts, self.exit_code, self.stderr = list(parts), code, b"why it ended"
        self._told, self._stuck, self.closed = asyncio.Event(), stuck, False
        self.read_out = asyncio.Event()
        if early:
            self._told.set()

    async def read(self):
        await self._told.wait()
        if self._parts:
            return self._parts.pop(0)
        self.read_out.set()
        return b""

    async def close_stdin(self):
        if not self._stuck:
            self._told.set()

    def close(self):
        self.closed = True


class FakeClient:
    """A phone with an uptime and a perfetto."""

    def __init__(self, stream=None, result=None):
        self.stream, self._result, self.uptime_s, self.commands = stream, result, UPTIME_S, []

    async def shell(self, serial, command, *, timeout_s, most_bytes=0):
        assert serial == "serial"
        self.commands.append(command)
        if command == "cat /proc/uptime":
            return ShellResult(f"{self.uptime_s:.2f} 100.00\n".encode(), b"", 0)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    async def open_shell(self, serial, command):
        self.commands.append(command)
        return self.stream


async def test_the_trace_is_handed_out_in_parts_once_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(phone_side, "PART_BYTES", 4)
    client = FakeClient(FakeStream([b"abc", b"defg"]))
    tracing = RailsTrace(client, "serial")
    await tracing.watch()
    await tracing.watch()
    client.uptime_s += 10
    first, second = await tracing.read(0), await tracing.read(4)
    assert [base64.b64decode(each["data"]) for each in (first, second)] == [b"abcd", b"efg"]
    assert first["total"] == 7
    (_, begun_up_s), (_, ended_up_s) = first["clock"]
    assert (begun_up_s, ended_up_s) == (UPTIME_S, UPTIME_S + 10)
    assert second["clock"] == first["clock"]
    assert len([each for each in client.commands if "perfetto" in each]) == 1
    await tracing.close()
    assert client.stream.closed


async def test_a_perfetto_that_ends_in_the_middle_is_an_error():
    client = FakeClient(FakeStream([b"abc"], code=137, early=True))
    tracing = RailsTrace(client, "serial")
    await tracing.watch()
    await client.stream.read_out.wait()
    with raises_code(Code.GAUGE_FAILED, match="ended with 137 in the middle of the run") as caught:
        await tracing.watch()
    assert caught.value.evidence == "why it ended"
    await tracing.close()


async def test_a_perfetto_that_keeps_its_trace_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(phone_side, "HAND_OUT_S", 0.01)
    tracing = RailsTrace(FakeClient(FakeStream([], stuck=True)), "serial")
    with raises_code(Code.GAUGE_FAILED, match="did not hand its trace out"):
        await tracing.read(0)
    await tracing.close()


async def test_a_perfetto_that_prints_without_end_is_an_error(monkeypatch):
    monkeypatch.setattr(phone_side, "MOST_TRACE_BYTES", 1 << 20)
    tracing = RailsTrace(FakeClient(FakeStream([b"a" * (1 << 20)] * 3)), "serial")
    with raises_code(Code.GAUGE_FAILED, match="printed more than 1 MiB"):
        await tracing.read(0)
    await tracing.close()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (ShellResult(trace(steady((1.0, 0.5))), b"", 0), 0.25),
        (
            ShellResult(b"", b"sh: perfetto: inaccessible\n or not found", 127),
            "its perfetto ended with 127: sh: perfetto: ",
        ),
        (ShellResult(b"", b"", 1), "its perfetto ended with 1"),
        (ShellResult(b"", b"\x1b[31m" * 100, 1), "its perfetto ended with 1: \\x1b[31m\\x1b[31m"),
        (ShellResult(b"", b"", 0), "its perfetto names none"),
        (AdbTimeout("late"), "its perfetto did not end in 20 s"),
    ],
)
async def test_a_phone_is_asked_for_rails_by_a_short_trace(result, found):
    client = FakeClient(result=result)
    told = await rails_period(client, "serial")
    assert told == found or (isinstance(found, str) and told.startswith(found))
    assert f"duration_ms: {LEARN_S * 1e3:.0f} " in client.commands[0]
    assert "battery_poll_ms: 250 collect_power_rails: true" in client.commands[0]


async def test_a_phone_without_an_uptime_has_no_rails_that_serve():
    client = FakeClient(result=ShellResult(trace(steady((1.0, 0.5))), b"", 0))
    client.uptime_s = math.nan
    assert await rails_period(client, "serial") == "the phone has no uptime that can be read"
