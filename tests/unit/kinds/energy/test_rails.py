"""Power rails as a meter: the worker's side over a daemon, the daemon's side over a phone, both of the tests."""

import asyncio
import base64
import math

import pytest

from farm.adb.errors import AdbTimeout
from farm.adb.shell import ShellResult
from farm.common.errors import Code
from farm.kinds.energy import executor as phone_side
from farm.kinds.energy.cycles import CyclePlan, CycleTimes
from farm.kinds.energy.executor import LEARN_S, RailsTraces, rails_period
from farm.kinds.energy.meter import RailsMeter
from farm.measure.energy import EnergyEstimate, EnergyNotResolved
from tests.support.errors import raises_code
from tests.support.rail_traces import NAMES, UPTIME_S, steady, trace

BEGUN_S, WINDOW_S, CYCLES = 1_764_266_400.0, 2.0, 20
PLAN = CyclePlan(CYCLES, WINDOW_S, 0.25)
IDLE_W, NET_W = (0.3, 0.2, 0.9, 1.5, 0.1), (2.0, 0.5, 0.0, 2.6, 0.0)


class FakeDaemon:
    """A daemon with traces that have ended after the first call, all but the last one."""

    def __init__(self, *made):
        self.traces, self.begun = list(made), False

    def call(self, verb, last):
        assert verb == "rails.read"
        begun, self.begun = self.begun, True
        if not begun or len(self.traces) <= (not last):
            return {}
        ended_s = WINDOW_S * 3 * CYCLES + 1
        clock = [[BEGUN_S, UPTIME_S], [BEGUN_S + ended_s, UPTIME_S + ended_s]]
        return {"trace": base64.b64encode(self.traces.pop(0)).decode(), "clock": clock}


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


def measured(*traces):
    meter = RailsMeter(FakeDaemon(*traces), 0.25)
    times = [
        CycleTimes(*(BEGUN_S + WINDOW_S * (3 * cycle + border) for border in range(4)), inference_s=0.02)
        for cycle in range(CYCLES)
    ]
    assert meter.period_s() == 0.25
    readings = [*meter.until(BEGUN_S + 1), *meter.rest()]
    return meter.joules(readings, times, PLAN, 0.1), meter.about()


@pytest.mark.parametrize("traces", [1, 4])
def test_the_joules_are_those_of_the_rails_that_count(traces):
    counts = counted()
    size = len(counts) // traces + 1
    # The next one begins with its second count: between two traces a phone counts, too.
    parts = [counts[begin + bool(begin) : begin + size] for begin in range(0, len(counts), size)]
    found, about = measured(*map(trace, parts))
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
    found, about = measured(trace(counts, NAMES[:3]))
    assert isinstance(found, EnergyEstimate)
    assert [each["net_j"] is None for each in about["rails"]] == [False, False, True]


def test_a_trace_that_ends_too_early_is_no_number():
    found, about = measured(trace(counted(until_s=60.0)))
    assert found == EnergyNotResolved("the meter left out readings: a window has fewer than three", None)
    assert {each["net_j"] for each in about["rails"]} == {None}


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (b"perfetto: not found", "printed no trace"),
        (trace(counted()[:1], NAMES[2:4]), "its traces of the whole run name none"),
        (trace([*counted(), *steady(IDLE_W)]), "the counter of S2M_VDD_CPUCL2 went back"),
    ],
)
def test_a_trace_that_tells_nothing_is_an_error_of_the_phone(made, why):
    meter = RailsMeter(FakeDaemon(made), 0.25)
    meter.period_s()
    with raises_code(Code.GAUGE_FAILED, match=why):
        list(meter.rest())


def test_a_counter_that_goes_back_between_two_traces_is_an_error():
    meter = RailsMeter(FakeDaemon(trace(counted()), trace(steady(IDLE_W)), b""), 0.25)
    meter.period_s()
    readings = []
    with raises_code(Code.GAUGE_FAILED, match="the counter of S2M_VDD_CPUCL2 went back"):
        readings += meter.until(BEGUN_S)
    assert len(readings) == len(NAMES) * (len(counted()) - 1), "what came before is kept"


class FakeStream:
    """A shell whose perfetto hands a trace out when its input ends, or by itself."""

    def __init__(self, made=b"", *, code=0, by_itself=False, stuck=False):
        self._parts, self.exit_code, self.stderr = [made] if made else [], code, b"why it ended"
        self._told, self._stuck, self.closed = asyncio.Event(), stuck, False
        if by_itself:
            self._told.set()

    async def read(self):
        await self._told.wait()
        return self._parts.pop(0) if self._parts else b""

    async def close_stdin(self):
        if not self._stuck:
            self._told.set()

    def close(self):
        self.closed = True


class FakeClient:
    """A phone with an uptime and, for each trace, a perfetto."""

    def __init__(self, *streams, result=None):
        self.streams, self._result, self.uptime_s, self.commands = list(streams), result, UPTIME_S, []
        self.last_opens = asyncio.Event()

    async def shell(self, serial, command, *, timeout_s, most_bytes=0):
        assert serial == "serial"
        self.commands.append(command)
        if command == "cat /proc/uptime":
            return ShellResult(f"{self.uptime_s:.2f} 100.00\n".encode(), b"", 0)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    async def open_shell(self, serial, command):
        assert f"duration_ms: {phone_side.TRACE_S * 1e3:.0f} " in command
        self.uptime_s += 10
        stream = self.streams.pop(0)
        if not self.streams:
            self.last_opens.set()
        return stream


async def test_traces_follow_one_another_until_the_last_one():
    streams = [FakeStream(b"abc", by_itself=True), FakeStream(b"defg", by_itself=True), FakeStream(b"hi")]
    client = FakeClient(*streams)
    tracing = RailsTraces(client, "serial", trace_s=0.0)
    assert await tracing.read(last=False) == {}
    await client.last_opens.wait()
    found = [await tracing.read(last=False), await tracing.read(last=False)]
    assert await tracing.read(last=False) == {}
    found += [await tracing.read(last=True)]
    assert await tracing.read(last=True) == {}
    assert [base64.b64decode(each["trace"]) for each in found] == [b"abc", b"defg", b"hi"]
    # The clocks are compared once between two traces.
    begins, ends = ([each["clock"][place] for each in found] for place in (0, 1))
    assert begins[1:] == ends[:-1]
    assert [uptime_s for _, uptime_s in (*begins, ends[-1])] == [UPTIME_S, UPTIME_S + 10, UPTIME_S + 20, UPTIME_S + 30]
    await tracing.close()
    assert all(each.closed for each in streams)


async def test_two_calls_at_once_begin_one_trace():
    client = FakeClient(FakeStream(b"abc"))
    tracing = RailsTraces(client, "serial", trace_s=0.0)
    await asyncio.gather(*(tracing.read(last=False) for _ in range(3)))
    assert client.streams == []
    assert base64.b64decode((await tracing.read(last=True))["trace"]) == b"abc"
    await tracing.close()


async def ended(stream, **more):
    """Reads until the failure."""
    tracing = RailsTraces(FakeClient(FakeStream(b"abc", by_itself=True), stream), "serial", **more)
    try:
        while True:
            await tracing.read(last=False)
            await asyncio.sleep(0)
    finally:
        await tracing.close()


@pytest.mark.parametrize(("code", "more"), [(137, {"trace_s": 0.0}), (0, {})])
async def test_a_perfetto_that_ends_in_the_middle_is_an_error(code, more):
    with raises_code(Code.GAUGE_FAILED, match=f"ended with {code} in the middle of the run") as caught:
        await ended(FakeStream(b"abc", code=code, by_itself=True), **more)
    assert caught.value.evidence == "why it ended"


async def test_a_trace_before_the_failure_is_handed_out():
    client = FakeClient(FakeStream(b"abc", by_itself=True), FakeStream(b"", code=1, by_itself=True))
    tracing = RailsTraces(client, "serial", trace_s=0.0)
    await tracing.read(last=False)
    await client.last_opens.wait()
    assert await tracing.read(last=False)
    with raises_code(Code.GAUGE_FAILED, match="ended with 1"):
        await tracing.read(last=True)
    await tracing.close()


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ({"stuck": True}, "did not hand its trace out"),
        ({"made": b"a" * (1 << 20) + b"a"}, "printed more than 1 MiB"),
    ],
)
async def test_a_perfetto_that_keeps_its_trace_or_prints_without_end_is_an_error(monkeypatch, stream, said):
    if "stuck" in stream:
        monkeypatch.setattr(phone_side, "HAND_OUT_S", 0.01)
    monkeypatch.setattr(phone_side, "MAX_TRACE_BYTES", 1 << 20)
    tracing = RailsTraces(FakeClient(FakeStream(**stream)), "serial")
    with raises_code(Code.GAUGE_FAILED, match=said):
        await tracing.read(last=True)
    await tracing.close()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (ShellResult(trace(steady((1.0, 0.5))), b"", 0), 0.25),
        (
            ShellResult(b"", b"sh: perfetto: inaccessible\n or not found", 127),
            "perfetto ended with 127: sh: perfetto: ",
        ),
        (ShellResult(b"", b"", 1), "perfetto ended with 1"),
        (ShellResult(b"", b"\x1b[31m" * 100, 1), "perfetto ended with 1: \\x1b[31m\\x1b[31m"),
        (ShellResult(b"", b"", 0), "perfetto names none"),
        (AdbTimeout("late"), "perfetto did not end in 20 s"),
    ],
)
async def test_a_phone_is_asked_for_rails_by_a_short_trace(result, found):
    client = FakeClient(result=result)
    told = await rails_period(client, "serial")
    assert told == found or (isinstance(found, str) and told.startswith(f"its {found}"))
    assert f"duration_ms: {LEARN_S * 1e3:.0f} " in client.commands[0]
    assert "battery_poll_ms: 250 collect_power_rails: true" in client.commands[0]


async def test_a_phone_without_an_uptime_has_no_rails_that_serve():
    client = FakeClient(result=ShellResult(trace(steady((1.0, 0.5))), b"", 0))
    client.uptime_s = math.nan
    assert await rails_period(client, "serial") == "the phone has no uptime that can be read"
