"""Shared by the commands of jobs: their options, waiting with the reason for it, and the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from farm.cli.output import emit, escaped, print_json, print_note
from farm.cli.output.job_events import EventLines
from farm.cli.output.terminal import TransferBars, columns, interruptible, is_lively
from farm.common.durations import BadTimeError, format_duration, parse_duration, parse_when
from farm.common.errors import DaemonUnreachableError, ExitCode, FarmError, NoPhoneError, UserError, error_to_wire
from farm.common.files import check_writable
from farm.common.limits import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, MAX_JOBS_AT_ONCE, MAX_WHY
from farm.common.selector import HOST
from farm.kinds import KINDS
from farm.model.specs import OUTPUT, QUEUE

if TYPE_CHECKING:
    from farm.client import Client, Event, JobInfo, Submitted
    from farm.client.model import Outcome
    from farm.model.specs import JobSpec

IDLE_S = 2.0  # without events, people want to know why it waits
WAITING = ("held", "blocked", "queued", "running")
ASKED_NAMES = 1000  # jobs and arrays in one question
END_LIMIT_S = 10.0  # for the answer to a cancellation
SHOWN_NAMES = 4  # of jobs that wait for the same
DEADLINE_HINT = "a time to come: 2h, 30m, 18:00, 2026-05-01T18:00"
NO_LIMIT = 1_000_000  # of one question: all
ASKED_JOBS = 1000  # of those that wait: the others' reasons are the same

Wait = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Wait for a phone at most so long: what waits then is cancelled, exit code 3. Default: no limit.",
        show_default=False,
        rich_help_panel=QUEUE,
    ),
]
Why = Annotated[
    bool,
    typer.Option("--why", help="Print every reason for a verdict, not only the gravest.", rich_help_panel=OUTPUT),
]
Detach = Annotated[bool, typer.Option("--detach", help="Print the jobs' ids and do not wait.", rich_help_panel=QUEUE)]

_DEFAULTS = {
    "devices": (1, "all"), "priority": (DEFAULT_PRIORITY,), "deadline_s": (None,), "after": ((),), "hold": (False,),
    "max_attempts": (DEFAULT_MAX_ATTEMPTS,), "detach": (False,), "wait": (None,),
    "timeout_s": (None,),
}  # fmt: skip
_OPTIONS = {"deadline_s": "deadline", "max_attempts": "max-attempts", "timeout_s": "timeout"}


def client() -> Client:
    """A client that reports on stderr when it waits for the daemon and how far large files are."""
    from farm.client import Client

    return Client(on_notice=print_note, on_transfer=TransferBars().update)


def submit(farm: Client, spec: JobSpec) -> Submitted:
    """Queue it; warnings go to stderr. A Ctrl-C meanwhile leaves no job.

    Raises:
        NoPhoneError: no phone matches.
    """
    import secrets

    key = secrets.token_hex(16)
    try:
        submitted = farm.submit(spec, key=key, must_match=True)
    except KeyboardInterrupt:
        # The same key again gives the jobs of the first request, if it arrived.
        cancel(farm, [farm.submit(spec, key=key, must_match=True)])
        raise
    for warning in submitted.warnings:
        print_note(f"warning: {warning}")
    return submitted


def print_ids(submitted: Iterable[Submitted], *, json: bool) -> None:
    """Print an id a line, for `--detach`."""
    jobs = [job for each in submitted for job in each.jobs]
    document = {"jobs": [{"id": job.id, "array": job.array, "name": job.name} for job in jobs]}
    emit(document, (job.id for job in jobs), json=json)


def submit_and_wait(
    farm: Client,
    spec: JobSpec,
    *,
    detach: bool,
    wait: str | None = None,
    json: bool,
    on_event: Callable[[Event], None] | None = None,
    show: Callable[[Event, str], None] | None = None,
    finish: Callable[[Submitted, list[Outcome]], object] | None = None,
) -> tuple[Submitted, list[Outcome]]:
    """Submit a spec and wait for the end of its jobs. Detached, or held, their ids are printed and the command is over.

    `show` prints an event's line; None: on stderr, one after the other. `finish` prints the outcomes at Ctrl-C, if a
    job was done before.

    Raises:
        NoPhoneError: no phone matches, or none came within `wait`, a duration.
        UserError: that is no duration, or detached.
    """
    limit_s = wait_s(wait)
    if (detach or spec.hold) and limit_s is not None:
        raise UserError("--wait bounds the wait for a phone, and --detach does not wait", hint="--deadline does both")
    with interruptible():
        submitted = submit(farm, spec)
        if detach or spec.hold:
            print_ids([submitted], json=json)
            raise typer.Exit
        finished = partial(finish, submitted) if finish is not None else None
        follow(
            farm,
            [submitted],
            quiet=json,
            on_event=on_event,
            show=show,
            limit_s=limit_s,
            finish=finished,
            leave=not spec.once,
        )
    return submitted, outcomes_of(farm, [submitted])


def submit_to_end(
    farm: Client,
    spec: JobSpec,
    finish: Callable[[Submitted, list[Outcome]], NoReturn],
    *,
    detach: bool,
    wait: str | None,
    json: bool,
    show: Callable[[Event, str], None] | None = None,
) -> NoReturn:
    """Call `submit_and_wait`, then `finish`, which prints and ends the command; at Ctrl-C after a result, too."""
    finish(*submit_and_wait(farm, spec, detach=detach, wait=wait, json=json, show=show, finish=finish))


def outcomes_of(farm: Client, submitted: Iterable[Submitted]) -> list[Outcome]:
    """How each job stands, without its output files."""
    return [farm.job(job, fetch_outputs=False) for each in submitted for job in each.ids]


def cancel(farm: Client, submitted: Sequence[Submitted]) -> None:
    """End the jobs that have not ended, and print how many. A second Ctrl-C, seconds later, ends the wait for that."""
    from farm.client.model import names_of

    try:
        jobs = farm.cancel(submitted)
        cancelled = [job for job in jobs if job.state == "cancelled"]
        of = f" of {len(jobs)}" if len(cancelled) < len(jobs) else ""
        print_note(f"cancelled {len(cancelled)}{of} job{'s' * (len(jobs) != 1)}")
        for job in cancelled:
            if KINDS.pooled(job.kind):
                print_kept(job.id)
    except KeyboardInterrupt:
        names = " ".join(names_of(submitted))
        print_note(f"not waited for their end, so they may continue: farm job cancel {names}")


def print_kept(job: str) -> None:
    """Print the records that a tuning stored before it was ended, if any."""
    from farm.cli.records import kept_by, kept_words

    if kept := kept_by(job):
        print_note(kept_words(kept))


def follow(
    farm: Client,
    submitted: Sequence[Submitted],
    *,
    quiet: bool = False,
    on_event: Callable[[Event], None] | None = None,
    show: Callable[[Event, str], None] | None = None,
    limit_s: float | None = None,
    finish: Callable[[list[Outcome]], object] | None = None,
    leave: bool = True,
) -> None:
    """Return when all jobs have ended; their steps go to stderr, and after a while of silence why they wait.

    Ctrl-C cancels the jobs; `finish` then prints their outcomes, if one was done before. Those that wait for a phone
    for `limit_s` are cancelled. Without a limit, jobs that only an operator can free are left in the queue, or, unless
    `leave`, cancelled: nobody expects their effects later.

    Raises:
        NoPhoneError: that was all of them.
        DaemonUnreachableError: the daemon went away and stayed away; the jobs continue when it is back.
    """
    from farm.client.model import names_of
    from farm.client.streams import Reasons

    progress = EventLines(job for each in submitted for job in each.jobs)
    reasons, limit, waits = Reasons(), WaitLimit(farm, names_of(submitted), limit_s), WaitLine()
    jobs = sum(len(each.jobs) for each in submitted)
    try:
        limit.begin()
        for event in farm.watch(submitted, idle_s=IDLE_S):
            if event is None or event.kind == "job.waits":
                waiting = farm.jobs(jobs=names_of(submitted)[:ASKED_NAMES], state=WAITING, limit=ASKED_JOBS)
                news = [job for job in waiting if reasons.is_news(job.id, job.waits)]
                if not quiet:
                    waits.show(_why_waits(waiting if waits.updates else news, progress))
                if news and limit_s is None and _left_to_operator(farm, waiting, jobs, leave=leave):
                    break
                continue
            waits.clear()
            if event.kind == "job.queued":  # for another attempt
                limit.begin()
            if on_event is not None:
                on_event(event)
            line = progress.line(event)
            if line and not quiet:
                (show or _print_line)(event, line)
    except KeyboardInterrupt:
        cancel(farm, submitted)
        _finish_done(farm, submitted, finish)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except DaemonUnreachableError as error:
        raise DaemonUnreachableError(
            f"{error.message}; the jobs stay in its queue",
            hint=f"once it is back: farm watch {' '.join(names_of(submitted))}",
        ) from error
    finally:
        waits.clear()
        limit.end()
    limit.check(jobs)


def _print_line(_event: Event, line: str) -> None:
    print_note(line)


def _finish_done(
    farm: Client, submitted: Sequence[Submitted], finish: Callable[[list[Outcome]], object] | None
) -> None:
    outcomes = outcomes_of(farm, submitted) if finish is not None else []
    if finish is not None and any(each.ok for each in outcomes):
        with suppress(typer.Exit):
            finish(outcomes)


class WaitLine:
    """Why jobs wait: one line that a terminal updates, else a line for each change."""

    def __init__(self) -> None:
        self.updates = is_lively(sys.stderr)
        self._shown = False

    def show(self, lines: Sequence[str]) -> None:
        """Print reasons; on a terminal the first one, and how many more there are."""
        if not self.updates:
            for line in lines:
                print_note(line)
        elif lines:
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            self.clear()
            sys.stderr.write(escaped(f"{lines[0]}{more}")[: columns(sys.stderr) - 1])
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Remove the line, before others are printed."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            self._shown = False


def _left_to_operator(farm: Client, waiting: Sequence[JobInfo], jobs: int, *, leave: bool) -> bool:
    """Whether only an operator can help all waiting jobs, which is printed. Unless `leave`, these are cancelled.

    Raises:
        NoPhoneError: all of the so many jobs wait for an operator.
    """
    if not waiting or any(job.state != "queued" for job in waiting):
        return False
    todo = [farm.needs_operator(job.id) for job in {job.waits: job for job in waiting}.values()]
    if not all(todo):
        return False
    names = _some([job.id for job in waiting])
    message = f"only an operator can free a phone: {waiting[0].waits}"
    hint = f"{todo[0]} (an operator). {names} stay{'s' * (len(waiting) == 1)} queued: farm job cancel, or farm watch"
    if not leave:
        farm.cancel([job.id for job in waiting], why=message[:MAX_WHY])
        hint = f"{todo[0]} (an operator), or choose others: farm device list"
    if len(waiting) == jobs:
        raise NoPhoneError(message, hint=hint)
    print_note(f"{message}\n  hint: {hint}")
    return True


class WaitLimit:
    """Cancels the jobs of a command that wait for a phone for longer than they may."""

    def __init__(self, farm: Client, names: Sequence[str], limit_s: float | None) -> None:
        """`names`: jobs and arrays. `limit_s` None: they may wait without end."""
        self._farm = farm
        self._names = names
        self._limit_s = limit_s
        self._timer: Timer | None = None
        self._cancelled: dict[str, str] = {}  # job -> why it waited
        self._todo = ""  # what an operator would have to do for the first of them

    def begin(self) -> None:
        """A job waits from now on; others may wait already."""
        if self._limit_s is not None and (self._timer is None or not self._timer.is_alive()):
            self._timer = Timer(self._limit_s, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join(END_LIMIT_S)  # it may be cancelling jobs, over this thread's connection

    def check(self, jobs: int) -> None:
        """Report how many of so many jobs were cancelled.

        Raises:
            NoPhoneError: all of them.
        """
        if not self._cancelled or self._limit_s is None:
            return
        why = "; ".join(dict.fromkeys(filter(None, self._cancelled.values())))
        message = f"no phone within {format_duration(self._limit_s)}" + (f": {why}" if why else "")
        if len(self._cancelled) == jobs:
            first = f"{self._todo} (an operator)" if self._todo else "wait longer (--wait)"
            raise NoPhoneError(message, hint=f"{first}, or choose others: farm device list")
        print_note(f"{_some(sorted(self._cancelled))}: {message}")

    def _expire(self) -> None:
        try:
            waiting = self._farm.jobs(jobs=self._names[:ASKED_NAMES], state=WAITING[:-1], limit=NO_LIMIT)
            self._cancelled |= {job.id: job.waits for job in waiting}
            self._todo = self._farm.needs_operator(waiting[0].id) if waiting else ""
            within = format_duration(self._limit_s or 0)
            why = f"no phone within {within} (--wait)"
            self._farm.cancel([job.id for job in waiting], why=why, state=WAITING[:-1])  # not one that runs by now
        except FarmError as error:
            print_note(f"the jobs that wait too long could not be cancelled: {error.message}")


def jobs_of(farm: Client, names: Sequence[str]) -> list[JobInfo]:
    """The jobs that ids and arrays stand for, by their ids."""
    found: dict[str, JobInfo] = {}
    for start in range(0, len(names), ASKED_NAMES):
        some = tuple(names[start : start + ASKED_NAMES])
        found |= {job.id: job for job in farm.jobs(jobs=some, limit=NO_LIMIT)}
    return [found[job] for job in sorted(found)]


def _why_waits(waiting: Iterable[JobInfo], progress: EventLines) -> list[str]:
    """A line for each reason, with the jobs that wait for it."""
    alike: dict[str, list[str]] = {}
    for job in waiting:
        if job.waits:
            alike.setdefault(job.waits, []).append(progress.name(job.id))
    return [
        # a job often has the name of the one phone that it waits for
        f"{jobs[0]} waits: {reason.removeprefix(f'{jobs[0]}: ')}" if len(jobs) == 1 else f"{_some(jobs)} wait: {reason}"
        for reason, jobs in alike.items()
    ]


def finish(
    outcomes: Sequence[Outcome],
    document: Mapping[str, Any],
    *,
    json: bool,
    show: Callable[[Sequence[Outcome]], None],
    more: Callable[[Outcome], Mapping[str, Any]] = lambda _: {},
) -> NoReturn:
    """Print the outcomes of the jobs, and end the command with its exit code.

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
    """Each reason once, on stderr, with its devices or jobs."""
    failures: dict[tuple[str, str], list[str]] = {}
    for each in outcomes:
        if each.error is not None:
            failures.setdefault((each.error.message, each.error.hint), []).append(each.device or each.job.id)
    for (message, hint), devices in failures.items():
        named = len(devices) == 1 and message.startswith(devices[0])
        print_note(f"error: {message}" if named else f"error: {', '.join(devices)}: {message}")
        if hint:
            print_note(f"  hint: {hint}")


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """One job's part of a command's JSON: its result, with the job's end beside it."""
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


def is_package(path: Path) -> bool:
    """Whether a file is a package (.farm.tar), by its beginning."""
    from farm.compiler.package import is_package

    return is_package(path)


def check_package_path(path: Path) -> None:
    """Refuse a path at which no package can be written.

    Raises:
        UserError: it has another suffix, such as the model's own, or its folder is not there.
    """
    if path.suffix != ".tar":
        hint = f"-o {path.with_suffix('')}.farm.tar; its model.so is the library"
        raise UserError(f"{path} is no name of a package", hint=hint)
    check_writable(path)


def refuse_host(on: str, command: str) -> None:
    """Refuse this host in place of phones.

    Raises:
        UserError: it is.
    """
    if on == HOST:
        raise UserError(
            f"farm {command} runs on phones, not on this host",
            hint="`farm run` and `farm tune` take --on host; `farm demo --stay` starts virtual phones",
        )


def refuse_queue_options(options: Mapping[str, Any]) -> None:
    """Refuse options of jobs, unless at their defaults, where the work is done on this host.

    Raises:
        UserError: there are some.
    """
    moved = [name for name, value in options.items() if value not in _DEFAULTS.get(name, (value,))]
    named = ", ".join(f"--{_OPTIONS.get(name, name)}" for name in moved)
    if named:
        raise UserError(f"{named}: nothing is queued on this host, and there is only one", hint=f"leave out {named}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def device_count(text: str) -> int | str:
    """How many phones `--devices` means.

    Raises:
        UserError: it cannot be read, or is out of range.
    """
    if text == "all":
        return text
    if not text.isascii() or not text.isdigit():
        raise UserError(f"--devices {text!r} is no number", hint="a number of phones, or all")
    if not 1 <= len(text) <= 4 or not 1 <= int(text) <= MAX_JOBS_AT_ONCE:
        raise UserError(f"--devices {text[:40]} is out of range", hint=f"1 to {MAX_JOBS_AT_ONCE}, or all")
    return int(text)


def settings(texts: Sequence[str] | None) -> dict[str, str]:
    """The settings of `--set NAME=VALUE`, by name.

    Raises:
        UserError: one has no name or value, or comes twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name or not value:
            raise UserError(f"--set {text[:40]!r} has no name or no value", hint="--set threads=2")
        if name in found:
            raise UserError(f"--set {name} is given twice", hint="leave one out")
        found[name] = value
    return found


def wait_s(text: str | None) -> float | None:
    """The seconds of `--wait`, a duration or a number; None: without limit.

    Raises:
        UserError: it cannot be read.
    """
    return parse_duration(text) if text else None


def deadline_s(text: str | None) -> float | None:
    """The seconds until `--deadline`.

    Raises:
        UserError: it cannot be read, or is out of range.
    """
    if text is None:
        return None
    now = datetime.now(UTC)
    try:  # before durations: 20260501 is a date, and no number of seconds
        seconds = (parse_when(text, now) - now).total_seconds()
    except BadTimeError:
        try:
            return parse_duration(text)
        except BadTimeError:
            raise BadTimeError(f"{text[:40]!r} is no duration and no time", hint=DEADLINE_HINT) from None
    if seconds <= 0:
        raise UserError(f"--deadline {text}: that is past", hint=DEADLINE_HINT)
    return seconds
