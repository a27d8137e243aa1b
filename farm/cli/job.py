"""`farm job ...`: what is queued, runs and ran."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import complete, job_page, work
from farm.cli.context import JsonFlag, call, connect, local_time, print_json, print_table, say, tell, write_file
from farm.cli.records import kept_by
from farm.core.errors import UserError
from farm.core.job import JobState

app = typer.Typer(help="Jobs: list, show, cancel, hold, resume, output.")
NAME_CHARS = 40  # of a name in a table; `job show` has all of it

Jobs = Annotated[
    list[str], typer.Argument(help="A job's id or its beginning, or an array's.", autocompletion=complete.jobs)
]
PAGE_JOBS = 500  # rows of one answer


@app.command("list")
def list_jobs(
    state: Annotated[list[JobState] | None, typer.Option(help="Only those. Repeatable.")] = None,
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    kind: Annotated[str, typer.Option(help="bench, run, shell or lease.")] = "",
    array: Annotated[str, typer.Option(help="Only this array's.")] = "",
    before: Annotated[str, typer.Option(help="Only those older than this job: the next page.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=PAGE_JOBS, help="How many.")] = 30,
    json: JsonFlag = False,
) -> None:
    """Jobs, newest first."""
    states = [each.value for each in state or ()]
    fields = {"state": states, "user": user, "of_kind": kind, "array": array, "before": before, "limit": limit}
    answer = call("job.list", **fields)
    if json:
        print_json(answer)
        return
    if not answer["jobs"]:
        say("no jobs")
        return
    print_table(
        ("JOB", "ARRAY", "KIND", "NAME", "USER", "STATE", "DEVICE", "TRIES", "SUBMITTED", "WHY"),
        (
            (
                row["id"], row["array"] or "-", row["kind"], _short(row["name"]) or "-", row["user"], row["state"],
                row["on"] or row["device"] or "-", row["attempts"], local_time(row["submitted_at"]), _why(row),
            )
            for row in answer["jobs"]
        ),
    )  # fmt: skip
    if answer["more"]:
        say(f"there are more: --before {answer['jobs'][-1]['id']}, or a larger --limit")


@app.command()
def show(
    job: Annotated[str, typer.Argument(help="A job's id or its beginning.", autocompletion=complete.jobs)],
    json: JsonFlag = False,
) -> None:
    """Everything known about one job: spec, attempts, result or error."""
    shown = call("job.show", job=job)
    if json:
        print_json(shown)
        return
    tuning = shown["job"]["kind"] == "tune"
    job_page.print_page(shown, kept_by(shown["job"]["id"]) if tuning else None)
    if tuning and shown["job"]["state"] == "running":
        job_page.print_standing(_latest_standing(shown["job"]["id"]))


def _latest_standing(job: str) -> Mapping[str, Any] | None:
    """How a tuning's search stood when it told of it last; None: it has not yet."""
    latest: list[Mapping[str, Any]] = []

    def note(event: dict[str, Any]) -> None:
        if "tuning" in event.get("data", {}):
            latest[:] = [event["data"]]

    with connect() as client:
        client.call("events", subject=job, follow=False, on_progress=note)
    return latest[0] if latest else None


@app.command()
def cancel(
    jobs: Annotated[
        list[str] | None, typer.Argument(help="Ids or their beginnings, or arrays'.", autocompletion=complete.jobs)
    ] = None,
    array: Annotated[str, typer.Option(help="All of this array.")] = "",
    key: Annotated[str, typer.Option(help="All of the submit with this key.")] = "",
    user: Annotated[str, typer.Option(help="All of this user's.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="All of your own.")] = False,
    state: Annotated[list[JobState] | None, typer.Option(help="Of these only such. Repeatable.")] = None,
    json: JsonFlag = False,
) -> None:
    """End jobs; what runs is stopped. Named ones, or all that meet the options; those are your own unless you say."""
    wanted = {"array": array, "key": key, "user": user, "state": [each.value for each in state or ()]}
    if jobs and (mine or any(wanted.values())):
        raise UserError("jobs are named and chosen by options at once", hint="do one after the other")
    if mine and user:
        raise UserError("--mine and --user exclude each other", hint="choose one")
    if jobs:
        _change("job.cancel", jobs, json)
        return
    if not (mine or any(wanted.values())):
        raise UserError("which jobs?", hint="name some, or --array, --key, --user, --mine, --state")
    rows, more, before = [], True, ""
    while more:
        answer = call("job.cancel", before=before, **wanted)
        rows += answer["jobs"]
        more, before = answer["more"], answer["jobs"][-1]["id"] if answer["jobs"] else ""
    if json:
        print_json({"jobs": rows})
        return
    cancelled = sum(row["state"] == JobState.CANCELLED for row in rows)
    tell(f"cancelled {cancelled} job{'s' * (cancelled != 1)}")
    for row in rows:
        if row["state"] != JobState.CANCELLED:
            tell(f"{row['id']} is {row['state']}")


@app.command()
def output(
    job: Annotated[str, typer.Argument(help="A job's id or its beginning.", autocompletion=complete.jobs)],
    to: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    json: JsonFlag = False,
) -> None:
    """Write a run's outputs (.npz), a tuning's package, or what a shell's line wrote (of much, the end)."""
    from farm.client.outcomes import outputs_of

    with work.client() as farm:
        outcome = farm.job(job, fetch_outputs=False)
        outputs = outputs_of(outcome.result) or outcome.result.get("package")
        if outputs:
            farm.get_file(outputs, to)
        elif "stdout" in outcome.result:
            write_file(to, outcome.result["stdout"].encode())
        else:
            outcome.raise_for_error()
            raise UserError(f"a {outcome.job.kind} job has no outputs", hint=f"farm job show {outcome.job.id}")
    if json:
        print_json({"job": outcome.job.id, "file": str(to)})
    else:
        say(f"wrote {to}")


@app.command()
def hold(jobs: Jobs, json: JsonFlag = False) -> None:
    """Keep waiting jobs from starting."""
    _change("job.hold", jobs, json)


@app.command()
def resume(jobs: Jobs, json: JsonFlag = False) -> None:
    """Let held jobs start."""
    _change("job.resume", jobs, json)


def _change(kind: str, jobs: list[str], json: bool) -> None:
    answers = [call(kind, job=job) for job in jobs]
    rows = [row for answer in answers for row in answer["jobs"]]
    changed = {job for answer in answers for job in answer["changed"]}
    if json:
        print_json({"jobs": rows, "changed": sorted(changed)})
        return
    for row in rows:
        done = "" if row["id"] in changed else ": nothing was done"
        tell(f"{row['id']} is {row['state']}{done}")
        if row["id"] in changed and row["kind"] == "tune" and row["state"] == JobState.CANCELLED:
            work.say_kept(row["id"])


def _why(row: Mapping[str, Any]) -> str:
    error = row["error"] or {}
    return row["waits"] or error.get("message") or "-"


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}…"
