"""What the daemon needs to probe a hundred phones every 10 s, nothing else happening; and how soon it sees a change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from benchmarks.bench_fleet import until_ready
from benchmarks.bench_probe import busy_per_call_ms
from benchmarks.harness import Context, Figure, cpu_percent, under
from benchmarks.whole_farm import PROFILES, WAIT_S
from farm.adb.client import AdbClient
from farm.common.errors import HostError
from farm.devices.health.probe.parse import probe_command
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm

PHONES = 100
WATCHED_S = 60.0  # six rounds of 10 s
GOAL_PERCENT = 10.0
PROBES_PER_S = PHONES / 10.0
BARE = 40  # exchanges
GOAL_TIMES_BARE = 3.0
GOAL_SEEN_S = 20.0  # a round, and another for one that was under way
LEVEL = 37  # percent of battery that no profile has


def run(context: Context) -> list[Figure]:
    """CPU seconds of the daemon per second, so that other load on this host matters little."""
    phones = {f"phone-{number}": PROFILES[number % len(PROFILES)] for number in range(PHONES)}
    with virtual_farm(phones, plugged=False, report=context.say) as farm:
        context.say(f"plugging {PHONES} phones in at once")
        until_ready(farm, PHONES)
        context.say("the first round")
        until_all(farm, lambda row: row["temperature_c"] is not None)
        context.say(f"watching for {WATCHED_S:g} s")
        daemon = psutil.Process(farm.status()["pid"])
        adb = [child for child in daemon.children(recursive=True) if child.name() == "adb"]
        percent, *adb_percent = cpu_percent([daemon, *adb], WATCHED_S)
        status = farm.status()
        bare_ms = asyncio.run(bare_exchange_ms(farm.adb_socket, status["devices"][0]["serial"]))
        busy_ms = 10 * percent / PROBES_PER_S  # a percent of a core is 10 ms in a second
        rss_mb = daemon.memory_info().rss / 1e6
        context.say(f"every battery falls to {LEVEL} %")
        for name in phones:
            farm.lab.battery(name, LEVEL)
        begun = time.monotonic()
        until_all(farm, lambda row: row["battery_percent"] is not None and row["battery_percent"] <= LEVEL)
        seen_s = time.monotonic() - begun
    return [
        under(f"{PHONES} phones: daemon, CPU", percent, "% of a core", GOAL_PERCENT),
        Figure(
            "processor time of the daemon by probe; stock: an exchange of its command alone", busy_ms, "ms", bare_ms
        ),
        under("that, by the exchange alone", busy_ms / bare_ms, "times", GOAL_TIMES_BARE),
        Figure(f"{PHONES} phones: adb server, CPU", sum(adb_percent), "% of a core"),
        Figure(f"{PHONES} phones: daemon RSS", rss_mb, "MB"),
        under("a change is seen on the last phone after", seen_s, "s", GOAL_SEEN_S),
    ]


async def bare_exchange_ms(socket: str, serial: str) -> float:
    """Milliseconds of this process's processor for the probe's command, its output neither read nor kept."""
    client = AdbClient(socket)
    return await busy_per_call_ms(lambda: client.shell(serial, probe_command(), timeout_s=WAIT_S), BARE)


def until_all(farm: VirtualFarm, fits: Callable[[Mapping[str, Any]], bool]) -> None:
    """Wait until every phone's row in `farm status` fits.

    Raises:
        HostError: some do not within a minute.
    """
    deadline = time.monotonic() + WAIT_S
    while left := [row["name"] for row in farm.status()["devices"] if not fits(row)]:
        if time.monotonic() > deadline:
            raise HostError(f"{len(left)} phones show nothing new, {left[0]} among them")
        time.sleep(0.2)
