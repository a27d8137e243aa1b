"""`farm job ...`: what is queued, runs and ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from farm.cli.context import JsonFlag, call, print_json, print_table, say
from farm.core.job import JobState

app = typer.Typer(help="Jobs: list, show, cancel, hold, resume.")
NAME_CHARS = 40  # of a name in a table; `job show` has all of it

Jobs = Annotated[list[str], typer.Argument(help="A job's id or its beginning, or an array's.")]
State = StrEnum("State", [(state.name, state.value) for state in JobState])  # type: ignore[misc]
PAGE_JOBS = 500  # rows of one answer


@app.command("list")
def list_jobs(
    state: Annotated[list[State] | None, typer.Option(help="Only those. Repeatable.")] = None,
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
    print_table(
        ("JOB", "ARRAY", "KIND", "NAME", "USER", "STATE", "DEVICE", "TRIES", "SUBMITTED", "WHY"),
        (
            (
                row["id"], row["array"] or "-", row["kind"], _short(row["name"]), row["user"], row["state"],
                row["on"] or row["device"] or "-", row["attempts"], _time(row["submitted_at"]), _why(row),
            )
            for row in answer["jobs"]
        ),
    )  # fmt: skip
    if answer["more"]:
        say(f"there are more: --before {answer['jobs'][-1]['id']}, or a larger --limit")


@app.command()
def show(job: Annotated[str, typer.Argument(help="A job's id or its beginning.")], json: JsonFlag = False) -> None:
    """Everything known about one job: spec, attempts, result or error."""
    shown = call("job.show", job=job)
    if json:
        print_json(shown)
        return
    print_table(("FACT", "VALUE"), _facts(shown))
    if shown["attempts"]:
        typer.echo()
        print_table(
            ("ATTEMPT", "DEVICE", "STATE", "STARTED", "ENDED", "ERROR"),
            (
                (
                    each["number"], each["device"], each["state"], _time(each["started_at"]), _time(each["ended_at"]),
                    (each["error"] or {}).get("message", "-"),
                )
                for each in shown["attempts"]
            ),
        )  # fmt: skip


@app.command()
def cancel(jobs: Jobs, json: JsonFlag = False) -> None:
    """End jobs; what runs is stopped."""
    _change("job.cancel", jobs, json)


@app.command()
def hold(jobs: Jobs, json: JsonFlag = False) -> None:
    """Keep waiting jobs from starting."""
    _change("job.hold", jobs, json)


@app.command()
def resume(jobs: Jobs, json: JsonFlag = False) -> None:
    """Let held jobs start."""
    _change("job.resume", jobs, json)


def _change(kind: str, jobs: list[str], json: bool) -> None:
    rows = [row for job in jobs for row in call(kind, job=job)["jobs"]]
    if json:
        print_json({"jobs": rows})
        return
    for row in rows:
        typer.echo(f"{row['id']} is {row['state']}")


def _facts(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    row = shown["job"]
    for name in ("id", "kind", "name", "user", "state", "selector", "device", "on", "array", "priority", "attempts"):
        if row[name] not in ("", None):
            yield name, str(row[name])
    for name in ("submitted_at", "ended_at"):
        if row[name]:
            yield name.partition("_")[0], _time(row[name])
    if _why(row) != "-":
        yield "why", _why(row)
    if row["error"] and row["error"].get("hint"):
        yield "hint", row["error"]["hint"]
    for name, value in shown["spec"].items():
        if name not in row and value not in (None, "", [], ()):
            yield f"spec {name}", str(value)
    for name, value in (shown["result"] or {}).items():
        text = str(value)
        yield f"result {name}", text if len(text) <= 200 else f"{text[:200]} ... (all of it: --json)"


def _why(row: Mapping[str, Any]) -> str:
    error = row["error"] or {}
    return row["waits"] or error.get("message") or "-"


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}…"


def _time(text: str | None) -> str:
    """In this host's local time."""
    if not text:
        return "-"
    from datetime import datetime

    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"
