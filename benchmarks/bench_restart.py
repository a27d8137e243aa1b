"""From SIGKILL of a daemon with a long history to one that serves, beside one with an empty database.

Counted from the start of the new process, so with Python's imports, until `ping` and then `status` are answered.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from benchmarks.harness import Context, Figure
from benchmarks.history import write_history
from farm.cli.virtual_farm import DaemonProcess

JOBS = 100_000
STARTS = 5
GOAL_S = 2.0


def run(context: Context) -> list[Figure]:
    """Both starts, and how large the database is."""
    context.say(f"writing {JOBS} ended jobs with leases, attempts, results and events")
    old, empty = context.folder / "old", context.folder / "empty"
    for folder in (old, empty):
        (folder / "state").mkdir(parents=True)
    asyncio.run(write_history(old / "state" / "farm.db", JOBS))
    context.say(f"{STARTS} starts without history, {STARTS} with, each after SIGKILL")
    empty_s, old_s = starts_s(empty), starts_s(old)
    size_mb = (old / "state" / "farm.db").stat().st_size / 1e6
    median_s = statistics.median(old_s)
    return [
        Figure(f"SIGKILL to serving, {JOBS} jobs", median_s, "s", None, f"under {GOAL_S:g}", median_s < GOAL_S),
        Figure("the slowest of them", max(old_s), "s"),
        Figure("SIGKILL to serving, empty database", statistics.median(empty_s), "s"),
        Figure("the history", size_mb, "MB"),
    ]


def starts_s(folder: Path) -> list[float]:
    """How long each start took, the first (which makes what is missing) left out."""
    daemon = DaemonProcess(folder)
    try:
        times = []
        for _ in range(STARTS + 1):
            begun = time.monotonic()
            client = daemon.start()
            client.call("status")
            times.append(time.monotonic() - begun)
            client.close()
            daemon.kill()
    finally:
        daemon.stop()
    return times[1:]
