"""`farm job`, `farm logs` and `farm submit FILE.toml`: queued, running and ended jobs, and their output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag, call, connect
from farm.cli.output import (
    emit,
    local_time,
    now_of,
    print_json,
    print_json_line,
    print_line,
    print_note,
    print_table,
    table,
    write_file,
)
from farm.cli.output.terminal import interruptible
from farm.cli.records import kept_by, kept_words
from farm.common.durations import took
from farm.common.errors import MissingFieldError, UserError
from farm.kinds import KINDS
from farm.kinds.tune import summary as tune_summary
from farm.model.device import parse_place
from farm.model.job import MEASURING_KINDS, JobState
from farm.results.series import list_why, list_words

if TYPE_CHECKING:
    from farm.client import Client, Submitted
    from farm.client.model import Outcome
    from farm.client.specfile import Planned

app = typer.Typer(help="Jobs: list, show, cancel, hold, resume, output.")
NAME_CHARS = 40  # of a name in a table; `job show` has all of it

Jobs = Annotated[
    list[str], typer.Argument(help="A job's id or its beginning, or an array's.", autocompletion=complete.jobs)
]
PAGE_JOBS = 500  # rows of one answer
TRACE_SUFFIX = ".pftrace"
NEWEST_EVENTS = 200  # events of a phone that are asked for: a trace made much later lacks other phones' sessions


@app.command("list")
def list_jobs(
    state: Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state. Repeatable.")] = None,
    user: Annotated[str, typer.Option(help="Only jobs of this user.")] = "",
    kind: Annotated[str, typer.Option(help=f"Only jobs of this kind: {', '.join(KINDS)}.")] = "",
    array: Annotated[str, typer.Option(help="Only jobs of this array.")] = "",
    before: Annotated[str, typer.Option(help="Only jobs older than this one: the next page.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=PAGE_JOBS, help="How many jobs.")] = 30,
    json: JsonFlag = False,
) -> None:
    """Jobs, newest first."""
    states = [each.value for each in state or ()]
    fields = {"state": states, "user": user, "of_kind": kind, "array": array, "before": before, "limit": limit}
    answer = call("job.list", results=True, **fields)
    lines = _list_lines(answer["jobs"], now_of(answer).isoformat()) if answer["jobs"] else ()
    emit(answer, lines, json=json)
    if json:
        return
    if not answer["jobs"]:
        print_note("no jobs")
    elif answer["more"]:
        print_note(f"there are more: --before {answer['jobs'][-1]['id']}, or a larger --limit")


def _list_lines(jobs: Sequence[Mapping[str, Any]], now: str, width: int | None = None) -> Iterator[str]:
    """The table of `farm job list`. `now`: ISO 8601; `width`: of the lines, None: the terminal's."""
    rows = (
        (
            row["id"], row["array"] or "-", row["kind"], _short(row["name"]) or "-", row["user"], row["state"],
            row["on"] or row["device"] or "-", row["attempts"], local_time(row["submitted_at"]),
            took(row["started_at"], row["ended_at"] or now) or "-", *_outcome(row),
        )
        for row in jobs
    )  # fmt: skip
    columns = (
        "JOB", "ARRAY", "KIND", "NAME", "USER", "STATE", "DEVICE", "TRIES", "SUBMITTED", "TOOK", "VERDICT", "RESULT",
        "WHY",
    )  # fmt: skip
    spare = ("ARRAY", "TRIES", "KIND", "SUBMITTED", "USER", "TOOK", "DEVICE", "NAME", "VERDICT")
    return table(columns, rows, spare=spare, below="WHY", width=width)


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
    tuning = KINDS.pooled(shown["job"]["kind"])
    print_page(shown, kept_by(shown["job"]["id"]) if tuning else None)
    if tuning and shown["job"]["state"] == "running":
        print_standing(_latest_standing(shown["job"]["id"]))


def _latest_standing(job: str) -> Mapping[str, Any] | None:
    """The latest progress event of a tuning; None: there is none yet."""
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
    array: Annotated[str, typer.Option(help="All jobs of this array.")] = "",
    key: Annotated[str, typer.Option(help="All jobs submitted with this key.")] = "",
    user: Annotated[str, typer.Option(help="All jobs of this user.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="All your own jobs.")] = False,
    state: Annotated[
        list[JobState] | None, typer.Option(help="Of these jobs only those in this state. Repeatable.")
    ] = None,
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
    cancelled = sum(row["state"] == JobState.CANCELLED for row in rows)
    others = [f"{row['id']} is {row['state']}" for row in rows if row["state"] != JobState.CANCELLED]
    emit({"jobs": rows}, [f"cancelled {cancelled} job{'s' * (cancelled != 1)}", *others], json=json)


@app.command()
def output(
    job: Annotated[str, typer.Argument(help="A job's id or its beginning.", autocompletion=complete.jobs)],
    to: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    json: JsonFlag = False,
) -> None:
    """Write a run's outputs (.npz), a tuning's package, a bench's trace (.pftrace), or what a shell's line wrote."""
    with work.client() as farm:
        outcome = farm.job(job, fetch_outputs=False)
        outputs = outcome.file or outcome.result.get("package")
        if outputs and to.suffix == TRACE_SUFFIX:
            raise _no_trace_error(outcome)
        if outputs:
            farm.get_file(outputs, to)
        elif raw := (outcome.result.get("certificate") or {}).get("raw"):
            _write_trace(farm, outcome, raw, to)
        elif "stdout" in outcome.result:
            write_file(to, outcome.result["stdout"].encode())
        else:
            outcome.raise_for_error()
            raise UserError(f"a {outcome.job.kind} job has no outputs", hint=f"farm job show {outcome.job.id}")
    emit({"job": outcome.job.id, "file": str(to)}, (), json=json)
    if not json:
        print_note(f"wrote {to}")


def _write_trace(farm: Client, outcome: Outcome, raw: str, to: Path) -> None:
    """Write the trace for Perfetto of a job whose kind keeps samples over time; `raw` is the artifact with them."""
    from farm.results.perfetto import session_tracks

    kind = KINDS.kinds["bench" if outcome.job.kind in MEASURING_KINDS else outcome.job.kind]
    if not kind.has("trace"):
        raise _no_trace_error(outcome)
    with TemporaryDirectory(prefix="farm-trace-") as folder:
        farm.get_file(raw, Path(folder, "raw"))
        taken = loads(Path(folder, "raw").read_bytes())
    trace = kind.part("trace")
    beside = session_tracks(_sessions_beside(outcome.device), *trace.span_of(outcome.result))
    write_file(to, trace.trace_of(outcome.result, taken, beside))


def _no_trace_error(outcome: Outcome) -> UserError:
    return UserError(
        f"a {outcome.job.kind} job has no trace",
        hint=f"farm job show {outcome.job.id}; benches and sustained runs have traces",
    )


def _sessions_beside(device: str) -> dict[str, list[dict[str, Any]]]:
    """By name of each other phone on the same hub: the events of its sessions, newest first."""
    rows = call("device.list")["devices"]
    hubs = {row["name"]: (row.get("host"), place.hub) for row in rows if (place := parse_place(row["usb"])) is not None}
    names = [name for name, hub in hubs.items() if name != device and hub == hubs.get(device)]
    return {
        name: call("events.newest", subject=name, limit=NEWEST_EVENTS, topics=["session"])["events"]
        for name in sorted(names)
    }


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
        print_line(f"{row['id']} is {row['state']}{done}")
        if row["id"] in changed and row["state"] == JobState.CANCELLED and KINDS.pooled(row["kind"]):
            work.print_kept(row["id"])


def logs(
    job: Annotated[str, typer.Argument(help="A job's id or its beginning.", autocompletion=complete.jobs)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt; the latest by default.")] = None,
    json: JsonFlag = False,
) -> None:
    """Print an attempt's log: with --json an object a line."""
    with work.client() as farm:
        for line in farm.logs(job, attempt=attempt, follow=follow):
            if json:
                print_json_line(asdict(line))
            else:
                level = "" if line.level == "info" else f"{line.level}: "
                text = f"{line.at.astimezone():%H:%M:%S} {line.source}: {level}{line.text}"
                if sys.stdout.isatty():
                    print_line(text)
                else:
                    sys.stdout.write(text + "\n")  # a file or a filter gets the log as it is
                    sys.stdout.flush()


def _outcome(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """The verdict or answer of a job, its figure, and why it waits, failed or is not trusted."""
    figure, verdict = list_words(row.get("result") or {})
    return verdict or "-", figure or "-", list_why(row)


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}…"


def print_page(shown: Mapping[str, Any], kept: Mapping[str, Any] | None = None) -> None:
    """The answer of `job.show`: who, where, why it waits or failed; its attempts; its result.

    `kept`: the set of records that the job, a tuning, has kept, as `records.list` has it.
    """
    row = shown["job"]
    print_line(f"{row['id']} is {row['state']}: {row['kind']} of {row['user']}, priority {row['priority']}")
    for name, value in _facts(shown):
        print_line(f"  {name:<10}{value}")
    if kept and row["ended_at"] and row["state"] != "done":
        print_line(f"  {'records':<10}{kept_words(kept)}")
    if shown["attempts"]:
        print_line()
        print_table(
            ("ATTEMPT", "DEVICE", "STATE", "STARTED", "TOOK", "ERROR"),
            (
                (
                    each["number"], each["device"], each["state"], local_time(each["started_at"]),
                    took(each["started_at"], each["ended_at"]) or "-", (each["error"] or {}).get("message", "-"),
                )
                for each in shown["attempts"]
            ),
        )  # fmt: skip
    if shown["result"]:
        print_line()
        from farm.client.model import outcome_from

        try:
            outcome = outcome_from(shown)
            if (kind := KINDS.kinds.get(outcome.job.kind)) is not None and kind.has("command"):
                command = kind.part("command")
                if hasattr(command, "print_job"):
                    command.print_job(outcome, kept)
                else:
                    command.print_results([{**outcome.result, "device": outcome.device}])
        except (LookupError, TypeError, ValueError, AttributeError, MissingFieldError) as error:
            # Another release stored it.
            why = f"{type(error).__name__}: {error}"
            print_line(f"this farm cannot read the result ({why}); as it is stored: farm job show {row['id']} --json")


def print_standing(progress: Mapping[str, Any] | None) -> None:
    """A running search: its latest line, and each task's rates."""
    if progress is not None:
        print_line()
        print_line(str(progress.get("step", "")))
        for line in tune_summary.task_lines(progress["tuning"]):
            print_line(line)


def _facts(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from farm.kinds.spec_text import described, unusual

    row, spec, error = shown["job"], shown["spec"], shown["job"]["error"] or {}
    yield from described(row, spec)
    if row["on"]:
        yield "ran on" if row["ended_at"] else "runs on" if row["state"] == "running" else "was on", row["on"]
    if row["array"]:
        yield "array", row["array"]
    if shown["after"]:
        yield "after", ", ".join(shown["after"])
    yield "submitted", local_time(row["submitted_at"])
    if row["ended_at"]:
        yield "ended", f"{local_time(row['ended_at'])}, after {took(row['submitted_at'], row['ended_at'])}"
    if row["waits"]:
        yield "waits", row["waits"]
    for name, value in (("error", error.get("message")), ("hint", error.get("hint"))):
        if value:
            yield name, str(value)
    if options := ", ".join(unusual(spec)):
        yield "options", options


def submit(
    file: Annotated[Path, typer.Argument(help="A TOML file with one job, several, or a matrix.")],
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="[DURATION]",
            help="Wait until all have ended, for a phone at most so long; Ctrl-C cancels them.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str, typer.Option(help="A second submit with this key adds only jobs that the first did not have.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be submitted; no daemon needed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Queue the jobs of a file (docs/scripts.md), all or none; the files it names are uploaded.

    Exit code 3 when no phone matches one of them. With --wait: exit code 1 when a job failed, or the reason's code when
    all failed for one.
    """
    from farm.client.specfile import load

    planned, limit_s = load(file), work.wait_s(wait)
    if dry_run:
        _print_plan(planned, json=json)
        return
    with work.client() as farm:
        submitted = farm.submit_file(file, key=key, must_match=True)
        for each in submitted:
            for warning in each.warnings:
                print_note(f"warning: {warning}")
        if wait is None:
            if json:
                work.print_ids(submitted, json=True)
            else:
                _print_submitted(planned, submitted)
            return
        names = {job: plan.name for plan, each in zip(planned, submitted, strict=True) for job in each.ids}
        finish = partial(
            work.finish, document={}, json=json, show=lambda ended: _print_outcomes(names.values(), ended),
            more=lambda each: {"name": names[each.job.id]},
        )  # fmt: skip
        with interruptible():
            work.follow(farm, submitted, quiet=json, limit_s=limit_s, finish=finish)
        finish(work.outcomes_of(farm, submitted))


def _print_plan(planned: Sequence[Planned], *, json: bool) -> None:
    plans = [{"name": each.name, "after_tables": each.after, "spec": each.spec.to_wire()} for each in planned]
    rows = (
        (
            each.name, each.spec.kind, each.spec.on, each.spec.devices,
            getattr(each.spec, "name", "") or getattr(each.spec, "command", "") or "-",
            ", ".join((*each.after, *each.spec.after)) or "-",
        )
        for each in planned
    )  # fmt: skip
    emit({"entries": plans}, table(("NAME", "KIND", "ON", "DEVICES", "WHAT", "AFTER"), rows), json=json)


def _print_submitted(planned: Sequence[Planned], submitted: Sequence[Submitted]) -> None:
    print_table(
        ("NAME", "KIND", "ON", "JOBS", "ID"),
        (
            (plan.name, plan.spec.kind, plan.spec.on, len(each.jobs), each.array or ", ".join(each.ids))
            for plan, each in zip(planned, submitted, strict=True)
        ),
    )


def _print_outcomes(names: Iterable[str], outcomes: Sequence[Outcome]) -> None:
    """One line a job with its outcome; each reason for failures once, on stderr."""
    print_table(
        ("NAME", "JOB", "DEVICE", "STATE", "RESULT"),
        (
            (name, each.job.id, each.device or "-", each.job.state, each.brief())
            for name, each in zip(names, outcomes, strict=True)
        ),
    )
    work.print_failures(outcomes)
