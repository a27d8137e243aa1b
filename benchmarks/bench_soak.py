"""A long storm over six phones: nothing may grow, nobody may get wrong numbers, and every phone must be back.

`python -m benchmarks soak` takes ten minutes; SOAK_MINUTES and SOAK_SEED change that. The storm pauses every minute:
when all phones are ready and nobody holds one, the farm must look as it did the minute before. Left out is what needs a
person by design: wrong numbers quarantine a phone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness import Context, Figure
from benchmarks.storm import COOLS_AT_ONCE, FarmStorm, PhoneStorm, Tally, User, Weather
from benchmarks.whole_farm import PROFILES
from farm.cli.virtual_farm import VirtualFarm, virtual_farm
from farm.core.errors import HostError, UserError

PHONES = 6
USERS = 3
DEFAULT_MINUTES = 10.0
DEFAULT_SEED = 20_260_801
STORM_S = 45.0
REST_LIMIT_S = 200.0  # a client may wait for a phone as long as phones take to come back
READY_LIMIT_S = 180.0  # a phone that failed many times in a row is tried once a minute
SETTLE_LIMIT_S = 20.0  # for processes of sessions that just ended
# 20,000 events of the log are kept, 10 MB, and fill up in the first minutes; the allocator keeps as much again.
GOAL_GROWTH_MB = 20.0
GOAL_DESCRIPTORS = 3  # adb connections that happen to be open when we look


@dataclass(frozen=True, slots=True)
class Look:
    """The daemon in a moment of calm."""

    rss_mb: float
    descriptors: int
    threads: int
    strays: int  # RPC processes on phones beyond one server each
    ready_s: float  # from the end of the storm until every phone was ready


def run(context: Context) -> list[Figure]:
    """Growth between the first calm and the last, and what was promised about users and phones."""
    minutes, seed = _number("SOAK_MINUTES", DEFAULT_MINUTES), int(_number("SOAK_SEED", DEFAULT_SEED))
    weather, tally = Weather(), Tally()
    phones = {f"phone-{number}": PROFILES[number % len(PROFILES)] for number in range(PHONES)}
    with virtual_farm(phones, config=COOLS_AT_ONCE, tell=context.say) as farm:
        farm.wait_ready(PHONES)
        (golden,) = (farm.folder / "state" / "bundles" / "objects").glob("*/golden")
        threads: list[PhoneStorm | FarmStorm | User] = [
            *(PhoneStorm(weather, tally, farm.lab.directory, phone, farm, seed) for phone in phones),
            FarmStorm(weather, tally, farm, seed),
            *(User(weather, tally, farm.tracker(), golden, f"{seed} user {number}") for number in range(USERS)),
        ]
        for thread in threads:
            thread.start()
        context.say(f"{minutes:g} minutes, seed {seed}")
        looks: list[Look] = []
        ends_at = time.monotonic() + 60 * minutes
        try:
            while len(looks) < 2 or time.monotonic() < ends_at:
                weather.storm()
                time.sleep(STORM_S)
                weather.calm(REST_LIMIT_S)
                for thread in threads:
                    if thread.failure is not None:
                        raise thread.failure
                looks.append(look(farm))
                context.say(f"calm {len(looks)}: {looks[-1]}")
        finally:
            weather.end()
            kept = _keep(farm.daemon.log, seed)
            context.say(f"{dict(tally.done)}; the daemon's log: {kept}")
        tracebacks = kept.read_text(errors="replace").count("Traceback")
        status = farm.status()
    return _figures(looks, tally, tracebacks, sum(row["pending"] for row in status["keys"]))


def _figures(looks: Sequence[Look], tally: Tally, tracebacks: int, pending: int) -> list[Figure]:
    first, last = looks[0], looks[-1]
    growth_mb, descriptors = last.rss_mb - first.rss_mb, last.descriptors - first.descriptors
    sessions = {kind: count for kind, count in tally.done.items() if kind.startswith("session")}
    served = sessions.get("session served", 0)

    def none(name: str, count: int) -> Figure:
        return Figure(name, count, "", None, "none", count == 0)

    return [
        Figure("moments of calm", len(looks), "", None, "every phone ready in each"),
        Figure("until every phone was ready, the worst", max(each.ready_s for each in looks), "s"),
        Figure("memory of the daemon", last.rss_mb, "MB"),
        Figure(
            "memory, last calm beside the first", growth_mb, "MB", None, f"under {GOAL_GROWTH_MB:g}",
            growth_mb < GOAL_GROWTH_MB,
        ),
        Figure(
            "descriptors, last calm beside the first", descriptors, "", None, f"at most {GOAL_DESCRIPTORS}",
            descriptors <= GOAL_DESCRIPTORS,
        ),
        Figure("threads, last calm beside the first", last.threads - first.threads, ""),
        none("RPC processes left on phones", sum(each.strays for each in looks)),
        none("requests left waiting", pending),
        none("sessions with wrong numbers", len(tally.wrong)),
        none("clients that hung", tally.hung),
        none("tracebacks in the daemon's log", tracebacks),
        Figure("sessions served", served, "", None, "some", served > 0),
        Figure("sessions broken or refused", sum(sessions.values()) - served, ""),
        Figure("faults", tally.done.total() - sum(sessions.values()), ""),
    ]  # fmt: skip


def look(farm: VirtualFarm) -> Look:
    """Wait until the farm is whole again, and look at it.

    Raises:
        HostError: a phone does not become ready, or a lease does not end; says which.
    """
    begun = time.monotonic()
    while True:
        devices = farm.status()["devices"]
        leases = farm.client.call("lease.list")
        late = [row for row in devices if row["state"] != "ready"]
        if not late and not leases["leases"] and not leases["waiting"]:
            break
        if time.monotonic() - begun > READY_LIMIT_S:
            what = "; ".join(f"{row['name']} is {row['state']}: {row['reason']}" for row in late)
            raise HostError(f"{READY_LIMIT_S:g} s after the storm: {what or leases}")
        time.sleep(0.05)
    ready_s = time.monotonic() - begun
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while (strays := _servers() - PHONES) > 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    daemon = psutil.Process(farm.status()["pid"])
    return Look(daemon.memory_info().rss / 1e6, daemon.num_fds(), daemon.num_threads(), strays, ready_s)


def _servers() -> int:
    """RPC servers and sessions on all phones: each phone's processes are descendants of the lab, and it is of us."""
    count = 0
    for process in psutil.Process().children(recursive=True):
        try:
            count += process.name() == "tvm_rpc"
        except psutil.NoSuchProcess:
            continue
    return count


def _keep(log: Path, seed: int) -> Path:
    kept = Path(tempfile.gettempdir()) / f"farm-soak-{seed}.log"
    shutil.copyfile(log, kept)
    return kept


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text else default
    except ValueError as error:
        raise UserError(f"{variable} is {text!r}, not a number") from error
    if number <= 0:
        raise UserError(f"{variable} is {text!r}", hint="more than 0")
    return number
