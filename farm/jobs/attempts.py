"""The attempts of this host, run as the head says. The head decides what their jobs become.

Each attempt is one task. An attempt's end is committed before its phone is given back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from farm.common.errors import JOB_LACKS, Code
from farm.common.events import EventLog
from farm.common.tasks import BackgroundTasks
from farm.head.dispatcher import AttemptRunner
from farm.head.head import Head
from farm.head.job_store import InterruptedWork, JobWriter, end_lease, read_interrupted, release_reason
from farm.head.messages import AttemptEnded, JobMessage, LeaseEnded, RunAttempt
from farm.head.queue.model import ClockReading, Outcome, StopAttempt
from farm.jobs.attempt_run import AttemptContextFactory, AttemptRun, salvage
from farm.jobs.executor import Executor
from farm.leasing.leases import Leasing
from farm.model.job import Attempt, AttemptState, Job
from farm.store.store import Store

STOP_LIMIT_S = 15.0  # for running attempts when the daemon stops; systemd gives it 20 s in all
OPERATOR_CAUSES = {**JOB_LACKS, Code.HOST_IMPAIRED.value: Code.HOST_IMPAIRED.meaning}
MAX_COUNTED = 10_000  # jobs of one cause
REMEMBERED_S = 900.0  # a cause that no job has met for so long; of a host that stands, one is tried each minute

log = logging.getLogger(__name__)


class OperatorCauses:
    """Causes on this host that only an operator can remove: each is logged once, and its jobs are counted.

    A toolchain that does not start and a gate that is away are reported by their own parts.
    """

    def __init__(self) -> None:
        self._met: dict[str, tuple[set[str], str, float]] = {}  # by cause: jobs, the latest, and when (monotonic)

    def ended(self, job: str, outcome: Outcome, now_s: float) -> None:
        """An attempt of the job has ended."""
        if cause := OPERATOR_CAUSES.get(str((outcome.error or {}).get("code"))):
            if cause not in self._met:
                log.warning("%s Logged once; first job: farm job show %s", cause, job)
            jobs = self._met.get(cause, (set[str](), "", 0.0))[0]
            if len(jobs) < MAX_COUNTED:
                jobs.add(job)
            self._met[cause] = jobs, job, now_s
        for cause, (jobs, _, at_s) in tuple(self._met.items()):
            mended = outcome.state is AttemptState.DONE and cause == Code.HOST_IMPAIRED.meaning
            if mended or now_s - at_s > REMEMBERED_S:
                log.info("resolved after %d jobs: %s", len(jobs), cause)
                del self._met[cause]

    def problems(self, now_s: float) -> list[str]:
        """One line for each cause."""
        return [
            f"{cause} {len(jobs)} job{'s' * (len(jobs) > 1)} affected; latest: farm job show {latest}"
            for cause, (jobs, latest, at_s) in self._met.items()
            if now_s - at_s <= REMEMBERED_S
        ]


class Attempts(AttemptRunner):
    """`recover` and `finish_leftovers` once, start the head, then `begin`; `stop` before the store and leasing go."""

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
        self._runs: dict[str, AttemptRun] = {}  # by attempt
        self._tasks = tasks
        self._left = InterruptedWork((), (), ())
        self._causes = OperatorCauses()
        self._stopping = False

    async def recover(self, adopted: Collection[str] = (), hosts: Collection[str] | None = None) -> None:
        """Take up the attempts of the daemon before this one that continue; the rest is for `finish_leftovers`.

        Args:
            adopted: ids of leases that another component has restored.
            hosts: see `farm.head.job_store.read_interrupted`.
        """
        self._left = await read_interrupted(self._store, self._clock(), self._contexts.kinds, adopted, hosts)
        for job, attempt, lease in self._left.survivors:
            self._leases.restore(lease)
            self._runs[attempt.id] = AttemptRun(job, attempt, lease, self._contexts)

    async def finish_leftovers(self) -> None:
        """Interrupt the attempts and end the leases of the daemon before; again after an error: it continues there.

        Raises:
            StoreWriteError: the store cannot write.
        """
        while self._left.attempts:
            each, now = self._left.attempts[0], self._clock()
            await self._keep_end(each.job, each.attempt, each.outcome, now.at)
            self._left = replace(self._left, attempts=self._left.attempts[1:])
        while self._left.leases:
            record = self._left.leases[0]
            letter = self._head.letter(LeaseEnded(record.device, record.id))
            await end_lease(self._store, self._events, record, self._clock(), letter)
            self._left = replace(self._left, leases=self._left.leases[1:])

    def begin(self) -> None:
        """The head knows the jobs: continue with the attempts that `recover` took up."""
        for run in self._runs.values():
            self._tasks.spawn(self._work(run), f"attempt {run.attempt.id}")

    async def stop(self) -> None:
        """Interrupt each attempt; the next start queues its job again, and takes up people's leases as they are."""
        self._stopping = True
        for run in self._runs.values():
            run.stop_with_daemon()
        for late in await self._tasks.end(STOP_LIMIT_S):
            log.error("%s had not ended: the next start finds it interrupted", late)

    def receive(self, message: JobMessage) -> None:
        """See `AttemptRunner.receive`."""
        match message:
            case RunAttempt(job, attempt, lease):
                run = self._runs[attempt.id] = AttemptRun(job, attempt, lease, self._contexts)
                if self._stopping:
                    run.stop_with_daemon()
                self._tasks.spawn(self._work(run), f"attempt {attempt.id}")
            case StopAttempt(job_id, state, error, attempt_id):
                for run in self._runs.values():
                    if run.job.id == job_id and attempt_id in ("", run.attempt.id):
                        run.stop(state, error)

    def problems(self) -> list[str]:
        """One line for each cause that only an operator can mend, with how many jobs have met it."""
        return self._causes.problems(self._clock().s)

    async def salvage(self, job: Job) -> None:
        """See `AttemptRunner.salvage`."""
        if not self._stopping:
            await salvage(job, self._executors.get(job.kind), self._store.jobs, self._contexts)

    async def waits(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """See `AttemptRunner.waits`."""
        here = [run for run in self._runs.values() if run.job.id in job_ids]
        return {run.job.id: await run.waits() for run in here}

    async def _work(self, run: AttemptRun) -> None:
        """Run an attempt, commit its end, give its phone back, have the head decide about its job: in this order."""
        outcome = await run.run(self._executors.get(run.job.kind))
        del self._runs[run.attempt.id]
        if outcome.state is AttemptState.RUNNING:
            return
        now = self._clock()
        self._causes.ended(run.job.id, outcome, now.s)
        try:
            ended = await self._keep_end(run.job, run.attempt, outcome, now.at)
        finally:
            run.release(release_reason(outcome.state))
        if ended is not None:
            self._head.report(ended)

    async def _keep_end(self, job: Job, attempt: Attempt, outcome: Outcome, at: datetime) -> AttemptEnded | None:
        """Commit the end of an attempt, and its letter to a head apart; None: it is not committed."""
        ended = replace(attempt, state=outcome.state, ended_at=at, error=outcome.error)
        kept = await self._writer.finish(
            job, ended, outcome.result, letter=lambda end: self._head.letter(AttemptEnded(end, outcome.crashes))
        )
        return None if kept is None else AttemptEnded(kept, outcome.crashes)
