"""From SIGKILL of the adb server until every phone is ready again, its RPC server taken over and not restarted.

The new server finds phones on USB by itself; the lab tells it of its virtual ones.
"""

from __future__ import annotations

import os
import signal
import time

import psutil

from benchmarks.harness import Context, Figure, under
from benchmarks.whole_farm import PROFILES
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm

PHONES = 20
ROUNDS = 3
GOAL_S = 10.0


def run(context: Context) -> list[Figure]:
    """The slowest phone of the slowest round, and how many servers on phones are not the ones before."""
    profiles = [PROFILES[number % len(PROFILES)] for number in range(PHONES)]
    with virtual_farm(phones_of(profiles), report=context.say) as farm:
        farm.wait_ready(PHONES)
        before = servers()
        took_s = [killed(farm) for _ in range(ROUNDS)]
        replaced = len(before - servers())
    worst_s = max(took_s)
    return [
        under(f"adb server killed, {PHONES} phones ready", worst_s, "s", GOAL_S),
        Figure("RPC servers that were replaced", replaced, "servers", None, "0", replaced == 0),
    ]


def killed(farm: VirtualFarm) -> float:
    """Kill the farm's adb server once; seconds until the last phone is ready."""
    status = farm.status()
    (server,) = (child for child in psutil.Process(status["pid"]).children() if "nodaemon" in child.cmdline())
    away = {device["name"] for device in status["devices"]}
    at = time.monotonic()
    os.kill(server.pid, signal.SIGKILL)
    for event in farm.events(status["seq"]):
        if event["kind"] == "device.ready":
            away.discard(event["subject"])
            if not away:
                break
    return time.monotonic() - at


def servers() -> set[int]:
    """The process ids, on this host, of the supervisors of the phones' RPC servers."""
    family = psutil.Process().children(recursive=True)
    return {process.pid for process in family if "supervise" in _words(process)}


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []  # it ended meanwhile
