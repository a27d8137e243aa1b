"""Durable jobs: performs what farm/head/queue decides over the store, the requests and the hosts that run attempts.

Everything is committed before it is acted upon, so `kill -9` at any moment loses no job and doubles no result. All of
it runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from weakref import WeakValueDictionary

from farm.common.errors import (
    HOST_STANDS,
    JOB_LACKS,
    Code,
    FarmError,
    Fault,
    PhoneError,
    error_to_wire,
    log_error,
    stopping_error,
)
from farm.common.events import EventLog
from farm.common.tasks import BackgroundTasks
from farm.head.config import UserConfig
from farm.head.job_store import JobWriter, arrays_begun, undecided_ends
from farm.head.messages import AttemptClaim, AttemptEnded, JobMessage, RunAttempt
from farm.head.planning import (
    Submission,
    another_phone,
    check_quota,
    check_store,
    check_whole,
    ended_before,
    ended_before_start,
    fresh_ids,
    lost_the_last,
    plan,
    pooled,
    preferring,
    request_of,
    resolve_after,
)
from farm.head.queue import model as m
from farm.head.queue.model import NoSuchJobError, Phase
from farm.head.queue.queue import JobQueue
from farm.head.request_queue import RequestQueue
from farm.head.waiting_requests import JobRequester
from farm.model.device import DeviceState, Life
from farm.model.job import FINAL, Attempt, AttemptState, Job, JobState
from farm.model.requests import Lease
from farm.model.specs import JobSpec, Kinds
from farm.store.database import run_to_completion
from farm.store.store import Store

MAX_REPORTED = 1000  # waiting jobs that are looked at when a phone is lost; a team's queue may have 100,000
LOST_START_PAUSE_S = 1.0  # before a job whose attempt could not begin asks again: a bug must not spin

log = logging.getLogger(__name__)


class AttemptRunner(ABC):
    """The host on which attempts run."""

    @abstractmethod
    def receive(self, message: JobMessage) -> None:
        """Run an attempt, or end a running one with this state and error unless it has ended by itself."""

    @abstractmethod
    async def salvage(self, job: Job) -> None:
        """Keep what attempts have left of a job that ends while it waits for the next one."""

    @abstractmethod
    async def waits(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """Why the attempts of those of these jobs that run here work with fewer phones than they should have.

        One sentence by job; empty for an attempt that has its phones.
        """


class Dispatcher(JobRequester):
    """Every job that has not ended. `start` it once, `close` it before its attempts are stopped."""

    def __init__(
        self,
        *,
        store: Store,
        events: EventLog,
        requests: RequestQueue,
        tasks: BackgroundTasks,
        kinds: Kinds,
        quota_of: Callable[[str], UserConfig],
        clock: Callable[[], m.ClockReading] = lambda: m.ClockReading(time.monotonic(), datetime.now(UTC)),
    ) -> None:
        """`tasks`: ended by their owner, after `close`. `quota_of`: a user's quota."""
        self._store = store
        self._events = events
        self._requests = requests
        self._runner: AttemptRunner  # from `start` on
        self._tasks = tasks
        self._kinds = kinds
        self._quota_of = quota_of
        self._clock = clock
        self._queue = JobQueue()
        self._writer = JobWriter(store, events)
        self._asked: dict[str, str] = {}  # job -> request
        self._granted: dict[str, Lease] = {}  # job -> lease whose attempt is being written
        self._changed: dict[str, list[asyncio.Future[None]]] = {}
        self._submitting: Counter[str] = Counter()  # jobs by user that are being written
        # By user and key: a second submission of the same jobs waits for the first, and gets its jobs.
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._usable: dict[str, bool] = {}
        self._wall_ahead_s = clock().wall_ahead_s
        self._timer: asyncio.TimerHandle | None = None
        self._ends = 0  # of jobs, since the start
        self._stopping = False
        self._unsubscribe: Callable[[], None] | None = None

    async def start(self, runner: AttemptRunner) -> None:
        """Take up every job that has not ended; attempts run there."""
        self._runner = runner
        live = await self._store.read(self._store.jobs.live)
        for array, began in await self._store.read(arrays_begun, self._store, live):
            self._queue.array_began(array, began)
        ended = await self._store.read(ended_before_start, self._store.jobs, live)
        ends = await self._store.read(undecided_ends, self._store.jobs, live)
        for job in live:
            after = job.after if job.attempts == 0 else ()
            known = {name: ended[name] for name in after if name in ended}
            for instruction in self._queue.job_added(job, known, self._clock()):
                self._perform_one(instruction)
        for end in ends:
            self.attempt_ended(end)
        self._set_timer()
        self._usable = {view.name: view.in_service for view in self._requests.views()}
        self._unsubscribe = self._requests.subscribe(self._device_changed)

    def close(self) -> None:
        """Ask for no more phones; what runs ends as its host says."""
        self._stopping = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        for request in self._asked.values():
            self._requests.withdraw(request)
        self._asked.clear()

    def behind_s(self) -> float:
        """For how many seconds a check of the clock is overdue and not scheduled; 0 while all is well."""
        due_s = self._queue.next_check_s()
        pending = self._timer is not None and self._timer.when() > asyncio.get_running_loop().time()
        return 0.0 if due_s is None or self._stopping or pending else max(0.0, self._clock().s - due_s)

    def clock_jumped(self) -> None:
        """The wall clock was set: jobs keep the time they have left, in the store too."""
        was_s, self._wall_ahead_s = self._wall_ahead_s, self._clock().wall_ahead_s
        self._tasks.spawn(self._writer.move_deadlines(self._wall_ahead_s - was_s), "move deadlines")

    # --- orders ---------------------------------------------------------------------------------------------------

    @run_to_completion  # a job that is kept and that the queue does not know would never run and never end
    async def submit(self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False) -> Submission:
        """Take jobs in; they are kept when this returns.

        Args:
            spec: what to do, on which phones.
            user: whose jobs they are.
            key: the same user's same key again returns the jobs of the first time and adds none.
            must_match: refuse a selector that no phone meets; else that is a warning.

        Raises:
            UserError: the spec cannot be met: a wrong selector, `after` names nothing, a quota.
            HostError: the farm is stopping, or its store cannot write.
        """
        async with self._turns.setdefault((user, key), asyncio.Lock()) if key else nullcontext():
            return await self._submit(spec, user, key, must_match=must_match)

    async def _submit(self, spec: JobSpec, user: str, key: str, *, must_match: bool) -> Submission:
        if self._stopping:
            raise stopping_error(hint="try again when it is back")
        check_store(self._store.problem)
        read, jobs = self._store.read, self._store.jobs
        known = await read(jobs.submitted, user, key) if key else ()
        if known:
            return await self._earlier(known)
        if spec.after:
            spec = replace(spec, after=await read(resolve_after, jobs, spec.after))
        planned = self._plan(spec, user, must_match=must_match)
        self._submitting[user] += len(planned.jobs)
        try:
            ids = await self._writer.add(planned.jobs, key)
        finally:
            self._submitting[user] -= len(planned.jobs)
        if ids != planned.ids:
            return await self._earlier(ids)
        ended = await self._states_of_ended(spec.after)
        if not self._stopping:
            for job in planned.jobs:
                self._perform(self._queue.job_added(job, ended, self._clock()))
        return planned

    async def check(
        self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False, besides: int = 0
    ) -> int:
        """How many jobs `submit` would add, `besides` so many others; nothing is added. Ids in `after` must be whole.

        Raises:
            FarmError: what `submit` would refuse.
        """
        known = await self._store.read(self._store.jobs.submitted, user, key) if key else ()
        if known:
            return 0
        if spec.after:
            await self._store.read(check_whole, self._store.jobs, spec.after)
        return len(self._plan(spec, user, must_match=must_match, besides=besides).jobs)

    def _plan(self, spec: JobSpec, user: str, *, must_match: bool, besides: int = 0) -> Submission:
        """The jobs of a spec that its user may have, `besides` so many others."""
        views, ids = self._requests.views(), fresh_ids(spec.kind)
        planned = plan(spec, user, views, self._clock().at, ids, must_match=must_match)
        mine = self._queue.count_of(user) + self._submitting[user] + besides
        check_quota(self._quota_of(user), user, spec.priority, mine, len(planned.jobs))
        return planned

    async def _states_of_ended(self, names: Collection[str]) -> Mapping[str, JobState | None]:
        """`ended_before`, read again if a job has ended meanwhile: the queue has forgotten it by now."""
        while names:
            ends = self._ends
            ended = await self._store.read(ended_before, self._store.jobs, names)
            if ends == self._ends:
                return ended
        return {}

    async def _earlier(self, ids: tuple[str, ...]) -> Submission:
        jobs = await self._store.in_thread(self._store.jobs.several, ids)
        return Submission(jobs, jobs[0].array if jobs else "", earlier=True)

    def cancel(self, job_id: str, error: FarmError) -> None:
        """End a job that is not wanted any more; a running attempt is stopped.

        Raises:
            NoSuchJobError: it has ended.
        """
        self._perform(self._queue.job_cancelled(job_id, error_to_wire(error), self._clock()))

    def hold(self, job_id: str) -> None:
        """Keep a job that does not run from running.

        Raises:
            NoSuchJobError: it has ended.
            JobRunsError: it runs.
        """
        self._perform(self._queue.job_held(job_id, self._clock()))

    def resume(self, job_id: str) -> None:
        """Let a held job continue.

        Raises:
            NoSuchJobError: it has ended.
        """
        self._perform(self._queue.job_resumed(job_id, self._clock()))

    async def settled(self, job_id: str) -> None:
        """Wait until nothing of the job is being written or stopped."""
        while self._queue.phase(job_id) in (Phase.SAVING, Phase.STARTING, Phase.STOPPING):
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.setdefault(job_id, []).append(changed)
            await changed

    def is_live(self, job_id: str) -> bool:
        """Whether a job has not ended."""
        return job_id in self._queue

    def count(self) -> Counter[tuple[str, str]]:
        """How many jobs have not ended, by kind and state."""
        return Counter((job.kind, job.state.value) for job in self._queue.jobs())

    async def waits(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """Why each of these jobs does not run, or runs with too few phones, one sentence; empty when neither."""
        running, now = await self._runner.waits(job_ids), self._clock()
        reasons = {job_id: running[job_id] if job_id in running else self._queue.why(job_id, now) for job_id in job_ids}
        asked = {job_id: self._asked[job_id] for job_id, why in reasons.items() if not why and job_id in self._asked}
        of_request = self._requests.why(asked.values())
        return reasons | {job_id: of_request[request] for job_id, request in asked.items()}

    def request_of(self, job_id: str) -> str | None:
        """The lease request of a job that waits for a phone."""
        return self._asked.get(job_id)

    # --- the queue's instructions ---------------------------------------------------------------------------------

    def _perform(self, instructions: tuple[m.Instruction, ...]) -> None:
        self._set_timer()
        for instruction in instructions:
            self._perform_one(instruction)

    def _perform_one(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.AskForPhone(job, avoid, place_s):
                if not (self._stopping or self._queue.phase(job.id) is Phase.STARTING):
                    self._ask(job, avoid, place_s)
            case m.Withdraw(job_id) if self._queue.phase(job_id) is Phase.STARTING:
                pass  # the job was offered a phone by an earlier instruction of this batch: its request stays
            case m.Withdraw(job_id):
                if (request := self._asked.pop(job_id, None)) is not None:
                    self._requests.withdraw(request)
            case m.StartAttempt(job, number):
                self._tasks.spawn(self._attempt(job, number, self._granted.pop(job.id)), f"begin {job.id}.{number}")
            case m.StopAttempt():
                self._runner.receive(instruction)
            case m.SaveJob(job, before):
                self._tasks.spawn(self._save(job, before), f"save {job.id}")

    def _ask(self, job: Job, avoid: frozenset[str], place_s: float) -> None:
        try:
            request = request_of(self._kinds, job, avoid)
            if pooled(self._kinds, job):
                request = preferring(request, self._requests.views(), job.spec["devices"])
        except Exception as error:  # a job of another release, or a bug: no trouble of its neighbours'
            log.exception("job %s cannot ask for a phone", job.id)
            self._perform(self._queue.job_impossible(job.id, error_to_wire(error), self._clock()))
            return
        self._asked[job.id] = self._requests.ask(request, self, place_s)

    def granted(self, job: str, lease: Lease, *, claimed: bool) -> None:
        """See `JobRequester.granted`."""
        if self._asked.pop(job, None) is None:
            if not claimed:
                self._requests.release(lease.id, "its job does not wait any more")
            return
        if not claimed:
            self._granted[job] = lease
        self._perform(self._queue.phone_granted(job, lease.device, claimed=claimed))
        if claimed:
            self._perform(self._queue.attempt_started(job, self._clock()))
            self._wake(job)

    def claim(self, job: str, lease: Lease) -> AttemptClaim | None:
        """See `JobRequester.claim`."""
        start = self._queue.phone_offered(job)
        return None if start is None else AttemptClaim(start.job, self._new_attempt(start.job, start.number, lease))

    def grant_cancelled(self, job: str, avoid: frozenset[str]) -> bool:
        """See `JobRequester.grant_cancelled`."""
        if self._queue.phase(job) is not Phase.STARTING or self._queue.offer_undone(job, avoid):
            self._wake(job)
            return True
        del self._asked[job]
        asyncio.get_running_loop().call_soon(self._look_again, job)
        return False

    def _look_again(self, job_id: str) -> None:
        if self._queue.phase(job_id) is Phase.RESTING:  # else an order has led on already
            self._perform(self._queue.look_again(job_id, self._clock()))
        self._wake(job_id)

    async def _save(self, job: Job, before: JobState) -> None:
        if before is not JobState.RUNNING:  # else the attempt has just ended, and has kept its results
            await self._runner.salvage(job)
        became = await self._writer.save(job, before, self._clock().at)
        self._ends += became.state in FINAL
        self._perform(self._queue.job_saved(became, self._clock()))
        self._wake(job.id)

    async def _attempt(self, job: Job, number: int, lease: Lease) -> None:
        attempt = self._new_attempt(job, number, lease)
        try:
            started = await self._writer.claim(attempt, job.attempts)
        except Exception as error:  # noqa: BLE001 - a lost term or a bug: the job waits on
            log_error(log, error, "attempt %s cannot begin", attempt.id)
            started = False
        if not started:
            self._requests.release(lease.id, "its attempt could not begin")
            self._perform(self._queue.attempt_not_started(job.id, LOST_START_PAUSE_S, self._clock()))
            self._wake(job.id)
            return
        self._perform(self._queue.attempt_started(job.id, self._clock()))
        self._wake(job.id)
        self._runner.receive(RunAttempt(job, attempt, lease))

    def _new_attempt(self, job: Job, number: int, lease: Lease) -> Attempt:
        return Attempt(
            f"{job.id}.{number}", job.id, number, lease.device, lease.id, lease.fence, started_at=self._clock().at,
            pooled=pooled(self._kinds, job),
        )  # fmt: skip

    def attempt_ended(self, message: AttemptEnded) -> None:
        """The end of an attempt is committed: decide what its job becomes. Harmless when repeated."""
        ended, job = message.attempt, self._queue.job(message.attempt.job)
        running = self._queue.phase(ended.job) in (Phase.RUNNING, Phase.STOPPING)
        if job is None or not running or job.attempts != ended.number:
            log.info("what follows the end of %s is decided already", ended.id)
            return
        outcome = m.Outcome(ended.state, ended.error, ended.device, crashes=message.crashes)
        host = self._requests.host_of(ended.device)
        self._note_host(host, outcome, job)
        if outcome.state is AttemptState.FAILED:
            views = self._requests.views()  # of 1,000 phones some milliseconds: not at each success
            avoid = self._queue.avoided(job.id) | {outcome.device}
            if (outcome.error or {}).get("code") in JOB_LACKS:
                avoid |= {view.name for view in views if view.host == host}
            outcome = replace(outcome, another_phone=another_phone(job, views, avoid))
        self._ends += outcome.state is AttemptState.DONE
        assert ended.ended_at is not None
        self._perform(self._queue.attempt_ended(job.id, outcome, m.ClockReading(self._clock().s, ended.ended_at)))
        self._wake(job.id)

    def _note_host(self, host: str, outcome: m.Outcome, job: Job) -> None:
        """Learn from the end of an attempt whether workers continue at its host."""
        error, kind = outcome.error or {}, self._kinds.get(job.kind)
        if (code := str(error.get("code"))) in HOST_STANDS:
            where = f" on {host}" if host else ""
            self._requests.workers_stand(host, f"no job runs{where}: {HOST_STANDS[code]}")
            return
        worked = outcome.state is AttemptState.DONE or error.get("fault") in (Fault.USER, Fault.PHONE)
        if kind is not None and kind.worker and worked and outcome.state is not AttemptState.CANCELLED:
            self._requests.workers_go_on(host)

    # --- time and phones ------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        due_s = self._queue.next_check_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_s is not None and not self._stopping:
            delay_s = max(0.0, due_s - self._clock().s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_passed)

    def _time_passed(self) -> None:
        self._perform(self._queue.time_passed(self._clock()))

    def _device_changed(self, view: DeviceState) -> None:
        """A phone that was forgotten or cannot be used any more may be the last one that a job could have had."""
        was, self._usable[view.name] = self._usable.get(view.name, False), view.in_service
        if view.life is Life.GONE and all(each.name != view.name for each in self._requests.views()):
            del self._usable[view.name]
            error = error_to_wire(PhoneError(f"{view.name} is no part of the farm any more", Code.PHONE_FORGOTTEN))
            for job in self._queue.jobs():
                if job.device == view.name:
                    with suppress(NoSuchJobError):  # its end is being written
                        self._perform(self._queue.job_impossible(job.id, error, self._clock()))
        if was and not self._usable.get(view.name):
            views = self._requests.views()
            for job in self._queue.choosy():
                if not another_phone(job, views, self._queue.avoided(job.id)):
                    self._perform(self._queue.phones_changed(job.id))
            self._report_waits(view)

    def _report_waits(self, lost: DeviceState) -> None:
        """Report at once to a job's clients that the last phone it could have is away or withheld, and why."""
        views = self._requests.views()
        for job_id, request in tuple(islice(self._asked.items(), MAX_REPORTED)):
            job = self._queue.job(job_id)
            if job is None or not lost_the_last(job, lost, views, self._queue.avoided(job_id)):
                continue
            if reason := self._requests.why((request,))[request]:
                self._events.publish("job.waits", job_id, reason=reason)

    # --- helpers --------------------------------------------------------------------------------------------------

    def _wake(self, job_id: str) -> None:
        for waiter in self._changed.pop(job_id, ()):
            if not waiter.done():
                waiter.set_result(None)
