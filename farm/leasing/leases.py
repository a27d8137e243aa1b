"""Leases: receives the head's grants, and guards the way to every phone.

One object serves jobs (`ask`, `withdraw`, ...) and the TVM server (`tvm`, `acquire`). Everything runs on one
event loop. How a request becomes a lease is in `request_queue`, what ends a lease in `active_leases`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from farm.common.errors import Code, FarmError, PhoneError, UserError
from farm.common.events import EventLog
from farm.common.selector import Selector, did_you_mean
from farm.devices.fleet import Fleet
from farm.head.config import UserConfig
from farm.head.head import Head
from farm.head.messages import (
    DeviceChanged,
    DeviceForgotten,
    HeadMessage,
    LeaseArmed,
    LeaseGranted,
    LeaseHeld,
    LeaseLost,
    LeaseRefused,
    LeaseRestored,
    LeaseUnwanted,
    RequestAdded,
    RequestWithdrawn,
    SessionBroken,
    SlotFreed,
    SlotKept,
    SlotWanted,
    YieldWanted,
)
from farm.head.model import LeasePolicy
from farm.head.write_queue import LeaseWrite, LeaseWriteQueue
from farm.leasing.active_leases import ActiveLeases, no_such_lease_error
from farm.leasing.borrowed import BorrowedPhones
from farm.leasing.elsewhere import LeasesElsewhere
from farm.leasing.sessions import digest, invented_key
from farm.leasing.tvm import TvmLeases
from farm.model.device import DeviceState, DeviceView, Life
from farm.model.requests import Lease, LeaseRequest, LeaseSource, NoSuchLeaseError
from farm.model.sessions import STOPPING
from farm.store.leases import LeaseTable

FIGURES_EVERY_S = 60.0  # an explanation's temperature and time are at most that old
REVOKE_LIMIT_S = 10.0  # a cut session reports its end within milliseconds; this bounds a bug, not a phone


class Leasing:
    """Every lease of this host."""

    def __init__(
        self,
        devices: Fleet,
        events: EventLog,
        epoch: int,
        table: LeaseTable,
        policy: LeasePolicy | None = None,
        *,
        head: Head,
        writes: LeaseWriteQueue,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Start following `devices`. Must be called on the event loop.

        Args:
            devices: the fleet.
            events: gets lease.granted/extended/released/revoked, session.opened/cut/ended.
            epoch: grows with every start of the daemon on this host; the upper part of every fence.
            table: the store's leases.
            policy: how long to wait, and what users may have.
            head: it decides who gets what.
            writes: where ends and extensions are written down, in this process after the head's grants.
            clock: monotonic seconds; everything is decided by it.
            wall: what is written down and shown.
        """
        self._loop = asyncio.get_running_loop()
        self._devices = devices
        self.policy = policy or LeasePolicy()
        self._epoch = epoch
        self._counter = 0  # of requests and checks
        self._asked: dict[str, Callable[[Lease], None]] = {}  # requests without a lease, by id: who gets it
        self._slots_wanted: set[str] = set()  # leases whose kept worker slot others lack
        self._views = {view.name: view for view in devices.views()}
        self._reported: dict[str, tuple[DeviceState, float]] = {}  # what the head knows of each device, since when
        self._writes = writes
        self.head = head
        head.connect(self._receive)
        self.active = ActiveLeases(devices, events, f"session-{epoch}", table, writes, self.policy, clock, wall, head)
        self._table = table
        self.elsewhere = LeasesElsewhere(table, f"session-{epoch}", clock)
        self.borrowed = BorrowedPhones()
        self._clock = clock
        self.wall = wall
        self.tvm = TvmLeases(self, clock, wall)
        self._unsubscribe = devices.subscribe(self._device_changed)
        for view in self._views.values():
            self._report(view)

    async def close(self) -> None:
        """End every lease but those that continue after a restart, write the ends down, stop following the devices.

        Requests stay unanswered.
        """
        self._unsubscribe()
        self.head.close(STOPPING)
        self.active.stop(STOPPING)
        await self._writes.flush()

    def store_problem(self, failing: bool) -> None:
        """The store cannot write: leases continue, and their ends are written later. Or it can again (`on_problem`)."""
        self._writes.store_problem(failing)

    def clock_jumped(self) -> None:
        """The wall clock was set. Nothing is decided by it; ends that are written down by it are written again."""
        self.active.clock_jumped()

    def use_policy(self, policy: LeasePolicy) -> None:
        """Decide by this from now on; leases, sessions and waits that have begun continue as they are."""
        self.policy = policy
        self.active.use_policy(policy)

    def quota_of(self, user: str) -> UserConfig:
        """This user's limits."""
        return self.policy.of(user)

    # --- for jobs -------------------------------------------------------------------------------------------------

    def ask_anywhere(self, request: LeaseRequest, granted: Callable[[Lease], None]) -> str:
        """`ask` for a job: in a lab, a phone of another host may be granted, too."""
        if not self.elsewhere.connected:
            return self.ask(request, granted)
        match_key = invented_key(request.job)
        request_id = self.ask(replace(request, match_sha256=digest(match_key)), granted)
        self.borrowed.asked(request_id, match_key)
        return request_id

    def ask(self, request: LeaseRequest, granted: Callable[[Lease], None]) -> str:
        """Request a device; returns the request's id.

        `granted` is called once, later, when the lease is kept; never after `withdraw`. It must not block.
        """
        request_id = self._new_id("request")
        self._asked[request_id] = granted
        self.head.report(RequestAdded(request_id, request))
        return request_id

    def withdraw(self, request_id: str) -> None:
        """The requester does not wait any more. Harmless when it was granted or withdrawn before."""
        self._asked.pop(request_id, None)
        self.borrowed.answered(request_id)
        self.head.report(RequestWithdrawn(request_id))

    async def acquire(self, request: LeaseRequest) -> Lease:
        """`ask` and wait, for the TVM server: in a lab maybe for a phone of another host (`elsewhere`).

        Cancelling withdraws the request, or gives back what was granted in the same moment.
        """
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
            if lease.id in self.active.leases or self.elsewhere.has(lease.id):
                return lease
            # The device was lost between the grant and this line: the request is as old as ever.

    def restore(self, lease: Lease) -> None:
        """Take up a lease of the time before a restart: same id, fence and end; its row is open in the store.

        The device stays held though it has not appeared yet. When it is not ready within `policy.recovery_s`, the lease
        is revoked (PhoneLostError).

        Args:
            lease: as it was; `granted_at` by today's clock, `longest_s` of its request is what is left.
        """
        self.active.restore(lease)
        self.head.report(LeaseRestored(lease))
        view = self._views.get(lease.device)
        if view is not None:
            self.head.report(DeviceChanged(view.state()))  # it may have closed to what the lease is for
            self.active.device_changed(view)

    async def extend(self, lease_id: str, longest_s: float) -> datetime:
        """Let the lease's holder have the device until `longest_s` from now; returns that moment once it is stored.

        The holder ends the lease then: leasing only plans by it.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        return await self.active.extend(self.active.current(lease_id), longest_s)

    def release(self, lease_id: str, reason: str = "given back", *, dirty: bool = False) -> None:
        """Give a device back. An open session is cut first, and the device is free once that has ended.

        `dirty`: a person or program had the phone, so it is cleaned and checked before the next holder gets it.
        """
        active = self.active.leases.get(lease_id)
        if active is not None:
            active.dirty = active.dirty or dirty
            self.active.release(active, reason)
            return
        host, of_client = self.borrowed.give_back(lease_id), self.elsewhere.forget(lease_id)
        if host or of_client:
            self.head.send_to_host(host or of_client, LeaseUnwanted(lease_id, reason))

    async def allow_bundle_override(self, lease_id: str) -> str:
        """Let the holder have another bundle on the device (its name); it gets its own back when the lease ends.

        Raises:
            NoSuchLeaseError: the lease has ended.
            MatchKeyBusyError: a session is open under it, and stays so.
        """
        return await self.active.allow_bundle_override(lease_id)

    def changed_phone(self, lease_id: str, *, changed: bool) -> bool:
        """Note whether the holder has the phone otherwise than it was; returns whether the lease is still current.

        A lease that ends so, in whatever way, has its phone cleaned and checked before the next holder gets it.
        """
        active = self.active.leases.get(lease_id)
        if active is None or active.ending:
            return False
        active.changed = changed
        return True

    @contextmanager
    def phone_away(self, lease_id: str) -> Iterator[None]:
        """Inside, the holder sends its phone away and gets it back: the lease continues though the phone is gone.

        A holder that fails inside gives the lease back: its error says more than that the phone is gone.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        active = self.active.current(lease_id)
        active.phone_away = True
        yield
        active.phone_away = False
        if (view := self._views.get(active.lease.device)) is not None:
            self.active.device_changed(view)  # it may not be back

    def keep_slot(self, lease_id: str) -> None:
        """Let the worker slot that came with a current lease outlast it, until `free_slot` (NoSuchLeaseError)."""
        device = self.active.current(lease_id).lease.device
        self.head.report(SlotKept(device, lease_id))

    def free_slot(self, lease_id: str) -> None:
        """The worker slot that came with this lease is needed no more. Harmless when repeated."""
        self._slots_wanted.discard(lease_id)
        self.head.report(SlotFreed(lease_id))

    def when_revoked(self, lease_id: str) -> asyncio.Future[FarmError]:
        """A future that gets the error when the lease is taken from its holder.

        That is when the lease is kicked, its phone is lost or the farm stops.

        From that moment on whatever is done under the lease is void, though its session may take a little to end.
        A lease that its holder gives back is never taken away.

        Raises:
            NoSuchLeaseError: the lease is over already.
        """
        active = self.active.leases.get(lease_id) or self.borrowed.get(lease_id)
        if active is None:
            raise no_such_lease_error(lease_id)
        return asyncio.shield(active.revocation)

    def abort(self, lease_id: str, reason: str) -> None:
        """A holder says that its session went wrong: the session is cut, the phone cleaned and checked.

        Nothing happens when the lease has ended: its phone is looked after already.
        """
        active = self.active.leases.get(lease_id)
        if active is not None and not active.ending:
            self._devices.report_broken_session(active.lease.device, reason)
        elif (phone := self.borrowed.get(lease_id)) is not None:
            self.head.send_to_host(phone.host, SessionBroken(lease_id, reason))

    async def ended_by_phone(self, lease_id: str) -> bool:
        """Whether the phone's side ended the lease's last session, which is waited for; False when that is unknown."""
        active = self.active.leases.get(lease_id)
        if active is not None and active.session is not None:
            await active.session.over.wait()
        return active is not None and active.phone_closed

    async def revoke(self, target: str, reason: str) -> Lease:
        """Take a device away from its holder; returns the lease when its session has ended.

        Args:
            target: a lease id or a device name.
            reason: sent to the holder.

        Raises:
            NoSuchLeaseError: it is not leased.
            FarmError: its session does not end.
        """
        held = {**self.active.by_device, **self.active.leases}
        active = held.get(target)
        if active is None:
            hint = did_you_mean(target, held, "`farm lease list` shows who holds what")
            raise NoSuchLeaseError(f"{target} is not leased", hint=hint)
        session = active.session
        self.active.revoke(
            active, UserError(f"the lease on {active.lease.device} was taken back: {reason}", Code.LEASE_ENDED), reason
        )
        if session is not None:
            try:
                async with asyncio.timeout(REVOKE_LIMIT_S):
                    await session.over.wait()
            except TimeoutError as error:
                raise FarmError(
                    f"session {session.id} on {active.lease.device} was cut but has not ended in {REVOKE_LIMIT_S:g} s",
                    Code.SESSION_STUCK,
                    hint=f"farm explain device {active.lease.device} shows what becomes of it",
                ) from error
        return active.lease

    def new_match_key(self, lease_id: str, *, single_use: bool) -> str:
        """A key by which the gate opens this lease's device: one session in all, or one at a time until the lease ends.

        Another host's device has one key for one session at a time.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        if (phone := self.borrowed.get(lease_id)) is not None:
            return phone.match_key
        active = self.active.current(lease_id)
        request = active.lease.request
        match_key = self.active.sessions.new_key(active, request.key or active.lease.device, single_use=single_use)
        if not single_use and self.elsewhere.connected:  # its holder may come to any host's port
            publish = partial(self._table.publish_key, lease_id, digest(match_key))
            self._writes.add(active.lease.device, LeaseWrite(lambda _: publish(), None))
        return match_key

    def adopt_match_key(self, lease_id: str, sha256: str) -> None:
        """Let the match key whose `farm.leasing.sessions.digest` is `sha256` open a restored lease's device again.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        self.active.sessions.adopt_key(self.active.current(lease_id), sha256)

    def checking_key(self, device: str) -> str:
        """A key to a device that is being checked; it ends the previous one and dies when the check is over.

        Raises:
            PhoneError: the device is not in CHECKING.
        """
        view = self._views.get(device)
        if view is None or view.life is not Life.CHECKING:
            raise PhoneError(f"{device} is not being checked", Code.NOT_CHECKING)
        request = LeaseRequest(Selector.of_alias(device), "farm", LeaseSource.JOB, device=device)
        # Without a fence: it was never granted, and no session of a check outlives the daemon.
        active = self.active.check(Lease(self._new_id("check"), device, 0, request, self._clock()))
        return self.active.sessions.new_key(active, device, single_use=False)

    # --- leases ---------------------------------------------------------------------------------------------------

    def slot_wanted(self, lease_id: str) -> bool:
        """Whether others lack only the worker slot that is kept for this lease: its keeper should end soon."""
        return lease_id in self._slots_wanted

    def yield_wanted(self, lease_id: str) -> bool:
        """Whether others wait for this tune lease's device: its holder should give it back at the next candidate."""
        active = self.active.leases.get(lease_id) or self.borrowed.get(lease_id)
        return active is not None and active.yield_wanted

    def expires_at(self, lease_id: str) -> datetime | None:
        """When the lease's holder gives the device back at the latest, by today's clock; None: unknown.

        Raises:
            NoSuchLeaseError: the lease has ended.
        """
        return self.active.expires_at(self.active.current(lease_id))

    def holds(self, device: str) -> bool:
        """Whether the device is leased."""
        return device in self.active.by_device

    def lease_of(self, device: str) -> str:
        """The id of the device's lease; "" when it is not leased."""
        active = self.active.by_device.get(device)
        return active.lease.id if active is not None else ""

    def in_session(self, device: str) -> bool:
        """Whether a session is open on the device under a lease, and not being ended."""
        active = self.active.by_device.get(device)
        return active is not None and not active.ending and active.session is not None and not active.session.waits

    def view(self, device: str) -> DeviceView | None:
        """The device as it is now; None: it has not been seen."""
        return self._views.get(device)

    # --- what happens ---------------------------------------------------------------------------------------------

    def _receive(self, message: HeadMessage) -> None:
        """The head decided something."""
        match message:
            case LeaseGranted():
                self._arm(message)
            case YieldWanted(device):
                self.borrowed.want_back(device)
                if (active := self.active.by_device.get(device)) is not None:
                    active.yield_wanted = True
            case LeaseLost(lease_id, reason):
                self.elsewhere.forget(lease_id)
                self.borrowed.lost(lease_id, reason)
            case SessionBroken(lease_id, reason):
                self.abort(lease_id, reason)
            case SlotWanted(lease_id):
                self._slots_wanted.add(lease_id)
            case LeaseUnwanted(lease_id, reason):
                self.release(lease_id, reason)
            case LeaseHeld(request_id, lease, host):
                if (granted := self._asked.pop(request_id, None)) is None:
                    self.head.send_to_host(host, LeaseUnwanted(lease.id, "the requester left"))
                else:
                    self.elsewhere.add(lease, host)
                    self.borrowed.add(request_id, lease, host)
                    granted(lease)

    def _arm(self, message: LeaseGranted) -> None:
        """Hold the device under a new lease, unless it is held or away."""
        lease = message.lease
        view, reason = self._views.get(lease.device), ""
        if (other := self.active.by_device.get(lease.device)) is not None:
            reason = f"{lease.device} is held under {other.lease.id}"
        elif view is not None and view.life is not Life.READY:  # the head hears of it before this refusal
            reason = f"{lease.device} is {view.life}"
        if reason:
            self.head.report(LeaseRefused(lease.device, lease.id, reason))
        else:
            self.head.arm(message, partial(self._deliver, message))

    def _deliver(self, message: LeaseGranted) -> None:
        """The device is held under the lease: pass it to the requester."""
        lease = message.lease
        active, request = self.active.deliver(lease, message.granted_at), lease.request
        if request.match_sha256:
            of_client = request.source is LeaseSource.TVM
            self.active.sessions.adopt_key(active, request.match_sha256, single_use=of_client)
            if of_client:
                self.active.end_with_session(active)
        self.head.report(LeaseArmed(lease.device, lease.id))
        if (granted := self._asked.pop(message.request_id, None)) is not None:  # else a job asked for it, at the head
            self.borrowed.answered(message.request_id)
            granted(lease)

    def _answer(self, future: asyncio.Future[Lease], lease: Lease) -> None:
        if future.done():  # cancelled in this very turn of the loop
            self.release(lease.id, "the requester left")
        else:
            future.set_result(lease)

    def _device_changed(self, view: DeviceView) -> None:
        # First the head: a lease that ends because of this change must not be followed by one of a lost device.
        if view.life is Life.GONE and all(each.name != view.name for each in self._devices.views()):
            self._views.pop(view.name, None)
            self._reported.pop(view.name, None)
            self.head.report(DeviceForgotten(view.name))
        else:
            self._views[view.name] = view
            self._report(view)
        self.active.device_changed(view)

    def _report(self, view: DeviceView) -> None:
        """Send the head the state of a device, if it has changed; figures alone not more often than people need.

        A warm phone's reasons have another figure with each probe.
        """
        state, now_s = view.state(), self._clock()
        last, sent_s = self._reported.get(view.name, (None, 0.0))
        if last is None or not (state == last or (now_s - sent_s < FIGURES_EVERY_S and state.same_but_figures(last))):
            self._reported[view.name] = state, now_s
            self.head.report(DeviceChanged(state))

    def _new_id(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}-{self._epoch}-{self._counter}"
