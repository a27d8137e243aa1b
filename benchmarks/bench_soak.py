"""A long storm over many phones: nothing may grow, nobody may get wrong numbers, every phone must be back.

`make soak` takes an hour with 20 phones; SOAK_MINUTES, SOAK_PHONES and SOAK_SEED change that. The storm pauses every
minute: when all phones are ready and nobody holds one, the farm must look as it did the minute before. No phone may be
quarantined without a fault that explains it. Left out is what needs a person by design, as wrong numbers do.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.fault_scene import Recorder
from benchmarks.harness import Context, Figure, under
from benchmarks.storm import COOLS_AT_ONCE, FarmStorm, PhoneStorm
from benchmarks.storm_users import User
from benchmarks.storm_weather import Tally, Weather
from benchmarks.whole_farm import PROFILES, Event
from farm.common.errors import HostError, UserError
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm

DEFAULT_PHONES = 20
USERS = 3
DEFAULT_MINUTES = 60.0
PAUSE_S = 1.0  # for each phone: two cores carry so many faults a second
ON_A_HUB = 5  # phones
DEFAULT_SEED = 20_260_801
STORM_S = 45.0
MIN_STORM_S = 10.0  # the last one ends with the soak
REST_LIMIT_S = 200.0  # a client may wait for a phone as long as phones take to come back
READY_LIMIT_S = 180.0  # a phone that failed many times in a row is tried once a minute
WELL_S = 45.0  # a quarantine that ends by itself has ended by then: four probes
SETTLE_LIMIT_S = 20.0  # for processes of sessions that just ended
# 20,000 events of the log are kept, 10 MB, and fill up in the first minutes; the allocator keeps as much again, and
# readings of the last hour some. Whether it is flat then is what the second half of a long soak tells.
GOAL_GROWTH_MB = 30.0
GOAL_SLOPE_MB_PER_H = 5.0
LONG_S = 1800.0
GOAL_DESCRIPTORS = 3  # adb connections that happen to be open when we look
TELL_EVERY_S = 300.0
SAMPLES, SAMPLE_S = 40, 0.05
# A storm does in an hour what a phone goes through in months, so its days are longer than the budgets'.
CONFIG = """
[recovery]
restarts_per_day = 100000
pushes_per_day = 100000
reconnects_per_day = 100000
reboots_per_day = 100000
power_cycles_per_day = 100000
"""
EXPLAINS_S = 120.0  # a fault so long ago explains a quarantine
# How a quarantine's own cause reads when that was wrong, by fault.
_OF_THE_SERVER = {
    "server": r"RPC server (died|did not|hangs)|supervisor",
    "start": r"RPC server did not start|did not finish a command",
    "check": r"golden|check|session",
    "stuck": r"SIGKILL|do not die|does not die",
}
_STORAGE = {"storage": r"/data (has \d+ Mi?B|became full)"}
_HOT = {"hot": r"battery too hot: .* the phone calls it overheated"}
# Faults that may end in quarantine, most of them only when they fall on one phone again and again: what is said then.
EXPLAINED: Mapping[str, Mapping[str, str]] = {
    "full": {**_STORAGE, **_OF_THE_SERVER},
    "hot_battery": _HOT,
    "stuck": {"stuck": _OF_THE_SERVER["stuck"]},
    **dict.fromkeys(("wiped", "server_crash", "server_hang", "segfault", "endless"), _OF_THE_SERVER),
    **dict.fromkeys(("supervisor_killed", "corrupted", "boot_loop"), _OF_THE_SERVER),
}


@dataclass(frozen=True, slots=True)
class Look:
    """The daemon in a moment of calm."""

    at: float  # monotonic seconds
    rss_mb: float
    heap_mb: float  # in use, without what the C library keeps for later
    descriptors: int
    threads: int
    strays: int  # RPC processes on phones beyond one server each; 0 also where one is missing that moment
    ready_s: float  # from the end of the storm until every phone was ready


def run(context: Context) -> list[Figure]:
    """Growth between the first calm and the last, and what was promised about users and phones."""
    minutes, seed = _number("SOAK_MINUTES", DEFAULT_MINUTES), int(_number("SOAK_SEED", DEFAULT_SEED))
    weather, tally = Weather(), Tally()
    count = int(_number("SOAK_PHONES", DEFAULT_PHONES))
    os.environ["PYTHONMALLOC"] = "malloc"  # of all processes below: the daemon's Python objects count as heap in use
    phones = {f"phone-{number}": PROFILES[number % len(PROFILES)] for number in range(count)}
    places = {phone: f"1-{1 + number // ON_A_HUB}.{1 + number % ON_A_HUB}" for number, phone in enumerate(phones)}
    hubs = sorted({place.partition(".")[0] for place in places.values()})
    with virtual_farm(phones, config=CONFIG + COOLS_AT_ONCE, places=places, report=context.say) as farm:
        farm.wait_ready(count)
        names = {row["serial"]: row["name"] for row in farm.status()["devices"]}
        devices = {names[farm.lab.phone(phone).serial]: phone for phone in phones}
        recorder = Recorder(farm)
        (golden,) = (farm.folder / "state" / "bundles" / "objects").glob("*/golden")
        threads: list[PhoneStorm | FarmStorm | User] = [
            *(PhoneStorm(weather, tally, farm.lab.directory, phone, farm, seed, PAUSE_S * count) for phone in phones),
            FarmStorm(weather, tally, farm, seed, hubs),
            *(User(weather, tally, farm.tracker(), golden, f"{seed} user {number}") for number in range(USERS)),
        ]
        for thread in threads:
            thread.start()
        began = told = time.monotonic()
        looks: list[Look] = [look(farm, count)]
        context.say(f"{minutes:g} minutes, {count} phones, seed {seed}; at the start {looks[0]}")
        ends_at = time.monotonic() + 60 * minutes
        try:
            while len(looks) < 3 or time.monotonic() < ends_at:
                weather.storm()
                time.sleep(min(STORM_S, max(MIN_STORM_S, ends_at - time.monotonic())))
                weather.calm(REST_LIMIT_S)
                for thread in threads:
                    if thread.failure is not None:
                        raise thread.failure
                looks.append(look(farm, count))
                if time.monotonic() - told > TELL_EVERY_S:
                    told = time.monotonic()
                    context.say(
                        f"after {(told - began) / 60:.0f} min: {looks[-1]}; {tally.done.total()} blows and sessions"
                    )
        finally:
            weather.end()
            recorder.close()
            kept = _keep(farm.daemon.log, seed)
            context.say(f"{dict(tally.done)}; the daemon's log: {kept}")
        tracebacks = kept.read_text(errors="replace").count("Traceback")
        status = farm.status()
    quarantines = [
        each for each in recorder.events if each.kind == "recovery.action" and each.data["action"] == "quarantine"
    ]
    false = [each for each in quarantines if not _explained(each, devices.get(each.subject, ""), tally)]
    for each in false:
        context.say(f"quarantined for nothing: {each.subject}: {each.data}")
    actions = Counter(str(each.data["action"]) for each in recorder.events if each.kind == "recovery.action")
    context.say(f"actions: {dict(actions)}")
    hours = (time.monotonic() - began) / 3600
    return [
        *_figures(looks, tally, tracebacks, sum(row["pending"] for row in status["keys"])),
        Figure("quarantines, all explained by a fault on that phone", len(quarantines) - len(false), ""),
        Figure("quarantines of healthy phones", len(false), "", None, "none", not false),
        Figure("quarantines of healthy phones, rate", len(false) / (hours * count), "per phone and hour"),
    ]


def _explained(quarantine: Event, phone: str, tally: Tally) -> bool:
    """Whether a fault that fell on the phone lately explains it: the recorded fault, and the words of its cause."""
    fault, cause = str(quarantine.data["fault"]), str(quarantine.data["cause"])
    for at, hurt, injected in tally.blows:
        said = EXPLAINED.get(injected, {}).get(fault)
        if hurt == phone and 0 <= quarantine.at - at <= EXPLAINS_S and said and re.search(said, cause):
            return True
    return False


def _slope(values: Sequence[tuple[float, float]]) -> float:
    """Growth per hour by least squares over the second half: the first fills what is bounded. Pairs of (s, value)."""
    half = values[len(values) // 2 :]
    middle_s, middle = (sum(column) / len(half) for column in zip(*half, strict=True))
    spread = sum((at - middle_s) ** 2 for at, _ in half)
    return 3600 * sum((at - middle_s) * (value - middle) for at, value in half) / spread if spread else 0.0


def _figures(looks: Sequence[Look], tally: Tally, tracebacks: int, pending: int) -> list[Figure]:
    # The first look is before the storm: the first calm after it has what every farm at work has.
    start, first, last = looks[0], looks[1], looks[-1]
    growth_mb, descriptors = last.heap_mb - first.heap_mb, last.descriptors - first.descriptors
    sessions = {kind: count for kind, count in tally.done.items() if kind.startswith("session")}
    served = sessions.get("session served", 0)

    def none(name: str, count: int) -> Figure:
        return Figure(name, count, "", None, "none", count == 0)

    slope, long = _slope([(each.at, each.heap_mb) for each in looks]), last.at - start.at >= LONG_S
    return [
        Figure("moments of calm", len(looks) - 1, "", None, "every phone ready in each"),
        Figure("until every phone was ready, the worst", max(each.ready_s for each in looks[1:]), "s"),
        Figure("memory of the daemon at the start", start.rss_mb, "MB"),
        Figure("memory of the daemon", last.rss_mb, "MB"),
        Figure("heap of the daemon in use", last.heap_mb, "MB"),
        under("heap in use, slope of the second half", slope, "MB/h", GOAL_SLOPE_MB_PER_H if long else None),
        Figure("descriptors at the start", start.descriptors, ""),
        Figure("descriptors, slope of the second half", _slope([(each.at, each.descriptors) for each in looks]), "/h"),
        under("heap in use, last calm beside the first", growth_mb, "MB", GOAL_GROWTH_MB),
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


def look(farm: VirtualFarm, count: int) -> Look:
    """Wait until the farm is whole again, and look at it.

    Raises:
        HostError: a phone does not become ready, or a lease does not end; says which.
    """
    begun = time.monotonic()
    released: set[str] = set()
    while True:
        devices = farm.status()["devices"]
        leases = farm.client.call("lease.list")
        late = [row for row in devices if row["state"] != "ready"]
        for row in late:
            if row["life"] == "quarantined" and row["name"] not in released and time.monotonic() - begun > WELL_S:
                released.add(row["name"])  # a person looks: whether it was explained is judged in the end
                farm.farm("device", "release", row["name"])
        if not late and not leases["leases"] and not leases["waiting"]:
            break
        if time.monotonic() - begun > READY_LIMIT_S:
            what = "; ".join(f"{row['name']} is {row['state']}: {row['reason']}" for row in late)
            raise HostError(f"{READY_LIMIT_S:g} s after the storm: {what or leases}")
        time.sleep(0.05)
    ready_s = time.monotonic() - begun
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while (strays := _servers() - count) > 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    daemon = psutil.Process(farm.status()["pid"])
    descriptors = daemon.num_fds()
    for _ in range(SAMPLES):  # probes and checks open some for a moment
        time.sleep(SAMPLE_S)
        descriptors = min(descriptors, daemon.num_fds())
    rss_mb = daemon.memory_info().rss / 1e6
    with urllib.request.urlopen(urllib.parse.urljoin(farm.status()["web"], "/metrics"), timeout=READY_LIMIT_S) as page:
        (heap,) = re.findall(r"^farm_heap_bytes (\S+)$", page.read().decode(), re.MULTILINE)
    return Look(time.monotonic(), rss_mb, float(heap) / 1e6, descriptors, daemon.num_threads(), max(strays, 0), ready_s)


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
