"""The loss and the removal of a host: leases that it had not armed were never held, and its jobs continue elsewhere.

A host that is cut off works on, and its holders keep its phones. So leases of TVM clients and people stay, and an armed
lease of a job stays open until the host has ended it; only its user's quota and worker slot are free at once. The end
of an attempt is one conditional UPDATE, by the host or by the head: a job has one result. The head hands out none of
the host's phones before the host is back and has ended the attempts of the time before.

A removed host can write nothing any more: the head ends all its leases, and then deletes its rows (`_remove`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace

from farm.common.errors import Code, HostError
from farm.common.events import EventLog
from farm.head import beats
from farm.head.beats import BeatWatch
from farm.head.hosts import Hosts, WithheldFor, protocol_problem
from farm.head.job_store import ended_events, was_handed_over
from farm.head.local import LocalHead
from farm.head.messages import (
    AttemptEnded,
    DeviceForgotten,
    LeaseEnded,
    LeaseRefused,
    SlotFreed,
)
from farm.head.queue.model import ClockReading, StopAttempt
from farm.head.queue.retry import broken_off
from farm.head.write_queue import released_event
from farm.model.job import Attempt, Job
from farm.model.requests import LeaseSource
from farm.model.specs import Kinds
from farm.store.leases import LeaseRecord
from farm.store.mailbox import NOTHING
from farm.store.store import Store

log = logging.getLogger(__name__)


class HostWatch:
    """Looks at the beats of all hosts (`run`), and acts when a host is lost, back or removed."""

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
        self._hosts = hosts
        self._clock = clock
        self._beats = BeatWatch()
        self._ending: defaultdict[str, set[str]] = defaultdict(set)  # by host: leases of jobs it ran when it was lost

    async def run(self) -> None:
        """Look forever, as often as hosts beat."""
        while True:
            try:
                await self._look()
            except HostError as error:  # the writer reports it; a lost term ends all of this
                log.debug("no look at the beats of hosts: %s", error)
                self._beats.look_failed()
            except Exception:
                log.exception("attempts of a lost host cannot be ended now")
            await asyncio.sleep(beats.BEAT_EVERY_S)

    # --- what hosts say -------------------------------------------------------------------------------------------

    def began(self, host: str) -> None:
        """A host begins again: none of its attempts continues, and it is not drained."""
        self._ending.pop(host, None)
        for cause in (WithheldFor.ENDING, WithheldFor.DRAIN):
            self._hosts.withhold(host, cause, "")

    def lease_ended(self, host: str, lease_id: str) -> None:
        """A host has ended a lease."""
        ending = self._ending.get(host, set())
        ending.discard(lease_id)
        if not ending:
            self._hosts.withhold(host, WithheldFor.ENDING, "")

    def silence(self, host: str, why: str) -> None:
        """No client and no job of the host would hear of a phone: its requests and unarmed leases end."""
        for request_id in self._hosts.requests_of(host):
            self._head.requests.withdraw(request_id)
        for lease in self._head.requests.unarmed(self._hosts.devices_of(host)):
            self._head.requests.receive(LeaseRefused(lease.device, lease.id, f"{why} before it had it"))

    # --- beats ----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        hosts = await self._store.mailbox.look_at_hosts()
        for each in hosts:
            self._hosts.withhold(each.name, WithheldFor.PROTOCOL, "" if each.removed_at else protocol_problem(each))
        heard = {each.name: each.beat_at for each in hosts if each.beat_at and not each.removed_at}
        changes = self._beats.observe(heard, self._clock().s)
        for host in changes.lost:
            error = _lost_error(host)
            log.warning("%s", error.message)
            self._events.publish("host.lost", host, reason=error.message)
            self._hosts.withhold(host, WithheldFor.LOSS, error.message)
        for host in changes.back:
            log.info("host %s is back", host)
            self._events.publish("host.back", host)
            if self._ending.get(host):
                why = f"host {host} is back, and still ends its attempts of before"
                self._hosts.withhold(host, WithheldFor.ENDING, why)
            self._hosts.withhold(host, WithheldFor.LOSS, "")
            self._store.mailbox.seen = NOTHING  # what its clients and jobs still ask for waits again
        if lost := self._beats.lost:
            await self._break_off(lost)
        for each in hosts:
            if each.removed_at:
                await self._remove(each.name)

    async def _break_off(self, lost: Collection[str]) -> None:
        """Repeated at each look: changes that were under way when the host was lost show later."""
        for host in lost:
            self.silence(host, f"host {host} was lost")
            self._hosts.end_lent_to(host, f"host {host}, whose job had it, was lost")
        read, jobs = self._store.read, self._store.jobs
        armed = [each for each in await read(self._store.leases.open) if each.host in lost and each.armed_at]
        running = [each for each in await read(jobs.running) if self._hosts.runs_at(each.job) in lost]
        known = {job.id: job for job in await read(jobs.several, [each.job for each in running])}
        with_people = {each.job for each in running if was_handed_over(self._kinds, known[each.job], each)}
        for attempt in running:
            host = self._hosts.runs_at(attempt.job)
            if attempt.job not in with_people and host in self._beats.lost:
                await self._end(attempt, known[attempt.job], host, _lost_error(host))
        for record in armed:
            if record.source is LeaseSource.JOB and record.job not in with_people:
                self._let_go(record)

    async def _remove(self, host: str) -> None:
        """End the attempts and leases of a removed host, and forget it; the next look repeats a step that failed."""
        why = f"host {host} was removed from the lab"
        self._hosts.withhold(host, WithheldFor.LOSS, why)
        self.silence(host, why)
        read, jobs = self._store.read, self._store.jobs
        running = [each for each in await read(jobs.running) if self._hosts.runs_at(each.job) == host]
        known = {job.id: job for job in await read(jobs.several, [each.job for each in running])}
        for attempt in running:
            await self._end(attempt, known[attempt.job], host, HostError(why, Code.HOST_LOST))
        held = [each for each in await read(self._store.leases.open) if each.host == host]
        for record in held:
            await self._end_lease(record, why)
        if running or held:
            return
        for lease_id in self._hosts.slots_of(host):
            self._hosts.take(host, SlotFreed(lease_id))
        for device in self._hosts.devices_of(host):
            self._hosts.take(host, DeviceForgotten(device))
        await self._store.mailbox.forget_host(host)
        self._ending.pop(host, None)
        self._hosts.withhold(host, WithheldFor.LOSS, "")
        log.info("%s", why)
        self._events.publish("host.removed", host)

    async def _end_lease(self, record: LeaseRecord, reason: str) -> None:
        now = self._clock()
        held_s = max(0.0, (now.at - record.granted_at).total_seconds())
        with self._events.drafted(released_event(record, reason, held_s)) as drafts:
            end = self._store.leases.end
            if await end(record.id, ended_at=now.at, reason=reason, held_s=held_s, events=drafts):
                self._hosts.take(record.host, LeaseEnded(record.device, record.id))

    async def _end(self, attempt: Attempt, job: Job, host: str, why: HostError) -> None:
        """End an attempt, unless its host has done so."""
        now = self._clock()
        state, error = broken_off(self._kinds, job, why)
        ended = replace(attempt, state=state, ended_at=now.at, error=error)
        with self._events.drafted(*ended_events(job.kind, ended)) as drafts:
            written = await self._store.jobs.finish(ended, events=drafts)
        if written:  # else the host's `AttemptEnded` is on its way
            self._hosts.attempt_is_over(attempt)
            self._hosts.send(host, StopAttempt(job.id, state, error, attempt.id))  # it stands there until it is back
            self._head.report(AttemptEnded(ended))

    def _let_go(self, record: LeaseRecord) -> None:
        """Free its user's quota and worker slot; the row stays until the host ends the lease."""
        if record.id not in self._ending[record.host]:
            self._ending[record.host].add(record.id)
            self._head.requests.receive(LeaseEnded(record.device, record.id))
            self._hosts.lease_over(record.id, f"host {record.host} was lost")


def _lost_error(host: str) -> HostError:
    silent_s = beats.BEAT_EVERY_S * beats.LOST_AFTER
    return HostError(
        f"host {host} has not been heard of for {silent_s:g} s",
        Code.HOST_LOST,
        hint=f"see whether {host} runs and reaches the database; its jobs continue elsewhere",
    )
