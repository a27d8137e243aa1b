"""Many phones on one daemon: until all are ready, what probing them every 10 s needs, how soon a change is seen.

CPU is the daemon's own time, so other load on this host matters little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.bench_probe import busy_per_call_ms
from benchmarks.harness import Context, Figure, cpu_percent, under, until
from benchmarks.whole_farm import PROFILES, WAIT_S, Journal
from farm.adb.client import AdbClient
from farm.devices.health.probe.parse import probe_command
from farm.model.device import LIFE_EVENTS
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm

SIZES = (30, 100)
IDLE_S = 60.0  # six rounds of probes, which are spread evenly
READY_LIMIT_S = 240.0  # a hundred phones that get 70 MB each, on two cores they share with the daemon
GOAL_PHONES = 100
GOAL_CPU_PERCENT = 10.0
GOAL_RSS_MB = 250.0
PROBE_EVERY_S = 10.0
BARE = 40  # exchanges
GOAL_TIMES_BARE = 3.0
GOAL_SEEN_S = 20.0  # a round, and another for one that was under way
LEVEL = 37  # percent of battery that no profile has


def run(context: Context) -> list[Figure]:
    """Figures for each size."""
    figures = []
    for size in SIZES:
        phones = {f"phone-{number}": PROFILES[number % len(PROFILES)] for number in range(size)}
        with virtual_farm(phones, plugged=False, report=context.say) as farm:
            context.say(f"plugging {size} phones in at once")
            ready_s = until_ready(farm, size)
            context.say("unplugging and plugging them in again")
            again_s = again(farm, size)
            until_all(farm, lambda row: row["temperature_c"] is not None)
            context.say(f"idle for {IDLE_S:g} s")
            idle = measure_idle(farm)
            bare_ms = asyncio.run(bare_exchange_ms(farm.adb_socket, farm.status()["devices"][0]["serial"]))
            busy_ms = 10 * idle.cpu_percent * PROBE_EVERY_S / size  # a percent of a core is 10 ms in a second
            context.say(f"every battery falls to {LEVEL} %")
            seen_s = change_seen_s(farm, phones)
        must = size == GOAL_PHONES
        cpu_goal, rss_goal = (GOAL_CPU_PERCENT, GOAL_RSS_MB) if must else (None, None)
        figures += [
            Figure(f"{size} phones: all ready, bundle pushed to each", ready_s, "s"),
            Figure(f"{size} phones: all ready again after a replug", again_s, "s"),
            under(f"{size} phones: daemon idle, CPU", idle.cpu_percent, "% of a core", cpu_goal),
            under(f"{size} phones: daemon RSS", idle.rss_mb, "MB", rss_goal),
            Figure(f"{size} phones: zygote RSS", idle.zygote_rss_mb, "MB"),
            Figure(f"{size} phones: adb server idle, CPU", idle.adb_cpu_percent, "% of a core"),
            Figure(f"{size} phones: processor time by probe; stock: its exchange alone", busy_ms, "ms", bare_ms),
            under(f"{size} phones: that, by the exchange alone", busy_ms / bare_ms, "times", GOAL_TIMES_BARE),
            under(f"{size} phones: a change is seen on the last one after", seen_s, "s", GOAL_SEEN_S),
        ]
    return figures


@dataclass(frozen=True, slots=True)
class Idle:
    """What processes needed while nothing happened."""

    cpu_percent: float
    rss_mb: float
    zygote_rss_mb: float
    adb_cpu_percent: float


def until_ready(farm: VirtualFarm, size: int) -> float:
    """Seconds from plugging all in to the last one's being ready."""
    seq = Journal(farm).mark()
    begun = time.time()
    farm.lab.plug("*")
    return all_ready(farm, seq, size) - begun


def again(farm: VirtualFarm, size: int) -> float:
    """The same for phones that have everything."""
    journal = Journal(farm)
    seq = journal.mark()
    farm.lab.unplug("*")
    gone = 0
    for event in journal.after(seq):
        gone += event.kind == "device.gone"
        if gone == size:
            seq = event.seq
            break
    begun = time.time()
    farm.lab.plug("*")
    return all_ready(farm, seq, size) - begun


def all_ready(farm: VirtualFarm, seq: int, size: int) -> float:
    """When the last of `size` phones became ready, Unix seconds."""
    ready: set[str] = set()
    for event in Journal(farm).after(seq, READY_LIMIT_S):
        if event.kind in LIFE_EVENTS:
            (ready.add if event.kind == "device.ready" else ready.discard)(event.subject)
        if len(ready) == size:
            return event.at
    raise AssertionError("an event stream ends with an error only")


def measure_idle(farm: VirtualFarm) -> Idle:
    """Watch the daemon, its zygote and its adb server for `IDLE_S`."""
    daemon = psutil.Process(farm.status()["pid"])
    children = daemon.children(recursive=True)
    adb = [child for child in children if child.name() == "adb"]
    zygotes = [child for child in children if child.name() != "adb"]
    percent, *adb_percent = cpu_percent([daemon, *adb], IDLE_S)
    zygotes_mb = sum(child.memory_info().rss for child in zygotes) / 1e6
    return Idle(percent, daemon.memory_info().rss / 1e6, zygotes_mb, sum(adb_percent))


async def bare_exchange_ms(socket: str, serial: str) -> float:
    """Milliseconds of this process's processor for the probe's command, its output neither read nor kept."""
    client = AdbClient(socket)
    return await busy_per_call_ms(lambda: client.shell(serial, probe_command(), timeout_s=WAIT_S), BARE)


def change_seen_s(farm: VirtualFarm, phones: Mapping[str, str]) -> float:
    """Seconds until a fall of all batteries is in every phone's row of `farm status`."""
    for name in phones:
        farm.lab.battery(name, LEVEL)
    begun = time.monotonic()
    until_all(farm, lambda row: row["battery_percent"] is not None and row["battery_percent"] <= LEVEL)
    return time.monotonic() - begun


def until_all(farm: VirtualFarm, fits: Callable[[Mapping[str, Any]], bool]) -> None:
    """Wait until every phone's row in `farm status` fits."""
    until(lambda: all(map(fits, farm.status()["devices"])), WAIT_S, "some phones show nothing new")
