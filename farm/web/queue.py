"""The queue: who waits for a phone, in which place, why, and for how long as things stand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from farm.core.durations import format_duration
from farm.core.errors import FarmError
from farm.web.job_views import tone
from farm.web.page import ask, render

router = APIRouter()
PAGE_WAITING = 50
ESTIMATED = 10  # of the foremost: an explanation looks at every phone
PAGE_LATER = 50  # that wait for something else than a phone


@router.get("/queue")
async def queue(request: Request, page: int = 1) -> Response:
    """The queue."""
    return render(request, "queue.html", **await _queue(request, page))


@router.get("/queue/rows")
async def rows(request: Request, page: int = 1) -> Response:
    """What changes of it."""
    return render(request, "queue_rows.html", **await _queue(request, page))


@router.get("/queue/why/{job}")
async def why(request: Request, job: str) -> Response:
    """Why one job waits: each phone and what is against it."""
    explained = await ask(request, "explain", what="job", name=job)
    return render(request, "queue_why.html", lines=explained["lines"][1:])


async def _queue(request: Request, page: int) -> dict[str, Any]:
    told = await ask(request, "lease.list")
    waiting: Sequence[Mapping[str, Any]] = told["waiting"]
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
        "total": len(waiting) + told["waiting_more"],
        "listed": len(waiting),
        "page": page,
        "pages": pages,
        "holding": len(told["leases"]),
        "tone_of": tone,
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
    rows = []
    for place, each in enumerate(waiting, before + 1):
        job = by_id.get(each["job"], {})
        estimate_s = estimates.get(each["job"])
        rows.append(
            {
                **each,
                "place": place,
                "name": job.get("name", ""),
                "kind": job.get("kind", "" if each["job"] else "TVM door"),
                "why": job.get("waits", ""),
                "estimate": "" if estimate_s is None else f"within {format_duration(estimate_s)}",
            }
        )
    return rows
