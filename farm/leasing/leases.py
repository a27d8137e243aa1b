"""Leases: performs what core/allocator decides, and guards the way to every phone (DESIGN D1, D3, D7).

One object serves both doors: `ask`, `acquire` and friends are for jobs, `tvm` is the TVM door's. Everything runs on one
event loop. How a wish becomes a lease is in `grants`, what becomes of a lease that somebody has in `holdings`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

from farm.config import UserConfig
from farm.core.allocator_events import LeaseRestored, PlaceFreed, PlaceKept, Standing
from farm.core.device import DeviceView, Life
from farm.core.errors import FarmError
from farm.core.events import EventLog
from farm.core.histogram import Histogram
from farm.core.requests import Door, Lease, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.leasing.book import LeaseBook
from farm.leasing.grants import Grants
from farm.leasing.holdings import Holdings, no_lease
from farm.leasing.model import (
    Devices,
    Explanation,
    Holder,
    LeaseEndedError,
    LeaseKeeper,
    LeasePolicy,
    NotCheckingError,
    SessionStuckError,
    WaitingRequest,
)
from farm.leasing.status import SEARCHED, explain, explain_waiting, why
from farm.leasing.tvm import TvmLeases

LINES_LOOKED_AT = 100  # of users' like requests: for metrics, several times a minute
REVOKE_LIMIT_S = 10.0  # a cut session reports its end within milliseconds; this bounds a bug, not a phone
STOPPING = "the farm is stopping"
NOT_WRITABLE = "the store cannot be written, and a lease that is not written down is not given"


class Leasing:
    """Every lease of this host."""

    def __init__(
        self,
        devices: Devices,
        events: EventLog,
        epoch: int,
        keeper: LeaseKeeper,
        policy: LeasePolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Start following `devices`. Must be called on the event loop.

        Args:
            devices: the fleet.
            events: gets lease.granted/extended/released/revoked, session.opened/cut/ended.
            epoch: grows with every start of the daemon on this host; the upper part of every fence.
            keeper: the store's leases.
            policy: how long to wait, and what users may have.
            clock: monotonic seconds; everything is decided by it.
            wall: what is written down and shown.
        """
        self._loop = asyncio.get_running_loop()
        self._devices = devices
        self.policy = policy or LeasePolicy()
        self._failing = False  # the store cannot write
        self.drained = ""  # why an operator wants that nothing is granted
        self._book = LeaseBook(events)
        grants = Grants(self._book, keeper, epoch, self.policy, clock, wall, self._delivered)
        sessions = f"session-{epoch}"
        holdings = Holdings(devices, events, sessions, keeper, self._book, self.policy, clock, wall, grants.apply)
        self._grants, self._holdings, self._clock = grants, holdings, clock
        self._allocator = grants.allocator
        self.tvm = TvmLeases(self, grants, holdings, clock, wall)
        self._unsubscribe = devices.subscribe(self._device_changed)
        for view in devices.views():
            self._grants.device_changed(view, forgotten=False)

    async def close(self) -> None:
        """End every lease but those that go on after a restart, write the ends down, stop following the devices.

        Wishes stay unanswered.
        """
        self._unsubscribe()
        self._grants.close(STOPPING)
        self._holdings.stop(STOPPING)
        await self._book.flush()

    def store_problem(self, failing: bool) -> None:
        """The store cannot write: nothing is granted, requests wait, leases go on. Or it can again (`on_problem`)."""
        self._book.store_problem(failing)
        self._failing = failing
        self._pause_or_go_on()

    def drain(self, reason: str) -> None:
        """Grant nothing from now on, until it is called with ""; leases go on, requests wait."""
        self.drained = reason
        self._pause_or_go_on()

    def _pause_or_go_on(self) -> None:
        if reason := NOT_WRITABLE if self._failing else self.drained:
            self._grants.pause(reason)
        else:
            self._grants.resume()

    def clock_jumped(self) -> None:
        """The wall clock was set. Nothing is decided by it; ends that are written down by it are written anew."""
        self._holdings.clock_jumped()

    def use_policy(self, policy: LeasePolicy) -> None:
        """Decide by this from now on; leases, sessions and waits that have begun go on as they are."""
        self.policy = policy
        self._holdings.use_policy(policy)
        self._grants.use_shares(policy)

    def limits_of(self, user: str) -> UserConfig:
        """What this user may have."""
        return self.policy.of(user)

    def use(self, event: Standing) -> None:
        """Let the allocator know what users may have, have had, or have reserved."""
        self._grants.apply(event)

    # --- the job door ---------------------------------------------------------------------------------------------

    def ask(self, request: LeaseRequest, granted: Callable[[Lease], None]) -> str:
        """Wish for a device; returns the request's id.

        `granted` is called once, later, when the lease is kept; never after `withdraw`. It must not block.
        """
        return self._grants.ask(request, granted)

    def withdraw(self, request_id: str) -> None:
        """Nobody waits for this request any more. Harmless when it was granted or withdrawn before."""
        self._grants.withdraw(request_id)

    async def acquire(self, request: LeaseRequest) -> Lease:
        """Wait for a device. Cancelling withdraws the request, or gives back what was granted in the same moment."""
        while True:
            future: asyncio.Future[Lease] = self._loop.create_future()
            request_id = self.ask(request, partial(self._answer, future))
            try:
                lease = await future
            except asyncio.CancelledError:
                self.withdraw(request_id)
                if future.done() and not future.cancelled():
                    self.release(future.result().id, "the requester left")
                raise
            if lease.id in self._holdings.leases:
                return lease
            # The device was lost between the grant and this line: the wish is as old as ever.

    def restore(self, lease: Lease) -> None:
        """Take up a lease of the time before a restart: same id, fence and end; its row is open in the store.

        The device stays held though nobody has seen it yet. When it is not ready within `policy.recovery_s`, the lease
        is revoked (PhoneLostError).

        Args:
            lease: as it was; `granted_at` by today's clock, `longest_s` of its request is what is left.
        """
        self._holdings.restore(lease)
        self._grants.apply(LeaseRestored(lease.device, self._grants.new_request_id(), lease.request))
        view = self._allocator.devices.get(lease.device)
        if view is not None:
            self._holdings.device_changed(view)

    async def extend(self, lease_id: str, longest_s: float) -> datetime:
        """Let the lease's holder have the device until `longest_s` from now; returns that moment once it is kept.

        Who ends the lease then is the one who holds it: leasing only plans by it.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        kept: asyncio.Future[bool] = self._loop.create_future()

        def done(lasts: bool) -> None:
            if not kept.done():
                kept.set_result(lasts)

        expires_at = self._holdings.extend(self._holdings.current(lease_id), longest_s, done)
        if not await kept:
            raise no_lease(lease_id)
        return expires_at

    def release(self, lease_id: str, reason: str = "given back", *, dirty: bool = False) -> None:
        """Give a device back. An open session is cut first, and the device is free once that has ended.

        `dirty`: somebody had the phone in hands, so it is cleaned and checked before the next holder gets it.
        """
        held = self._holdings.leases.get(lease_id)
        if held is not None:
            held.dirty = held.dirty or dirty
            self._holdings.release(held, reason)

    async def lend(self, lease_id: str) -> str:
        """Let the holder have another bundle on the device (its name); it gets its own back when the lease ends.

        Raises:
            NoSuchLeaseError: the lease has ended.
            MatchKeyBusyError: a session is open under it, and stays so.
        """
        return await self._holdings.lend(lease_id)

    def changed_phone(self, lease_id: str, *, changed: bool) -> bool:
        """Note whether the holder has the phone otherwise than it was; returns whether the lease is still current.

        A lease that ends so, in whatever way, has its phone cleaned and checked before the next holder gets it.
        """
        held = self._holdings.leases.get(lease_id)
        if held is None or held.ending:
            return False
        held.changed = changed
        return True

    def keep_place(self, lease_id: str) -> None:
        """Let the worker place that came with a current lease outlast it, until `free_place` (NoSuchLeaseError)."""
        self._grants.apply(PlaceKept(self._holdings.current(lease_id).lease.device, lease_id))

    def free_place(self, lease_id: str) -> None:
        """The worker place that came with this lease is needed no more. Harmless when repeated."""
        self._grants.apply(PlaceFreed(lease_id))

    def taken_away(self, lease_id: str) -> asyncio.Future[FarmError]:
        """Told why when a lease is taken from its holder: kicked, its phone lost, the farm stopping.

        From that moment on whatever is done under the lease is void, though its session may take a little to end.
        A lease that its holder gives back is never taken away.

        Raises:
            NoSuchLeaseError: the lease is over already.
        """
        held = self._holdings.leases.get(lease_id)
        if held is None:
            raise no_lease(lease_id)
        return asyncio.shield(held.taken)

    def abort(self, lease_id: str, reason: str) -> None:
        """A holder says that its session went wrong: the session is cut, the phone cleaned and checked.

        Nothing happens when the lease has ended: its phone is looked after already.
        """
        held = self._holdings.leases.get(lease_id)
        if held is not None and not held.ending:
            self._devices.report_broken_session(held.lease.device, reason)

    async def ended_by_phone(self, lease_id: str) -> bool:
        """Whether the phone's side ended the lease's last session, which is waited for; False when nobody knows."""
        held = self._holdings.leases.get(lease_id)
        if held is not None and held.session is not None:
            await held.session.over.wait()
        return held is not None and held.phone_closed

    async def revoke(self, target: str, reason: str) -> None:
        """Take a device away from its holder; returns when its session has ended.

        Args:
            target: a lease id or a device name.
            reason: told to the holder.

        Raises:
            NoSuchLeaseError: nobody holds it.
            SessionStuckError: its session does not end.
        """
        held = self._holdings.leases.get(target) or self._holdings.by_device.get(target)
        if held is None:
            raise no_lease(target)
        session = held.session
        self._holdings.revoke(
            held, LeaseEndedError(f"the lease on {held.lease.device} was taken back: {reason}"), reason
        )
        if session is not None:
            try:
                async with asyncio.timeout(REVOKE_LIMIT_S):
                    await session.over.wait()
            except TimeoutError as error:
                raise SessionStuckError(
                    f"session {session.id} on {held.lease.device} was cut but has not ended in {REVOKE_LIMIT_S:g} s",
                    hint=f"farm explain device {held.lease.device} shows what becomes of it",
                ) from error

    def new_match_key(self, lease_id: str, *, single_use: bool) -> str:
        """A key by which the gate opens this lease's device: one session in all, or one at a time until the lease ends.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        held = self._holdings.current(lease_id)
        request = held.lease.request
        return self._holdings.sessions.new_key(held, request.key or held.lease.device, single_use=single_use)

    def adopt_match_key(self, lease_id: str, sha256: str) -> None:
        """Let the match key whose `farm.leasing.sessions.digest` is `sha256` open a restored lease's device again.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        self._holdings.sessions.adopt_key(self._holdings.current(lease_id), sha256)

    def checking_key(self, device: str) -> str:
        """A key to a device that is being checked; it ends the previous one and dies when the check is over.

        Raises:
            NotCheckingError: the device is not in CHECKING.
        """
        view = self._allocator.devices.get(device)
        if view is None or view.life is not Life.CHECKING:
            raise NotCheckingError(f"{device} is not being checked")
        request = LeaseRequest(Selector.of_alias(device), "farm", Door.JOB, device=device)
        held = self._holdings.check(self._grants.new_lease(device, request))
        return self._holdings.sessions.new_key(held, device, single_use=False)

    # --- who has what ---------------------------------------------------------------------------------------------

    def place_wanted(self, lease_id: str) -> bool:
        """Whether others lack only the worker place that is kept for this lease: its keeper should end soon."""
        place = self._allocator.places.get(lease_id)
        return place is not None and bool(place.asked)

    def yield_wanted(self, lease_id: str) -> bool:
        """Whether others wait for this tune lease's device: its holder should give it back at the next candidate."""
        held = self._holdings.leases.get(lease_id)
        return held is not None and bool(self._allocator.held[held.lease.device].asked)

    def expires_at(self, lease_id: str) -> datetime | None:
        """When the lease's holder gives the device back at the latest, by today's clock; None: nobody knows.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        return self._holdings.expires_at(self._holdings.current(lease_id))

    def holds(self, device: str) -> bool:
        """Whether anybody has the device."""
        return device in self._allocator.held

    def turn(self, device: str) -> str:
        """The request that the device was granted to, which no other lease has; "" when nobody has it."""
        held = self._allocator.held.get(device)
        return held.request_id if held is not None else ""

    def in_session(self, device: str) -> bool:
        """Whether a session is open on the device under somebody's lease, and nobody has ended it."""
        held = self._holdings.by_device.get(device)
        return held is not None and not held.ending and held.session is not None and not held.session.waits

    def holders(self) -> tuple[Holder, ...]:
        """Current leases, by device name."""
        return self._holdings.holders()

    def holder(self, device: str) -> Holder | None:
        """Who has the device; None: nobody."""
        return self._holdings.holder(device)

    # --- who waits ------------------------------------------------------------------------------------------------

    def waiting(self, limit: int | None = None) -> tuple[WaitingRequest, ...]:
        """Requests without a device, in the order they would be served; the foremost `limit` of them."""
        return self._grants.waiting(limit)

    def behind_s(self) -> float:
        """For how many seconds the allocator has missed a look at the clock; 0 while all is well (for the watchdog)."""
        return self._grants.behind_s()

    @property
    def waiting_count(self) -> int:
        """How many requests have no device."""
        return self._grants.pending.total()

    def depth(self) -> Mapping[LeaseClass, int]:
        """How many requests of each class have no device."""
        return self._grants.depth

    def longest_s(self) -> Mapping[LeaseClass, float]:
        """For how many seconds the oldest waiting request of each class has waited."""
        return self._grants.longest_s()

    def servable(self) -> int:
        """How many waiting requests nothing keeps from an idle device, among those that wait longest: a bug's trace.

        A quota, a reservation, heat, a drained host or a store that cannot be written is no such bug.
        """
        return self._allocator.overlooked(LINES_LOOKED_AT)

    @property
    def decisions(self) -> Histogram:
        """How long the allocator took for each event, in seconds."""
        return self._grants.decisions

    def explain(self, subject: str) -> Explanation:
        """Why requests for `subject` (a device name, a TVM key or a selector) wait, or would.

        Raises:
            UserError: `subject` is no selector.
        """
        foremost = self._grants.waiting(SEARCHED)
        return explain(self._allocator, subject, foremost, self._grants.wanted, self._clock())

    def explain_request(self, request_id: str) -> Explanation | None:
        """Why this request waits; None: it does not."""
        waiting = self._grants.wish(request_id)
        return explain_waiting(self._allocator, waiting, self._clock()) if waiting else None

    def why(self, request_ids: Iterable[str]) -> Mapping[str, str]:
        """What keeps the devices of each of these requests, in one short sentence; empty when it does not wait."""
        return why(self._allocator, {each: self._grants.wish(each) for each in request_ids}, self._clock())

    # --- what happens ---------------------------------------------------------------------------------------------

    def _delivered(self, lease: Lease, granted_at: datetime) -> None:
        self._holdings.deliver(lease, granted_at)

    def _answer(self, future: asyncio.Future[Lease], lease: Lease) -> None:
        if future.done():  # cancelled in this very turn of the loop
            self.release(lease.id, "the requester left")
        else:
            future.set_result(lease)

    def _device_changed(self, view: DeviceView) -> None:
        gone = view.life is Life.GONE and all(each.name != view.name for each in self._devices.views())
        # First the allocator: a lease that ends because of this change must not be followed by one of a lost device.
        self._grants.device_changed(view, forgotten=gone)
        self._holdings.device_changed(view)
