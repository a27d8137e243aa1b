"""A head takes over: it reads the state of the lab from the rows of hosts, and grants nothing meanwhile.

Leases that no host has armed were never held: they end, and their requests wait again. Armed leases and running
attempts continue. A job that has an armed lease and no attempt, because the head ended in between, asks again. A job
that was cancelled is still to be stopped while its host, which may be lost, has not taken the letter.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from farm.common.errors import error_from_wire
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head import wire
from farm.head.hosts import Hosts, WithheldFor, protocol_problem
from farm.head.local import LocalHead
from farm.head.messages import DeviceChanged, LeaseEnded, LeaseRestored, LeaseUnwanted, RequestAdded, SlotKept
from farm.head.planning import request_of
from farm.head.queue.model import ClockReading, NoSuchJobError, StopAttempt
from farm.head.write_queue import released_event
from farm.model.job import FINAL, Attempt, AttemptState, Job
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.model.specs import Kinds
from farm.store.lab_state import LabState, read_lab_state
from farm.store.leases import LeaseRecord
from farm.store.mailbox import Letter
from farm.store.store import Store

TAKING_OVER = "a head takes over"
NEVER_HELD = "a head took over before its host had it"

log = logging.getLogger(__name__)


class Takeover:
    """Of the requests, leases and jobs of the lab, by the one head that has the term."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        kinds: Kinds,
        head: LocalHead,
        hosts: Hosts,
        clock: Callable[[], ClockReading],
    ) -> None:
        self._store = store
        self._events = events
        self._kinds = kinds
        self._head = head
        self._requests = head.requests
        self._hosts = hosts
        self._clock = clock

    async def run(self) -> None:
        """Take over; requests are served from now on.

        Raises:
            HostError: the database is away, or another head has taken over.
        """
        self._requests.drain(TAKING_OVER)
        with _gc_frozen():
            await self._take_over()
        self._requests.drain("")

    async def _take_over(self) -> None:
        read = self._store.read
        for record in await read(self._store.leases.unarmed):
            with self._events.drafted(released_event(record, NEVER_HELD, 0.0)) as drafts:
                await self._store.leases.end_unarmed(
                    record.id, ended_at=self._clock().at, reason=NEVER_HELD, events=drafts
                )
        state = await self._store.in_thread(read_lab_state, self._store.database)
        holders = dict.fromkeys(record.job for record in state.leases if record.job)
        jobs = {job.id: job for job in await read(self._store.jobs.several, tuple(holders)) if job.state not in FINAL}
        running = {attempt.job: attempt for attempt in await read(self._store.jobs.running)}
        self._learn(state, jobs, running)
        for attempt in running.values():
            if not self._hosts.runs_at(attempt.job):  # its lease has ended before it
                lease = await read(self._store.leases.get, attempt.lease)
                if lease is not None:
                    self._hosts.attempt_runs(attempt.job, attempt.id, lease.host)
        await self._head.start(self._hosts)
        for letter in state.letters:
            self._cancel_again(letter)
        for record in state.leases:
            if record.ended_at is None and record.source is LeaseSource.JOB and record.job not in running:
                self._hosts.receive(LeaseUnwanted(record.id, "the head that had granted it is gone"))
        log.info(
            "took over: %d phones and requests, %d leases, %d jobs",
            len(state.rows), len(state.leases), self._head.dispatcher.count().total(),
        )  # fmt: skip

    def _cancel_again(self, letter: Letter) -> None:
        """If the letter stops a cancelled job's attempt: the job ends as cancelled, even when its host is lost."""
        if letter.body.get("kind") != StopAttempt.__name__:
            return
        stop = wire.to_host(letter.body, self._clock().s)
        if isinstance(stop, StopAttempt) and stop.state is AttemptState.CANCELLED:
            with suppress(NoSuchJobError):  # it has ended meanwhile
                self._head.dispatcher.cancel(stop.job, error_from_wire(stop.error))

    def _learn(self, state: LabState, jobs: Mapping[str, Job], running: Mapping[str, Attempt]) -> None:
        now = self._clock()
        for each in state.hosts:
            self._hosts.withhold(each.name, WithheldFor.DRAIN, each.drained)
            self._hosts.withhold(each.name, WithheldFor.PROTOCOL, protocol_problem(each))
            self._hosts.withhold(each.name, WithheldFor.LOSS, "its host was removed" if each.removed_at else "")
            if each.beat_at is None:
                self._hosts.stopped.add(each.name)
        rows = [(row.host, wire.to_head(row.body, now.s)) for row in state.rows]
        phones = [(host, message) for host, message in rows if isinstance(message, DeviceChanged)]
        leased = {record.device for record in state.leases if record.ended_at is None}
        # Of two hosts with one phone, the one that holds a lease of it keeps it: the first report counts.
        for host, phone in sorted(phones, key=lambda each: each[1].state.name not in leased):
            self._hosts.take(host, phone)
        for record in state.leases:
            self._restore(record, jobs.get(record.job), running.get(record.job), now)
        for host, message in rows:
            if isinstance(message, RequestAdded):
                self._hosts.take(host, message)
        self._store.mailbox.seen = state.seen

    def _restore(self, record: LeaseRecord, job: Job | None, attempt: Attempt | None, now: ClockReading) -> None:
        request = self._request_of(record, job, attempt, now)
        held_s = max(0.0, (now.at - record.granted_at).total_seconds())
        for message in (
            LeaseRestored(Lease(record.id, record.device, record.fence, request, now.s - held_s)),
            *((SlotKept(record.device, record.id),) if record.slot else ()),
            *((LeaseEnded(record.device, record.id),) if record.ended_at is not None else ()),
        ):
            self._hosts.take(record.host, message)
        if attempt is not None:
            self._hosts.attempt_runs(attempt.job, attempt.id, record.holder_host or record.host)

    def _request_of(
        self, record: LeaseRecord, job: Job | None, attempt: Attempt | None, now: ClockReading
    ) -> LeaseRequest:
        """The request of a lease; only the lease of a job's first phone took a worker slot."""
        left_s = None if record.expires_at is None else max(0.0, (record.expires_at - now.at).total_seconds())
        if job is not None:
            request = request_of(self._kinds, job, frozenset())
            first = attempt is None or attempt.lease == record.id
            return replace(
                request,
                longest_s=left_s,
                worker=request.worker and first,
                match_sha256=record.match_sha256,
                holder_host=record.holder_host,
            )
        return LeaseRequest(
            Selector.parse(record.selector) if record.selector else Selector(),
            record.user,
            record.source,
            lease_class=record.lease_class,
            worker=record.slot,
            longest_s=left_s,
            key=record.key,
            job=record.job,
            match_sha256=record.match_sha256,
            holder_host=record.holder_host,
        )


@contextmanager
def _gc_frozen() -> Iterator[None]:
    """Exempt the objects made meanwhile from garbage collection: a pass over 100,000 jobs would block the loop."""
    gc.unfreeze()  # a term before this one
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
