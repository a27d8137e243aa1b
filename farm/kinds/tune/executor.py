"""Jobs of kind `tune`: one worker searches schedules on a pool of phones and keeps the records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field

from farm.common.errors import FarmError, Fault, PhoneError, ProtocolError
from farm.common.files import is_sha256
from farm.common.verbs import Count, Sha256, verb
from farm.jobs.attempt import SessionOffer, Text, YieldedError
from farm.jobs.executor import AttemptContext, Executor
from farm.jobs.pool import Pool, not_in_pool_error
from farm.kinds.execution import DeviceQuiescer, ExecutorParts, LeaseHost, epoch_of
from farm.kinds.tune import SalvageTask, TuneSpec, TuneTask
from farm.model.job import Attempt
from farm.model.requests import NoSuchLeaseError
from farm.store.artifacts import BadSetError, check_set

WORKER = "farm.kinds.tune.worker"
SALVAGE = "farm.kinds.tune.salvage"
SALVAGE_S = 15.0  # less than a stopped attempt is waited for
END_S = 120.0  # of an attempt: the last candidates come in, the best schedules are compiled and kept
END_PART = 0.25  # of a short attempt
MAX_NAME_CHARS = 255  # of a model
PARTS = "parts"  # in an attempt's facts
END_LIMIT_S = 5.0  # for the last part's second copy when the attempt ends


@dataclass(frozen=True, slots=True)
class RecordsHost(LeaseHost):
    """The daemon's side of a worker that stores records."""

    versions: list[int] = field(default_factory=list, kw_only=True)  # of the records that this attempt has stored

    @verb("records.keep")
    async def keep(
        self,
        model: Sha256,
        name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)],
        target: Any,
        artifact: Sha256,
        records: Count,
        best: dict[str, Any],
    ) -> Mapping[str, Any]:
        """Keep a set of tuning records of the job's user."""
        try:
            check_set(target, best)
        except BadSetError as error:
            raise ProtocolError(f"the worker's records: {error.message}") from error
        await self.parts.artifacts.ensure(artifact)
        job = self.context.job
        version = await self.parts.record_sets.save(
            model=model, name=name, target=target, artifact=artifact, records=records, best=best,
            user=job.user, job=job.id,
        )  # fmt: skip
        self.versions.append(version)
        return {"version": version}


class KeptParts:
    """Keeps a search's records at another host, too; `close` it before the attempt's end is written.

    An attempt's facts name its parts, each once it has its second copy. Only a running attempt can write facts: after
    the head has ended it, it adds none.
    """

    def __init__(self, context: AttemptContext, second_copy: Callable[[str], Awaitable[object]]) -> None:
        """`second_copy` gives an artifact a copy at another place, or raises."""
        self._context = context
        self._second_copy = second_copy
        self._parts: list[str] = []
        self._saving: asyncio.Task[None] | None = None

    def add(self, artifact: str, *, first: bool) -> None:
        """The worker has put a part into the artifacts; `first`: it has all of the records by itself."""
        self._parts = [*(() if first else self._parts), artifact]
        self._saving = asyncio.create_task(self._save(artifact, self._parts, self._saving), name="parts of records")

    async def close(self) -> None:
        """Wait for the last part, `END_LIMIT_S` at most."""
        if self._saving is not None:
            await asyncio.wait((self._saving,), timeout=END_LIMIT_S)
            self._saving.cancel()

    async def _save(self, artifact: str, parts: Sequence[str], before: asyncio.Task[None] | None) -> None:
        """Save in order: the facts never name fewer parts than before."""
        try:
            await self._second_copy(artifact)
        except FarmError as error:
            self._context.log(f"the records so far are on this host only: {error.message}", "warning")
        if before is not None:
            await asyncio.wait((before,))
        try:
            await self._context.save_facts({PARTS: list(parts)})
        except FarmError as error:
            self._context.log(f"the next attempt does not know of the latest records: {error.message}", "warning")


@dataclass(frozen=True, slots=True)
class PoolHost(RecordsHost):
    """The daemon's side of a tune attempt's worker: its pool, sessions on each phone of it, and to keep records."""

    pool: Pool
    kept: KeptParts | None = field(default=None, kw_only=True)  # None: the records are kept on this host only
    quiet: dict[str, DeviceQuiescer] = field(default_factory=dict, kw_only=True)  # by lease

    async def open_session(self, lease: str) -> SessionOffer:
        """A way to one phone of the pool, good for one session. It is made quiet first, where that is configured.

        It is not changed back here: a phone that leaves the pool quiet is cleaned and checked.
        """
        device = self.pool.check(lease)
        if lease not in self.quiet:
            self.quiet[lease] = DeviceQuiescer(self.parts, self.context, lease, device)
        await self.quiet[lease].begin()
        try:
            return self.offer(lease)
        except NoSuchLeaseError as error:  # taken away in this very moment
            raise not_in_pool_error(lease) from error

    async def abort_session(self, lease: str, reason: str) -> None:
        """Have that phone's session cut and the phone looked at; nothing happens when it has left the pool."""
        try:
            self.pool.check(lease)
        except PhoneError:
            return
        self.parts.leasing.abort(lease, reason)

    def devices(self) -> Collection[str]:
        """The phones that the pool has had."""
        return self.pool.had

    @verb("pool")
    async def state(self) -> Mapping[str, Any]:
        """The pool's phones now."""
        return await self.pool.state()

    @verb("pool.give_back")
    async def give_back(self, lease: Text) -> None:
        """Let others have a phone of the pool."""
        self.pool.give_back(lease)

    @verb("pool.search")
    async def search(self, on: bool) -> None:
        """Have all the phones that the job asks for, or only one."""
        self.pool.search(on=on)

    @verb("records.part")
    async def add_part(self, artifact: Sha256, first: bool) -> None:
        """Keep a part of the records at another host, too."""
        if self.kept is not None:
            self.kept.add(artifact, first=first)

    def yield_wanted(self) -> bool:
        """Whether the attempt as a whole should end: others lack its worker slot. Single phones are the pool's."""
        return self.pool.end_wanted()


def with_lost(rows: Iterable[Mapping[str, Any]], lost: Mapping[str, str]) -> list[dict[str, Any]]:
    """A report's rows of phones with `lost`: why a phone left under the work and did not return, "" for the others.

    A phone that was lost before its first trial gets a row of its own.
    """
    shown = [{**row, "lost": lost.get(row["device"], "")} for row in rows]
    unseen = lost.keys() - {row["device"] for row in shown}
    return shown + [
        {"device": device, "trials": 0, "factor": None, "left_out": "", "lost": lost[device]}
        for device in sorted(unseen)
    ]


@dataclass(frozen=True, slots=True)
class TuneExecutor(Executor):
    """Runs attempts of kind `tune`."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with facts about the phones.

        What a search that ends the job had measured by then is kept as its end would have been.
        """
        spec, pool = context.spec, context.pool
        assert isinstance(spec, TuneSpec)
        assert pool is not None
        lab = self.parts.lab
        host = PoolHost(context, self.parts, pool, kept=None if lab is None else KeptParts(context, lab.second_copy))
        try:
            task = await self._task(context, spec)
            report = await self.parts.work.run(context, WORKER, task.to_wire(), host)
        except (FarmError, asyncio.CancelledError) as error:
            if not host.versions and ends_job(context, error):
                await self._salvage(context, host)
            raise
        finally:
            if host.kept is not None:
                await host.kept.close()
        phones = with_lost(report["phones"], pool.lost)
        return {**report, "phones": phones, "target": spec.target, "devices": list(pool.had)}

    async def _task(self, context: AttemptContext, spec: TuneSpec) -> TuneTask:
        view, lab = context.view, self.parts.lab
        return TuneTask(
            spec=spec,
            target=self.parts.work.target(context, spec.target),
            cache=self.parts.work.cache(context),
            job=context.job.id,
            builders=self.parts.builders,
            parts=() if lab is None else parts_of(await lab.attempts_of(context.job.id)),
            keep_parts=lab is not None,
            search_s=search_s(spec.timeout_s),
            nominals=await self.parts.nominals(view.name, epoch_of(view), context.job.user),
        )

    async def salvage(self, context: AttemptContext) -> None:
        """Keep the measurements of a job that ends while it waits for its next attempt."""
        await self._salvage(context, RecordsHost(context, self.parts))

    async def _salvage(self, context: AttemptContext, host: RecordsHost) -> None:
        spec = context.spec
        assert isinstance(spec, TuneSpec)
        try:
            cache = self.parts.work.cache(context)
            task = SalvageTask(job=context.job.id, name=spec.name, cache=cache, prior=spec.prior)
            await self.parts.work.run(context, SALVAGE, asdict(task), host, limit_s=SALVAGE_S)
        except FarmError as error:
            context.log(f"what was measured could not be kept: {error.message}", "warning")


def parts_of(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """The parts that the latest attempt which kept any has kept, in their order."""
    kept = next((each.facts[PARTS] for each in reversed(attempts) if each.facts.get(PARTS)), ())
    return tuple(each for each in kept if isinstance(each, str) and is_sha256(each))


def ends_job(context: AttemptContext, error: BaseException) -> bool:
    """Whether the job ends with an attempt that ended so; else another one continues from its records."""
    if isinstance(error, YieldedError):
        return False
    if not isinstance(error, FarmError):  # cancelled
        return context.stopped_for_good()
    tries = context.job.attempts + 1 - context.job.uncounted
    return error.fault is Fault.USER or tries >= context.job.max_attempts


def search_s(timeout_s: float) -> float:
    """How long a search may last whose attempt is ended after `timeout_s`."""
    return timeout_s - min(END_S, END_PART * timeout_s)
