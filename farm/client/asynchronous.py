"""`farm.AsyncClient`: the farm from Python, for asyncio. `farm.Client` is the same without `await`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

from farm.client.door import OnNotice
from farm.client.farm import AsyncFarm
from farm.client.files import check_writable, fetch
from farm.client.lease import AsyncLease, granted
from farm.client.model import JobInfo, JobRefs, LogLine, Submitted, job_from, names_of, submitted_from
from farm.client.owned import owned
from farm.client.streams import log_lines, watched, with_idle
from farm.core.error_wire import error_from_wire
from farm.core.errors import FarmError
from farm.core.events import Event
from farm.core.limits import DEFAULT_TRIALS

if TYPE_CHECKING:
    from farm.client.outcomes import BenchOutcome, CompareOutcome, Outcome, RunOutcome, ShellOutcome, TuneOutcome
    from farm.client.specs import (
        BenchOptions,
        CompareOptions,
        InputSource,
        JobOptions,
        LabelSource,
        ModelSource,
        RunOptions,
        TuneOptions,
    )
    from farm.jobs.specs import AnySpec, BenchSpec, CompareSpec, RunSpec, TuneSpec

OutcomeT = TypeVar("OutcomeT", bound="Outcome")
PAGE_JOBS = 200  # rows asked for at once; a row is about 500 bytes of the 1 MiB that an answer may have


class AsyncClient(AsyncFarm):
    """The farm's daemon. For one event loop; any number of its tasks may use it at once.

    A daemon that restarts is waited for; jobs go on without their clients and are asked for again.
    """

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def submit(self, spec: AnySpec, *, key: str = "", must_match: bool = False) -> Submitted:
        """Queue a job, or an array of them.

        Args:
            spec: what to do (`BenchSpec`, `RunSpec`, `ShellSpec`, `LeaseSpec`).
            key: submitted again with the same key, it is the same jobs; nothing is added.
            must_match: refuse a selector that no phone matches, instead of a warning.

        Raises:
            UserError: the spec is wrong.
            NoPhoneError: `must_match`, and no phone does.
        """
        # Without a key of the caller's, one of our own: asked again after a restart, it is still one submission.
        key = key or secrets.token_hex(16)
        answer = await self._door.call("job.submit", spec=spec.to_wire(), key=key, must_match=must_match)
        return submitted_from(answer)

    async def check(
        self, wishes: Sequence[tuple[AnySpec, str]], *, must_match: bool = False, besides: int = 0
    ) -> tuple[int, int, FarmError | None]:
        """Whether `submit` would take all of these specs (each with its key), `besides` so many jobs; adds nothing.

        Returns:
            how many jobs there would be, `besides` included; the first that would be refused, and why, or None.
        """
        entries = [{"spec": spec.to_wire(), "key": key, "must_match": must_match} for spec, key in wishes]
        answer = await self._door.call("job.check", entries=entries, besides=besides)
        error = answer["error"]
        return int(answer["jobs"]), int(answer["entry"] or 0), error_from_wire(error) if error else None

    async def submit_file(self, path: Path | str, *, key: str = "", must_match: bool = False) -> tuple[Submitted, ...]:
        """Queue every job of a spec file (docs/clients.md); the files it names are uploaded.

        Raises:
            UserError: the file has a mistake, or the farm would refuse one of its jobs; nothing was submitted.
        """
        from farm.client.specfile import load, submit_all

        return await submit_all(self, load(Path(path)), key=key, must_match=must_match)

    async def wait(
        self, jobs: JobRefs, *, timeout_s: float | None = None, fetch_outputs: bool = True
    ) -> tuple[Outcome, ...]:
        """What became of jobs, once all have ended; arrays stand for their jobs.

        Args:
            jobs: ids, arrays, or what `submit` returned.
            timeout_s: None: however long it takes.
            fetch_outputs: whether runs' arrays are downloaded too.

        Raises:
            TimeoutError: some have not ended after `timeout_s`; they go on.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async with aclosing(watched(self._door, names_of(jobs), 0)) as told:
                    rows = [job async for each in told if isinstance(each, tuple) for job in each]
        except TimeoutError as error:
            raise TimeoutError(f"some jobs have not ended within {timeout_s:g} s; they go on") from error
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
        source = watched(self._door, names_of(jobs), since)
        async with aclosing(source if idle_s is None else with_idle(source, idle_s)) as told:
            async for event in told:
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
            answer = await self._door.call(
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
        from farm.client.outcomes import load_arrays, outcome_from, outputs_of

        shown = await self._door.call("job.show", job=job)
        sha256 = outputs_of(shown.get("result")) if fetch_outputs and shown["job"]["kind"] == "run" else ""
        return outcome_from(shown, load_arrays(await fetch(self._door, sha256)) if sha256 else None)

    async def cancel(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """End jobs; what runs is stopped. Those that have ended stay as they are."""
        return await self._change("job.cancel", jobs)

    async def hold(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """Keep waiting jobs from starting until `resume`."""
        return await self._change("job.hold", jobs)

    async def resume(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """Let held jobs start."""
        return await self._change("job.resume", jobs)

    async def logs(
        self, job: str, *, attempt: int | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine, None]:
        """What an attempt logged.

        Args:
            job: its id, or the beginning of it.
            attempt: which; None: the latest, and with `follow` each that comes after it.
            follow: go on until it has ended (without `attempt`: until the job has).
        """
        async with aclosing(log_lines(self._door, job, attempt, follow=follow)) as lines:
            async for line in lines:
                yield line

    # -- work: submit, wait, results -----------------------------------------------------------------------------------

    async def bench_spec(
        self, model: ModelSource, *, on: str, inputs: InputSource | None = None, **options: Unpack[BenchOptions]
    ) -> BenchSpec:
        """A spec for `submit`, its files uploaded: time a model and check its numbers.

        Args:
            model: an ONNX file.
            on: which phones (a selector).
            inputs: an .npz file, or an array per model input; seeded random ones otherwise.
            options: `half_width`, `measure_s`, `target`, `devices`, `priority` ... (docs/clients.md).
        """
        from farm.client.specs import bench_spec

        return await bench_spec(self._door, model, on, inputs, options)

    async def compare_spec(
        self,
        model: ModelSource,
        model_b: ModelSource,
        *,
        on: str,
        inputs: InputSource | None = None,
        **options: Unpack[CompareOptions],
    ) -> CompareSpec:
        """A spec for `submit`, its files uploaded: time two builds in turns on the same phone.

        `model` is A, `model_b` B: the same file when only precision, target or records differ. Else as `bench_spec`.
        """
        from farm.client.specs import compare_spec

        return await compare_spec(self._door, model, model_b, on, inputs, options)

    async def tune_spec(
        self,
        model: ModelSource,
        *,
        on: str,
        trials: int = DEFAULT_TRIALS,
        prior: Path | str | None = None,
        **options: Unpack[TuneOptions],
    ) -> TuneSpec:
        """A spec for `submit`, its files uploaded: search for fast schedules on `devices` identical phones at once.

        Args:
            model: a model file.
            on: which phones (a selector).
            trials: candidates to measure.
            prior: records to begin with: a .tar, a folder, the number of a kept set or a model's name.
            options: `devices`, `early_stop`, `cost_model`, `target`, `precision` ... (docs/tuning.md).
        """
        from farm.client.specs import tune_spec

        return await tune_spec(self._door, model, on, prior, {"trials": trials, **options})

    async def run_spec(
        self,
        model: ModelSource,
        *,
        on: str,
        inputs: InputSource | None = None,
        labels: LabelSource | None = None,
        **options: Unpack[RunOptions],
    ) -> RunSpec:
        """A spec for `submit`, its files uploaded: run a model once and keep its outputs.

        Args:
            model: an ONNX file.
            on: which phones (a selector).
            inputs: an .npz file, or an array per model input; `fill` tells what the others are filled with.
            labels: class names for `top_k`, one per line of a file, or as they are.
            options: `top_k`, `fill`, `target`, `devices`, `priority` ... (docs/clients.md).
        """
        from farm.client.specs import run_spec

        return await run_spec(self._door, model, on, inputs, labels, options)

    async def bench(
        self, model: ModelSource, *, on: str, inputs: InputSource | None = None, **options: Unpack[BenchOptions]
    ) -> tuple[BenchOutcome, ...]:
        """Time a model on every matching phone (or `devices=N` of them) and wait. Cancelled when given up.

        Raises:
            NoPhoneError: no phone matches. What goes wrong on a phone is in its outcome: `raise_for_error`.
        """
        from farm.client.outcomes import BenchOutcome

        options.setdefault("devices", "all")
        spec = await self.bench_spec(model, on=on, inputs=inputs, **options)
        return await self._work(spec, BenchOutcome)

    async def compare(
        self,
        model: ModelSource,
        model_b: ModelSource | None = None,
        *,
        on: str,
        inputs: InputSource | None = None,
        **options: Unpack[CompareOptions],
    ) -> tuple[CompareOutcome, ...]:
        """Time two builds in turns on every matching phone (or `devices=N` of them) and wait. Cancelled when given up.

        `model` is A, `model_b` B; without it, A built another way (`records_b`, `precision_b`, `target_b`, `bundle_b`).

        Raises:
            NoPhoneError: no phone matches. What goes wrong on a phone is in its outcome: `raise_for_error`.
        """
        from farm.client.outcomes import CompareOutcome

        options.setdefault("devices", "all")
        spec = await self.compare_spec(model, model if model_b is None else model_b, on=on, inputs=inputs, **options)
        return await self._work(spec, CompareOutcome)

    async def tune(
        self,
        model: ModelSource,
        *,
        on: str,
        trials: int = DEFAULT_TRIALS,
        prior: Path | str | None = None,
        output: Path | str | None = None,
        **options: Unpack[TuneOptions],
    ) -> TuneOutcome:
        """Search for fast schedules and wait. Cancelled when given up: the trials so far are kept.

        Args:
            model: a model file.
            on: which phones (a selector).
            trials: candidates to measure.
            prior: as in `tune_spec`.
            output: a file for the tuned model, as `run`, `bench` and `compare` take it (.farm.tar).
            options: as in `tune_spec`.

        Raises:
            NoPhoneError: no phone matches. What else goes wrong is in the outcome: `raise_for_error`.
            UserError: `output` cannot be written; nothing was begun.
        """
        from farm.client.outcomes import TuneOutcome

        if output is not None:
            check_writable(Path(output))
        spec = await self.tune_spec(model, on=on, trials=trials, prior=prior, **options)
        (outcome,) = await self._work(spec, TuneOutcome)
        if output is not None and outcome.package:
            await self.get_file(outcome.package, output)
        return outcome

    async def run(
        self,
        model: ModelSource,
        *,
        on: str,
        inputs: InputSource | None = None,
        labels: LabelSource | None = None,
        **options: Unpack[RunOptions],
    ) -> tuple[RunOutcome, ...]:
        """Run a model on one phone (or `devices=N`, "all") and wait. Cancelled when given up.

        Raises:
            NoPhoneError: no phone matches. What goes wrong on a phone is in its outcome: `raise_for_error`.
        """
        from farm.client.outcomes import RunOutcome

        spec = await self.run_spec(model, on=on, inputs=inputs, labels=labels, **options)
        return await self._work(spec, RunOutcome)

    async def shell(self, command: str, *, on: str, **options: Unpack[JobOptions]) -> tuple[ShellOutcome, ...]:
        """Run a line in the shell of one phone (or `devices=N`, "all") and wait. Cancelled when given up.

        Raises:
            NoPhoneError: no phone matches. A non-zero exit code is an outcome's error: `raise_for_error`.
        """
        from farm.client.outcomes import ShellOutcome
        from farm.jobs.specs import ShellSpec

        spec = ShellSpec.from_wire({"on": on, "command": command, **options})
        return await self._work(spec, ShellOutcome)

    async def acquire(
        self,
        *,
        on: str,
        seconds: float = 1800.0,
        note: str = "",
        tuning: bool = False,
        on_wait: OnNotice | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncLease:
        """A phone of one's own until it is released, at most `seconds` from the grant. Cancelled when given up.

        Args:
            on: which phone (a selector).
            seconds: how long.
            note: what for; others see it.
            tuning: give it back when `lease.show` says that others want it (`yield_wanted`).
            on_wait: hears why there is none yet.
            options: `priority`, `deadline_s` ... (docs/clients.md).

        Raises:
            NoPhoneError: no phone matches.
            FarmError: it cannot be had.
        """
        from farm.jobs.specs import LeaseSpec

        spec = LeaseSpec.from_wire({"on": on, "seconds": seconds, "note": note, "tuning": tuning, **options})
        async with owned(self, spec) as submitted:
            [job] = submitted.ids
            lease = await granted(self._door, job, on_wait)
            if lease is None:
                (await self.job(job)).raise_for_error()
                raise FarmError(f"lease {job} has ended before it was known", hint=f"farm logs {job}")
            return lease

    @asynccontextmanager
    async def lease(
        self, *, on: str, seconds: float = 1800.0, note: str = "", **options: Unpack[JobOptions]
    ) -> AsyncIterator[AsyncLease]:
        """As `acquire`, for the length of a `with` block; that its time is soon over is told to `on_notice`.

        Raises:
            FarmError: as `acquire`.
        """
        lease = await self.acquire(on=on, seconds=seconds, note=note, **options)
        ended = asyncio.ensure_future(lease.ended())
        try:
            yield lease
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            await lease.release()

    async def lease_show(self, lease: str) -> AsyncLease:
        """A lease of one's own that was acquired elsewhere, by its id, its job's, or its device's name.

        Raises:
            UserError: nobody has such a lease now.
        """
        return await AsyncLease.of(self._door, lease)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _change(self, kind: str, jobs: JobRefs) -> tuple[JobInfo, ...]:
        found: list[JobInfo] = []
        for job in names_of(jobs):
            found += map(job_from, (await self._door.call(kind, job=job))["jobs"])
        return tuple(found)

    async def _work(self, spec: AnySpec, kind: type[OutcomeT]) -> tuple[OutcomeT, ...]:
        async with owned(self, spec) as submitted:
            return tuple(each for each in await self.wait(submitted) if isinstance(each, kind))
