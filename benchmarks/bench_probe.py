"""One full probe of a virtual phone, beside a shell command that does nothing: time and round trips.

A virtual phone's programs start as fast as this host starts them; a real phone's `dumpsys` takes 20 to 50 ms by itself.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.harness import Context, Figure, percentile
from benchmarks.whole_farm import PROFILES
from farm.adb.client import AdbClient
from farm.adb.shell import ShellStream
from farm.cli.virtual_farm import virtual_farm
from farm.fleet.probe.command import SECTIONS, probe_command
from farm.fleet.probe.read import probe, read_health

PROBES = 200
GOAL_MS = 25.0
LIMIT_S = 20.0


class CountingClient:
    """Counts the shells that probes open."""

    def __init__(self, client: AdbClient) -> None:
        self._client = client
        self.shells = 0

    async def open_shell(self, serial: str, command: str, *, timeout_s: float) -> ShellStream:
        """Open one more."""
        self.shells += 1
        return await self._client.open_shell(serial, command, timeout_s=timeout_s)


def run(context: Context) -> list[Figure]:
    """Figures of one phone with 69 thermal zones."""
    with virtual_farm(
        {"one": PROFILES[0]}, config="[probe]\nevery_s = 3600\n[heat]\nstale_s = 7200\n", tell=context.say
    ) as farm:
        farm.wait_ready(1)
        status = farm.status()
        socket, serial = status["adb"]["socket"], status["devices"][0]["serial"]
        context.say(f"{PROBES} probes, a command that does nothing before each")
        return asyncio.run(_measured(socket, serial))


async def _measured(socket: str, serial: str) -> list[Figure]:
    adb = AdbClient(socket)
    client = CountingClient(adb)

    async def nothing() -> None:
        await adb.shell(serial, "true", timeout_s=LIMIT_S)

    async def one() -> None:
        await read_health(client, serial, LIMIT_S)

    await one()
    client.shells = 0
    idle_ms, probe_ms = [], []
    for _ in range(PROBES):
        idle_ms.append(await _took_ms(nothing))
        probe_ms.append(await _took_ms(one))
    trips = client.shells / PROBES
    health = await read_health(client, serial, LIMIT_S)
    by_section = {name: await _section_ms(client, serial, name) for name in SECTIONS}
    median = statistics.median(probe_ms)
    return [
        Figure(
            "one full probe, median", median, "ms", statistics.median(idle_ms), f"under {GOAL_MS:g}", median < GOAL_MS
        ),
        Figure("one full probe, 95 %", percentile(probe_ms, 95), "ms", percentile(idle_ms, 95)),
        Figure("one full probe, fastest", min(probe_ms), "ms", min(idle_ms)),
        Figure("shell round trips of a probe", trips, "", None, "1", trips == 1),
        Figure("command sent", len(probe_command()), "bytes", None, "under 4000", len(probe_command()) < 4000),
        Figure("temperatures believed", len(health.temperatures), ""),
        Figure("readings dropped, each with its reason", len(health.dropped), ""),
        *(Figure(f"only {name}", took_ms, "ms") for name, took_ms in by_section.items()),
    ]


async def _section_ms(client: CountingClient, serial: str, name: str) -> float:
    async def one() -> None:
        await probe(client, serial, (name,), timeout_s=LIMIT_S)

    return statistics.median([await _took_ms(one) for _ in range(PROBES // 10)])


async def _took_ms(what: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await what()
    return 1e3 * (time.perf_counter() - begun)
