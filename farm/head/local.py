"""The head in the process that asks it: the daemon's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from farm.common.errors import FarmError
from farm.common.events import EventLog
from farm.common.systemd import ProgressCheck
from farm.common.tasks import BackgroundTasks, end_tasks
from farm.head.dispatcher import AttemptRunner, Dispatcher
from farm.head.head import Head
from farm.head.messages import (
    AttemptEnded,
    DialBack,
    HeadMessage,
    HostMessage,
    LeaseUnwanted,
    SessionBroken,
)
from farm.head.model import Explanation, JobExplanation, LeasePolicy, WaitingPage
from farm.head.planning import Submission
from farm.head.queue.model import ClockReading, JobRunsError, NoSuchJobError
from farm.head.request_queue import RequestQueue
from farm.head.reservations import ReservationRegistry
from farm.head.write_queue import LeaseWriteQueue
from farm.model.sessions import FleetSummary
from farm.model.specs import JobSpec, Kinds
from farm.store.leases import ReservationRecord
from farm.store.store import Store

SCHEDULER_LIMIT_S = 30.0  # its timers fire when they are due, or never


def read_clock(store: Store) -> ClockReading:
    """Now, on both clocks."""
    return ClockReading(time.monotonic(), store.now())


class LocalHead(Head):
    """The request queue, the jobs and the reservations. `start` once, when the leases of before are restored."""

    def __init__(self, requests: RequestQueue, dispatcher: Dispatcher, reservations: ReservationRegistry) -> None:
        self.requests = requests
        self.dispatcher = dispatcher
        self.registry = reservations

    @classmethod
    async def open(
        cls,
        store: Store,
        events: EventLog,
        writes: LeaseWriteQueue,
        policy: LeasePolicy,
        kinds: Kinds,
        tasks: BackgroundTasks,
    ) -> LocalHead:
        """A head without devices and jobs, with the reservations and each user's use so far.

        Args:
            store: what it decides is kept there.
            events: gets what is kept.
            writes: where grants are written down, and in this process the ends of leases too.
            policy: what users may have.
            kinds: of jobs.
            tasks: ended by their owner, after `stop_jobs`.
        """
        requests = RequestQueue(writes, store.leases, store.epoch, policy, time.monotonic, store.now)
        dispatcher = Dispatcher(
            store=store, events=events, requests=requests, tasks=tasks, kinds=kinds, quota_of=requests.quota_of,
            clock=partial(read_clock, store),
        )  # fmt: skip
        reservations = ReservationRegistry(store.reservations, events, requests.reserve, wall=store.now)
        half_life_s = policy.allocator.usage_half_life_s
        requests.load_usage(await store.in_thread(store.leases.decayed_use, store.now(), half_life_s))
        store.on_problem(requests.store_problem)
        return cls(requests, dispatcher, reservations)

    async def start(self, runner: AttemptRunner) -> None:
        """See `Head.start`: every job that has not ended is taken up."""
        await self.dispatcher.start(runner)

    def checks(self) -> tuple[ProgressCheck, ...]:
        """The components that must make progress."""
        return (
            ProgressCheck("the scheduler", self.dispatcher.behind_s, SCHEDULER_LIMIT_S),
            ProgressCheck("the allocator", self.requests.behind_s, SCHEDULER_LIMIT_S),
        )

    def stop_jobs(self) -> None:
        """Ask for no more phones for jobs; running attempts end as the host reports."""
        self.dispatcher.close()

    def use(self, policy: LeasePolicy) -> None:
        """Decide by this from now on."""
        self.requests.use_quotas(policy)

    def clock_jumped(self) -> None:
        """The wall clock was set."""
        self.registry.publish()
        self.dispatcher.clock_jumped()

    # --- the host's side ------------------------------------------------------------------------------------------

    def connect(self, receive: Callable[[HeadMessage], None]) -> None:
        """See `Head.connect`."""
        self.requests.connect(receive)

    def report(self, message: HostMessage | AttemptEnded) -> None:
        """See `Head.report`."""
        if isinstance(message, AttemptEnded):
            self.dispatcher.attempt_ended(message)
        else:
            self.requests.receive(message)

    def send_to_host(self, host: str, message: LeaseUnwanted | SessionBroken | DialBack) -> None:
        """Never called: there is no other host."""

    def close(self, reason: str) -> None:
        """See `Head.close`."""
        self.requests.close(reason)

    # --- orders ---------------------------------------------------------------------------------------------------

    async def submit(self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False) -> Submission:
        """See `Dispatcher.submit`."""
        return await self.dispatcher.submit(spec, user, key=key, must_match=must_match)

    async def check(
        self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False, besides: int = 0
    ) -> int:
        """See `Dispatcher.check`."""
        return await self.dispatcher.check(spec, user, key=key, must_match=must_match, besides=besides)

    async def cancel(self, job_ids: Sequence[str], error: FarmError) -> Sequence[str]:
        """See `Head.cancel`."""
        return _ordered(job_ids, lambda job_id: self.dispatcher.cancel(job_id, error))

    async def hold(self, job_ids: Sequence[str]) -> Sequence[str]:
        """See `Head.hold`."""
        return _ordered(job_ids, self.dispatcher.hold)

    async def resume(self, job_ids: Sequence[str]) -> Sequence[str]:
        """See `Head.resume`."""
        return _ordered(job_ids, self.dispatcher.resume)

    async def settle(self, job_ids: Sequence[str], limit_s: float) -> bool:
        """See `Head.settle`."""
        waits = [asyncio.ensure_future(self.dispatcher.settled(job_id)) for job_id in job_ids]
        if not waits:
            return True
        try:
            _, late = await asyncio.wait(waits, timeout=limit_s)
            return not late
        finally:
            await end_tasks(*waits)

    async def reserve(
        self, selector: str, user: str, starts_at: datetime, ends_at: datetime, note: str = ""
    ) -> ReservationRecord:
        """See `ReservationRegistry.add`."""
        return await self.registry.add(selector, user, starts_at, ends_at, note)

    async def remove_reservation(self, reservation_id: str) -> ReservationRecord:
        """See `ReservationRegistry.remove`."""
        return await self.registry.remove(reservation_id)

    async def drain(self, reason: str) -> None:
        """See `Head.drain`."""
        self.requests.drain(reason)

    # --- questions ------------------------------------------------------------------------------------------------

    async def is_live(self, job_id: str) -> bool:
        """See `Head.is_live`."""
        return self.dispatcher.is_live(job_id)

    async def waits(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """See `Head.waits`."""
        return await self.dispatcher.waits(job_ids)

    async def why(self, request_ids: Sequence[str]) -> Mapping[str, str]:
        """See `RequestQueue.why`."""
        return self.requests.why(request_ids)

    async def explain(self, subject: str, user: str = "") -> Explanation:
        """See `RequestQueue.explain`."""
        return self.requests.explain(subject, self.requests.made_now(subject, user))

    async def explain_job(self, job_id: str) -> JobExplanation:
        """See `Head.explain_job`."""
        request = self.dispatcher.request_of(job_id)
        explanation = self.requests.explain_request(request) if request else None
        waits = (await self.dispatcher.waits((job_id,)))[job_id] if explanation is None else ""
        return JobExplanation(waits, explanation)

    async def waiting(self, limit: int) -> WaitingPage:
        """See `Head.waiting`."""
        waiting = self.requests.waiting(limit)
        return WaitingPage(waiting, self.requests.depth.total() - len(waiting))

    async def reservations(self) -> Sequence[ReservationRecord]:
        """See `Head.reservations`."""
        return self.registry.all()

    @property
    def waiting_here(self) -> int:
        """See `Head.waiting_here`."""
        return self.requests.depth.total()

    @property
    def drained(self) -> str:
        """See `Head.drained`."""
        return self.requests.drained

    def serves(self, key: str) -> bool:
        """See `Head.serves`."""
        return self.requests.allocator.answers_to(key)

    def summary(self) -> FleetSummary:
        """See `RequestQueue.summary`."""
        return self.requests.summary()

    def awaits(self, device: str) -> bool:
        """See `Head.awaits`."""
        return self.requests.allocator.awaits(device)


def _ordered(job_ids: Sequence[str], give: Callable[[str], None]) -> Sequence[str]:
    """Give an order about each job; returns the ids of those that it changed.

    Whatever has ended or is being ended stays as it is; of several, whatever runs too if the order is not for it.
    """
    spared = (NoSuchJobError, JobRunsError) if len(job_ids) > 1 else (NoSuchJobError,)
    changed = []
    for job_id in job_ids:
        with suppress(*spared):
            give(job_id)
            changed.append(job_id)
    return changed
