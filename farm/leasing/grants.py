"""From wish to lease: what core/allocator decides is written down, then delivered.

A lease comes into being in three moments: *decided* (the allocator gives a device to a wish), *kept* (the store has
committed it), *delivered* (whoever wished is called). Whatever happens in between, nobody hears of a lease that was not
delivered, and its wish, unless withdrawn, is served later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TypeVar

from farm.core.allocator import Allocator
from farm.core.allocator_events import (
    AllocatorEvent,
    DeviceChanged,
    DeviceForgotten,
    Grant,
    LeaseEnded,
    Paused,
    RequestCame,
    RequestWithdrawn,
    Resumed,
    SharesChanged,
    TimePassed,
)
from farm.core.device import DeviceView, Life
from farm.core.histogram import QUICK_S, Histogram
from farm.core.requests import Lease, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.leasing.book import Entry, LeaseBook, record_of, told
from farm.leasing.model import LeaseKeeper, LeasePolicy, WaitingRequest, share_of
from farm.leasing.status import asked_for

FENCE_BITS = 32  # a fence is the host's epoch above a counter: 4 billion grants per start of the daemon
LOOKED_AT = 1000  # oldest wishes, for how long each class waits: a team's queue may have 100,000
REFUSED_PAUSE_S = 1.0  # after a grant that the store refused: the device is free again, its wish decided anew

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Wish:
    """A request that nobody has answered yet."""

    id: str
    request: LeaseRequest
    since: float  # monotonic
    granted: Callable[[Lease], None]
    decided: Decided | None = None


@dataclass(slots=True, eq=False)
class Decided:
    """A lease between decision and delivery."""

    wish: Wish
    lease: Lease
    granted_at: datetime
    entry: Entry | None = None
    spoilt: str = ""  # why it will not be delivered
    pause: asyncio.TimerHandle | None = None  # the store has refused it: until it is undone


class Grants:
    """Every wish of this host, and the allocator that decides about them."""

    def __init__(
        self,
        book: LeaseBook,
        keeper: LeaseKeeper,
        epoch: int,
        policy: LeasePolicy,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        delivered: Callable[[Lease, datetime], None],
    ) -> None:
        """Start without devices.

        Args:
            book: where grants and ends are written down.
            keeper: the store's leases.
            epoch: the upper part of every fence.
            policy: what users may have.
            clock: monotonic seconds.
            wall: what is written down.
            delivered: called with each lease that is kept, and when it was granted, before whoever wished for it.
        """
        self._loop = asyncio.get_running_loop()
        self._book = book
        self._keeper = keeper
        self._epoch = epoch
        self._clock = clock
        self._wall = wall
        self._delivered = delivered
        self.allocator = Allocator(policy.allocator)
        self.pending: Counter[str] = Counter()  # undecided wishes, by what the tracker's summary calls them
        self.wanted: Counter[tuple[Selector, str]] = Counter()  # the same by what they mean
        self.depth: Counter[LeaseClass] = Counter()  # the same by class
        self.decisions = Histogram(QUICK_S)  # seconds of the allocator for one event
        self._wishes: dict[str, Wish] = {}
        self._decided: dict[str, Decided] = {}  # by device
        self._counter = 0
        self._closed = False
        self._look: asyncio.TimerHandle | None = None
        self._look_s = 0.0  # when it fires
        self.use_shares(policy)

    def use_shares(self, policy: LeasePolicy) -> None:
        """What users may have from now on; nobody loses what they have."""
        by_user = {name: share_of(user) for name, user in policy.users.items()}
        self.apply(SharesChanged(share_of(policy.quota), by_user))

    def close(self, reason: str) -> None:
        """Grant nothing any more, and undo what is not delivered; wishes stay unanswered."""
        self._closed = True
        self.pause(reason)
        self._wishes.clear()
        for decided in tuple(self._decided.values()):
            self._spoil(decided, reason)
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def pause(self, reason: str) -> None:
        """Grant nothing until `resume`."""
        self.apply(Paused(reason))

    def resume(self) -> None:
        """End `pause`; `close` stays."""
        if not self._closed:
            self.apply(Resumed())

    def ask(self, request: LeaseRequest, granted: Callable[[Lease], None]) -> str:
        """See `Leasing.ask`."""
        wish = Wish(self.new_request_id(), request, self._clock(), granted)
        self._wishes[wish.id] = wish
        self._enter(wish)
        return wish.id

    def withdraw(self, request_id: str) -> None:
        """See `Leasing.withdraw`."""
        wish = self._wishes.pop(request_id, None)
        if wish is None:
            return
        if wish.decided is not None:
            self._spoil(wish.decided, "the requester left")
        else:
            self._leave(wish)
            self.apply(RequestWithdrawn(request_id))

    def waiting(self, limit: int | None = None) -> tuple[WaitingRequest, ...]:
        """Undecided wishes, in the order they would be served; the foremost `limit` of them."""
        now = self._clock()
        return tuple(
            WaitingRequest(request_id, request, now - wish.since)
            for request_id, request in self.allocator.waiting(limit)
            if (wish := self._wishes.get(request_id)) is not None
        )

    def longest_s(self) -> Mapping[LeaseClass, float]:
        """For how long the oldest undecided wish of each class waits; looks at the `LOOKED_AT` oldest."""
        now, found = self._clock(), dict[LeaseClass, float]()
        for wish in islice(self._wishes.values(), LOOKED_AT):
            if wish.decided is None:
                found.setdefault(wish.request.lease_class, now - wish.since)
                if len(found) == len(self.depth):
                    break
        return found

    def wish(self, request_id: str) -> WaitingRequest | None:
        """A wish that waits; None when its lease is being written already."""
        wish = self._wishes.get(request_id)
        if wish is None or wish.decided is not None:
            return None
        return WaitingRequest(wish.id, wish.request, self._clock() - wish.since)

    def device_changed(self, view: DeviceView, *, forgotten: bool) -> None:
        """Tell the allocator, and do not hand out a phone that was lost since it was decided about."""
        self.apply(DeviceForgotten(view.name) if forgotten else DeviceChanged(view))
        decided = self._decided.get(view.name)
        if decided is not None and view.life is not Life.READY:
            self._spoil(decided, f"{view.name} is {view.life}, before it was handed out")

    def apply(self, event: AllocatorEvent) -> None:
        """Let the allocator decide, and begin what it decided."""
        begun_s = time.perf_counter()
        grants = self.allocator.apply(event, self._clock())
        self.decisions.observe(time.perf_counter() - begun_s)
        for grant in grants:
            self._decide(grant)
        self._look_in_time()

    def behind_s(self) -> float:
        """For how many seconds a look at the clock is overdue that nobody will take any more; 0 while all is well."""
        wanted_s = self.allocator.next_look_s()
        if wanted_s is None or self._closed or (self._look is not None and self._look.when() > self._loop.time()):
            return 0.0
        return max(0.0, self._clock() - wanted_s)

    def new_request_id(self) -> str:
        """An id that no other request has had or will have."""
        self._counter += 1
        return f"request-{self._epoch}-{self._counter}"

    def new_lease(self, device: str, request: LeaseRequest) -> Lease:
        """A lease with the next fence."""
        self._counter += 1
        fence = (self._epoch << FENCE_BITS) + self._counter
        return Lease(f"lease-{self._epoch}-{self._counter}", device, fence, request, self._clock())

    # --- what happens ---------------------------------------------------------------------------------------------

    def _decide(self, grant: Grant) -> None:
        wish = self._wishes[grant.request_id]
        self._leave(wish)
        lease, granted_at = self.new_lease(grant.device, wish.request), self._wall()
        decided = wish.decided = self._decided[grant.device] = Decided(wish, lease, granted_at)
        keep = partial(self._keeper.grant, record_of(lease, granted_at))
        event = told(
            "lease.granted",
            lease,
            job=wish.request.job,
            lease_class=wish.request.lease_class.value,
            door=wish.request.door.value,
            waited_s=round(self._clock() - wish.since, 3),
        )
        decided.entry = Entry(keep, event, lambda _: self._kept(decided), lambda: self._refused(decided))
        self._book.add(lease.device, decided.entry)

    def _kept(self, decided: Decided) -> None:
        lease = decided.lease
        if decided.spoilt:
            self._book.end(self._keeper, lease, decided.granted_at, self._clock(), decided.spoilt)
            self._undo(decided)
            return
        del self._decided[lease.device], self._wishes[decided.wish.id]
        self._delivered(lease, decided.granted_at)
        decided.wish.granted(lease)

    def _refused(self, decided: Decided) -> None:
        """The store will not have it: device and wish sit out a little, so that a bug cannot spin, and begin anew."""
        if decided.spoilt:
            self._undo(decided)
        else:
            decided.pause = self._loop.call_later(REFUSED_PAUSE_S, self._undo, decided)

    def _spoil(self, decided: Decided, reason: str) -> None:
        """The lease will not be delivered: nothing is written if there is time, else its end is, right after it."""
        if decided.spoilt:
            return
        decided.spoilt = reason
        if decided.entry is not None and self._book.drop(decided.entry):
            self._undo(decided)

    def _undo(self, decided: Decided) -> None:
        """The device is free again, and who still wishes waits on."""
        wish = decided.wish
        wish.decided = None
        if decided.pause is not None:
            decided.pause.cancel()
        del self._decided[decided.lease.device]
        self.apply(LeaseEnded(decided.lease.device))
        if wish.id in self._wishes:
            self._enter(wish)

    def _enter(self, wish: Wish) -> None:
        self.pending[asked_for(wish.request)] += 1
        self.wanted[wish.request.selector, wish.request.device] += 1
        self.depth[wish.request.lease_class] += 1
        self.apply(RequestCame(wish.id, wish.request))

    def _leave(self, wish: Wish) -> None:
        _take_one(self.pending, asked_for(wish.request))
        _take_one(self.wanted, (wish.request.selector, wish.request.device))
        _take_one(self.depth, wish.request.lease_class)

    # --- time -----------------------------------------------------------------------------------------------------

    def _look_in_time(self) -> None:
        """Let the allocator look again when it wants to; a timer that comes too early is left and looks anew."""
        wanted_s = self.allocator.next_look_s()
        if wanted_s is None or (self._look is not None and self._look_s <= wanted_s):
            return
        if self._look is not None:
            self._look.cancel()
        self._look_s = wanted_s
        self._look = self._loop.call_later(max(0.0, wanted_s - self._clock()), self._time_passed)

    def _time_passed(self) -> None:
        self._look = None
        self.apply(TimePassed())


def _take_one(counter: Counter[T], name: T) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
