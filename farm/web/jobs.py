"""Jobs: the list with its filters, one job with its results, its log and its files, and its owner's actions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from farm.common.durations import took
from farm.common.errors import Code, FarmError, UserError
from farm.devices.health.series import SHOWN, Quantity
from farm.kinds import KINDS
from farm.results.series import list_words
from farm.web.hosts import with_steps
from farm.web.job_views import (
    COLUMNS,
    STATES,
    File,
    Filter,
    csv_of,
    facts,
    files_of,
    job_tone,
    lenient,
    outcome_words,
    reasons,
    result_facts,
    why,
)
from farm.web.page import SEE_OTHER, PageRoute, ask, caller_of, done, form_fields, render, web_of
from farm.web.plots import KindPage, PlotSource, Reading, object_of

router = APIRouter(route_class=PageRoute)
MAX_RAW_BYTES = 2 << 20  # of raw samples that are drawn: some 50,000
MAX_READINGS_S = 86_400  # how far back a phone's readings go
LOG_LINES = 200
SHOWN_READING = (Quantity.TEMPERATURE.value, SHOWN)
CSV_PAGES, CSV_PAGE_JOBS = 10, 500  # of one file: 1 MB
ORDERS = {"cancel": "is cancelled", "hold": "is held", "resume": "continues"}

Text = Annotated[str, Query(max_length=200)]


def filter_of(
    state: Text = "",
    kind: Text = "",
    user: Text = "",
    text: Text = "",
    selector: Text = "",
    device: Text = "",
    array: Text = "",
    before: Text = "",
    mine: Text = "",
    sort: Text = "",
) -> Filter:
    """The filter in an address; a column that there is not sorts nothing."""
    sort = sort if sort.removeprefix("-") in COLUMNS else ""
    return Filter(state, kind, user, text, selector, device, array, before, mine, sort)


Wanted = Annotated[Filter, Depends(filter_of)]


@router.get("/jobs")
async def jobs(request: Request, wanted: Wanted) -> Response:
    """A page of jobs, newest first."""
    return render(request, "jobs.html", part="jobs_rows.html", **await _list(request, wanted))


@router.get("/jobs.csv")
async def jobs_csv(request: Request, wanted: Wanted) -> Response:
    """The jobs that match as a file, newest first."""
    asked = wanted.asked(caller_of(request).user)
    rows: list[Mapping[str, Any]] = []
    async with web_of(request).heavy_work:
        for _ in range(CSV_PAGES):
            if await request.is_disconnected():
                break
            answer = await ask(request, "job.list", **{**asked, "limit": CSV_PAGE_JOBS}, results=True)
            rows += answer["jobs"]
            if not answer["before"]:
                break
            asked["before"] = answer["before"]
        text = await asyncio.to_thread(csv_of, rows)
    headers = {"content-disposition": 'attachment; filename="jobs.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


async def _list(request: Request, wanted: Filter) -> dict[str, Any]:
    if wanted.state and wanted.state not in STATES:
        raise UserError(f"there is no state {wanted.state!r}", hint=f"states: {', '.join(STATES)}")
    problem = ""
    answer: dict[str, Any] = {"jobs": [], "before": "", "now": ""}
    try:
        answer = dict(await ask(request, "job.list", **wanted.asked(caller_of(request).user), results=True))
    except UserError as error:  # shown beside the filter that was typed, which stays as it is
        problem = f"{error.message}. {error.hint}" if error.hint else error.message
    return {
        "wanted": wanted,
        "jobs": wanted.in_order(await with_steps(request, answer["jobs"])),
        "before": answer["before"],
        "now": answer["now"],
        "problem": problem,
        "states": STATES,
        "kinds": tuple(KINDS),
        **WORDS,
    }


async def _show(request: Request, job: str) -> dict[str, Any]:
    """The answer of `job.show`; of a job that runs at another host with its present step."""
    shown = dict(await ask(request, "job.show", job=job))
    [row] = await with_steps(request, [{**shown["job"], "progress": shown["progress"]}])
    return {**shown, "progress": row["progress"]}


@router.get("/jobs/{job}")
async def job(request: Request, job: str) -> Response:
    """One job, whole."""
    shown = await _show(request, job)
    if shown["job"]["id"] != job:  # the beginning of an id leads to the whole one
        return RedirectResponse(f"/jobs/{shown['job']['id']}", SEE_OTHER)
    return render(
        request,
        "job.html",
        **await _job(request, shown),
        **await _plots(request, shown),
        log=await ask(request, "job.log_tail", job=job, limit=LOG_LINES),
        files=files_of(shown),
    )


@router.get("/jobs/{job}/now")
async def now(request: Request, job: str) -> Response:
    """The changing part of a job's page."""
    return render(request, "job_now.html", **await _job(request, await _show(request, job)))


@router.get("/jobs/{job}/plots")
async def plots(request: Request, job: str) -> Response:
    """The plots of a job, as far as it has come."""
    shown = await _show(request, job)
    return render(request, "job_plots.html", job=shown["job"], **await _plots(request, shown))


@router.get("/jobs/{job}/log")
async def log(
    request: Request, job: str, number: int | None = None, before: int | None = None, after: int | None = None
) -> Response:
    """Lines of an attempt's log: the last ones, those before a position, or those after one."""
    fields = {"number": number, "before": before, "after": after}
    asked = {name: value for name, value in fields.items() if value is not None}
    tail = await ask(request, "job.log_tail", job=job, limit=LOG_LINES, **asked)
    row = (await ask(request, "job.list", jobs=[job]))["jobs"]
    if not row:
        raise UserError(f"there is no job {job}", hint="its beginning is enough on /jobs/BEGINNING")
    live = row[0]["state"] == "running" and tail["number"] == row[0]["attempts"]
    side = "older" if before is not None else "newer" if after is not None else ""
    return render(request, "job_log.html", part="job_log_part.html", job=row[0], log=tail, live=live, side=side)


@router.get("/jobs/{job}/files/{name}")
async def file(request: Request, job: str, name: str) -> Response:
    """One of the job's files: only those that its result names, by their names there."""
    shown = await _show(request, job)
    found = next((each for each in files_of(shown) if each.name == name), None)
    if found is None:
        raise UserError(
            f"job {shown['job']['id']} has no file {name[:80]!r}", Code.NO_SUCH_FILE, hint="its page lists what it has"
        )
    return await _download(request, found, shown["result"] or {})


async def _submit_again(request: Request, job: str) -> Mapping[str, Any]:
    """Submit the spec of a job that has ended once more; of an array, this one job."""
    shown = await ask(request, "job.show", job=job)
    if not shown["job"]["ended_at"]:
        raise UserError("it has not ended", hint="wait for its end, or cancel it")
    one = {"devices": 1} if shown["job"]["array"] else {}
    return await ask(request, "job.submit", spec={**shown["spec"], "hold": False, "after": [], **one})


async def _cancel_one(request: Request, job: str) -> None:
    answer = await ask(request, "job.cancel", job=job)
    if not answer["changed"]:
        raise UserError(f"it stays {answer['jobs'][0]['state']}")


async def _each_chosen(request: Request, act: Callable[[Request, str], Awaitable[object]], word: str) -> Response:
    """Call `act` for each chosen job; the notice counts those that are `word` and gives the reason for each refusal."""
    fields = await form_fields(request)
    chosen = list(dict.fromkeys(value for name, value in fields if name == "job" and value))
    if not chosen:
        raise UserError("no job is chosen", hint="go back and tick the boxes of the jobs")
    refused: dict[str, list[str]] = {}

    async def give(job: str) -> None:
        try:
            await act(request, job)
        except FarmError as error:
            refused.setdefault(error.message, []).append(job)

    await asyncio.gather(*map(give, chosen))  # each waits for the end of its job's work
    count = len(chosen) - sum(map(len, refused.values()))
    notice = f"{count} of {len(chosen)} {'job is' if len(chosen) == 1 else 'jobs are'} {word}"
    whys = (f"{', '.join(jobs)}: {reason}" for reason, jobs in refused.items())
    return done(request, ". ".join((notice, *whys)) + ".", dict(fields).get("to", "/jobs"))


@router.post("/chosen/again")
async def chosen_again(request: Request) -> Response:
    """Submit the chosen jobs that have ended once more."""
    return await _each_chosen(request, _submit_again, "submitted again")


@router.post("/chosen/cancel")
async def chosen_cancel(request: Request) -> Response:
    """Cancel the chosen jobs."""
    return await _each_chosen(request, _cancel_one, "cancelled")


@router.post("/jobs/{job}/again")
async def again(request: Request, job: str) -> Response:
    """Submit the job's spec once more; of an array, this one job."""
    answer = await _submit_again(request, job)
    new = answer["jobs"][0]["id"]
    notice = " ".join((f"Job {new} is submitted.", *(f"Warning: {each}." for each in answer["warnings"])))
    return done(request, notice, f"/jobs/{new}")


@router.post("/jobs/{job}/{order}")
async def order(request: Request, job: str, order: str) -> Response:
    """Cancel a job, hold it, or let it continue."""
    if order not in ORDERS:
        raise UserError(f"there is no order {order[:40]!r} for jobs", hint=f"orders: {', '.join(ORDERS)}")
    answer = await ask(request, f"job.{order}", job=job)
    notice = (
        f"Job {job} {ORDERS[order]}" if job in answer["changed"] else f"Job {job} stays {answer['jobs'][0]['state']}"
    )
    return done(request, f"{notice}.", f"/jobs/{job}")


# --- parts --------------------------------------------------------------------------------------------------------

WORDS: Mapping[str, Any] = {
    "job_tone": job_tone, "list_words": list_words, "outcome_words": outcome_words, "why": why, "took": took,
    "lenient": lenient,
}  # fmt: skip


async def _job(request: Request, shown: Mapping[str, Any]) -> dict[str, Any]:
    shown = lenient(shown)
    row, caller = lenient({**shown["job"], "result": shown["result"]}), caller_of(request)
    waits = row["state"] in ("queued", "blocked", "held")
    explained = await ask(request, "explain", what="job", name=row["id"]) if waits else {}
    line = (await ask(request, "lease.list"))["waiting"] if waits else ()
    return {
        "job": row,
        "shown": shown,
        "facts": facts(shown),
        "result": shown["result"] or lenient({}),
        "result_facts": result_facts(shown["result"] or {}),
        "lines": reasons(explained) if explained else [],
        "estimate_s": explained.get("estimate_s"),
        "place": next((place for place, each in enumerate(line, 1) if each["job"] == row["id"]), None),
        "may_act": caller.may_act_for(row["user"]),
        **WORDS,
    }


def _page_of(kind: str) -> KindPage:
    """The additions of a kind's page.py; nothing for a kind without one, or of another release."""
    known = KINDS.kinds.get(kind)
    page: KindPage = known.part("page").PAGE if known is not None and known.has("page") else KindPage()
    return page


async def _plots(request: Request, shown: Mapping[str, Any]) -> dict[str, Any]:
    """The plots of a job, and whether its raw samples are gone. They are made beside the daemon's loop."""
    page, live = _page_of(shown["job"]["kind"]), not shown["job"]["ended_at"]
    drawn: dict[str, Any] = {"plots": [], "samples_gone": False, "plots_live": page.live and live}
    if not (shown["result"] or page.live):
        return drawn
    raw = await _raw(request, shown) if page.samples else None
    readings = await _readings(request, shown) if page.readings else []
    async with web_of(request).heavy_work:
        plots, samples_removed = await asyncio.to_thread(_drawn, page, shown, raw, readings)
    return {**drawn, "plots": plots, "samples_gone": page.samples and samples_removed}


def _drawn(
    page: KindPage, shown: Mapping[str, Any], raw: bytes | None, readings: Sequence[Reading]
) -> tuple[list[dict[str, Any]], bool]:
    source = PlotSource(shown=shown, samples=_json_object(raw), readings=readings)
    return [plot.figure() for plot in page.plots(source)], source.samples is None


def _json_object(text: bytes | None) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text or b"null")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


async def _raw(request: Request, shown: Mapping[str, Any]) -> bytes | None:
    """Raw samples; None when they are gone or are too many to draw."""
    sha256 = object_of(object_of(shown["result"]).get("certificate")).get("raw")
    if not sha256:
        return None
    whole = bytearray()
    try:
        async for part in _parts(request, sha256):
            whole += part
            if len(whole) > MAX_RAW_BYTES:
                return None
    except FarmError:
        return None
    return bytes(whole)


async def _readings(request: Request, shown: Mapping[str, Any]) -> list[Reading]:
    """The phone's temperatures since the job began, as far as they are remembered."""
    row = shown["job"]
    seconds = (datetime.fromisoformat(shown["now"]) - datetime.fromisoformat(row["submitted_at"])).total_seconds()
    if not row["on"] or seconds >= MAX_READINGS_S:
        return []
    try:
        answer = await ask(request, "device.readings", device=row["on"], seconds=int(seconds) + 1)
    except FarmError:
        return []
    column = next((each for each in answer["columns"] if (each["quantity"], each["name"]) == SHOWN_READING), None)
    values = column["values"] if column else ()
    return [(at, value) for at, value in zip(answer["at"], values, strict=False) if value is not None]


async def _parts(request: Request, sha256: str) -> AsyncIterator[bytes]:
    """An artifact in parts of 1 MiB at most."""
    verbs, caller, offset, total = web_of(request).verbs, caller_of(request), 0, 1
    while offset < total:
        answer = await verbs.ask(caller, "artifact.get", {"sha256": sha256, "offset": offset})
        total = answer.fields["total_bytes"]
        part = answer.frames[0] if answer.frames else b""
        if not part:
            return
        offset += len(part)
        yield part


async def _download(request: Request, found: File, result: Mapping[str, Any]) -> Response:
    headers = {"content-disposition": f'attachment; filename="{found.filename}"'}
    if found.sha256:
        parts = _parts(request, found.sha256)
        first = await anext(parts, b"")  # an artifact that is gone is an error page, not half a file

        async def body() -> AsyncIterator[bytes]:
            yield first
            async for part in parts:
                yield part

        return StreamingResponse(body(), media_type="application/octet-stream", headers=headers)
    text = result["stdout"] if found.name == "stdout" else json.dumps(result, indent=1, ensure_ascii=False)
    media_type = "text/plain; charset=utf-8" if found.name == "stdout" else "application/json"
    return Response(text, media_type=media_type, headers=headers)
