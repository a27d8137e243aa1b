"""What `bench`, `run`, `shell` and `submit` share: their options, waiting with a word about why, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from farm.cli import complete
from farm.cli.bars import Bars
from farm.cli.context import print_json, say, tell
from farm.cli.interrupts import interruptible
from farm.cli.progress import Progress
from farm.core.error_wire import error_to_wire
from farm.core.errors import DaemonUnreachableError, ExitCode, UserError
from farm.core.limits import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, MAX_ATTEMPTS, MAX_PRIORITY, MAX_TIMEOUT_S

if TYPE_CHECKING:
    from farm.client import Client, Event, Submitted
    from farm.client.outcomes import Outcome
    from farm.client.waiting import Reasons
    from farm.jobs.specs import AnySpec

IDLE_S = 2.0  # without news, people wonder why it waits
WAITING = ("held", "blocked", "queued", "running")
ASKED_NAMES = 1000  # jobs and arrays in one question
SHOWN_NAMES = 4  # of jobs that wait for the same
DEADLINE_HINT = "a time to come: 2h, 30m, 18:00, 2026-05-01T18:00"
ASKED_JOBS = 1000  # of those that wait: the others' reasons are the same

Selector = Annotated[
    str,
    typer.Option(
        "--on", help="Which phones: label=value[,label=value...] or an alias.", autocompletion=complete.selectors
    ),
]
Devices = Annotated[str, typer.Option(help="How many phones, each a job of its own; all: every matching one.")]
Timeout = Annotated[str | None, typer.Option(help="For one attempt, all steps: 90s, 10m, 2h; a number is seconds.")]
Priority = Annotated[int, typer.Option(min=0, max=MAX_PRIORITY, help="Higher goes first.")]
Deadline = Annotated[str | None, typer.Option(help="Give up unless it has ended by then: 2h, 30m, 18:00.")]
Attempts = Annotated[int, typer.Option("--max-attempts", min=1, max=MAX_ATTEMPTS, help="Tries at most.")]
After = Annotated[
    list[str] | None,
    typer.Option(help="A job or array that must be done first. Repeatable.", autocompletion=complete.jobs),
]
Hold = Annotated[bool, typer.Option("--hold", help="Wait for `farm job resume`; implies --detach.")]
Quiesce = Annotated[
    str | None,
    typer.Option(
        "--quiesce", metavar="LEVEL", help="How quiet the phone is made: off, gentle, full.", show_default=False
    ),
]
QuietHub = Annotated[bool, typer.Option("--quiet-hub", help="No other user has a phone on the same hub meanwhile.")]
Detach = Annotated[bool, typer.Option("--detach", help="Print the jobs' ids and do not wait.")]

PRIORITY = DEFAULT_PRIORITY
MAX_TRIES = DEFAULT_MAX_ATTEMPTS


def job_options(
    on: str,
    devices: str,
    timeout: str | None,
    priority: int,
    deadline: str | None,
    max_attempts: int,
    after: Sequence[str] | None,
    hold: bool,
) -> dict[str, Any]:
    """The spec's fields that every kind has.

    Raises:
        UserError: the number of devices, the time limit or the deadline is wrong.
    """
    return {
        "on": on,
        "devices": _devices(devices),
        "timeout_s": _timeout_s(timeout),
        "priority": priority,
        "deadline_s": _deadline_s(deadline),
        "max_attempts": max_attempts,
        "after": tuple(after or ()),
        "hold": hold,
    }


def client() -> Client:
    """The farm, telling on stderr when it is waited for and how far large files are."""
    from farm.client import Client

    bars = Bars()
    return Client(on_notice=bars.say, on_transfer=bars.transfer)


def submit(farm: Client, spec: AnySpec) -> Submitted:
    """Queue it; warnings go to stderr. A Ctrl-C meanwhile leaves no job.

    Raises:
        NoPhoneError: no phone matches.
    """
    import secrets

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
        tell(job.id)


def carried_out(
    farm: Client,
    spec: AnySpec,
    *,
    detach: bool,
    json: bool,
    on_event: Callable[[Event], None] | None = None,
    show: Callable[[Event, str], None] | None = None,
) -> Submitted:
    """Submit it and wait for its end. Detached, its ids are printed and the command is over.

    `show` prints an event's line; None: on stderr, one after the other.

    Raises:
        NoPhoneError: no phone matches.
    """
    with interruptible():
        submitted = submit(farm, spec)
        if detach:
            print_ids([submitted], json=json)
            raise typer.Exit
        follow(farm, [submitted], quiet=json, on_event=on_event, show=show)
    return submitted


def cancel(farm: Client, submitted: Sequence[Submitted]) -> None:
    """End what has not ended, and say so. Interrupted once more, seconds later, it does not wait for that."""
    from farm.client.model import names_of

    try:
        cancelled = [job for job in farm.cancel(submitted) if job.state == "cancelled"]
        say(f"cancelled {len(cancelled)} job{'s' * (len(cancelled) != 1)}")
        for job in cancelled:
            if job.kind == "tune":
                say_kept(job.id)
    except KeyboardInterrupt:
        names = " ".join(names_of(submitted))
        say(f"not waited for their end, so they may go on: farm job cancel {names}")


def say_kept(job: str) -> None:
    """What a tuning that did not come to its end has kept, if anything."""
    from farm.cli.records import kept_by, kept_words

    if kept := kept_by(job):
        say(kept_words(kept))


@contextmanager
def _waited_for(farm: Client, submitted: Sequence[Submitted]) -> Iterator[None]:
    """Jobs that are cancelled by Ctrl-C, and only by that: they outlive a daemon that stays away."""
    try:
        yield
    except KeyboardInterrupt:
        cancel(farm, submitted)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except DaemonUnreachableError as error:
        from farm.client.model import names_of

        names = " ".join(names_of(submitted))
        raise DaemonUnreachableError(
            f"{error.message}; the jobs stay in its queue", hint=f"once it is back: farm watch {names}"
        ) from error


def follow(
    farm: Client,
    submitted: Sequence[Submitted],
    *,
    quiet: bool = False,
    on_event: Callable[[Event], None] | None = None,
    show: Callable[[Event, str], None] | None = None,
) -> None:
    """Return when all jobs have ended; their steps go to stderr, and after a while of silence why they wait.

    Raises:
        DaemonUnreachableError: the daemon went away and stayed away; the jobs go on when it is back.
    """
    from farm.client.waiting import Reasons

    progress = Progress(job for each in submitted for job in each.jobs)
    reasons = Reasons()
    with _waited_for(farm, submitted):
        for event in farm.watch(submitted, idle_s=None if quiet else IDLE_S):
            if event is None:
                _say_waits(farm, submitted, progress, reasons)
                continue
            if on_event is not None:
                on_event(event)
            line = progress.line(event)
            if line and not quiet:
                if show is None:
                    say(line)
                else:
                    show(event, line)


def _say_waits(farm: Client, submitted: Sequence[Submitted], progress: Progress, reasons: Reasons) -> None:
    from farm.client.model import names_of

    waiting: dict[str, list[str]] = {}
    for job in farm.jobs(jobs=names_of(submitted)[:ASKED_NAMES], state=WAITING, limit=ASKED_JOBS):
        if reasons.is_news(job.id, job.waits):
            waiting.setdefault(job.waits, []).append(progress.name(job.id))
    for reason, jobs in waiting.items():
        said = reason.removeprefix(f"{jobs[0]}: ")  # a job is often called like the one phone that keeps it waiting
        say(f"{_some(jobs)} waits: {said}" if len(jobs) == 1 else f"{_some(jobs)} wait: {reason}")


def finish(
    outcomes: Sequence[Outcome],
    document: Mapping[str, Any],
    *,
    json: bool,
    show: Callable[[Sequence[Outcome]], None],
    more: Callable[[Outcome], Mapping[str, Any]] = lambda _: {},
) -> NoReturn:
    """Print what came of the jobs, and end the command with its exit code.

    Args:
        outcomes: of the jobs.
        document: what its JSON says ahead of the results.
        json: whether to print that.
        show: prints it for people.
        more: what the JSON says of each job besides.
    """
    if json:
        results = [{**outcome_json(each), **more(each)} for each in outcomes]
        print_json({"ok": all(each.ok for each in outcomes), **document, "results": results})
    else:
        show(outcomes)
    raise typer.Exit(exit_code(outcomes))


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


def checked(path: Path) -> Path:
    """A file that is there.

    Raises:
        UserError: it is not.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {what}", hint="give the path of a file")
    return path


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _devices(text: str) -> int | str:
    if text == "all":
        return text
    if not text.isascii() or not text.isdigit():
        raise UserError(f"--devices {text!r} is no number", hint="a number of phones, or all")
    return int(text)


def _timeout_s(text: str | None) -> float | None:
    if text is None:
        return None
    from farm.core.durations import parse_duration

    seconds = float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else parse_duration(text)
    if not 1 <= seconds <= MAX_TIMEOUT_S:
        raise UserError(f"--timeout {text} is out of range", hint=f"1s to {MAX_TIMEOUT_S / 3600:g}h")
    return seconds


def _deadline_s(text: str | None) -> float | None:
    if text is None:
        return None
    from farm.core.durations import BadTimeError, parse_duration, parse_when

    try:
        return parse_duration(text)
    except BadTimeError:
        now = datetime.now(UTC)
        try:
            seconds = (parse_when(text, now) - now).total_seconds()
        except BadTimeError:
            raise UserError(f"{text[:40]!r} is no duration and no time", hint=DEADLINE_HINT) from None
    if seconds <= 0:
        raise UserError(f"--deadline {text}: that is past", hint=DEADLINE_HINT)
    return seconds
