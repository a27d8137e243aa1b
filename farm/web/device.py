"""A device's page: what it is doing and why, readings over time, sessions, recovery, and what an operator may order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from farm.core.device import LIFE_EVENTS
from farm.core.series import COARSE_S, FINE_S
from farm.web.page import ask, done, form_of, render
from farm.web.words import segment

router = APIRouter(prefix="/devices/{name}")
LOG_LINES = 60
MOST_EVENTS = 200  # read, to show some of them
LIFE_SHOWN = 25
SESSIONS_SHOWN = 15
UNSAID = frozenset({"serial", "device", "fence", "hint"})


@dataclass(frozen=True, slots=True)
class Session:
    """One session on the device, as its events tell it."""

    user: str
    at: str
    seconds: float | None  # None: still open
    outcome: str
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A column of the last hour in three figures: what scripts draw, as text."""

    name: str
    unit: str
    latest: float
    lowest: float
    highest: float


def sessions_of(events: Sequence[Mapping[str, Any]], *, held: bool) -> list[Session]:
    """Sessions from their events, newest first. The newest is open if it has no end and somebody has the device."""
    found: list[Session] = []
    ended: set[str] = set()
    for event in events:
        data, kind = event["data"], event["kind"]
        if kind == "session.ended":
            ended.add(data["session"])
            outcome = ": ".join(filter(None, (data["outcome"], data.get("detail", ""))))
            found.append(
                Session(data["user"], event["at"], data["seconds"], outcome, data["bytes_up"], data["bytes_down"])
            )
        elif kind == "session.opened" and held and not found and data["session"] not in ended:
            found.append(Session(data["user"], event["at"], None, "open", 0, 0))
    return found[:SESSIONS_SHOWN]


def summary_of(columns: Sequence[Mapping[str, Any]]) -> list[Reading]:
    """Each column in three figures."""
    found: list[Reading] = []
    for column in columns:
        known = [value for value in column["values"] if value is not None]
        if known:
            name = f"{column['quantity']} {column['name']}" if column["quantity"] != column["name"] else column["name"]
            found.append(Reading(name, column["unit"], known[-1], min(known), max(known)))
    return found


def said_of(event: Mapping[str, Any]) -> str:
    """An event's data in one line, but for what the page says already."""
    return ", ".join(
        f"{name} {value}"
        for name, value in event["data"].items()
        if name not in UNSAID and value not in ("", None, [], {})
    )


async def _now(request: Request, name: str) -> dict[str, Any]:
    device = await ask(request, "device.show", device=name)
    why = await ask(request, "explain", what="device", name=name)
    readings = await ask(request, "device.readings", device=name, seconds=FINE_S)
    subject = device["name"]
    log = (await ask(request, "events.newest", subject=subject, limit=MOST_EVENTS))["events"]
    steps = (await ask(request, "events.newest", subject=subject, limit=MOST_EVENTS, rooms=["device"]))["events"]
    return {
        "device": device,
        "why": why["device"],
        "lines": why["lines"],
        "readings": summary_of(readings["columns"]),
        "log": [{**event, "said": said_of(event)} for event in log[:LOG_LINES]],
        "steps": [event for event in steps if event["kind"] in LIFE_EVENTS][:LIFE_SHOWN],
        "sessions": sessions_of(log, held=bool(device["holder"])),
    }


@router.get("")
async def device_page(request: Request, name: str) -> Response:
    """The page."""
    return render(request, "device.html", **await _now(request, name))


@router.get("/now")
async def device_part(request: Request, name: str) -> Response:
    """What changes of it."""
    return render(request, "device_now.html", **await _now(request, name))


@router.get("/readings")
async def readings(
    request: Request, name: str, seconds: Annotated[float, Query(gt=0, le=COARSE_S)] = FINE_S
) -> Response:
    """What the page's plots draw."""
    return JSONResponse(dict(await ask(request, "device.readings", device=name, seconds=seconds)))


# --- actions ------------------------------------------------------------------------------------------------------


def _page_of(name: str) -> str:
    return f"/devices/{segment(name)}"


SERVICE_SAID = {"in": "is back in service", "draining": "is draining", "maintenance": "is in maintenance"}


@router.post("/service")
async def set_service(request: Request, name: str) -> Response:
    """Drain, maintain, release."""
    answer = await ask(request, "device.service", device=name, service=(await form_of(request)).get("service", ""))
    said = f"{answer['name']} {SERVICE_SAID[answer['service']]}."
    if answer["released"]:
        said += f" Its quarantine is over ({answer['quarantine']}); it is checked before anybody gets it."
    elif answer["quarantine"]:
        said += f" It also stays in quarantine: {answer['quarantine']}."
    if answer["holder"] and answer["service"] != "in":
        said += f" {answer['holder']} still has it; it is free when that lease ends."
    return done(request, " ".join((said, *(f"Beware: {each}." for each in answer["still"]))), _page_of(answer["name"]))


@router.post("/adopt")
async def adopt(request: Request, name: str) -> Response:
    """Let it into the farm."""
    form = await form_of(request)
    answer = await ask(
        request, "device.adopt", device=name, pool=form.get("pool", ""), rename=form.get("rename", "").strip()
    )
    return done(request, f"{answer['name']} is adopted.", _page_of(answer["name"]))


@router.post("/quarantine")
async def quarantine(request: Request, name: str) -> Response:
    """Keep it away from users."""
    form = await form_of(request)
    answer = await ask(request, "device.quarantine", device=name, reason=form.get("reason", ""), force="force" in form)
    ended = f" {answer['holder']} had it: that lease ends." if answer["holder"] else ""
    return done(request, f"{answer['name']} is in quarantine: {answer['reason']}.{ended}", _page_of(answer["name"]))


@router.post("/reboot")
async def reboot(request: Request, name: str) -> Response:
    """Reboot it."""
    answer = await ask(request, "device.reboot", device=name, force="force" in await form_of(request))
    return done(request, f"{answer['name']} reboots.", _page_of(answer["name"]))


@router.post("/power-cycle")
async def power_cycle(request: Request, name: str) -> Response:
    """Cut its power for a moment."""
    answer = await ask(request, "device.power_cycle", device=name, force="force" in await form_of(request))
    beside = f" Also without power for a moment: {', '.join(answer['beside'])}." if answer["beside"] else ""
    return done(request, f"The power of {answer['name']} is cut for a moment.{beside}", _page_of(answer["name"]))
