"""From SIGKILL of a daemon with a long history to one that serves, beside one with an empty database.

The same with jobs that have not ended, too: half of them are queued, half wait for arrays of those (`after`).
Counted from the start of the new process, so with Python's imports, until `ping` and then `status` are answered.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Context, Figure, under
from benchmarks.history import write_history
from farm.common.errors import HostError
from farm.control.client import ControlClient
from farm.simulation.virtual_farm import DaemonProcess

JOBS = 100_000
LIVE = 2_000  # a multiple of two arrays
ARRAY = 50
PAGE = 500  # rows of one answer
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
    context.say(f"{STARTS} starts with history and {LIVE} jobs that wait")
    live_s = starts_s(old, LIVE)
    size_mb = (old / "state" / "farm.db").stat().st_size / 1e6
    median_s = statistics.median(old_s)
    return [
        under(f"SIGKILL to serving, {JOBS} jobs", median_s, "s", GOAL_S),
        Figure("the slowest of them", max(old_s), "s"),
        Figure(f"SIGKILL to serving, {LIVE} live jobs too, median", statistics.median(live_s), "s"),
        Figure("the slowest of those", max(live_s), "s"),
        Figure("SIGKILL to serving, empty database", statistics.median(empty_s), "s"),
        Figure("the history", size_mb, "MB"),
    ]


def starts_s(folder: Path, live: int = 0) -> list[float]:
    """How long each start took, the first (which makes what is missing) left out; it is given `live` jobs."""
    daemon = DaemonProcess(folder)
    try:
        times = []
        for number in range(STARTS + 1):
            daemon.kill()  # not after the last: a killed daemon cannot end its adb server
            begun = time.monotonic()
            client = daemon.start()
            client.call("status")
            times.append(time.monotonic() - begun)
            if number == 0:
                submit(client, live)
            elif (waits := waiting(client)) != live:
                raise HostError(f"{waits} jobs wait, not {live}")
            client.close()
    finally:
        daemon.stop()
    return times[1:]


def submit(client: ControlClient, live: int) -> None:
    """Arrays for a phone that is not there, and as many that wait for them to be done."""
    spec = {"kind": "shell", "on": "android", "command": "true", "devices": ARRAY}
    for _ in range(live // (2 * ARRAY)):
        first = client.call("job.submit", spec=spec)["array"]
        client.call("job.submit", spec={**spec, "after": [first]})


def waiting(client: ControlClient) -> int:
    """How many jobs have not begun."""
    count = 0
    more: dict[str, Any] = {}
    while (page := client.call("job.list", state=["queued", "blocked"], limit=PAGE, **more))["more"]:
        count += len(page["jobs"])
        more = {"before": page["jobs"][-1]["id"]}
    return count + len(page["jobs"])
