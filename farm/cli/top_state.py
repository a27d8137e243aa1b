"""The farm as `farm top` shows it: answers of the daemon in, plain values out. No clock, no terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from farm.core.durations import format_duration

MOST_EVENTS = 200  # kept for the ticker
NOT_NEWS = frozenset({"device.pushing", "job.progress"})  # the picture itself tells these


class Sort(StrEnum):
    """Orders of phones."""

    STATE = "state"
    NAME = "name"
    HEAT = "heat"
    BATTERY = "battery"
    HOLDER = "holder"


@dataclass(frozen=True, slots=True)
class Phone:
    """One phone, and who has it."""

    name: str
    state: str
    reason: str
    soc: str
    gpu: str
    celsius: float | None
    battery: int | None
    heat: str  # ok, warm, hot: what the heat policy says
    user: str  # "" when nobody has it
    what: str  # job or key it is used for
    held_s: float | None
    session: bool  # a TVM session is open


@dataclass(frozen=True, slots=True)
class Running:
    """A job that has not ended."""

    id: str
    kind: str
    name: str
    user: str
    state: str
    device: str
    step: str
    done: float | None  # part of the whole, 0 to 1, where its steps tell
    waits: str
    submitted: datetime


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request without a phone."""

    user: str
    selector: str
    job: str
    priority: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class News:
    """An event as one line."""

    seq: int
    at: datetime
    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Farm:
    """The farm at one moment."""

    version: str
    tracker: str
    at: datetime
    phones: tuple[Phone, ...] = ()
    jobs: tuple[Running, ...] = ()
    waiting: tuple[Waiter, ...] = ()
    waiting_more: int = 0
    jobs_more: bool = False
    news: tuple[News, ...] = ()  # oldest first
    problems: tuple[str, ...] = ()
    seq: int = 0
    starts: int = 0  # of the daemon since the watcher came, seen by its process number
    pid: int = 0

    def counts(self) -> dict[str, int]:
        """Phones by state."""
        return Counter(phone.state.partition(",")[0] for phone in self.phones)


def farm_from(status: Mapping[str, Any], leases: Mapping[str, Any], jobs: Mapping[str, Any], at: datetime) -> Farm:
    """What the answers of `status`, `lease.list` and `job.list` come to."""
    held = {row["device"]: row for row in leases["leases"]}
    return Farm(
        version=status["version"],
        tracker=f"{status['tracker']['host']}:{status['tracker']['port']}",
        at=at,
        phones=tuple(_phone(row, held.get(row["name"])) for row in status["devices"]),
        jobs=tuple(_job(row) for row in jobs["jobs"]),
        jobs_more=jobs["more"],
        waiting=tuple(
            Waiter(row["user"], row["selector"], row["job"] or "", row["priority"], row["waited_s"])
            for row in leases["waiting"]
        ),
        waiting_more=leases["waiting_more"],
        problems=tuple(status["problems"]),
        seq=status["seq"],
        pid=status["pid"],
    )


def followed(before: Farm | None, now: Farm, events: Iterable[Mapping[str, Any]]) -> Farm:
    """`now` with the ticker of before and what has happened since."""
    known = before.news if before else ()
    last = known[-1].seq if known else 0
    fresh = [_news(event) for event in events if event["kind"] not in NOT_NEWS and event["seq"] > last]
    starts = 0 if before is None else before.starts + (now.pid != before.pid)
    return replace(now, news=(*known, *fresh)[-MOST_EVENTS:], starts=starts)


def sorted_phones(phones: Sequence[Phone], by: Sort, wanted: str = "") -> list[Phone]:
    """Those whose words have all the words of `wanted`, in order: what needs a look goes first."""
    words = wanted.lower().split()
    shown = [phone for phone in phones if all(word in _words(phone) for word in words)]
    match by:
        case Sort.NAME:
            return sorted(shown, key=lambda phone: phone.name)
        case Sort.HEAT:
            return sorted(shown, key=lambda phone: (-(phone.celsius or -273.0), phone.name))
        case Sort.BATTERY:
            return sorted(shown, key=lambda phone: (101 if phone.battery is None else phone.battery, phone.name))
        case Sort.HOLDER:
            return sorted(shown, key=lambda phone: (phone.user == "", phone.user, phone.name))
        case Sort.STATE:
            return sorted(shown, key=lambda phone: (_rank(phone.state), phone.name))


def sorted_jobs(jobs: Sequence[Running], wanted: str = "") -> list[Running]:
    """Those that run first, then those that wait, the oldest first."""
    words = wanted.lower().split()
    order = {"running": 0, "queued": 1, "blocked": 2, "held": 3}
    shown = [
        job
        for job in jobs
        if all(word in f"{job.id} {job.kind} {job.name} {job.user} {job.device} {job.state}".lower() for word in words)
    ]
    return sorted(shown, key=lambda job: (order.get(job.state, 4), job.submitted))


def as_json(farm: Farm) -> dict[str, Any]:
    """For scripts: one document per picture."""
    from dataclasses import asdict

    return asdict(farm)


def _phone(row: Mapping[str, Any], lease: Mapping[str, Any] | None) -> Phone:
    return Phone(
        name=row["name"], state=row["state"], reason=row.get("reason") or "", soc=row.get("soc") or "",
        gpu=row.get("gpu") or "", celsius=row.get("temperature_c"), battery=row.get("battery_percent"),
        heat=row.get("heat") or "ok", user=lease["user"] if lease else row.get("holder") or "",
        what=(lease["job"] or lease["key"] or lease["note"] or "") if lease else "",
        held_s=lease["held_s"] if lease else None, session=bool(lease and lease.get("session")),
    )  # fmt: skip


def _job(row: Mapping[str, Any]) -> Running:
    progress = row.get("progress") or {}
    done, of = progress.get("done"), progress.get("of")
    return Running(
        id=row["id"], kind=row["kind"], name=row["name"], user=row["user"], state=row["state"],
        device=row["on"] or row["device"] or "", step=str(progress.get("step") or ""),
        done=done / of if done is not None and of else None, waits=row["waits"] or "",
        submitted=datetime.fromisoformat(row["submitted_at"]),
    )  # fmt: skip


def _news(event: Mapping[str, Any]) -> News:
    data = event["data"]
    error = data.get("error")
    told = (
        error.get("message") if isinstance(error, Mapping) else "",
        data.get("reason"), data.get("what"), data.get("message"), data.get("device"), data.get("user"),
    )  # fmt: skip
    text = ", ".join(str(each) for each in told if each)
    return News(event["seq"], datetime.fromisoformat(event["at"]), event["kind"], event["subject"], text)


def _words(phone: Phone) -> str:
    return f"{phone.name} {phone.state} {phone.soc} {phone.gpu} {phone.user} {phone.what} {phone.reason}".lower()


def _rank(state: str) -> int:
    """What a person must look at first: broken, then on its way, then at work, then free."""
    ranks = {"quarantined": 0, "unauthorized": 0, "recovering": 1, "busy": 3, "ready": 4, "maintenance": 5, "gone": 6}
    return ranks.get(state.partition(",")[0], 2)


def age(seconds: float | None) -> str:
    """How long; empty when nobody knows."""
    return "" if seconds is None else format_duration(seconds)
