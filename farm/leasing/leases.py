"""Leases: performs what core/allocator decides, and guards the way to every phone (DESIGN D1, D3, D7).

One object serves both doors: `acquire` and friends for jobs, `request`/`serves`/`summary` as the tracker's backend, and
`open` as the gate's route. Everything runs on one event loop; nothing here waits for a phone except `open`'s dial.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from farm.core.allocator import Allocator
from farm.core.allocator_events import (
    AllocatorEvent,
    DeviceChanged,
    DeviceForgotten,
    Grant,
    LeaseEnded,
    RequestCame,
    RequestWithdrawn,
)
from farm.core.device import DeviceView, Life
from farm.core.errors import FarmError, HostError, PhoneError
from farm.core.events import EventLog
from farm.core.labels import normalise
from farm.core.requests import Door, Lease, LeaseRequest
from farm.core.selector import Selector
from farm.core.sessions import (
    FleetSummary,
    Leg,
    Peer,
)
from farm.leasing.model import (
    Devices,
    Explanation,
    Holder,
    LeaseEndedError,
    LeasePolicy,
    NoSuchLeaseError,
    NotCheckingError,
    PhoneLostError,
    SessionStuckError,
    WaitingRequest,
)
from farm.leasing.sessions import Held, Sessions
from farm.leasing.status import MENDING, explain, summarise

FENCE_BITS = 32  # a fence is the host's epoch above a counter: 4 billion grants per start of the daemon
REVOKE_LIMIT_S = 10.0  # a cut session reports its end within milliseconds; this bounds a bug, not a phone

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Waiter:
    request: LeaseRequest
    since: float
    future: asyncio.Future[Lease]


class Leasing:
    """Every lease of this host."""

    def __init__(
        self,
        devices: Devices,
        events: EventLog,
        epoch: int,
        policy: LeasePolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start following `devices`. Must be called on the event loop.

        Args:
            devices: the fleet.
            events: gets lease.granted/released/revoked, session.opened/cut/ended.
            epoch: grows with every start of the daemon on this host; the upper part of every fence.
            policy: how long to wait.
            clock: monotonic seconds.
        """
        self._loop = asyncio.get_running_loop()
        self._devices = devices
        self._events = events
        self._epoch = epoch
        self._policy = policy or LeasePolicy()
        self._clock = clock
        self._allocator = Allocator()
        self._waiters: dict[str, _Waiter] = {}
        self._leases: dict[str, Held] = {}
        self._by_device: dict[str, Held] = {}
        self._checks: dict[str, Held] = {}
        self._sessions = Sessions(devices, events, f"session-{epoch}", self._session_over)
        self._counter = 0
        self._unsubscribe = devices.subscribe(self._device_changed)
        for view in devices.views():
            self._apply(DeviceChanged(view))

    def close(self) -> None:
        """Revoke every lease and stop following the devices; waiting requests stay unanswered."""
        self._unsubscribe()
        for held in (*self._leases.values(), *self._checks.values()):
            reason = "the farm is stopping"
            self._revoke(held, HostError(reason), reason)

    # --- the job door ---------------------------------------------------------------------------------------------

    async def acquire(self, request: LeaseRequest) -> Lease:
        """Wait for a device. Cancelling withdraws the request, or gives back what was granted in the same moment."""
        while True:
            lease = await self._wait_for(request)
            if lease.id in self._leases:
                return lease
            # The device was lost between the grant and this line: the wish is as old as ever.

    def release(self, lease_id: str, reason: str = "given back") -> None:
        """Give a device back. An open session is cut first, and the device is free once that has ended."""
        held = self._leases.get(lease_id)
        if held is None or held.ending:
            return
        if held.session is None:
            self._end(held, reason)
        else:
            held.ending = reason
            held.session.cut(reason)

    def taken_away(self, lease_id: str) -> asyncio.Future[FarmError]:
        """Told why when a lease is taken from its holder: kicked, its phone lost, the farm stopping.

        From that moment on whatever is done under the lease is void, though its session may take a little to end.
        A lease that its holder gives back is never taken away.

        Raises:
            NoSuchLeaseError: the lease is over already.
        """
        held = self._leases.get(lease_id)
        if held is None:
            raise _no_lease(lease_id)
        return asyncio.shield(held.taken)

    def abort(self, lease_id: str, reason: str) -> None:
        """A holder says that its session went wrong: the session is cut, the phone cleaned and checked.

        Nothing happens when the lease has ended: its phone is looked after already.
        """
        held = self._leases.get(lease_id)
        if held is not None and not held.ending:
            self._devices.report_broken_session(held.lease.device, reason)

    async def revoke(self, target: str, reason: str) -> None:
        """Take a device away from its holder; returns when its session has ended.

        Args:
            target: a lease id or a device name.
            reason: told to the holder.

        Raises:
            NoSuchLeaseError: nobody holds it.
            SessionStuckError: its session does not end.
        """
        held = self._leases.get(target) or self._by_device.get(target)
        if held is None:
            raise _no_lease(target)
        session = held.session
        self._revoke(held, LeaseEndedError(f"the lease on {held.lease.device} was taken back: {reason}"), reason)
        if session is not None:
            try:
                async with asyncio.timeout(REVOKE_LIMIT_S):
                    await session.over.wait()
            except TimeoutError as error:
                raise SessionStuckError(
                    f"session {session.id} on {held.lease.device} was cut but has not ended in {REVOKE_LIMIT_S:g} s",
                    hint=f"farm explain {held.lease.device} shows what becomes of it",
                ) from error

    def new_match_key(self, lease_id: str, *, single_use: bool) -> str:
        """A key by which the gate opens this lease's device: one session in all, or one at a time until the lease ends.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        held = self._leases.get(lease_id)
        if held is None or held.ending:
            raise NoSuchLeaseError(f"lease {lease_id} has ended")
        request = held.lease.request
        return self._sessions.new_key(held, request.key or held.lease.device, single_use=single_use)

    def checking_key(self, device: str) -> str:
        """A key to a device that is being checked; it ends the previous one and dies when the check is over.

        Raises:
            NotCheckingError: the device is not in CHECKING.
        """
        view = self._allocator.devices.get(device)
        if view is None or view.life is not Life.CHECKING:
            raise NotCheckingError(f"{device} is not being checked")
        self._end_check(device, "a new check began")
        request = LeaseRequest(Selector.of_alias(device), "farm", Door.JOB, device=device)
        held = Held(self._new_lease(device, request), internal=True)
        self._checks[device] = held
        return self._sessions.new_key(held, device, single_use=False)

    # --- status ---------------------------------------------------------------------------------------------------

    def waiting(self) -> tuple[WaitingRequest, ...]:
        """Requests without a device, in the order they would be served."""
        now = self._clock()
        return tuple(
            WaitingRequest(request_id, request, now - self._waiters[request_id].since)
            for request_id, request in self._allocator.waiting()
            if request_id in self._waiters
        )

    def holders(self) -> tuple[Holder, ...]:
        """Current leases, by device name."""
        return tuple(self._holder(held) for _, held in sorted(self._by_device.items()))

    def explain(self, subject: str) -> Explanation:
        """Why requests for `subject` (a device name, a TVM key or a selector) wait, or would.

        Raises:
            UserError: `subject` is no selector.
        """
        return explain(self._allocator, subject, self.waiting(), self.holders(), self._clock())

    # --- the tracker's backend ------------------------------------------------------------------------------------

    async def request(self, key: str, user: str, priority: int, peer: Peer) -> str:
        """Wait for a device that answers to `key` (an alias, or any selector) and return a single-use match key.

        Raises:
            UserError: `key` is no selector.
        """
        log.debug("%s (%s) wants %s", user, peer, key)
        lease = await self.acquire(LeaseRequest(Selector.parse(key), user, Door.TVM, priority, key=key))
        held = self._leases[lease.id]
        held.ends_with_session = True
        held.timer = self._loop.call_later(
            self._policy.unused_s, self.release, lease.id, f"not used within {self._policy.unused_s:g} s"
        )
        return self.new_match_key(lease.id, single_use=True)

    def serves(self, key: str) -> bool:
        """Whether a farm device answers to `key`."""
        return self._allocator.answers_to(normalise(key))

    def summary(self) -> FleetSummary:
        """The tracker's rows: a server per (device in service, alias), free and waiting per key."""
        return summarise(self._allocator)

    # --- the gate's route -----------------------------------------------------------------------------------------

    async def open(self, match_key: str, peer: Peer, timeout_s: float, cut: Callable[[str], None]) -> Leg:
        """The device that `match_key` allows. A job's phone that is mending is waited for, `timeout_s` at most.

        Raises:
            UnknownMatchKeyError: no current lease has this key.
            MatchKeyBusyError: its lease has a session.
            PhoneError: the phone did not come back in time.
        """
        return await self._sessions.open(match_key, peer, timeout_s, cut, self._allocator.devices.__getitem__)

    # --- what happens ---------------------------------------------------------------------------------------------

    async def _wait_for(self, request: LeaseRequest) -> Lease:
        self._counter += 1
        request_id = f"request-{self._epoch}-{self._counter}"
        waiter = _Waiter(request, self._clock(), self._loop.create_future())
        self._waiters[request_id] = waiter
        self._apply(RequestCame(request_id, request))
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.cancelled() or not waiter.future.done():
                self._waiters.pop(request_id, None)
                self._apply(RequestWithdrawn(request_id))
            else:
                self.release(waiter.future.result().id, "the requester left")
            raise

    def _apply(self, event: AllocatorEvent) -> None:
        for grant in self._allocator.apply(event, self._clock()).grants:
            self._granted(grant)

    def _granted(self, grant: Grant) -> None:
        waiter = self._waiters.pop(grant.request_id)
        if waiter.future.done():  # cancelled in this very turn of the loop
            self._apply(LeaseEnded(grant.device))
            return
        lease = self._new_lease(grant.device, waiter.request)
        held = Held(lease)
        self._leases[lease.id] = held
        self._by_device[lease.device] = held
        self._publish("lease.granted", lease, waited_s=round(self._clock() - waiter.since, 3))
        waiter.future.set_result(lease)

    def _new_lease(self, device: str, request: LeaseRequest) -> Lease:
        self._counter += 1
        fence = (self._epoch << FENCE_BITS) + self._counter
        return Lease(f"lease-{self._epoch}-{self._counter}", device, fence, request, self._clock())

    def _session_over(self, held: Held) -> None:
        if held.ending or held.ends_with_session:
            self._end(held, held.ending or "its session ended")

    def _device_changed(self, view: DeviceView) -> None:
        if view.life is not Life.CHECKING:
            self._end_check(view.name, f"the check is over: {view.life}")
        gone = view.life is Life.GONE and all(each.name != view.name for each in self._devices.views())
        held = self._by_device.get(view.name)
        # First the allocator: a lease that ends because of this change must not be followed by one of a lost device.
        self._apply(DeviceForgotten(view.name) if gone else DeviceChanged(view))
        if held is not None:
            self._follow_device(held, view)

    def _follow_device(self, held: Held, view: DeviceView) -> None:
        """Decide what a holder's lease is worth now that its device has changed."""
        reason = f"{view.name} is {view.life}" + (f": {view.reason}" if view.reason else "")
        lost = PhoneLostError(reason)
        keeps = not held.ends_with_session and view.life in MENDING
        if held.ending:
            return
        if view.life is Life.READY:
            if not held.ends_with_session:
                held.stop_timer()
        elif not keeps:
            self._revoke(held, lost, reason)
        else:
            if held.session is not None and not held.session.waits:
                held.session.cut(reason)
            if held.timer is None:
                held.timer = self._loop.call_later(self._policy.recovery_s, self._revoke, held, lost, reason)

    def _revoke(self, held: Held, why: FarmError, reason: str) -> None:
        if held.ending:
            return
        held.taken.set_result(why)
        if not held.internal:
            self._publish("lease.revoked", held.lease, reason=reason)
        if held.session is None:
            self._end(held, reason)
        else:
            held.ending = reason
            held.session.cut(reason)

    def _end_check(self, device: str, reason: str) -> None:
        held = self._checks.get(device)
        if held is not None:
            self._revoke(held, PhoneError(reason), reason)

    def _end(self, held: Held, reason: str) -> None:
        """The lease is over and no session is open under it."""
        held.ending = reason
        self._sessions.drop_keys(held)
        held.stop_timer()
        device = held.lease.device
        if held.internal:
            if self._checks.get(device) is held:
                del self._checks[device]
            return
        del self._leases[held.lease.id], self._by_device[device]
        self._publish(
            "lease.released", held.lease, reason=reason, held_s=round(self._clock() - held.lease.granted_at, 3)
        )
        self._apply(LeaseEnded(device))

    # --- helpers --------------------------------------------------------------------------------------------------

    def _publish(self, kind: str, lease: Lease, **data: object) -> None:
        self._events.publish(
            kind,
            lease.id,
            device=lease.device,
            user=lease.request.user,
            key=lease.request.key,
            fence=lease.fence,
            **data,
        )

    def _holder(self, held: Held) -> Holder:
        session = held.session
        return Holder(
            held.lease,
            self._clock() - held.lease.granted_at,
            session.id if session else "",
            str(session.peer) if session else "",
        )


def _no_lease(target: str) -> NoSuchLeaseError:
    return NoSuchLeaseError(
        f"there is no lease {target!r} and nobody holds a device of that name", hint="see `farm lease list`"
    )
