"""Leases: performs what core/allocator decides, and guards the way to every phone (DESIGN D1, D3, D7).

One object serves both doors: `acquire` and friends for jobs, `request`/`serves`/`summary` as the tracker's backend, and
`open` as the gate's route. Everything runs on one event loop; nothing here waits for a phone except `open`'s dial.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from farm.core.allocator import (
    Allocator,
    AllocatorEvent,
    DeviceChanged,
    DeviceForgotten,
    DeviceReason,
    Grant,
    LeaseEnded,
    RequestCame,
    RequestWithdrawn,
    unleasable_reason,
)
from farm.core.device import DeviceView, Life, Service
from farm.core.errors import PhoneError, UserError
from farm.core.events import EventLog
from farm.core.labels import normalise
from farm.core.requests import Door, Lease, LeaseRequest
from farm.core.selector import Selector
from farm.core.sessions import (
    ABNORMAL_OUTCOMES,
    FleetSummary,
    KeyRow,
    Leg,
    MatchKeyBusyError,
    Peer,
    PhoneStream,
    ServerRow,
    SessionEnd,
    SessionOutcome,
    UnknownMatchKeyError,
)

FENCE_BITS = 32  # a fence is the host's epoch above a counter: 4 billion grants per start of the daemon
MATCH_KEY_BYTES = 16  # 128 random bits
REVOKE_LIMIT_S = 10.0  # a cut session reports its end within milliseconds; this bounds a bug, not a phone

# A device on its way back to READY by itself. A job keeps its lease meanwhile, for a limited time.
_MENDING = frozenset({Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING})
_FARM_ENDED = frozenset({SessionOutcome.CUT, SessionOutcome.IDLE, SessionOutcome.TIMED_OUT})

log = logging.getLogger(__name__)


class NoSuchLeaseError(UserError):
    """There is no such lease."""

    code = "no_such_lease"


class NotCheckingError(PhoneError):
    """The device is not being checked."""

    code = "not_checking"


class Devices(Protocol):
    """What leasing needs of the fleet (farm.fleet.fleet.Fleet)."""

    def views(self) -> tuple[DeviceView, ...]:
        """Every device."""

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view; returns the function that ends it."""

    async def dial(self, name: str, timeout_s: float) -> tuple[socket.socket, str]:
        """A non-blocking socket to the phone's RPC server, and that server's key."""

    def report_broken_session(self, name: str, reason: str) -> None:
        """A session ended such that the phone must be cleaned and checked; it leaves READY at once."""


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long leasing waits."""

    unused_s: float = 5.0  # a TVM grant that nobody dials (DESIGN §5)
    recovery_s: float = (
        60.0  # a job's phone that is mending: cleaning and checking take a second, a reboot ends the lease
    )


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits, for status and explain."""

    id: str
    request: LeaseRequest
    waited_s: float


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device, for status."""

    lease: Lease
    held_s: float
    session: str = ""  # id of the open session
    peer: str = ""  # address of its client


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request for `subject` waits, or would."""

    subject: str
    waiting: tuple[WaitingRequest, ...]
    devices: tuple[DeviceReason, ...]


@dataclass(slots=True, eq=False)
class _Session:
    id: str
    peer: Peer
    cut: Callable[[str], None]
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Held:
    """A lease and what hangs on it."""

    lease: Lease
    internal: bool = False  # the checker's; unknown to the allocator
    keys: dict[str, bool] = field(default_factory=dict)  # match key -> single use
    session: _Session | None = None
    ends_with_session: bool = False
    ending: str = ""  # why it ends as soon as its session is over
    timer: asyncio.TimerHandle | None = None  # unused grant, or mending phone


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
        self._leases: dict[str, _Held] = {}
        self._by_device: dict[str, _Held] = {}
        self._checks: dict[str, _Held] = {}
        self._keys: dict[str, _Held] = {}
        self._counter = 0
        self._unsubscribe = devices.subscribe(self._device_changed)
        for view in devices.views():
            self._apply(DeviceChanged(view))

    def close(self) -> None:
        """Revoke every lease and stop following the devices; waiting requests stay unanswered."""
        self._unsubscribe()
        for held in (*self._leases.values(), *self._checks.values()):
            self._revoke(held, "the farm is stopping")

    # --- the job door ---------------------------------------------------------------------------------------------

    async def acquire(self, request: LeaseRequest) -> Lease:
        """Wait for a device. Cancelling withdraws the request, or gives back what was granted in the same moment."""
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

    async def revoke(self, target: str, reason: str) -> None:
        """Take a device away from its holder; returns when its session has ended.

        Args:
            target: a lease id or a device name.
            reason: told to the holder.

        Raises:
            NoSuchLeaseError: nobody holds it.
        """
        held = self._leases.get(target) or self._by_device.get(target)
        if held is None:
            raise NoSuchLeaseError(f"there is no lease {target!r} and nobody holds a device of that name")
        session = held.session
        self._revoke(held, reason)
        if session is not None:
            async with asyncio.timeout(REVOKE_LIMIT_S):
                await session.over.wait()

    def new_match_key(self, lease_id: str, *, single_use: bool) -> str:
        """A key by which the gate opens this lease's device: one session in all, or one at a time until the lease ends.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        held = self._leases.get(lease_id)
        if held is None or held.ending:
            raise NoSuchLeaseError(f"lease {lease_id} has ended")
        request = held.lease.request
        return self._new_key(held, request.key or held.lease.device, single_use=single_use)

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
        held = _Held(self._new_lease(device, request), internal=True)
        self._checks[device] = held
        return self._new_key(held, device, single_use=False)

    # --- status ---------------------------------------------------------------------------------------------------

    def is_current(self, device: str, fence: int) -> bool:
        """Whether `fence` belongs to the lease that holds `device` now; anything else is a stale report."""
        held = self._by_device.get(device)
        return held is not None and held.lease.fence == fence

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
        if subject in self._allocator.devices:
            selector, device = Selector(), subject
        else:
            selector, device = Selector.parse(subject), ""
        asked = LeaseRequest(selector, "", Door.JOB, device=device)
        named = self._allocator.matching(selector, device)
        waiting = tuple(
            each
            for each in self.waiting()
            if (named & self._allocator.matching(each.request.selector, each.request.device))
            or (each.request.selector == selector and not device)
        )
        first = next((each for each in waiting if each.request.selector == selector), None)
        reasons = self._allocator.explain(asked if first is None else first.request, first.id if first else "")
        return Explanation(
            subject, waiting, tuple(self._with_holder(each) for each in reasons if not device or each.matches)
        )

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
        free: Counter[str] = Counter()
        pending: Counter[str] = Counter()
        servers: list[ServerRow] = []
        for view in self._allocator.devices.values():
            in_service = (
                view.adopted and view.service is Service.IN and (view.life is Life.READY or view.life in _MENDING)
            )
            if not in_service:
                continue
            leasable = view.leasable and view.name not in self._by_device
            for alias in dict.fromkeys(view.aliases):
                servers.append(ServerRow(alias, view.name))
                free[alias] += leasable
        for _, request in self._allocator.waiting():
            pending[request.key or str(request.selector) or request.device] += 1
        keys = tuple(KeyRow(key, free[key], pending[key]) for key in sorted(set(free) | set(pending)))
        return FleetSummary(keys, tuple(servers))

    # --- the gate's route -----------------------------------------------------------------------------------------

    async def open(self, match_key: str, peer: Peer, timeout_s: float, cut: Callable[[str], None]) -> Leg:
        """The device that `match_key` allows. A job's phone that is mending is waited for, `timeout_s` at most.

        Raises:
            UnknownMatchKeyError: no current lease has this key.
            MatchKeyBusyError: its lease has a session.
            PhoneError: the phone did not come back in time.
        """
        held = self._keys.get(match_key)
        if held is None or held.ending:
            raise UnknownMatchKeyError("no current lease has this match key")
        if held.session is not None:
            raise MatchKeyBusyError(f"session {held.session.id} is open under this lease")
        self._counter += 1
        session = _Session(f"session-{self._epoch}-{self._counter}", peer, cut)
        held.session = session
        device = held.lease.device
        if not held.internal and self._allocator.devices[device].life is not Life.READY:
            try:
                await self._until_ready(device, timeout_s)
            except BaseException:
                self._session_over(held, session)
                if held.ending:  # it was taken away meanwhile
                    self._end(held, held.ending)
                raise
        if held.keys[match_key]:
            del held.keys[match_key], self._keys[match_key]
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None

        async def dial(limit_s: float) -> PhoneStream:
            sock, secret = await self._devices.dial(device, limit_s)
            return PhoneStream(sock, secret)

        return Leg(
            device,
            session.id,
            match_key.rpartition(":")[0],
            dial,
            lambda: self._session_opened(held, session),
            lambda end: self._session_ended(held, session, end),
        )

    async def _until_ready(self, device: str, timeout_s: float) -> None:
        ready = asyncio.Event()

        def look(view: DeviceView) -> None:
            if view.name == device and view.life is Life.READY:
                ready.set()

        unsubscribe = self._devices.subscribe(look)
        try:
            async with asyncio.timeout(timeout_s):
                await ready.wait()
        except TimeoutError as error:
            view = self._allocator.devices[device]
            raise PhoneError(f"{device} is not ready: {unleasable_reason(view)}") from error
        finally:
            unsubscribe()

    # --- what happens ---------------------------------------------------------------------------------------------

    def _apply(self, event: AllocatorEvent) -> None:
        for grant in self._allocator.apply(event):
            self._granted(grant)

    def _granted(self, grant: Grant) -> None:
        waiter = self._waiters.pop(grant.request_id)
        if waiter.future.done():  # cancelled in this very turn of the loop
            self._apply(LeaseEnded(grant.device))
            return
        lease = self._new_lease(grant.device, waiter.request)
        held = _Held(lease)
        self._leases[lease.id] = held
        self._by_device[lease.device] = held
        self._publish("lease.granted", lease, waited_s=round(self._clock() - waiter.since, 3))
        waiter.future.set_result(lease)

    def _new_lease(self, device: str, request: LeaseRequest) -> Lease:
        self._counter += 1
        fence = (self._epoch << FENCE_BITS) + self._counter
        return Lease(f"lease-{self._epoch}-{self._counter}", device, fence, request, self._clock())

    def _new_key(self, held: _Held, name: str, *, single_use: bool) -> str:
        match_key = f"{name}:{secrets.token_hex(MATCH_KEY_BYTES)}"
        held.keys[match_key] = single_use
        self._keys[match_key] = held
        return match_key

    def _session_opened(self, held: _Held, session: _Session) -> None:
        self._publish("session.opened", held.lease, session=session.id, peer=str(session.peer))

    def _session_ended(self, held: _Held, session: _Session, end: SessionEnd) -> None:
        if end.outcome in _FARM_ENDED:
            self._publish("session.cut", held.lease, session=session.id, reason=end.detail)
        self._publish(
            "session.ended",
            held.lease,
            session=session.id,
            outcome=end.outcome.value,
            bytes_up=end.bytes_up,
            bytes_down=end.bytes_down,
            seconds=round(end.seconds, 3),
            detail=end.detail,
        )
        # Before the lease ends: the next client must not get a phone that is still busy with this one.
        if not held.internal and end.outcome in ABNORMAL_OUTCOMES:
            if held.ends_with_session and not held.ending:
                held.ending = end.detail or f"its session ended: {end.outcome}"
            self._devices.report_broken_session(held.lease.device, end.detail or end.outcome.value)
        self._session_over(held, session)
        if held.ending or held.ends_with_session:
            self._end(held, held.ending or "its session ended")

    def _session_over(self, held: _Held, session: _Session) -> None:
        session.over.set()
        if held.session is session:
            held.session = None

    def _device_changed(self, view: DeviceView) -> None:
        if view.life is not Life.CHECKING:
            self._end_check(view.name, f"the check is over: {view.life}")
        gone = view.life is Life.GONE and all(each.name != view.name for each in self._devices.views())
        held = self._by_device.get(view.name)
        if held is not None:
            self._follow_device(held, view)
        self._apply(DeviceForgotten(view.name) if gone else DeviceChanged(view))

    def _follow_device(self, held: _Held, view: DeviceView) -> None:
        """Decide what a holder's lease is worth now that its device has changed."""
        reason = f"{view.name} is {view.life}" + (f": {view.reason}" if view.reason else "")
        keeps = not held.ends_with_session and view.life in _MENDING
        if held.ending:
            return
        if view.life is Life.READY:
            if not held.ends_with_session and held.timer is not None:
                held.timer.cancel()
                held.timer = None
        elif not keeps:
            self._revoke(held, reason)
        else:
            if held.session is not None:
                held.session.cut(reason)
            if held.timer is None:
                held.timer = self._loop.call_later(self._policy.recovery_s, self._revoke, held, reason)

    def _revoke(self, held: _Held, reason: str) -> None:
        if held.ending:
            return
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
            self._revoke(held, reason)

    def _end(self, held: _Held, reason: str) -> None:
        """The lease is over and no session is open under it."""
        held.ending = reason
        for match_key in held.keys:
            del self._keys[match_key]
        held.keys.clear()
        if held.timer is not None:
            held.timer.cancel()
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

    def _holder(self, held: _Held) -> Holder:
        session = held.session
        return Holder(
            held.lease,
            self._clock() - held.lease.granted_at,
            session.id if session else "",
            str(session.peer) if session else "",
        )

    def _with_holder(self, reason: DeviceReason) -> DeviceReason:
        held = self._by_device.get(reason.device)
        if held is None or not reason.matches:
            return reason
        holder = f"held by {held.lease.request.user or 'somebody'} for {self._clock() - held.lease.granted_at:.0f} s"
        return DeviceReason(reason.device, matches=True, reason=reason.reason.replace("held", holder, 1))
