"""Jobs of kind `tune`: one worker searches schedules on a pool of phones and keeps what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from farm.core.errors import FarmError, Fault, ProtocolError
from farm.jobs.attempt import SessionOffer, text_field
from farm.jobs.executor import Running, YieldedError
from farm.jobs.measuring import epoch_of
from farm.jobs.phone_work import LeaseHost, PhoneWork
from farm.jobs.pool import NotInPoolError, Pool, not_in_pool
from farm.jobs.specs import TuneSpec
from farm.jobs.tasks import TuneTask
from farm.leasing import NoSuchLeaseError

WORKER = "farm.worker.tune"
SALVAGE = "farm.worker.tune_salvage"
SALVAGE_S = 15.0  # less than a stopped attempt is waited for
END_S = 120.0  # of an attempt: the last candidates come in, the best schedules are compiled and kept
END_SHARE = 0.25  # of a short attempt


class RecordKeeper(Protocol):
    """The store's tuning records (farm.store.record_sets)."""

    async def keep(
        self,
        *,
        model: str,
        name: str,
        target: object,
        artifact: str,
        records: int,
        best: Mapping[str, Any],
        job: str,
    ) -> int:
        """Keep a set of records as the next version for its model and target; returns that version."""
        ...


@dataclass(frozen=True, slots=True)
class PoolHost(LeaseHost):
    """What a tune attempt's worker may ask for: its pool, sessions on each phone of it, and to keep records."""

    pool: Pool
    keeper: RecordKeeper
    kept: list[int] = field(default_factory=list)  # versions that this attempt has kept

    async def open_session(self, lease: str) -> SessionOffer:
        """A way to one phone of the pool, good for one session.

        Raises:
            NotInPoolError: it has left the pool.
        """
        self.pool.check(lease)
        try:
            return self.offer(lease)
        except NoSuchLeaseError as error:  # taken away in this very moment
            raise not_in_pool(lease) from error

    async def abort_session(self, reason: str, lease: str) -> None:
        """Have that phone's session cut and the phone looked at; nothing happens when it has left the pool."""
        try:
            self.pool.check(lease)
        except NotInPoolError:
            return
        self.keys.abort(lease, reason)

    def devices(self) -> Collection[str]:
        """The phones that the pool has had."""
        return self.pool.had

    async def serve(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Verbs about the pool and the records."""
        match verb:
            case "pool":
                return self.pool.state()
            case "pool.give_back":
                self.pool.give_back(text_field(fields, "lease"))
                return {}
            case "pool.search":
                if not isinstance(on := fields.get("on"), bool):
                    raise ProtocolError("the worker does not say whether it searches")
                self.pool.search(on=on)
                return {}
            case "records.keep":
                self.kept.append(await self.keeper.keep(**_records(fields), job=self.running.job.id))
                return {"version": self.kept[-1]}
        return await LeaseHost.serve(self, verb, fields)

    def yield_wanted(self) -> bool:
        """Whether the attempt as a whole should end: others lack its worker place. Single phones are the pool's."""
        return self.pool.end_wanted()


class TuneExecutor:
    """Runs attempts of kind `tune`."""

    def __init__(self, work: PhoneWork, keeper: RecordKeeper, nominals: Callable[[str, str], dict[str, float]]) -> None:
        """`nominals`: nominal seconds of reference kernels, by key, of a device in an identity epoch."""
        self._work = work
        self._keeper = keeper
        self._nominals = nominals

    async def run(self, running: Running) -> Mapping[str, Any]:
        """The worker's report, with what is known of the phones.

        What a search that ends the job had measured by then is kept as its end would have been.

        Raises:
            UserError: the model cannot be used, or the phone has no such target.
            HostError: the worker died.
        """
        spec, pool = running.spec, running.pool
        assert isinstance(spec, TuneSpec)
        assert pool is not None
        target = self._work.target(running, spec.target)
        view = running.view
        nominals = await asyncio.to_thread(self._nominals, view.name, epoch_of(view))
        task = TuneTask.of(
            spec,
            target,
            self._work.cache(running),
            job=running.job.id,
            search_s=search_s(spec.timeout_s),
            nominals=nominals,
        )
        host = PoolHost(**self._work.host_fields(running), pool=pool, keeper=self._keeper)
        try:
            report = await self._work.run(running, WORKER, task.to_wire(), host)
        except (FarmError, asyncio.CancelledError) as error:
            if not host.kept and ends_job(running, error):
                await self._salvage(running, task, host)
            raise
        return {**report, "target": spec.target, "devices": list(pool.had)}

    async def _salvage(self, running: Running, task: TuneTask, host: PoolHost) -> None:
        try:
            await self._work.run(running, SALVAGE, task.to_wire(), host, limit_s=SALVAGE_S)
        except FarmError as error:
            running.log(f"what was measured could not be kept: {error.message}", "warning")


def ends_job(running: Running, error: BaseException) -> bool:
    """Whether the job ends with an attempt that ended so; else another one goes on from its records."""
    if isinstance(error, YieldedError):
        return False
    if not isinstance(error, FarmError):  # cancelled
        return running.over()
    tries = running.job.attempts + 1 - running.job.uncounted
    return error.fault is Fault.USER or tries >= running.job.max_attempts


def search_s(timeout_s: float) -> float:
    """How long a search may last whose attempt is ended after `timeout_s`."""
    return timeout_s - min(END_S, END_SHARE * timeout_s)


def _records(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Checked fields of `records.keep`."""
    count, best = fields.get("records"), fields.get("best")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ProtocolError("the worker's 'records' is no number of records")
    if not isinstance(best, Mapping):
        raise ProtocolError("the worker's 'best' is no object")
    return {
        "model": text_field(fields, "model"),
        "name": text_field(fields, "name"),
        "target": fields.get("target"),
        "artifact": text_field(fields, "artifact"),
        "records": count,
        "best": dict(best),
    }
