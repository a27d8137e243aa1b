"""The hosts of a lab: their page, and what other hosts know of their own phones and running jobs.

The lists of this host have the rows of all hosts from the database. Temperatures of the last hour and the present steps
of jobs are only in the memory of the host that reads them: `of_other_hosts` asks each host, once in two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from farm.common.errors import FarmError
from farm.common.tasks import SharedCall
from farm.control.callers import Caller, Role
from farm.web.page import PageRoute, VerbApi, ask, done, form_of, render, web_of

router = APIRouter(route_class=PageRoute)
ANSWER_LIMIT_S = 1.0  # a host that answers later is left out: the page of this host does not wait for it
KEPT_S = 2.0
REACHABLE = frozenset({"ok", "drained", "silent"})
PAGE = Caller("", Role.VIEWER, "web page")


def other_hosts(verbs: VerbApi) -> Callable[[tuple[str, str]], Awaitable[Mapping[str, Any]]]:
    """A call of a verb's name and its answer's field: the fields of all other hosts that answer, merged by name."""

    async def gather(wanted: tuple[str, str]) -> Mapping[str, Any]:
        kind, field = wanted
        lab = (await verbs.ask(PAGE, "host.list", {})).fields
        names = [row["name"] for row in lab["hosts"] if row["name"] != lab["own"] and row["state"] in REACHABLE]
        answers = await asyncio.gather(*(_answer(verbs, kind, name) for name in names))
        return {name: value for answer in answers for name, value in answer.get(field, {}).items()}

    return SharedCall(gather, keep_s=KEPT_S)


async def _answer(verbs: VerbApi, kind: str, host: str) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            return (await verbs.ask(PAGE, kind, {"host": host})).fields
    except (FarmError, TimeoutError):  # the page of hosts shows that it is away
        return {}


async def with_steps(request: Request, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Jobs of a list; those that run at other hosts with their present steps."""
    found = [dict(row) for row in rows]
    if web_of(request).lab and any(row["state"] == "running" and not row.get("progress") for row in found):
        steps = await web_of(request).of_other_hosts(("job.steps", "steps"))
        for row in found:
            row["progress"] = row.get("progress") or steps.get(row["id"])
    return found


async def last_facts(request: Request, name: str, error: FarmError) -> Response:
    """The page of a phone whose host is away: what the database knows of the phone.

    Raises:
        FarmError: `error`, if the database knows no such phone.
    """
    status = await ask(request, "status")
    device = next((row for row in status["devices"] if row["name"] == name), None)
    if device is None:
        raise error
    host: Mapping[str, Any] = next((row for row in status.get("hosts", ()) if row["name"] == device.get("host")), {})
    jobs = (await ask(request, "job.list", device=device["name"], limit=10))["jobs"]
    return render(request, "device_away.html", device=device, host=host, jobs=jobs, message=error.message)


@router.get("/hosts")
async def hosts(request: Request) -> Response:
    """The page of all hosts."""
    lab = await ask(request, "host.list")
    status = await ask(request, "status")
    running = (await ask(request, "job.list", state=["running"], limit=500))["jobs"] if lab["own"] else []
    host_of = {row["name"]: row.get("host", "") for row in status["devices"]}
    return render(
        request,
        "hosts.html",
        part="hosts_rows.html",
        own=lab["own"],
        rows=[
            {
                **row,
                "jobs": [job for job in running if host_of.get(job["on"]) == row["name"]],
                "devices": [each for each in status["devices"] if each.get("host") == row["name"]],
            }
            for row in lab["hosts"]
        ],
        tokens=lab["tokens"],
        problems=lab["problems"],
    )


@router.post("/hosts/{name}/drain")
async def drain(request: Request, name: str) -> Response:
    """Hand out no phone of a host any more, or hand them out again."""
    on = "undo" not in await form_of(request)
    answer = await ask(request, "host.drain", host=name, on=on)
    left = f" Its leases continue: {len(answer['leases'])}." if answer["leases"] and on else ""
    notice = f"No phone of {name} is handed out any more." if on else f"Phones of {name} are handed out again."
    return done(request, notice + left, "/hosts")
