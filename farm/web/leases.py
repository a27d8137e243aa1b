"""Leases and the queue: holders of phones with their times, and waiting requests, with reason and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from farm.client.lease import HeldPhone
from farm.common.durations import format_duration, parse_duration
from farm.common.errors import FarmError
from farm.common.selector import natural
from farm.control.callers import Caller, Role
from farm.model.job import FINAL
from farm.model.requests import NoSuchLeaseError
from farm.web.job_views import reasons
from farm.web.page import PageRoute, ask, caller_of, done, form_of, render

router = APIRouter(route_class=PageRoute)
PAGE_WAITING = 50
ESTIMATED = 10  # of the foremost: an explanation looks at every phone
PAGE_LATER = 50  # that wait for something else than a phone


def allowed_actions(caller: Caller, lease: Mapping[str, Any]) -> frozenset[str]:
    """The actions offered for a lease. The verbs decide: this only leaves out those that they would refuse."""
    own = caller.role is Role.OPERATOR or (caller.role >= Role.USER and caller.user == lease["user"])
    if own and lease["personal"]:  # the phones of other leases are a worker's or a TVM client's
        return frozenset({"use", "extend", "release"})
    return frozenset({"kick"} if caller.role is Role.OPERATOR else ())


async def _now(request: Request) -> dict[str, Any]:
    answer, caller = await ask(request, "lease.list"), caller_of(request)
    now = datetime.fromisoformat(answer["now"])
    leases = [
        {**lease, "since": now - timedelta(seconds=lease["held_s"]), "may": allowed_actions(caller, lease)}
        for lease in answer["leases"]
    ]
    return {**answer, "leases": sorted(leases, key=lambda lease: natural(str(lease["device"])))}


@router.get("/leases")
async def leases(request: Request, on: str = "android") -> Response:
    """The page; `on`: which phone its form asks for."""
    return render(request, "leases.html", part="leases_rows.html", on=on, **await _now(request))


@router.post("/leases/acquire")
async def acquire(request: Request) -> Response:
    """Ask for a phone."""
    form = await form_of(request)
    spec = {"kind": "lease", "on": form.get("on", ""), "seconds": parse_duration(form.get("duration", ""))}
    job = (await ask(request, "job.submit", spec=spec))["jobs"][0]["id"]
    return done(request, f"Lease {job} is requested.", f"/leases/use?lease={job}")


@router.get("/leases/use")
async def use(request: Request, lease: str) -> Response:
    """How its holder reaches a leased phone."""
    try:
        held = await ask(request, "lease.show", lease=lease)
    except NoSuchLeaseError:
        jobs = (await ask(request, "job.list", jobs=[lease], limit=1))["jobs"]
        if not jobs or jobs[0]["state"] in FINAL:
            raise
        return render(request, "lease_use.html", held=None, lease=lease)
    environment = HeldPhone(**{each.name: held[each.name] for each in fields(HeldPhone)}).environment
    lines = [f"export {name}={quote(value)}" for name, value in environment.items()]
    return render(request, "lease_use.html", held=held, lines=lines)


CALENDAR = {"day": timedelta(days=1), "week": timedelta(days=7)}
RESERVED_AHEAD = timedelta(days=7)
SCALE = 1000  # units of a timeline's width
COLOURS = 8  # classes of-0 .. of-7 of app.css


@dataclass(frozen=True, slots=True)
class Bar:
    """One lease or reservation on a timeline."""

    x: float
    width: float
    colour: int
    words: str


def bar(starts: datetime, ends: datetime, window: tuple[datetime, datetime], colour: int, words: str) -> Bar:
    """A span of time within a window, at least one unit wide."""
    begin, end = window
    x = max(0.0, SCALE * ((starts - begin) / (end - begin)))
    stop = min(float(SCALE), SCALE * ((ends - begin) / (end - begin)))
    return Bar(round(x, 1), round(max(1.0, stop - x), 1), colour, words)


def timeline(
    leases: Sequence[Mapping[str, Any]], window: tuple[datetime, datetime]
) -> tuple[list[tuple[str, list[Bar]]], list[tuple[str, str, int]]]:
    """A row of bars for each device, and each user with the time of use and a colour, most use first."""
    begin, now = window
    spans = [
        (each, datetime.fromisoformat(each["granted_at"]), datetime.fromisoformat(each["ended_at"] or now.isoformat()))
        for each in leases
    ]
    used: dict[str, timedelta] = {}
    for each, starts, ends in spans:
        used[each["user"]] = used.get(each["user"], timedelta()) + ends - max(starts, begin)
    users = sorted(used, key=lambda user: (-used[user], user))
    rows: dict[str, list[Bar]] = {}
    for each, starts, ends in reversed(spans):
        words = f"{each['user'] or 'another user'}, {starts:%m-%d %H:%M} to {ends:%H:%M} UTC"
        words += f", {each['job']}" if each["job"] else ""
        rows.setdefault(each["device"], []).append(
            bar(starts, ends, window, users.index(each["user"]) % COLOURS, words)
        )
    legend = [
        (user or "another user", format_duration(used[user].total_seconds()), place % COLOURS)
        for place, user in enumerate(users)
    ]
    return sorted(rows.items(), key=lambda row: natural(row[0])), legend


def ticks(window: tuple[datetime, datetime], count: int = 4) -> list[datetime]:
    """Times at equal distances over a window, its ends included."""
    begin, end = window
    return [(begin + (end - begin) * n / count).replace(second=0, microsecond=0) for n in range(count + 1)]


@router.get("/leases/calendar")
async def calendar(request: Request, past: Literal["day", "week"] = "day") -> Response:
    """Who used which phone, and what is reserved."""
    answer = await ask(request, "lease.history", since=(datetime.now(UTC) - CALENDAR[past]).isoformat())
    now = datetime.fromisoformat(answer["now"])
    window, ahead = (now - CALENDAR[past], now), (now, now + RESERVED_AHEAD)
    reserved = (await ask(request, "reservation.list"))["reservations"]
    rows, legend = timeline(answer["leases"], window)
    times = [(datetime.fromisoformat(each["starts_at"]), datetime.fromisoformat(each["ends_at"])) for each in reserved]
    return render(
        request,
        "calendar.html",
        past=past,
        rows=rows,
        legend=legend,
        more=answer["more"],
        ticks=ticks(window),
        ahead=ticks(ahead, 7),
        reserved=[
            (each, bar(starts, ends, ahead, 0, "reserved") if starts < ahead[1] else None)
            for each, (starts, ends) in zip(reserved, times, strict=True)
        ],
    )


@router.post("/leases/kick")
async def kick(request: Request) -> Response:
    """End a lease."""
    answer = await ask(request, "lease.kick", device=(await form_of(request)).get("lease", ""))
    return done(request, f"Lease {answer['id']} on {answer['device']} is ended.", "/leases")


@router.post("/leases/release")
async def release(request: Request) -> Response:
    """Give a phone back."""
    answer = await ask(request, "lease.release", lease=(await form_of(request)).get("lease", ""))
    return done(request, f"Lease {answer['lease']} is given back.", "/leases")


@router.post("/leases/extend")
async def extend(request: Request) -> Response:
    """Keep a phone longer."""
    form = await form_of(request)
    seconds = parse_duration(form.get("duration", ""))
    answer = await ask(request, "lease.extend", lease=form.get("lease", ""), seconds=seconds)
    ends = datetime.fromisoformat(answer["expires_at"])
    return done(request, f"Lease {answer['lease']} ends at {ends:%Y-%m-%d %H:%M} UTC.", "/leases")


@router.get("/queue")
async def queue(request: Request, page: int = 1) -> Response:
    """The queue."""
    return render(request, "queue.html", part="queue_rows.html", **await _queue(request, page))


@router.get("/queue/why/{job}")
async def why(request: Request, job: str) -> Response:
    """Why one job waits: each phone with its obstacle."""
    explained = await ask(request, "explain", what="job", name=job)
    return render(request, "queue_why.html", lines=reasons(explained))


async def _queue(request: Request, page: int) -> dict[str, Any]:
    answer = await ask(request, "lease.list")
    waiting: Sequence[Mapping[str, Any]] = answer["waiting"]
    pages = max(1, -(-len(waiting) // PAGE_WAITING))
    page = max(1, min(page, pages))
    first = (page - 1) * PAGE_WAITING
    shown = waiting[first : first + PAGE_WAITING]
    ids = [each["job"] for each in shown if each["job"]]
    listed = (await ask(request, "job.list", jobs=ids, limit=PAGE_WAITING))["jobs"] if ids else []
    later = await ask(request, "job.list", state=["held", "blocked"], limit=PAGE_LATER)
    foremost = ids[:ESTIMATED] if page == 1 else []
    estimates = await asyncio.gather(*(_estimate(request, job) for job in foremost))
    return {
        "rows": queue_rows(shown, first, listed, dict(zip(foremost, estimates, strict=True))),
        "later": later["jobs"],
        "later_more": later["more"],
        "total": len(waiting) + answer["waiting_more"],
        "listed": len(waiting),
        "page": page,
        "pages": pages,
        "holding": len(answer["leases"]),
    }


async def _estimate(request: Request, job: str) -> float | None:
    try:
        estimate: float | None = (await ask(request, "explain", what="job", name=job))["estimate_s"]
    except FarmError:  # it has its phone, or has ended, in this very moment
        return None
    return estimate


def queue_rows(
    waiting: Sequence[Mapping[str, Any]],
    before: int,
    jobs: Sequence[Mapping[str, Any]],
    estimates: Mapping[str, float | None],
) -> list[dict[str, Any]]:
    """A row for each that waits. `before`: how many stand before the first; `jobs`: rows of those that are jobs."""
    by_id = {row["id"]: row for row in jobs}
    rows: list[dict[str, Any]] = []
    for place, each in enumerate(waiting, before + 1):
        job = by_id.get(each["job"], {})
        estimate_s = estimates.get(each["job"])
        rows.append(
            {
                **each,
                "place": place,
                "name": job.get("name", ""),
                "kind": job.get("kind", "" if each["job"] else "TVM client"),
                "why": job.get("waits", ""),
                "same": bool(rows) and rows[-1]["why"] == job.get("waits", ""),  # as that of the row before
                "estimate": "" if estimate_s is None else f"within {format_duration(estimate_s)}",
            }
        )
    return rows
