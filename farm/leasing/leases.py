"""Leases: performs what core/allocator decides, and guards the way to every phone (DESIGN D1, D3, D7).

One object serves both doors: `ask`, `acquire` and friends for jobs, `request`/`serves`/`summary` as the tracker's
backend, and `open` as the gate's route. Everything runs on one event loop; nothing here waits for a phone except
`open`'s dial. How a wish becomes a lease is in `grants`, what becomes of a lease that somebody has in `holdings`; what
only answers is in `questions`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial

from farm.config import UserConfig
from farm.core.allocator_events import LeaseRestored, PlaceFreed, PlaceKept, Standing
from farm.core.device import DeviceView, Life
from farm.core.errors import FarmError
from farm.core.events import EventLog
from farm.core.labels import normalise
from farm.core.requests import Door, Lease, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.core.sessions import Leg, Peer, Survivor, UnknownMatchKeyError
from farm.leasing.book import LeaseBook
from farm.leasing.grants import Grants
from farm.leasing.holdings import Holdings, no_lease
from farm.leasing.model import (
    Devices,
    LeaseEndedError,
    LeaseKeeper,
    LeasePolicy,
    NotCheckingError,
    SessionStuckError,
)
from farm.leasing.questions import Questions
from farm.leasing.survivors import Survivors
from farm.store.records import LeaseRecord

REVOKE_LIMIT_S = 10.0  # a cut session reports its end within milliseconds; this bounds a bug, not a phone
STOPPING = "the farm is stopping"
NOT_WRITABLE = "the store cannot be written, and a lease that is not written down is not given"

log = logging.getLogger(__name__)


class Leasing(Questions):
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
        self._policy = policy or LeasePolicy()
        self._failing = False  # the store cannot write
        self.drained = ""  # why an operator wants that nothing is granted
        self._book = LeaseBook(events)
        grants = Grants(self._book, keeper, epoch, self._policy, clock, wall, self._delivered)
        sessions = f"session-{epoch}"
        holdings = Holdings(devices, events, sessions, keeper, self._book, self._policy, clock, wall, grants.apply)
        super().__init__(grants, holdings, clock)
        self._survivors = Survivors(holdings, self.restore, clock, wall)
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
        if why := NOT_WRITABLE if self._failing else self.drained:
            self._grants.pause(why)
        else:
            self._grants.resume()

    def clock_jumped(self) -> None:
        """The wall clock was set. Nothing is decided by it; ends that are written down by it are written anew."""
        self._holdings.clock_jumped()

    def use_policy(self, policy: LeasePolicy) -> None:
        """Decide by this from now on; leases, sessions and waits that have begun go on as they are."""
        self._policy = policy
        self._holdings.use_policy(policy)
        self._grants.use_shares(policy)

    def limits_of(self, user: str) -> UserConfig:
        """What this user may have."""
        return self._policy.of(user)

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

    def take_up(self, records: Iterable[LeaseRecord], survivors: Iterable[Survivor]) -> frozenset[str]:
        """Restore leases whose session the gate has carried through a restart; returns their ids (`Survivors`)."""
        return self._survivors.take_up(records, survivors)

    def adopt(self, survivor: Survivor, cut: Callable[[str], None]) -> Leg | None:
        """A session of the time before a restart goes on under its lease, or has ended (`Survivors`)."""
        return self._survivors.adopt(survivor, cut)

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

    # --- the tracker's backend ------------------------------------------------------------------------------------

    async def request(self, key: str, user: str, priority: int, peer: Peer) -> str:
        """Wait for a device that answers to `key` (an alias, or any selector) and return a single-use match key.

        The key of a personal lease is its own answer, as soon as no session is open under it: tools that know only
        trackers (MetaSchedule's TVM_TRACKER_KEY) run on the leased device then.

        A priority above what the user may ask for is lowered to it: stock clients have no way to read a refusal.

        Raises:
            UserError: `key` is no selector, or the key of a lease that has ended.
        """
        if await self._holdings.sessions.turn(key):
            return key
        if ":" in key:  # no key of a phone: of a lease that has ended, and nothing will ever answer to it
            raise UnknownMatchKeyError("no current lease has this match key")
        log.debug("%s (%s) wants %s", user, peer, key)
        priority = min(priority, self._policy.of(user).priority)
        lease_class = self._policy.tvm_class.get(normalise(key), LeaseClass.INTERACTIVE)
        lease = await self.acquire(LeaseRequest(Selector.parse(key), user, Door.TVM, priority, lease_class, key=key))
        self._holdings.give_back_unused(self._holdings.leases[lease.id])
        return self.new_match_key(lease.id, single_use=True)

    # --- the gate's route -----------------------------------------------------------------------------------------

    async def open(self, match_key: str, peer: Peer, timeout_s: float, cut: Callable[[str], None]) -> Leg:
        """The device that `match_key` allows. A job's phone that is mending is waited for, `timeout_s` at most.

        Raises:
            UnknownMatchKeyError: no current lease has this key.
            MatchKeyBusyError: its lease has a session.
            PhoneError: the phone did not come back in time.
        """
        return await self._holdings.sessions.open(match_key, peer, timeout_s, cut, self._allocator.devices.get)

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
