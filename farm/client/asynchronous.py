"""`farm.AsyncClient`: the farm from Python, for asyncio. `farm.Client` is the same without `await`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

from farm.client.connection import RESTART_S, DaemonConnection, OnNotice, OnTransfer, logger
from farm.client.files import download, fetch, upload
from farm.client.lease import AsyncLease, granted
from farm.client.model import (
    DeviceInfo,
    FarmStatus,
    JobInfo,
    JobRefs,
    LogLine,
    Submitted,
    Usage,
    device_from,
    job_from,
    names_of,
    status_from,
    submitted_from,
    usage_from,
)
from farm.client.streams import events, log_lines, watched, with_idle
from farm.common.durations import format_duration
from farm.common.errors import DaemonUnreachableError, FarmError, NoPhoneError, UserError, error_from_wire
from farm.common.events import Event
from farm.common.files import check_writable, checked_file
from farm.common.limits import MAX_WHY
from farm.common.tasks import end_tasks
from farm.control.address import find
from farm.control.client import OnBytes
from farm.kinds import KINDS
from farm.model.specs import JobSpec, kind_named

if TYPE_CHECKING:
    from farm.client.model import BenchOptions, CompareOptions, JobOptions, Outcome, RunOptions, TuneOptions
    from farm.kinds.outcomes import BenchOutcome, CompareOutcome, RunOutcome, ShellOutcome, TuneOutcome

PAGE_JOBS = 200  # rows asked for at once; a row is about 500 bytes of the 1 MiB that an answer may have


class AsyncClient:
    """The farm's daemon. For one event loop; any number of its tasks may use it at once.

    A daemon that restarts is waited for; jobs continue without their clients and are asked for again.
    """

    def __init__(
        self,
        socket: Path | str | None = None,
        *,
        key: Path | str | None = None,
        restart_s: float = RESTART_S,
        on_notice: OnNotice = logger.warning,
        on_transfer: OnTransfer | None = None,
    ) -> None:
        """No connection is made yet.

        Args:
            socket: the daemon's control socket, or `tcp://HOST:PORT` of a lab elsewhere; None means `$FARM_DAEMON`,
                `$FARM_SOCKET`, the client's file, then the default place.
            key: the key file that `farm auth new` gave out, for a lab elsewhere; None means `$FARM_KEY`, then the
                client's file.
            restart_s: how long a daemon that went away is waited for, seconds.
            on_notice: called with a sentence when the daemon is waited for, once each time, and when a lease ends soon.
            on_transfer: called with the state of each upload and download: file name, bytes there, bytes in all.
        """
        where = find(str(socket or ""), key or "")
        self.connection = DaemonConnection(where, restart_s=restart_s, on_notice=on_notice)
        self.connection.on_transfer = on_transfer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. Jobs continue; `wait` for them with another client."""
        self.connection.close()

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def submit(self, spec: JobSpec, *, key: str = "", must_match: bool = False) -> Submitted:
        """Queue a job, or an array of them.

        Args:
            spec: what to do (`BenchSpec`, `RunSpec`, `ShellSpec`, `LeaseSpec`).
            key: submitted again with the same key, it is the same jobs; nothing is added.
            must_match: refuse a selector that no phone matches, instead of a warning.

        Raises:
            UserError: the spec is wrong.
            NoPhoneError: `must_match`, and no phone does.
        """
        # Without a key of the caller's, one of our own: asked again after a restart or a takeover by another head, it
        # is still one submission.
        key = key or secrets.token_hex(16)
        answer = await self.connection.call_head("job.submit", spec=spec.to_wire(), key=key, must_match=must_match)
        return submitted_from(answer)

    async def check(
        self, specs: Sequence[tuple[JobSpec, str]], *, must_match: bool = False, besides: int = 0
    ) -> tuple[int, int, FarmError | None]:
        """Whether `submit` would take all of these specs (each with its key), `besides` so many jobs; adds nothing.

        Returns:
            how many jobs there would be, `besides` included; the first that would be refused, and why, or None.
        """
        entries = [{"spec": spec.to_wire(), "key": key, "must_match": must_match} for spec, key in specs]
        answer = await self.connection.call_head("job.check", entries=entries, besides=besides)
        error = answer["error"]
        return int(answer["jobs"]), int(answer["entry"] or 0), error_from_wire(error) if error else None

    async def submit_file(self, path: Path | str, *, key: str = "", must_match: bool = False) -> tuple[Submitted, ...]:
        """Queue every job of a spec file (docs/scripts.md); the files it names are uploaded.

        Raises:
            UserError: the file has a mistake, or the farm would refuse one of its jobs; nothing was submitted.
        """
        from farm.client.specfile import load, submit_all

        return await submit_all(self, load(Path(path)), key=key, must_match=must_match)

    async def wait(
        self, jobs: JobRefs, *, timeout_s: float | None = None, fetch_outputs: bool = True
    ) -> tuple[Outcome, ...]:
        """The outcomes of jobs, once all have ended; arrays stand for their jobs.

        Args:
            jobs: ids, arrays, or what `submit` returned.
            timeout_s: None: however long it takes.
            fetch_outputs: whether runs' arrays are downloaded too.

        Raises:
            TimeoutError: some have not ended after `timeout_s`; they continue.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async with aclosing(watched(self.connection, names_of(jobs), 0)) as stream:
                    rows = [job async for each in stream if isinstance(each, tuple) for job in each]
        except TimeoutError as error:
            raise TimeoutError(f"some jobs have not ended within {timeout_s:g} s; they continue") from error
        return tuple([await self.job(row.id, fetch_outputs=fetch_outputs) for row in rows])

    async def watch(
        self, jobs: JobRefs, *, since: int = 0, idle_s: float | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """Events of these jobs until all have ended; None when none came for `idle_s`. Restarts are waited out.

        Args:
            jobs: ids, arrays, or what `submit` returned.
            since: events after this number; 0: all that is known of these jobs.
            idle_s: None: wait as long as it takes. In a longer silence the next None takes longer, up to 10 s.
        """
        source = watched(self.connection, names_of(jobs), since)
        async with aclosing(source if idle_s is None else with_idle(source, idle_s)) as stream:
            async for event in stream:
                if not isinstance(event, tuple):
                    yield event

    async def jobs(
        self,
        *,
        jobs: JobRefs = (),
        state: tuple[str, ...] = (),
        user: str = "",
        kind: str = "",
        array: str = "",
        before: str = "",
        limit: int = 50,
    ) -> tuple[JobInfo, ...]:
        """Jobs, newest first: at most `limit` of those older than the job `before`; of `jobs`, if any are named."""
        found: list[JobInfo] = []
        more = True
        while more and len(found) < limit:
            answer = await self.connection.call(
                "job.list",
                jobs=list(names_of(jobs)),
                state=list(state),
                user=user,
                of_kind=kind,
                array=array,
                before=found[-1].id if found else before,
                limit=min(PAGE_JOBS, limit - len(found)),
            )
            found += map(job_from, answer["jobs"])
            more = bool(answer["more"]) and bool(answer["jobs"])
        return tuple(found)

    async def job(self, job: str, *, fetch_outputs: bool = True) -> Outcome:
        """One job with its attempts and, once it is done, its result. `job` may be the beginning of an id.

        Args:
            job: its id.
            fetch_outputs: whether a run's arrays are downloaded too.

        Raises:
            UserError: there is no such job, or several begin so.
        """
        from farm.client.model import outcome_from

        shown = await self.connection.call("job.show", job=job)
        outcome = outcome_from(shown)
        return (
            outcome.with_file(await fetch(self.connection, outcome.file)) if fetch_outputs and outcome.file else outcome
        )

    async def cancel(self, jobs: JobRefs, *, why: str = "", state: Sequence[str] = ()) -> tuple[JobInfo, ...]:
        """End jobs, running ones too; those that have ended stay as they are.

        Args:
            jobs: which.
            why: their error; "": your name.
            state: only those in one of these states.
        """
        fields = {"why": why, "state": [*state]}
        return await self._change("job.cancel", jobs, **{name: value for name, value in fields.items() if value})

    async def hold(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """Keep waiting jobs from starting until `resume`."""
        return await self._change("job.hold", jobs)

    async def resume(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """Let held jobs start."""
        return await self._change("job.resume", jobs)

    async def logs(
        self, job: str, *, attempt: int | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine, None]:
        """The log of an attempt.

        Args:
            job: its id, or the beginning of it.
            attempt: which; None: the latest, and with `follow` each that comes after it.
            follow: continue until it has ended (without `attempt`: until the job has).
        """
        async with aclosing(log_lines(self.connection, job, attempt, follow=follow)) as lines:
            async for line in lines:
                yield line

    # -- work: submit, wait, results -----------------------------------------------------------------------------------

    async def spec(self, kind: str, /, **fields: Any) -> JobSpec:
        """A spec of a kind of job, for `submit` or `outcomes`; its files are uploaded.

        Args:
            kind: as in `farm job list`: "bench", "memory", "tune", ...
            fields: of the kind's spec. Files are paths; `inputs` may be an array per model input, `labels` the names,
                `prior` the number of a kept set or a model's name, too.

        Raises:
            UserError: there is no such kind or field, a value is wrong, or a file cannot be read.
        """
        from farm.client.specs import spec_with_files

        return await spec_with_files(self.connection, kind_named(KINDS, kind), fields)

    async def outcomes(self, spec: JobSpec) -> tuple[Outcome, ...]:
        """Submit a spec and wait for the outcomes of its jobs. Cancelled when given up.

        Raises:
            NoPhoneError: no phone matches. What goes wrong on a phone is in its outcome: `raise_for_error`.
        """
        async with self._owned(spec) as submitted:
            return await self.wait(submitted)

    async def bench(self, /, model: Path | str, *, on: str, **fields: Unpack[BenchOptions]) -> tuple[BenchOutcome, ...]:
        """Time a model on every matching phone (or `devices=N` of them), check its numbers, and wait.

        Args:
            model: a model file, or a package.
            on: which phones (a selector).
            fields: of `BenchSpec`; `inputs` is an .npz file, or an array per model input.

        Raises:
            NoPhoneError: no phone matches. What goes wrong on a phone is in its outcome: `raise_for_error`.
        """
        fields.setdefault("devices", "all")
        spec = await self.spec("bench", model=model, on=on, **fields)
        return cast("tuple[BenchOutcome, ...]", await self.outcomes(spec))

    async def compare(
        self, /, model: Path | str, model_b: Path | str | None = None, *, on: str, **fields: Unpack[CompareOptions]
    ) -> tuple[CompareOutcome, ...]:
        """Time two builds in turns on every matching phone (or `devices=N` of them) and wait. Cancelled when given up.

        `model` is A, `model_b` B; without it, A built another way (`records_b`, `precision_b`, `target_b`, `bundle_b`).
        `fields` are those of `CompareSpec`.

        Raises:
            NoPhoneError: no phone matches. What goes wrong on a phone is in its outcome: `raise_for_error`.
        """
        fields.setdefault("devices", "all")
        spec = await self.spec("compare", model=model, model_b=model_b, on=on, **fields)
        return cast("tuple[CompareOutcome, ...]", await self.outcomes(spec))

    async def tune(
        self, /, model: Path | str, *, on: str, output: Path | str | None = None, **fields: Unpack[TuneOptions]
    ) -> TuneOutcome:
        """Search for fast schedules and wait. Cancelled when given up: the trials so far are kept.

        Args:
            model: a model file.
            on: which phones (a selector).
            output: a file for the tuned model, as `run`, `bench` and `compare` take it (.farm.tar).
            fields: of `TuneSpec`; `prior` is a .tar, a folder, the number of a kept set or a model's name.

        Raises:
            NoPhoneError: no phone matches. What else goes wrong is in the outcome: `raise_for_error`.
            UserError: `output` cannot be written; nothing was begun.
        """
        if output is not None:
            check_writable(Path(output))
        spec = await self.spec("tune", model=model, on=on, **fields)
        [outcome] = cast("tuple[TuneOutcome]", await self.outcomes(spec))
        if output is not None and outcome.package:
            await self.get_file(outcome.package, output)
        return outcome

    async def run(self, /, model: Path | str, *, on: str, **fields: Unpack[RunOptions]) -> tuple[RunOutcome, ...]:
        """Run a model once on one phone (or `devices=N`, "all"), keep its outputs, and wait. Cancelled when given up.

        Args:
            model: a model file, or a package.
            on: which phones (a selector).
            fields: of `RunSpec`; `inputs` is an .npz file, or an array per model input, `labels` a file with a class
                name per line, or the names.

        Raises:
            NoPhoneError: no phone matches. What goes wrong on a phone is in its outcome: `raise_for_error`.
        """
        spec = await self.spec("run", model=model, on=on, **fields)
        return cast("tuple[RunOutcome, ...]", await self.outcomes(spec))

    async def shell(self, /, command: str, *, on: str, **fields: Unpack[JobOptions]) -> tuple[ShellOutcome, ...]:
        """Run a line in the shell of one phone (or `devices=N`, "all") and wait. Cancelled when given up.

        `fields` are those of `ShellSpec`.

        Raises:
            NoPhoneError: no phone matches. A non-zero exit code is an outcome's error: `raise_for_error`.
        """
        spec = await self.spec("shell", on=on, command=command, **fields)
        return cast("tuple[ShellOutcome, ...]", await self.outcomes(spec))

    async def acquire(
        self,
        /,
        *,
        on: str,
        seconds: float = 1800.0,
        note: str = "",
        tuning: bool = False,
        on_wait: OnNotice | None = None,
        wait_s: float | None = None,
        for_operator: bool = True,
        **options: Any,
    ) -> AsyncLease:
        """A phone of one's own until it is released, at most `seconds` from the grant. Cancelled when given up.

        Args:
            on: which phone (a selector).
            seconds: how long.
            note: what for; others see it.
            tuning: give it back when others want it (`yield_wanted` of `lease.show`).
            on_wait: called with the reason why there is none yet.
            wait_s: for how long at most it is waited for; None: without end.
            for_operator: whether to wait also where only an operator can free a phone.
            options: `priority`, `deadline_s` ... (docs/scripts.md).

        Raises:
            NoPhoneError: no phone matches, there was none within `wait_s`, or only an operator can free one.
            UserError: `wait_s` is not above 0.
            FarmError: it cannot be had.
        """
        if wait_s is not None and wait_s <= 0:
            raise UserError(f"wait_s={wait_s:g} is no time at all: no phone is had at once", hint="1 or more")
        spec = await self.spec("lease", on=on, seconds=seconds, note=note, tuning=tuning, **options)
        async with self._owned(spec) as submitted:
            [job] = submitted.ids
            try:
                async with asyncio.timeout(wait_s):
                    lease = await granted(self.connection, job, on_wait, for_operator=for_operator)
            except TimeoutError as error:
                waits = (await self.connection.call("job.show", job=job))["job"]["waits"]
                todo = await self.needs_operator(job)
                message = f"no phone within {format_duration(wait_s or 0.0)}"
                await self.cancel(job, why=message)
                message += f": {waits}" if waits else ""
                first = f"{todo} (an operator)" if todo else "wait longer"
                raise NoPhoneError(message, hint=f"{first}, or choose others: farm device list") from error
            if lease is None:
                (await self.job(job)).raise_for_error()
                raise FarmError(f"lease {job} has ended before it was known", hint=f"farm logs {job}")
            return lease

    @asynccontextmanager
    async def lease(
        self, *, on: str, seconds: float = 1800.0, note: str = "", **options: Any
    ) -> AsyncIterator[AsyncLease]:
        """As `acquire`, for the length of a `with` block; `on_notice` is called before its time is over.

        Raises:
            FarmError: as `acquire`.
        """
        lease = await self.acquire(on=on, seconds=seconds, note=note, **options)
        ended = asyncio.ensure_future(lease.ended())
        try:
            yield lease
        finally:
            await end_tasks(ended)
            await lease.release()

    async def lease_show(self, lease: str) -> AsyncLease:
        """A lease of one's own that was acquired elsewhere, by its id, its job's, or its device's name.

        Raises:
            UserError: there is no such lease now.
        """
        return await AsyncLease.of(self.connection, lease)

    # -- the farm ------------------------------------------------------------------------------------------------------

    async def events(
        self, *, since: int | None = None, subject: str = "", follow: bool = True
    ) -> AsyncGenerator[Event, None]:
        """The farm's events, in order, each once, over restarts of the daemon too.

        Args:
            since: events after this number (of an event, or `status().seq`); None: from now on.
            subject: only about this device, job or lease.
            follow: wait for more; otherwise it ends with what is known now.
        """
        seq = (await self.status()).seq if since is None else since
        async with aclosing(events(self.connection, "events", seq, subject=subject, follow=follow)) as stream:
            async for each in stream:
                if isinstance(each, Event):
                    yield each

    async def status(self) -> FarmStatus:
        """Phones, keys, and problems of the host."""
        return status_from(await self.connection.call("status"))

    async def devices(self, on: str = "") -> tuple[DeviceInfo, ...]:
        """Every phone that adb lists or the farm knows; `on`: those that match a selector."""
        return tuple(map(device_from, (await self.connection.call("device.list", selector=on))["devices"]))

    async def explain(self, what: str, name: str) -> tuple[str, ...]:
        """Why a `job`, `device` or `key` waits, in sentences."""
        return tuple((await self.connection.call("explain", what=what, name=name))["lines"])

    async def needs_operator(self, job: str) -> str:
        """What an operator must do before a waiting job gets a phone; "" where phones come free without."""
        return str((await self.connection.call("explain", what="job", name=job)).get("operator", ""))

    async def usage(
        self, since: datetime, until: datetime | None = None, *, by: Literal["user", "device", "source"] = "user"
    ) -> tuple[Usage, ...]:
        """Use of phones by user in a window of time (until now); times need a zone."""
        end = until.isoformat() if until else None
        answer = await self.connection.call("usage", since=since.isoformat(), until=end, by=by)
        return tuple(map(usage_from, answer["usage"]))

    # -- files ---------------------------------------------------------------------------------------------------------

    async def put_file(self, source: Path | str | bytes, *, on_bytes: OnBytes | None = None) -> str:
        """Upload a file or bytes; returns the SHA-256 it is known by. The farm gets no content twice.

        Raises:
            UserError: the file cannot be read.
        """
        return await upload(self.connection, source if isinstance(source, bytes) else checked_file(source), on_bytes)

    async def get_file(self, sha256: str, target: Path | str, *, on_bytes: OnBytes | None = None) -> int:
        """Download an artifact into a file, hash checked; returns its size in bytes.

        Raises:
            UserError: there is no such artifact, or the file cannot be written.
        """
        return await download(self.connection, sha256, Path(target), on_bytes)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _change(self, kind: str, jobs: JobRefs, **fields: Any) -> tuple[JobInfo, ...]:
        found: list[JobInfo] = []
        for job in names_of(jobs):
            found += map(job_from, (await self.connection.call(kind, job=job, **fields))["jobs"])
        return tuple(found)

    @asynccontextmanager
    async def _owned(self, spec: JobSpec) -> AsyncIterator[Submitted]:
        """Submit `spec`; its jobs are cancelled when the block is given up (Ctrl-C too), wherever it was by then.

        Raises:
            NoPhoneError: no phone matches.
            DaemonUnreachableError: the daemon is away, so that the jobs stay queued.
        """
        submitting = asyncio.ensure_future(self.submit(spec, must_match=True))
        try:
            yield await asyncio.shield(submitting)
        except BaseException as gave_up:
            if not submitting.done() or submitting.exception() is None:
                submitted = await submitting
                why = gave_up.message[:MAX_WHY] if isinstance(gave_up, NoPhoneError) else ""
                try:
                    await self.cancel(submitted, why=why)
                except DaemonUnreachableError as error:
                    hint = f"once it is back: farm job cancel {' '.join(names_of(submitted))}"
                    raise DaemonUnreachableError(f"{error.message}; jobs stay queued", hint=hint) from error
            raise
