"""One full probe of a virtual phone, beside a shell command that does nothing: time and round trips.

A virtual phone's programs start as fast as this host starts them; a real phone's `dumpsys` takes 20 to 50 ms by itself.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.harness import Context, Figure, percentile, under
from benchmarks.whole_farm import PROFILES
from farm.adb.client import AdbClient
from farm.adb.shell import ShellStream
from farm.common.phone_text import SECTION
from farm.devices.health.probe.parse import SECTIONS, parse_probe, probe_command
from farm.devices.health.probe_round import GATHER_S, MAX_OUTPUT_BYTES, probe, raw_probe
from farm.simulation.virtual_farm import virtual_farm

PROBES = 200
GOAL_MS = 25.0
GOAL_TIMES_BARE = 2.0  # of the processor
LIMIT_S = 20.0
HOSTILE_GOAL_MS = 200.0  # beside the event loop
HOSTILE = {
    "newlines": b"\n",
    "line ends": b"\r\n",
    "blanks": b" ",
    "indented newlines": b"\n ",
    "escapes": b"\x1b[31m",
    "names of drivers": b"kgsl mali PVR ",
    "faults": b"[1.0] kgsl: fault\n",
    "zones": b"thermal_zone1 cpu1=40000\n",
    "readings": b"Current temperatures from HAL:\nTemperature{mValue=40.5, mType=3, mName=s, mStatus=0}\n",
    "cores": b"/sys/devices/system/cpu/cpufreq/policy0/related_cpus=0-63\n",
    "processes": b"PID PPID PGID S %CPU RSS NAME\n1 1 1 R 99.0 100 tvm_rpc\n",
}


class CountingClient(AdbClient):
    """Counts the shells that probes open."""

    shells = 0

    async def open_shell(self, serial: str, command: str, **options: Any) -> ShellStream:
        """Open one more."""
        self.shells += 1
        return await super().open_shell(serial, command, **options)


def run(context: Context) -> list[Figure]:
    """Figures of one phone with 69 thermal zones."""
    with virtual_farm(
        {"one": PROFILES[0]}, config="[probe]\nevery_s = 3600\n[heat]\nstale_s = 7200\n", report=context.say
    ) as farm:
        farm.wait_ready(1)
        serial = farm.status()["devices"][0]["serial"]
        context.say(f"{PROBES} probes, a command that does nothing before each")
        return asyncio.run(_measured(farm.adb_socket, serial))


async def _measured(socket: str, serial: str) -> list[Figure]:
    adb = AdbClient(socket)
    client = CountingClient(socket)

    async def nothing() -> None:
        await adb.shell(serial, "true", timeout_s=LIMIT_S)

    async def one() -> None:
        await probe(client, serial, timeout_s=LIMIT_S)

    await one()
    client.shells = 0
    idle_ms, probe_ms = [], []
    for _ in range(PROBES):
        idle_ms.append(await _took_ms(nothing))
        probe_ms.append(await _took_ms(one))
    trips = client.shells / PROBES

    async def bare() -> None:
        await adb.shell(serial, probe_command(), timeout_s=LIMIT_S)

    async def as_daemon() -> None:
        await probe(client, serial, timeout_s=LIMIT_S, gather_s=GATHER_S)

    bare_ms, busy_ms = await busy_per_call_ms(bare, PROBES // 4), await busy_per_call_ms(as_daemon, PROBES // 4)
    health, _ = await probe(client, serial, timeout_s=LIMIT_S)
    by_section = {name: await _section_ms(client, serial, name) for name in SECTIONS}
    return [
        under("one full probe, median", statistics.median(probe_ms), "ms", GOAL_MS, statistics.median(idle_ms)),
        Figure("one full probe, 95 %", percentile(probe_ms, 95), "ms", percentile(idle_ms, 95)),
        Figure("one full probe, fastest", min(probe_ms), "ms", min(idle_ms)),
        Figure("one probe of the daemon, processor time; stock: the exchange alone", busy_ms, "ms", bare_ms),
        under("that, by the exchange alone", busy_ms / bare_ms, "times", GOAL_TIMES_BARE),
        Figure("shell round trips of a probe", trips, "", None, "1", trips == 1),
        under("command sent", len(probe_command()), "bytes", 4000),
        Figure("temperatures believed", len(health.temperatures), ""),
        Figure("readings dropped, each with its reason", len(health.dropped), ""),
        *(Figure(f"only {name}", took_ms, "ms") for name, took_ms in by_section.items()),
        *_hostile(await raw_probe(client, serial)),
    ]


def _hostile(normal: bytes) -> list[Figure]:
    """Parsing the worst that a phone may print, beside a normal probe: the section and text that take longest."""
    normal_ms = _parsed_ms(normal)
    took_ms = {
        (section, name): _parsed_ms(f"{SECTION}{section}\n".encode() + unit * (MAX_OUTPUT_BYTES // len(unit)))
        for section in SECTIONS
        for name, unit in HOSTILE.items()
    }
    worst = max(took_ms, key=lambda each: took_ms[each])
    label = f"parsing {MAX_OUTPUT_BYTES >> 10} KiB of {worst[1]} in {worst[0]}, the slowest nonsense"
    return [under(label, took_ms[worst], "ms", HOSTILE_GOAL_MS, normal_ms)]


def _parsed_ms(output: bytes) -> float:
    begun = time.perf_counter()
    parse_probe(output)
    return 1e3 * (time.perf_counter() - begun)


async def _section_ms(client: CountingClient, serial: str, name: str) -> float:
    async def one() -> None:
        await probe(client, serial, (name,), timeout_s=LIMIT_S)

    return statistics.median([await _took_ms(one) for _ in range(PROBES // 10)])


async def busy_per_call_ms(what: Callable[[], Awaitable[object]], times: int) -> float:
    """Milliseconds of the processor that one call takes this process."""
    begun = time.process_time()
    for _ in range(times):
        await what()
    return 1e3 * (time.process_time() - begun) / times


async def _took_ms(what: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await what()
    return 1e3 * (time.perf_counter() - begun)
