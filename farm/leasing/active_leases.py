"""Delivered leases: the effects of devices, sessions and operators on them, until their end is written.

The allocator no longer decides about a delivered lease. It is only notified when the lease is extended or has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from farm.common.errors import Code, FarmError, HostError, PhoneError
from farm.common.events import EventLog
from farm.common.selector import natural
from farm.devices.fleet import Fleet
from farm.head.head import Head
from farm.head.messages import LeaseEnded, LeaseExtended
from farm.head.model import LeasePolicy
from farm.head.write_queue import LeaseWrite, LeaseWriteQueue, lease_event
from farm.leasing.model import Holder, PhoneLostError
from farm.leasing.sessions import ActiveLease, LeaseSessions, without_session
from farm.model.device import RETURNING, DeviceView, Heat, Life
from farm.model.requests import Lease, NoSuchLeaseError
from farm.store.leases import LeaseTable

STORED_LIMIT_S = 10.0  # for an extension; a database that is away is noticed within some seconds


class ActiveLeases:
    """Every delivered lease, and the leases of checks."""

    def __init__(
        self,
        devices: Fleet,
        events: EventLog,
        session_prefix: str,
        table: LeaseTable,
        writes: LeaseWriteQueue,
        policy: LeasePolicy,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        head: Head,
    ) -> None:
        """Start empty; `head` gets the changes and ends of leases."""
        self._loop = asyncio.get_running_loop()
        self._devices = devices
        self._events = events
        self._table = table
        self._writes = writes
        self._policy = policy
        self._clock = clock
        self._wall = wall
        self._head = head
        self.leases: dict[str, ActiveLease] = {}
        self.by_device: dict[str, ActiveLease] = {}
        self._checks: dict[str, ActiveLease] = {}
        self.sessions = LeaseSessions(devices, events, session_prefix, self._session_over)

    def current(self, lease_id: str) -> ActiveLease:
        """The lease, as long as its holder may use it.

        Raises:
            NoSuchLeaseError: it has ended, or is about to.
        """
        active = self.leases.get(lease_id)
        if active is None or active.ending:
            raise no_such_lease_error(lease_id)
        return active

    def deliver(self, lease: Lease, granted_at: datetime) -> ActiveLease:
        """A lease is stored: its holder may use it from now on."""
        active = ActiveLease(lease, granted_at)
        if lease.request.longest_s is not None:
            active.ends_s = lease.granted_at + lease.request.longest_s
        self.leases[lease.id] = self.by_device[lease.device] = active
        return active

    def use_policy(self, policy: LeasePolicy) -> None:
        """Use this policy from now on; running timers keep their time."""
        self._policy = policy

    def restore(self, lease: Lease) -> ActiveLease:
        """A lease of the time before a restart; its device is awaited for `policy.recovery_s`."""
        now, left_s = self._clock(), lease.request.longest_s
        active = self.deliver(lease, self._wall() - timedelta(seconds=now - lease.granted_at))
        active.ends_s = None if left_s is None else now + left_s
        active.awaiting_device = True
        self._await(active)
        return active

    def _await(self, active: ActiveLease) -> None:
        """Give its phone `policy.recovery_s` to come back; as long as a session is open on it, it is there."""
        active.timer = self._loop.call_later(self._policy.recovery_s, self._awaited_long, active)

    def _awaited_long(self, active: ActiveLease) -> None:
        if active.session is not None and not active.session.waits:
            self._await(active)
            return
        reason = f"{active.lease.device} did not come back within {self._policy.recovery_s:g} s of the farm's restart"
        self.revoke(active, PhoneLostError(reason), reason)

    def check(self, lease: Lease) -> ActiveLease:
        """The lease of a check of a device; it ends the previous check."""
        self._end_check(lease.device, "a new check began")
        active = self._checks[lease.device] = ActiveLease(lease, self._wall(), internal=True)
        return active

    def end_with_session(self, active: ActiveLease) -> None:
        """A stock client's lease ends with its session, or soon when it opens none."""
        unused_s = self._policy.unused_s
        active.ends_with_session = True
        active.timer = self._loop.call_later(unused_s, self.release, active, f"not used within {unused_s:g} s")

    def release(self, active: ActiveLease, reason: str) -> None:
        """The holder gives it back: an open session is cut first."""
        if active.ending:
            return
        if active.session is None:
            self._end(active, reason)
        else:
            active.ending = reason
            active.session.cut(reason)

    def revoke(self, active: ActiveLease, why: FarmError, reason: str) -> None:
        """The lease is taken from its holder, who gets `why`."""
        if active.ending:
            return
        active.revocation.set_result(why)
        if not active.internal:
            kind, subject, data = lease_event("lease.revoked", active.lease, reason=reason)
            self._events.publish(kind, subject, **data)
        self.release(active, reason)

    async def extend(self, active: ActiveLease, longest_s: float) -> datetime:
        """Another end, `longest_s` from now; returns it once it is stored.

        Raises:
            NoSuchLeaseError: the lease has ended meanwhile, or the store refuses.
            HostError: the database is away for too long; the lease ends as before.
        """
        lease, ends_s = active.lease, self._clock() + longest_s
        expires_at = self._wall() + timedelta(seconds=longest_s)
        stored: asyncio.Future[bool] = self._loop.create_future()

        def done(changed: bool) -> None:
            lasts = changed and not active.ending
            if lasts:
                active.ends_s = ends_s
                self._head.report(LeaseExtended(lease.device, max(0.0, ends_s - self._clock())))
            if not stored.done():
                stored.set_result(lasts)

        letter = self._head.letter(LeaseExtended(lease.device, longest_s))
        write = partial(self._table.extend, lease.id, expires_at, letter=letter)
        event = lease_event("lease.extended", lease, expires_at=expires_at.isoformat())
        entry = LeaseWrite(write, event, done, lambda: done(False))
        self._writes.add(lease.device, entry)
        await asyncio.wait((stored,), timeout=STORED_LIMIT_S)
        if not stored.done() and self._writes.drop(entry):
            raise HostError(
                f"lease {lease.id} is not extended: the database does not answer",
                Code.DATABASE_UNUSABLE,
                hint="it ends as before; extend it again when `farm doctor` finds the database",
            )
        if not await stored:
            raise no_such_lease_error(lease.id)
        return expires_at

    async def allow_bundle_override(self, lease_id: str) -> str:
        """See `Leasing.allow_bundle_override`."""
        active = await without_session(partial(self.current, lease_id))
        active.bundle_overridden = True
        return active.lease.device

    def clock_jumped(self) -> None:
        """The wall clock was set: stored ends, planned by the monotonic clock, follow it."""
        for active in tuple(self.leases.values()):
            expires_at = self.expires_at(active)
            if expires_at is not None and not active.ending:
                self._writes.add(
                    active.lease.device, LeaseWrite(partial(self._table.extend, active.lease.id, expires_at), None)
                )

    def device_changed(self, view: DeviceView) -> None:
        """A device has changed: apply the change to its holder's lease."""
        if view.life is not Life.CHECKING:
            self._end_check(view.name, f"the check is over: {view.life}")
        active = self.by_device.get(view.name)
        if active is None or active.ending:
            return
        self._report_heat(active, view)
        if view.too_hot:
            active.dirty = True  # nothing of its holder's may continue heating it
            message = f"{view.name} is dangerously hot: {view.too_hot}"
            self.revoke(active, PhoneError(message, Code.TOO_HOT, hint="let it cool, and look at its battery"), message)
            return
        if active.phone_away:
            return
        lost = PhoneLostError.of(view)
        reason = lost.message
        match lease_condition(
            view.life, awaiting_device=active.awaiting_device, ends_with_session=active.ends_with_session
        ):
            case LeaseCondition.USABLE:
                if active.awaiting_device or not active.ends_with_session:
                    active.stop_timer()
                active.awaiting_device = False
            case LeaseCondition.RECOVERING:
                if active.session is not None and not active.session.waits:
                    active.session.cut(reason)
                if active.timer is None:
                    active.timer = self._loop.call_later(self._policy.recovery_s, self.revoke, active, lost, reason)
            case LeaseCondition.LOST:
                self.revoke(active, lost, reason)
            case LeaseCondition.AWAITING_DEVICE:
                pass

    def _report_heat(self, active: ActiveLease, view: DeviceView) -> None:
        """A phone above a hard limit stays with its holder, who gets the reason why it is slow."""
        hot = view.heat is not Heat.OK
        if hot and not active.reported_hot:
            why = view.closed.get(active.lease.request.lease_class)
            reason = why.reason if why is not None else "it is too warm"
            kind, subject, data = lease_event("lease.hot", active.lease, job=active.lease.request.job, reason=reason)
            self._events.publish(kind, subject, **data)
        active.reported_hot = hot

    def stop(self, reason: str) -> None:
        """End all leases but people's and those whose session the gate carries on: these continue after the restart."""
        for active in (*self.leases.values(), *self._checks.values()):
            if active.detached:
                active.stop_timer()
                self.sessions.drop_keys(active)
                continue
            if not active.lease.request.personal:
                self.revoke(active, HostError(reason), reason)
                continue
            active.stop_timer()
            self.sessions.drop_keys(active)
            if active.session is not None:
                active.session.cut(reason)

    # --- status ---------------------------------------------------------------------------------------------------

    def holders(self) -> tuple[Holder, ...]:
        """Every holder, by device name."""
        return tuple(self._holder(self.by_device[name]) for name in sorted(self.by_device, key=natural))

    def holder(self, device: str) -> Holder | None:
        """The device's lease; None: not leased."""
        active = self.by_device.get(device)
        return None if active is None else self._holder(active)

    def expires_at(self, active: ActiveLease) -> datetime | None:
        """When it is given back at the latest, by today's wall clock; None: unknown."""
        return None if active.ends_s is None else self._wall() + timedelta(seconds=active.ends_s - self._clock())

    # --- what happens ---------------------------------------------------------------------------------------------

    def _session_over(self, active: ActiveLease) -> None:
        if active.ending or active.ends_with_session:
            self._end(active, active.ending or "its session ended")

    def _end_check(self, device: str, reason: str) -> None:
        active = self._checks.get(device)
        if active is not None:
            self.revoke(active, PhoneError(reason), reason)

    def _end(self, active: ActiveLease, reason: str) -> None:
        """The lease is over and no session is open under it."""
        active.ending = reason
        self.sessions.drop_keys(active)
        active.stop_timer()
        lease, device = active.lease, active.lease.device
        if active.internal:
            if self._checks.get(device) is active:
                del self._checks[device]
            return
        del self.leases[lease.id], self.by_device[device]
        # Before the device is free: the next holder must not get it as it is.
        if active.bundle_overridden:
            self._devices.own_bundle(device)
        if active.dirty or active.changed or lease.request.traces:
            self._devices.clean_and_check(device, f"cleaning after {lease.request.user}'s lease")
        ended = LeaseEnded(device, lease.id, reason if lease.request.holder_host else "")
        self._writes.end(self._table, lease, active.granted_at, self._clock(), reason, self._head.letter(ended))
        self._head.report(ended)

    def _holder(self, active: ActiveLease) -> Holder:
        session = active.session
        return Holder(
            active.lease,
            self._clock() - active.lease.granted_at,
            session.id if session else "",
            str(session.peer) if session else "",
            self.expires_at(active),
        )


def no_such_lease_error(lease_id: str) -> NoSuchLeaseError:
    """The error for a lease that has ended."""
    return NoSuchLeaseError(f"there is no lease {lease_id!r} now", hint="see `farm lease list`")


class LeaseCondition(StrEnum):
    """The condition of a lease after a change of its phone."""

    USABLE = "usable"  # the phone can be used
    AWAITING_DEVICE = "awaiting-device"  # not seen again since the farm's restart: its time limit continues
    RECOVERING = "recovering"  # its session is over, but its holder keeps the phone for a while: it may recover
    LOST = "lost"  # it is taken from its holder


def lease_condition(life: Life, *, awaiting_device: bool, ends_with_session: bool) -> LeaseCondition:
    """The condition of a lease.

    Args:
        life: of its phone, now.
        awaiting_device: the lease was restored and its phone has not been ready since; adb finds phones one by one.
        ends_with_session: a stock client's, which has nothing but its session.
    """
    if life is Life.READY:
        return LeaseCondition.USABLE
    if awaiting_device and life is not Life.QUARANTINED:
        return LeaseCondition.AWAITING_DEVICE
    if life in RETURNING and not ends_with_session:
        return LeaseCondition.RECOVERING
    return LeaseCondition.LOST
