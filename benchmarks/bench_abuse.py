"""What an open TVM session, a tracker's client and an operator notice of somebody else's abuse.

Each abuse (`benchmarks/abusers.py`) has a row without it, measured just before. Abusers of the history are remote
viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import Context, Figure, percentile, under, until
from benchmarks.whole_farm import PROFILES
from farm.common.errors import DaemonUnreachableError, HostError
from farm.common.events import EPOCH_SHIFT, Event
from farm.control.client import ControlClient
from farm.daemon.monitoring import TRIM_EVERY_S
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm
from farm.store.store import Store
from tests.support.other_users import key_of

EVENTS = 1_700  # in the history
MEASURE_S = 8.0
CALL_EVERY_S = 0.01
STATUS_EVERY_S = 0.25
SETTLE_LIMIT_S = 30.0
IDLE_PERCENT = 15.0  # of a core: below it the daemon has nothing left to do for callers that have gone
GOAL_FACTOR = 3.0
FLOOR_MS = 20.0  # of the quiet figure: below it the scheduler of the host decides
GOAL_STATUS_S = 1.0
GOAL_STATUS_MEDIAN_S = 0.1
GOAL_IDLE_S = 5.0
GOAL_GROWTH_MB = 30.0
ABUSES = (
    ("30 readers of all events", "events", 30),
    ("250 readers of all events", "events", 250),
    ("5,000 silent TVM connections", "silent", 5_000),
    ("20 slow clients of each port", "drip", 20),
    ("20 readers of the page", "web", 20),
    ("40 readers of /metrics", "metrics", 40),
    ("100 readers of sorted jobs", "jobs", 100),
    ("20 clients that connect to the page and leave", "connect web", 20),
    ("20 clients that connect to the TVM port and leave", "connect tvm", 20),
    ("20 clients that connect to the control port and leave", "connect control", 20),
    ("an upload of 1 GiB", "upload", 1),
)
CONFIG = '[control]\nlisten = "tcp://127.0.0.1:0"\n'


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations of `MEASURE_S`."""

    calls_ms: list[float]
    status_s: list[float]
    exchanges_ms: list[float]  # of a tracker's client; none when it was refused, as one of the abuser's user may be


def run(context: Context) -> list[Figure]:
    """The session's calls and an operator's `status` beside each abuse; memory and work that are left."""
    from tvm import rpc

    figures: list[Figure] = []
    large = context.folder / "large.bin"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    with virtual_farm(phones_of(PROFILES[:2]), config=CONFIG, report=context.say) as farm:
        farm.wait_ready(2)
        context.say(f"{EVENTS} events are put into the database")
        fill(farm)
        farm.wait_ready(2)
        status = farm.status()
        daemon = psutil.Process(status["pid"])
        where = {
            "key": str(key_of(farm, "abuser", "viewer", context.folder)), "socket": str(farm.socket),
            "tracker": farm.tracker(), "web": status["web"], "upload": str(large),
        }  # fmt: skip
        session = rpc.connect_tracker(*farm.tracker()).request("android")
        before_mb = daemon.memory_info().rss / 1e6
        for title, kind, count in ABUSES:
            quiet = measure(farm, session)
            context.say(title)
            with abusers(kind, count, where):
                abused = measure(farm, session)
            figures += [*rows(title, quiet, abused), left_over(title, daemon)]
            figures.append(Figure(f"{title}: memory of the daemon", daemon.memory_info().rss / 1e6, "MB", before_mb))
        time.sleep(2 * TRIM_EVERY_S)
        after_mb = daemon.memory_info().rss / 1e6
        words = f"at most {GOAL_GROWTH_MB:g} more than before"
        ok = after_mb <= before_mb + GOAL_GROWTH_MB
        figures.append(Figure("memory of the daemon after all", after_mb, "MB", before_mb, words, ok))
    return figures


def fill(farm: VirtualFarm) -> None:
    """Give the history `EVENTS` events; the daemon is killed for it and started again."""
    epoch = farm.status()["seq"] >> EPOCH_SHIFT
    farm.daemon.kill()
    asyncio.run(add_events(farm.folder / "state" / "farm.db", (epoch + 1 << EPOCH_SHIFT) - EVENTS - 1))
    farm.daemon.start().close()
    farm.client.close()


async def add_events(database: Path, seq: int) -> None:
    """Events after `seq`, as agents publish them."""
    store = Store.open(database)
    data = {"from": "ready", "reason": "the phone is checked", "seconds": 1.25}
    try:
        await store.events.add(
            [Event(seq + n, datetime.now(UTC), "device.checking", "virtual", data) for n in range(1, EVENTS + 1)]
        )
    finally:
        store.close()


def measure(farm: VirtualFarm, session: Any) -> Measured:
    """Calls of the session; beside them an operator's `status`, and exchanges with the tracker."""
    import numpy as np
    import tvm
    from tvm import rpc

    tensor = tvm.runtime.tensor(np.zeros(1, "float32"), session.cpu(0))
    measured, over, address = Measured([], [], []), threading.Event(), farm.tracker()

    def operate() -> None:
        while not over.wait(STATUS_EVERY_S):
            begun = time.monotonic()
            with contextlib.suppress(DaemonUnreachableError), ControlClient(farm.socket) as client:
                client.call("status")  # unanswered for 2 s it is given up: also more than the goal
            measured.status_s.append(time.monotonic() - begun)

    def exchange() -> None:
        with contextlib.suppress(OSError):
            tracker = rpc.connect_tracker(*address)
            while not over.wait(CALL_EVERY_S):
                begun = time.perf_counter()
                tracker.summary()
                measured.exchanges_ms.append(1e3 * (time.perf_counter() - begun))

    threads = [threading.Thread(target=each) for each in (operate, exchange)]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + MEASURE_S
    while time.monotonic() < until_s:
        begun = time.perf_counter()
        tensor.numpy()  # one round trip
        measured.calls_ms.append(1e3 * (time.perf_counter() - begun))
        time.sleep(CALL_EVERY_S)
    over.set()
    for thread in threads:
        thread.join()
    return measured


@contextlib.contextmanager
def abusers(kind: str, count: int, where: dict[str, Any]) -> Iterator[None]:
    """A process of abusers.

    Raises:
        HostError: it did not begin.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.abusers", kind, str(count), json.dumps(where)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"begun\n":
            raise HostError(f"the abusers ({kind}) did not begin")
        yield
    finally:
        process.kill()
        process.communicate()


def left_over(title: str, daemon: psutil.Process) -> Figure:
    """How long the daemon works on for callers that have gone."""
    begun = time.monotonic()
    until(lambda: daemon.cpu_percent(0.5) < IDLE_PERCENT, SETTLE_LIMIT_S, f"the daemon is not idle after: {title}")
    return under(f"{title}: work left", time.monotonic() - begun, "s", GOAL_IDLE_S)


def rows(title: str, quiet: Measured, abused: Measured) -> list[Figure]:
    """Figures of one abuse; the column "stock" is the same without it."""
    worst, quiet_worst = max(abused.calls_ms), max(quiet.calls_ms)
    goal_ms = GOAL_FACTOR * max(quiet_worst, FLOOR_MS)
    quiet_ms = statistics.median(quiet.calls_ms)
    median_s, quiet_median_s = statistics.median(abused.status_s), statistics.median(quiet.status_s)
    status_s, quiet_s = max(abused.status_s), max(quiet.status_s)
    figures = [
        under(f"{title}: call, median", statistics.median(abused.calls_ms), "ms", GOAL_FACTOR * quiet_ms, quiet_ms),
        Figure(f"{title}: call, p99", percentile(abused.calls_ms, 99), "ms", percentile(quiet.calls_ms, 99)),
        under(f"{title}: call, maximum", worst, "ms", goal_ms, quiet_worst),
        under(f"{title}: an operator's status, median", median_s, "s", GOAL_STATUS_MEDIAN_S, quiet_median_s),
        under(f"{title}: an operator's status, maximum", status_s, "s", GOAL_STATUS_S, quiet_s),
    ]
    if abused.exchanges_ms:
        p99_ms, quiet_ms = percentile(abused.exchanges_ms, 99), percentile(quiet.exchanges_ms, 99)
        goal_ms = GOAL_FACTOR * max(quiet_ms, FLOOR_MS)
        figures.append(under(f"{title}: tracker exchange, p99", p99_ms, "ms", goal_ms, quiet_ms))
    return figures
