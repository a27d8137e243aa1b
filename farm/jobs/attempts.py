"""The attempts of this host: run as the head says, their ends committed with what their jobs become.

Each attempt is one task. An attempt's end is committed before its phone is given back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from farm.common.events import EventLog
from farm.common.tasks import BackgroundTasks
from farm.head.dispatcher import AttemptRunner
from farm.head.head import Head
from farm.head.job_store import JobWriter, recover
from farm.head.messages import AttemptEnded, JobMessage, RunAttempt
from farm.head.queue.model import ClockReading, Outcome, StopAttempt
from farm.jobs.attempt_run import AttemptContextFactory, AttemptRun, salvage
from farm.jobs.executor import Executor
from farm.leasing.leases import Leasing
from farm.model.job import AttemptState, Job
from farm.store.store import Store

STOP_LIMIT_S = 15.0  # for running attempts when the daemon stops; systemd gives it 20 s in all

log = logging.getLogger(__name__)


class Attempts(AttemptRunner):
    """`recover` once, start the head, then `begin`; `stop` before the store and leasing go."""

    def __init__(
        self,
        *,
        store: Store,
        events: EventLog,
        leases: Leasing,
        executors: Mapping[str, Executor],
        contexts: AttemptContextFactory,
        head: Head,
        tasks: BackgroundTasks,
        clock: Callable[[], ClockReading] = lambda: ClockReading(time.monotonic(), datetime.now(UTC)),
    ) -> None:
        """`executors`: by kind of job. `contexts`: makes their contexts. `tasks`: `stop` ends them, the head's too."""
        self._store = store
        self._events = events
        self._leases = leases
        self._executors = executors
        self._contexts = contexts
        self._head = head
        self._clock = clock
        self._writer = JobWriter(store, events)
        self._runs: dict[str, AttemptRun] = {}  # by job
        self._tasks = tasks
        self._stopping = False

    async def recover(self, adopted: Collection[str] = ()) -> None:
        """Take up what the daemon before this one left: its leases are ended, its attempts interrupted or resumed.

        `adopted`: ids of leases that another component has restored.
        """
        kinds = self._contexts.kinds
        now, writer = self._clock(), self._writer
        for job, attempt, lease in await recover(self._store, self._events, writer, now, kinds, adopted):
            self._leases.restore(lease)
            self._runs[job.id] = AttemptRun(job, attempt, lease, self._contexts)

    def begin(self) -> None:
        """The head knows the jobs: go on with the attempts that `recover` took up."""
        for run in self._runs.values():
            self._tasks.spawn(self._work(run), f"attempt {run.attempt.id}")

    async def stop(self) -> None:
        """Interrupt what runs; it is queued again at the next start. People's leases are taken up there as they are."""
        self._stopping = True
        for run in self._runs.values():
            run.stop_with_daemon()
        for late in await self._tasks.end(STOP_LIMIT_S):
            log.error("%s had not ended: the next start finds it interrupted", late)

    def receive(self, message: JobMessage) -> None:
        """See `AttemptRunner.receive`."""
        match message:
            case RunAttempt(job, attempt, lease):
                run = self._runs[job.id] = AttemptRun(job, attempt, lease, self._contexts)
                if self._stopping:
                    run.stop_with_daemon()
                self._tasks.spawn(self._work(run), f"attempt {attempt.id}")
            case StopAttempt(job_id, state, error):
                if (stopped := self._runs.get(job_id)) is not None:
                    stopped.stop(state, error)

    def letter(self, message: RunAttempt) -> None:
        """See `AttemptRunner.letter`."""

    async def salvage(self, job: Job) -> None:
        """See `AttemptRunner.salvage`."""
        if not self._stopping:
            await salvage(job, self._executors.get(job.kind), self._store.jobs, self._contexts)

    async def waits(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """See `AttemptRunner.waits`."""
        here = [run for job_id in job_ids if (run := self._runs.get(job_id)) is not None]
        return {run.job.id: await run.waits() for run in here}

    async def _work(self, run: AttemptRun) -> None:
        """Run an attempt, commit its end with what its job becomes, give its phone back: in this order."""
        outcome = await run.run(self._executors.get(run.job.kind))
        del self._runs[run.job.id]
        if outcome.state is AttemptState.RUNNING:
            return
        try:
            became = await self._commit(run, outcome)
        finally:
            run.release(f"its attempt is {outcome.state}")
        self._head.job_saved(became)

    async def _commit(self, run: AttemptRun, outcome: Outcome) -> Job:
        at = self._clock().at
        outcome = replace(outcome, device=run.lease.device)
        becomes = await self._head.decide_end(AttemptEnded(run.job.id, outcome, at))
        ended = replace(run.attempt, state=outcome.state, ended_at=at, error=outcome.error)
        return await self._writer.finish(ended, becomes, at, outcome.result)
