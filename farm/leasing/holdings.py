"""Leases in their holders' hands: what devices, sessions and operators make of them, until their end is kept.

From here on nothing depends on the allocator's decisions; it is only told when a device is free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from farm.core.allocator_events import AllocatorEvent, LeaseEnded, LeaseExtended
from farm.core.device import DeviceView, Heat, Life
from farm.core.errors import FarmError, HostError, PhoneError
from farm.core.events import EventLog
from farm.core.requests import Lease
from farm.core.sessions import MatchKeyBusyError
from farm.leasing.book import Entry, LeaseBook, told
from farm.leasing.fate import Fate, fate
from farm.leasing.model import Devices, Holder, LeaseKeeper, LeasePolicy, NoSuchLeaseError, PhoneLostError, TooHotError
from farm.leasing.sessions import TURN_S, Held, Sessions


class Holdings:
    """Every delivered lease, and the leases of checks."""

    def __init__(
        self,
        devices: Devices,
        events: EventLog,
        session_prefix: str,
        keeper: LeaseKeeper,
        book: LeaseBook,
        policy: LeasePolicy,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        apply: Callable[[AllocatorEvent], None],
    ) -> None:
        """Start empty; `apply` tells the allocator."""
        self._loop = asyncio.get_running_loop()
        self._devices = devices
        self._events = events
        self._keeper = keeper
        self._book = book
        self._policy = policy
        self._clock = clock
        self._wall = wall
        self._apply = apply
        self.leases: dict[str, Held] = {}
        self.by_device: dict[str, Held] = {}
        self._checks: dict[str, Held] = {}
        self.sessions = Sessions(devices, events, session_prefix, self._session_over)

    def current(self, lease_id: str) -> Held:
        """The lease, as long as its holder may use it.

        Raises:
            NoSuchLeaseError: it has ended, or is about to.
        """
        held = self.leases.get(lease_id)
        if held is None or held.ending:
            raise no_lease(lease_id)
        return held

    def deliver(self, lease: Lease, granted_at: datetime) -> Held:
        """A lease is kept: its holder may use it from now on."""
        held = Held(lease, granted_at)
        if lease.request.longest_s is not None:
            held.ends_s = lease.granted_at + lease.request.longest_s
        self.leases[lease.id] = self.by_device[lease.device] = held
        return held

    def use_policy(self, policy: LeasePolicy) -> None:
        """Wait by this from now on; what waits already keeps its time."""
        self._policy = policy

    def restore(self, lease: Lease) -> Held:
        """A lease of the time before a restart; its device is awaited for `policy.recovery_s`."""
        now, left_s = self._clock(), lease.request.longest_s
        held = self.deliver(lease, self._wall() - timedelta(seconds=now - lease.granted_at))
        held.ends_s = None if left_s is None else now + left_s
        held.awaited = True
        self._await(held)
        return held

    def _await(self, held: Held) -> None:
        """Give its phone `policy.recovery_s` to come back; as long as a session is open on it, it is there."""
        held.timer = self._loop.call_later(self._policy.recovery_s, self._awaited_long, held)

    def _awaited_long(self, held: Held) -> None:
        if held.session is not None and not held.session.waits:
            self._await(held)
            return
        reason = f"{held.lease.device} did not come back within {self._policy.recovery_s:g} s of the farm's restart"
        self.revoke(held, PhoneLostError(reason), reason)

    def check(self, lease: Lease) -> Held:
        """The lease of whoever checks a device; it ends the previous check."""
        self._end_check(lease.device, "a new check began")
        held = self._checks[lease.device] = Held(lease, self._wall(), internal=True)
        return held

    def give_back_unused(self, held: Held) -> None:
        """A stock client's lease ends with its session, or soon when it opens none."""
        unused_s = self._policy.unused_s
        held.ends_with_session = True
        held.timer = self._loop.call_later(unused_s, self.release, held, f"not used within {unused_s:g} s")

    def release(self, held: Held, reason: str) -> None:
        """Its holder gives it back: an open session is cut first."""
        if held.ending:
            return
        if held.session is None:
            self._end(held, reason)
        else:
            held.ending = reason
            held.session.cut(reason)

    def revoke(self, held: Held, why: FarmError, reason: str) -> None:
        """It is taken from its holder, who is told `why`."""
        if held.ending:
            return
        held.taken.set_result(why)
        if not held.internal:
            kind, subject, data = told("lease.revoked", held.lease, reason=reason)
            self._events.publish(kind, subject, **data)
        self.release(held, reason)

    def extend(self, held: Held, longest_s: float, kept: Callable[[bool], None]) -> datetime:
        """Another end, `longest_s` from now; `kept` hears whether the lease was still there when it was written."""
        lease, ends_s = held.lease, self._clock() + longest_s
        expires_at = self._wall() + timedelta(seconds=longest_s)

        def done(changed: bool) -> None:
            lasts = changed and not held.ending
            if lasts:
                held.ends_s = ends_s
                self._apply(LeaseExtended(lease.device, max(0.0, ends_s - self._clock())))
            kept(lasts)

        write = partial(self._keeper.extend, lease.id, expires_at)
        event = told("lease.extended", lease, expires_at=expires_at.isoformat())
        self._book.add(lease.device, Entry(write, event, done, lambda: kept(False)))
        return expires_at

    async def lend(self, lease_id: str) -> str:
        """See `Leasing.lend`."""
        if (session := self.current(lease_id).session) is not None:
            try:
                async with asyncio.timeout(TURN_S):
                    await session.over.wait()
            except TimeoutError as error:
                raise MatchKeyBusyError(f"session {session.id} is open under this lease") from error
        held = self.current(lease_id)
        held.lent = True
        return held.lease.device

    def clock_jumped(self) -> None:
        """The wall clock was set: what is written of ends that are planned by the other clock follows it."""
        for held in tuple(self.leases.values()):
            expires_at = self.expires_at(held)
            if expires_at is not None and not held.ending:
                self._book.add(held.lease.device, Entry(partial(self._keeper.extend, held.lease.id, expires_at), None))

    def device_changed(self, view: DeviceView) -> None:
        """A device has changed: do what that makes of its holder's lease."""
        if view.life is not Life.CHECKING:
            self._end_check(view.name, f"the check is over: {view.life}")
        held = self.by_device.get(view.name)
        if held is None or held.ending:
            return
        self._tell_heat(held, view)
        if view.too_hot:
            held.dirty = True  # nothing of its holder's may go on heating it
            said = f"{view.name} is dangerously hot: {view.too_hot}"
            self.revoke(held, TooHotError(said, hint="let it cool, and look at its battery"), said)
            return
        lost = PhoneLostError.of(view)
        reason = lost.message
        match fate(view.life, awaited=held.awaited, ends_with_session=held.ends_with_session):
            case Fate.FIT:
                if held.awaited or not held.ends_with_session:
                    held.stop_timer()
                held.awaited = False
            case Fate.MENDS:
                if held.session is not None and not held.session.waits:
                    held.session.cut(reason)
                if held.timer is None:
                    held.timer = self._loop.call_later(self._policy.recovery_s, self.revoke, held, lost, reason)
            case Fate.LOST:
                self.revoke(held, lost, reason)
            case Fate.AWAITED:
                pass

    def _tell_heat(self, held: Held, view: DeviceView) -> None:
        """A phone above a hard limit stays with its holder, who should know why it is slow, or leave it in peace."""
        hot = view.heat is not Heat.OK
        if hot and not held.told_hot:
            why = view.closed.get(held.lease.request.lease_class)
            reason = why.reason if why is not None else "it is too warm"
            kind, subject, data = told("lease.hot", held.lease, job=held.lease.request.job, reason=reason)
            self._events.publish(kind, subject, **data)
        held.told_hot = hot

    def stop(self, reason: str) -> None:
        """End every lease but people's, and those whose session the gate carries on: they go on after the restart."""
        for held in (*self.leases.values(), *self._checks.values()):
            if held.left:
                held.stop_timer()
                self.sessions.drop_keys(held)
                continue
            if not held.lease.request.personal:
                self.revoke(held, HostError(reason), reason)
                continue
            held.stop_timer()
            self.sessions.drop_keys(held)
            if held.session is not None:
                held.session.cut(reason)

    # --- status ---------------------------------------------------------------------------------------------------

    def holders(self) -> tuple[Holder, ...]:
        """Who has what, by device name."""
        return tuple(self._holder(held) for _, held in sorted(self.by_device.items()))

    def holder(self, device: str) -> Holder | None:
        """Who has the device; None: nobody."""
        held = self.by_device.get(device)
        return None if held is None else self._holder(held)

    def expires_at(self, held: Held) -> datetime | None:
        """When it is given back at the latest, by today's wall clock; None: nobody knows."""
        return None if held.ends_s is None else self._wall() + timedelta(seconds=held.ends_s - self._clock())

    # --- what happens ---------------------------------------------------------------------------------------------

    def _session_over(self, held: Held) -> None:
        if held.ending or held.ends_with_session:
            self._end(held, held.ending or "its session ended")

    def _end_check(self, device: str, reason: str) -> None:
        held = self._checks.get(device)
        if held is not None:
            self.revoke(held, PhoneError(reason), reason)

    def _end(self, held: Held, reason: str) -> None:
        """The lease is over and no session is open under it."""
        held.ending = reason
        self.sessions.drop_keys(held)
        held.stop_timer()
        lease, device = held.lease, held.lease.device
        if held.internal:
            if self._checks.get(device) is held:
                del self._checks[device]
            return
        del self.leases[lease.id], self.by_device[device]
        # Before the device is free: the next holder must not get it as it is.
        if held.lent:
            self._devices.own_bundle(device)
        if held.dirty or held.changed or lease.request.traces:
            self._devices.clean_and_check(device, f"cleaned after {lease.request.user}'s lease: {reason}")
        self._book.end(self._keeper, lease, held.granted_at, self._clock(), reason)
        self._apply(LeaseEnded(device))

    def _holder(self, held: Held) -> Holder:
        session = held.session
        return Holder(
            held.lease,
            self._clock() - held.lease.granted_at,
            session.id if session else "",
            str(session.peer) if session else "",
            self.expires_at(held),
        )


def no_lease(target: str) -> NoSuchLeaseError:
    """The error for a lease or device that nobody holds."""
    return NoSuchLeaseError(
        f"there is no lease {target!r} and nobody holds a device of that name", hint="see `farm lease list`"
    )
