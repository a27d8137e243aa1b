"""Leases: who has which phone since when and until when, and who waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from farm.control.callers import Caller, Role
from farm.core.durations import parse_duration
from farm.web.page import ask, caller_of, done, form_of, render

router = APIRouter(prefix="/leases")


def may(caller: Caller, lease: Mapping[str, Any]) -> frozenset[str]:
    """What somebody is offered for a lease. The verbs decide: this only leaves out what they would refuse."""
    own = caller.role is Role.OPERATOR or (caller.role >= Role.USER and caller.user == lease["user"])
    personal = own and lease["expires_at"] is not None and lease["job"]
    return frozenset({"extend", "release"} if personal else ()) | (
        {"kick"} if caller.role is Role.OPERATOR and not personal else frozenset()
    )


async def _now(request: Request) -> dict[str, Any]:
    answer, caller, now = await ask(request, "lease.list"), caller_of(request), datetime.now(UTC)
    leases = [
        {**lease, "since": now - timedelta(seconds=lease["held_s"]), "may": may(caller, lease)}
        for lease in answer["leases"]
    ]
    return {**answer, "leases": sorted(leases, key=lambda lease: str(lease["device"]))}


@router.get("")
async def leases(request: Request) -> Response:
    """The page."""
    return render(request, "leases.html", **await _now(request))


@router.get("/rows")
async def rows(request: Request) -> Response:
    """What changes of it."""
    return render(request, "leases_rows.html", **await _now(request))


@router.post("/kick")
async def kick(request: Request) -> Response:
    """End a lease."""
    answer = await ask(request, "lease.kick", device=(await form_of(request)).get("lease", ""))
    return done(request, f"Lease {answer['id']} on {answer['device']} is ended.", "/leases")


@router.post("/release")
async def release(request: Request) -> Response:
    """Give a phone back."""
    answer = await ask(request, "lease.release", lease=(await form_of(request)).get("lease", ""))
    return done(request, f"Lease {answer['lease']} is given back.", "/leases")


@router.post("/extend")
async def extend(request: Request) -> Response:
    """Keep a phone longer."""
    form = await form_of(request)
    seconds = parse_duration(form.get("duration", ""))
    answer = await ask(request, "lease.extend", lease=form.get("lease", ""), seconds=seconds)
    ends = datetime.fromisoformat(answer["expires_at"])
    return done(request, f"Lease {answer['lease']} ends at {ends:%Y-%m-%d %H:%M} UTC.", "/leases")
