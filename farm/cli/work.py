"""What `bench`, `run`, `shell` and `submit` share: their options, waiting with a word about why, and how it ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli.context import print_json, say
from farm.core.error_wire import error_to_wire
from farm.core.errors import ExitCode, UserError
from farm.core.limits import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, MAX_ATTEMPTS, MAX_PRIORITY, MAX_TIMEOUT_S

if TYPE_CHECKING:
    from farm.client import AsyncClient, Client, Event, JobInfo, Submitted
    from farm.client.outcomes import Outcome
    from farm.jobs.specs import AnySpec

IDLE_S = 2.0  # without news, people wonder why it waits

Selector = Annotated[str, typer.Option("--on", help="Which phones: label=value[,label=value...] or an alias.")]
Devices = Annotated[str, typer.Option(help="How many phones, each a job of its own; all: every matching one.")]
Timeout = Annotated[float | None, typer.Option(min=1.0, max=MAX_TIMEOUT_S, help="Seconds for one attempt, all steps.")]
Priority = Annotated[int, typer.Option(min=0, max=MAX_PRIORITY, help="Higher goes first.")]
Deadline = Annotated[str | None, typer.Option(help="Give up unless it has ended by then: 2h, 30m, 18:00.")]
Attempts = Annotated[int, typer.Option("--max-attempts", min=1, max=MAX_ATTEMPTS, help="Tries at most.")]
After = Annotated[list[str] | None, typer.Option(help="A job or array that must be done first. Repeatable.")]
Hold = Annotated[bool, typer.Option("--hold", help="Wait for `farm job resume`; implies --detach.")]
Detach = Annotated[bool, typer.Option("--detach", help="Print the jobs' ids and do not wait.")]

PRIORITY = DEFAULT_PRIORITY
MAX_TRIES = DEFAULT_MAX_ATTEMPTS


def job_options(
    on: str,
    devices: str,
    timeout: float | None,
    priority: int,
    deadline: str | None,
    max_attempts: int,
    after: Sequence[str] | None,
    hold: bool,
) -> dict[str, Any]:
    """The spec's fields that every kind has.

    Raises:
        UserError: the number of devices or the deadline is wrong.
    """
    return {
        "on": on,
        "devices": _devices(devices),
        "timeout_s": timeout,
        "priority": priority,
        "deadline_s": _deadline_s(deadline),
        "max_attempts": max_attempts,
        "after": tuple(after or ()),
        "hold": hold,
    }


def client() -> Client:
    """The farm, telling on stderr when it is waited for."""
    from farm.client import Client

    return Client(on_notice=say)


def async_client() -> AsyncClient:
    """As `client`, for a command with a loop of its own."""
    from farm.client import AsyncClient

    return AsyncClient(on_notice=say)


def submit(farm: Client, spec: AnySpec) -> Submitted:
    """Queue it; warnings go to stderr. A Ctrl-C meanwhile leaves no job.

    Raises:
        NoPhoneError: no phone matches.
    """
    key = secrets.token_hex(16)
    try:
        submitted = farm.submit(spec, key=key, must_match=True)
    except KeyboardInterrupt:
        # Asked again, the same key tells whether there are jobs by now.
        cancel(farm, [farm.submit(spec, key=key, must_match=True)])
        raise
    for warning in submitted.warnings:
        say(f"warning: {warning}")
    return submitted


def print_ids(submitted: Iterable[Submitted], *, json: bool) -> None:
    """What `--detach` prints: an id a line."""
    jobs = [job for each in submitted for job in each.jobs]
    if json:
        print_json({"jobs": [{"id": job.id, "array": job.array, "name": job.name} for job in jobs]})
        return
    for job in jobs:
        typer.echo(job.id)


def cancel(farm: Client, submitted: Iterable[Submitted]) -> None:
    """End what has not ended, and say so."""
    cancelled = [job for job in farm.cancel(submitted) if job.state == "cancelled"]
    say(f"cancelled {len(cancelled)} job{'s' * (len(cancelled) != 1)}")


@contextmanager
def cancelled_by_ctrl_c(farm: Client, submitted: Iterable[Submitted]) -> Iterator[None]:
    """Ctrl-C inside ends the jobs; the command's exit code is 1."""
    try:
        yield
    except KeyboardInterrupt:
        cancel(farm, submitted)
        raise typer.Exit(ExitCode.FAILED) from None


def follow(
    farm: Client,
    submitted: Sequence[Submitted],
    *,
    quiet: bool = False,
    on_event: Callable[[Event], None] = lambda _: None,
) -> None:
    """Return when all jobs have ended; their steps go to stderr, and after a while of silence why they wait."""
    names = Names(job for each in submitted for job in each.jobs)
    said: dict[str, str] = {}
    for event in farm.watch(submitted, idle_s=None if quiet else IDLE_S):
        if event is not None:
            on_event(event)
            line = names.line(event)
            if line and not quiet:
                said.clear()
                say(line)
            continue
        waiting: dict[str, list[str]] = {}
        for job in _unended(farm, submitted):
            if job.waits and said.get(job.id) != job.waits:
                said[job.id] = job.waits
                waiting.setdefault(job.waits, []).append(names.of(job.id))
        for reason, jobs in waiting.items():
            say(f"{_some(jobs)} waits: {reason}" if len(jobs) == 1 else f"{_some(jobs)} wait: {reason}")


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """0 when all did their part; when none did, all for one reason, that reason's code; else 1."""
    codes = {ExitCode.OK if each.ok else each.error.exit_code if each.error else ExitCode.FAILED for each in outcomes}
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED


def print_failures(outcomes: Iterable[Outcome]) -> None:
    """Each reason once, on stderr, with whom it concerns."""
    failures: dict[tuple[str, str], list[str]] = {}
    for each in outcomes:
        if each.error is not None:
            failures.setdefault((each.error.message, each.error.hint), []).append(each.device or each.job.id)
    for (message, hint), devices in failures.items():
        named = len(devices) == 1 and message.startswith(devices[0])
        say(f"error: {message}" if named else f"error: {', '.join(devices)}: {message}")
        if hint:
            say(f"  hint: {hint}")


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """One job's part of a command's JSON: its result, with what became of the job beside it."""
    attempts = [
        {**asdict(each), "error": error_to_wire(each.error) if each.error else None} for each in outcome.attempts
    ]
    return {
        **outcome.result,
        "job": outcome.job.id,
        "device": outcome.device,
        "ok": outcome.ok,
        "state": outcome.job.state.value,
        "attempts": attempts,
        "error": error_to_wire(outcome.error) if outcome.error else None,
    }


class Names:
    """Words for events: which phone or job, and what happened."""

    def __init__(self, jobs: Iterable[JobInfo] = ()) -> None:
        self._names = {job.id: job.device or job.on for job in jobs}
        self._alone = len(self._names) == 1

    def of(self, job: str) -> str:
        """A job's phone, once it has one; else the job."""
        return self._names.get(job) or job

    def line(self, event: Event) -> str:
        """A line for people; empty for events that are no news to them."""
        data: Mapping[str, Any] = event.data
        job = str(data.get("job") or event.subject)
        if data.get("device"):
            self._names[job] = str(data["device"])
        match event.kind:
            case "job.progress":
                return f"{self.of(job)}: {data.get('step', '')}"
            case "attempt.started":
                return f"{self.of(job)}: started"
            case "attempt.ended" if data.get("state") not in ("done", "cancelled"):
                return f"{self.of(job)}: {data.get('state')}{_because(data)}"
            case "job.queued" | "job.held" | "job.resumed" | "job.cancelled":
                return f"{self.of(job)}: {event.kind.removeprefix('job.')}{_because(data)}"
            case _:
                return ""


def checked(path: Path) -> Path:
    """A file that is there.

    Raises:
        UserError: it is not.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {what}", hint="give the path of a file")
    return path


def _because(data: Mapping[str, Any]) -> str:
    error = data.get("error")
    reason = error.get("message") if isinstance(error, Mapping) else data.get("reason")
    return f": {reason}" if reason else ""


def _unended(farm: Client, submitted: Sequence[Submitted]) -> list[JobInfo]:
    """The jobs that have not ended, in as few questions as there are arrays."""
    arrays = {each.array for each in submitted if each.array}
    rows = [job for array in arrays for job in farm.jobs(array=array, limit=1000)]
    alone = [job for each in submitted if not each.array for job in each.ids]
    if alone:
        wanted = set(alone)
        states = ("held", "blocked", "queued", "running")
        rows += [job for job in farm.jobs(state=states, limit=1000) if job.id in wanted]
    return [job for job in rows if not job.ended]


def _some(names: Sequence[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _devices(text: str) -> int | str:
    if text == "all":
        return text
    if not text.isascii() or not text.isdigit():
        raise UserError(f"--devices {text!r} is no number", hint="a number of phones, or all")
    return int(text)


def _deadline_s(text: str | None) -> float | None:
    if text is None:
        return None
    from farm.core.durations import BadTimeError, parse_duration, parse_when

    try:
        return parse_duration(text)
    except BadTimeError as error:
        now = datetime.now(UTC)
        try:
            seconds = (parse_when(text, now) - now).total_seconds()
        except BadTimeError:
            raise error from None
    if seconds <= 0:
        raise UserError(f"--deadline {text}: that is past", hint="a time to come: 2h, 30m, 18:00")
    return seconds
