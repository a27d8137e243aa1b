"""From request to lease: each grant of the allocator is written to the store, then delivered.

A lease begins in three steps: *granted* (the allocator gives a device to a request), *stored* (the store has committed
it), *armed* (its host holds the device under it). No lease is announced before it is stored; when a step fails, its
request, unless withdrawn, waits on and is served later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVarTuple

from farm.common.durations import BackOff
from farm.common.histogram import QUICK_S, Histogram
from farm.common.limits import DEFAULT_PRIORITY
from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import Grant
from farm.head.allocator.reservations import Reservation
from farm.head.config import UserConfig
from farm.head.messages import (
    DeviceChanged,
    DeviceForgotten,
    HeadMessage,
    HostMessage,
    LeaseArmed,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseRefused,
    LeaseRestored,
    LeaseUnwanted,
    RequestAdded,
    RequestWithdrawn,
    SlotFreed,
    SlotKept,
    YieldWanted,
)
from farm.head.model import LeasePolicy
from farm.head.waiting_requests import JobRequester, PendingGrant, PendingRequest, WaitingRequests
from farm.head.write_queue import LeaseWrite, LeaseWriteQueue, lease_event, record_of
from farm.model.device import DeviceState, Life
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.store.leases import LeaseTable
from farm.store.mailbox import Letter

FENCE_BITS = 32  # a fence is the term (the number of the start) above a counter: it grows for each device
NOT_WRITABLE = "the store cannot be written, and a lease that is not written down is not given"
REFUSED_PAUSE_S = 1.0  # after a grant that the store refused: the device is free again, and its request waits again
STANDS = BackOff(1.0, 60.0)  # of a host on which no worker continues, between two tries

Facts = TypeVarTuple("Facts")

log = logging.getLogger(__name__)


class RequestQueue(WaitingRequests):
    """Grants devices to the requests that wait, by the allocator. `receive` is what hosts send it."""

    def __init__(
        self,
        writes: LeaseWriteQueue,
        table: LeaseTable,
        epoch: int,
        policy: LeasePolicy,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        """Start without devices; `connect` it before it has any.

        Args:
            writes: where grants and ends are written down.
            table: the store's leases.
            epoch: the upper part of every fence.
            policy: what users may have.
            clock: monotonic seconds.
            wall: what is written down.
        """
        super().__init__(Allocator(policy.allocator), clock)
        self._loop = asyncio.get_running_loop()
        self._writes = writes
        self._table = table
        self._epoch = epoch
        self._wall = wall
        self._send: Callable[[HeadMessage], None]  # from `connect` on
        self._letter: Callable[[LeaseGranted], Letter] | None
        self._undone: Callable[[str], None]
        self.decisions = Histogram(QUICK_S)  # seconds of the allocator for one event
        self._grants: dict[str, PendingGrant] = {}  # by device
        self._counter = 0
        self._watching: list[Callable[[DeviceState], None]] = []
        self._closed = False
        self._failing = False  # the store cannot write
        self.drained = ""  # why an operator wants that nothing is granted
        self._check_timer: asyncio.TimerHandle | None = None
        self._check_at_s = 0.0  # when it fires
        # Hosts whose workers stand: how often in a row that was found, and until when none is tried.
        self._standing: dict[str, tuple[int, asyncio.TimerHandle | None]] = {}
        self.use_quotas(policy)

    def connect(
        self,
        send: Callable[[HeadMessage], None],
        letter: Callable[[LeaseGranted], Letter] | None = None,
        undone: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Send the host its messages there.

        Args:
            send: sends a message to the host that it concerns.
            letter: makes what is stored with a grant for a host apart, before it is sent; None: no host is apart.
            undone: called with each lease that was granted and never armed.
        """
        self._send = send
        self._letter = letter
        self._undone = undone

    def receive(self, message: HostMessage) -> None:
        """Something happened at the host."""
        match message:
            case DeviceChanged(view):
                self._device_changed(view)
            case RequestAdded(request_id, request):
                self._add(PendingRequest(request_id, request, self._clock()))
            case RequestWithdrawn(request_id):
                self.withdraw(request_id)
            case LeaseArmed(device, lease, attempt):
                if (pending_grant := self._grant_of(device, lease)) is not None:
                    self._armed(pending_grant, claimed=bool(attempt))
            case LeaseRefused(device, lease, reason):
                if (pending_grant := self._grant_of(device, lease)) is not None:
                    pending_grant.cancelled = reason
                    self._end_stored(pending_grant)
            case LeaseEnded(device, lease):
                if (pending_grant := self._grant_of(device, lease)) is not None:
                    self._undo(pending_grant)
                else:
                    self.decide(self.allocator.lease_ended, device, lease)
            case LeaseExtended(device, left_s):
                self.decide(self.allocator.lease_extended, device, left_s)
            case LeaseRestored(lease):
                self.decide(self.allocator.lease_restored, lease.device, lease.id, lease.request)
            case SlotKept(device, lease):
                self.decide(self.allocator.slot_kept, device, lease)
            case SlotFreed(lease):
                self.decide(self.allocator.slot_freed, lease)
            case DeviceForgotten(device):
                self._device_forgotten(device)

    # --- for jobs -------------------------------------------------------------------------------------------------

    def ask(self, request: LeaseRequest, requester: JobRequester, place_s: float | None = None) -> str:
        """Request a device for the request's job; returns the request's id. `place_s`: as in `PendingRequest`.

        `requester.granted` is called once, later, when the lease is armed; never after `withdraw`.
        """
        self._counter += 1
        request_id = f"job-request-{self._epoch}-{self._counter}"
        self._add(PendingRequest(request_id, request, self._clock(), requester, place_s))
        return request_id

    def withdraw(self, request_id: str) -> None:
        """The requester does not wait any more. Harmless when it was granted or withdrawn before."""
        pending = self._requests.pop(request_id, None)
        if pending is None:
            return
        if pending.grant is not None:
            self._cancel(pending.grant, "the requester left")
        else:
            self._uncount(pending)
            self.decide(self.allocator.request_withdrawn, request_id)

    def release(self, lease_id: str, reason: str) -> None:
        """The lease that `granted` got is no longer wanted."""
        self._send(LeaseUnwanted(lease_id, reason))

    # --- orders ---------------------------------------------------------------------------------------------------

    def use_quotas(self, policy: LeasePolicy) -> None:
        """Set the users' limits from now on; current leases stay."""
        self._policy = policy
        self.decide(self.allocator.quotas_changed, policy.quota, policy.users)

    def quota_of(self, user: str) -> UserConfig:
        """This user's limits."""
        return self._policy.of(user)

    def made_now(self, key: str, user: str) -> LeaseRequest:
        """A stock client's request for a TVM key as `user` may make it, for `explain`; "": a user without a table."""
        priority = min(DEFAULT_PRIORITY, self.quota_of(user).priority)
        return LeaseRequest(Selector(), user, LeaseSource.TVM, priority, self._policy.class_of(key), key=key)

    def load_usage(self, by_user: Mapping[str, float]) -> None:
        """Device-seconds that each user has used so far, decayed to now; comes once, at the start."""
        self.decide(self.allocator.usage_loaded, by_user)

    def reserve(self, windows: tuple[Reservation, ...]) -> None:
        """All reservations there are."""
        self.decide(self.allocator.reservations_changed, windows)

    def store_problem(self, failing: bool) -> None:
        """The store cannot write: nothing is granted, requests wait. Or it can again."""
        self._failing = failing
        self._pause_or_go_on()

    def drain(self, reason: str) -> None:
        """Grant nothing from now on, until it is called with ""; leases continue, requests wait."""
        self.drained = reason
        self._pause_or_go_on()

    def _pause_or_go_on(self) -> None:
        if not self._closed:
            self.decide(self.allocator.paused, NOT_WRITABLE if self._failing else self.drained)

    def workers_stand(self, host: str, why: str) -> None:
        """An attempt ended by what lets no worker of the host continue: after a while, one is tried again."""
        failures, timer = self._standing.get(host, (0, None))
        if timer is None and not self._closed:
            delay_s = STANDS.delay_s(failures + 1)
            timer = self._loop.call_later(delay_s, self._try_a_worker, host, why)
            self._standing[host] = failures + 1, timer
            self.decide(self.allocator.workers_stopped, host, 0, why)

    def _try_a_worker(self, host: str, why: str) -> None:
        self._standing[host] = self._standing[host][0], None
        self.decide(self.allocator.workers_stopped, host, 1, why)

    def workers_go_on(self, host: str) -> None:
        """A worker of the host did its work."""
        if host in self._standing:
            _, timer = self._standing.pop(host)
            if timer is not None:
                timer.cancel()
            self.decide(self.allocator.workers_stopped, host, 0, "")

    def close(self, reason: str) -> None:
        """Grant nothing any more, and undo undelivered grants; requests stay unanswered."""
        self._closed = True
        self.decide(self.allocator.paused, reason)
        self._requests.clear()
        for pending_grant in tuple(self._grants.values()):
            self._cancel(pending_grant, reason)
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        for host in tuple(self._standing):
            self.workers_go_on(host)

    # --- questions ------------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[DeviceState], None]) -> Callable[[], None]:
        """Call back with each new view, after it was decided by; returns the function that ends it.

        A device that is forgotten is shown a last time: not adopted and gone.
        """
        self._watching.append(callback)
        return lambda: self._watching.remove(callback)

    def decide(self, happened: Callable[[*Facts, float], tuple[Grant, ...]], *facts: *Facts) -> None:
        """Let the allocator decide by one of its methods, and begin to write its grants."""
        begun_s = time.perf_counter()
        grants = happened(*facts, self._clock())
        self.decisions.observe(time.perf_counter() - begun_s)
        for cleaning in self.allocator.cleanings():
            write = partial(self._table.add_cleaning, cleaning.lease, cleaning.seconds)
            self._writes.add(cleaning.device, LeaseWrite(write, None))
        for asked in self.allocator.asked():
            self._send(asked)
        for grant in grants:
            self._begin(grant)
        self._schedule_check()

    def behind_s(self) -> float:
        """For how many seconds a check of the clock is overdue and not scheduled; 0 while all is well."""
        wanted_s = self.allocator.next_check_s()
        if (
            wanted_s is None
            or self._closed
            or (self._check_timer is not None and self._check_timer.when() > self._loop.time())
        ):
            return 0.0
        return max(0.0, self._clock() - wanted_s)

    def unarmed(self, devices: Iterable[str]) -> tuple[Lease, ...]:
        """Leases of these devices that a host apart was sent and has not answered."""
        grants = (self._grants.get(device) for device in devices)
        return tuple(each.lease for each in grants if each is not None and each.letter and each.entry is None)

    # --- what happens ---------------------------------------------------------------------------------------------

    def _grant_of(self, device: str, lease: str) -> PendingGrant | None:
        """The grant of that lease, unless it was armed, undone or another head's."""
        pending_grant = self._grants.get(device)
        return pending_grant if pending_grant is not None and pending_grant.lease.id == lease else None

    def _device_changed(self, view: DeviceState) -> None:
        self.decide(self.allocator.device_changed, view)
        if view.life is not Life.READY:
            self._device_lost(view.name, view.life)
        self._show(view)

    def _device_forgotten(self, device: str) -> None:
        last = self.allocator.devices.get(device)
        self.decide(self.allocator.device_forgotten, device)
        self._device_lost(device, Life.GONE)
        if last is not None:
            self._show(replace(last, life=Life.GONE, adopted=False))

    def _show(self, view: DeviceState) -> None:
        for callback in tuple(self._watching):
            callback(view)

    def _device_lost(self, device: str, life: Life) -> None:
        if (pending_grant := self._grants.get(device)) is not None:
            self._cancel(pending_grant, f"{device} is {life}, before it was handed out")

    def _new_lease(self, device: str, request: LeaseRequest) -> Lease:
        """A lease with the next fence."""
        self._counter += 1
        fence = (self._epoch << FENCE_BITS) + self._counter
        return Lease(f"lease-{self._epoch}-{self._counter}", device, fence, request, self._clock())

    def _begin(self, grant: Grant) -> None:
        pending = self._requests[grant.request_id]
        self._uncount(pending)
        lease, granted_at = self._new_lease(grant.device, pending.request), self._wall()
        letter = None
        if self._letter is not None:
            requester = pending.requester
            claim = None if requester is None else requester.claim(pending.request.job, lease)
            letter = self._letter(LeaseGranted(pending.id, lease, granted_at, claim))
        pending_grant = pending.grant = self._grants[grant.device] = PendingGrant(pending, lease, granted_at, letter)
        keep = partial(self._table.grant, record_of(lease, granted_at), letter=letter)
        event = lease_event(
            "lease.granted",
            lease,
            job=pending.request.job,
            lease_class=pending.request.lease_class.value,
            source=pending.request.source.value,
            waited_s=round(self._clock() - pending.since, 3),
        )
        pending_grant.entry = LeaseWrite(
            keep, event, lambda _: self._stored(pending_grant), lambda: self._refused(pending_grant)
        )
        self._writes.add(lease.device, pending_grant.entry)

    def _stored(self, pending_grant: PendingGrant) -> None:
        if pending_grant.cancelled and pending_grant.letter is None:
            self._end_stored(pending_grant)
        else:  # a host apart may be arming it: it says what became of that
            pending_grant.entry = None
            self._send(LeaseGranted(pending_grant.pending.id, pending_grant.lease, pending_grant.granted_at))

    def _armed(self, pending_grant: PendingGrant, *, claimed: bool) -> None:
        if pending_grant.cancelled and not claimed:  # since it was sent; an attempt that runs already continues
            self._send(LeaseUnwanted(pending_grant.lease.id, pending_grant.cancelled))
            return
        del self._grants[pending_grant.lease.device], self._requests[pending_grant.pending.id]
        pending_grant.pending.grant = None  # a circle: what a head has read is not garbage-collected
        if self.allocator.held[pending_grant.lease.device].asked:  # before the host knew of the lease
            self._send(YieldWanted(pending_grant.lease.device))
        pending = pending_grant.pending
        if pending.requester is not None:
            pending.requester.granted(pending.request.job, pending_grant.lease, claimed=claimed)

    def _end_stored(self, pending_grant: PendingGrant) -> None:
        lease, granted_at, reason = pending_grant.lease, pending_grant.granted_at, pending_grant.cancelled
        if pending_grant.letter is None:
            self._writes.end(self._table, lease, granted_at, self._clock(), reason)
            self._undo(pending_grant)
            return

        def ended(was_unarmed: bool) -> None:
            if was_unarmed:  # else `LeaseArmed` is on its way
                self._undo(pending_grant)

        self._writes.end_unarmed(self._table, lease, granted_at, reason, ended)

    def _refused(self, pending_grant: PendingGrant) -> None:
        """The store refuses it: device and request pause a little, so that a bug cannot spin, and begin again."""
        if pending_grant.cancelled:
            self._undo(pending_grant)
        else:
            pending_grant.pause = self._loop.call_later(REFUSED_PAUSE_S, self._undo, pending_grant)

    def _cancel(self, pending_grant: PendingGrant, reason: str) -> None:
        """The lease will not be held: nothing is written if there is time, else its end is, right after it.

        One that was sent already is given back by its host.
        """
        if pending_grant.cancelled:
            return
        pending_grant.cancelled = reason
        if pending_grant.entry is not None and self._writes.drop(pending_grant.entry):
            self._undo(pending_grant)

    def _undo(self, pending_grant: PendingGrant) -> None:
        """The device is free again; its request, unless withdrawn, waits on."""
        pending = pending_grant.pending
        pending.grant = None
        if pending_grant.pause is not None:
            pending_grant.pause.cancel()
        del self._grants[pending_grant.lease.device]
        self._undone(pending_grant.lease.id)
        self.decide(self.allocator.lease_ended, pending_grant.lease.device, pending_grant.lease.id)
        if pending.id in self._requests:
            if pending.requester is None or pending.requester.grant_cancelled(
                pending.request.job, pending.request.avoid
            ):
                self._enter(pending)
            else:
                del self._requests[pending.id]

    def _add(self, pending: PendingRequest) -> None:
        self._requests[pending.id] = pending
        self._enter(pending)

    def _enter(self, pending: PendingRequest) -> None:
        self._count(pending)
        place_s = pending.since if pending.place_s is None else pending.place_s
        added = partial(self.allocator.request_added, place_s=place_s)
        if self._failing or self.drained:  # nothing is decided: a head that takes over adds 100,000
            added(pending.id, pending.request, self._clock())
        else:
            self.decide(added, pending.id, pending.request)

    # --- time -----------------------------------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        """Let the allocator look again when it wants to; a timer that comes too early is left and looks again."""
        wanted_s = self.allocator.next_check_s()
        if wanted_s is None or (self._check_timer is not None and self._check_at_s <= wanted_s):
            return
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._check_at_s = wanted_s
        self._check_timer = self._loop.call_later(max(0.0, wanted_s - self._clock()), self._time_passed)

    def _time_passed(self) -> None:
        self._check_timer = None
        self.decide(self.allocator.clock_advanced)
