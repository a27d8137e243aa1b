"""Sessions that a gate apart has carried through a restart of the daemon, each attached to its lease again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from farm.core.requests import Door, Lease, LeaseRequest
from farm.core.selector import Selector
from farm.core.sessions import Leg, Survivor
from farm.leasing.holdings import Holdings
from farm.store.records import LeaseRecord


class Survivors:
    """First `take_up`, then people's leases are restored by their jobs, then each session is adopted."""

    def __init__(
        self,
        holdings: Holdings,
        restore: Callable[[Lease], None],
        clock: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        """`restore`: `Leasing.restore`."""
        self._holdings = holdings
        self._restore = restore
        self._clock = clock
        self._wall = wall
        self._orphans: dict[int, LeaseRecord] = {}  # by fence: sessions outlived them

    def take_up(self, records: Iterable[LeaseRecord], survivors: Iterable[Survivor]) -> frozenset[str]:
        """Restore the leases of stock clients with such a session; returns their ids.

        Any other lease with one is the business of whoever restores it (people's), or over.

        Args:
            records: every open lease in the store.
            survivors: what the gate carries.
        """
        fences = {each.fence for each in survivors}
        kept = set()
        for record in records:
            if record.fence not in fences:
                continue
            if record.door is not Door.TVM:
                self._orphans[record.fence] = record
                continue
            request = LeaseRequest(
                Selector.parse(record.selector), record.user, Door.TVM, lease_class=record.lease_class, key=record.key
            )
            held_s = max(0.0, (self._wall() - record.granted_at).total_seconds())
            self._restore(Lease(record.id, record.device, record.fence, request, self._clock() - held_s))
            self._holdings.leases[record.id].ends_with_session = True
            kept.add(record.id)
        return frozenset(kept)

    def adopt(self, survivor: Survivor, cut: Callable[[str], None]) -> Leg | None:
        """A session goes on under its lease, found by the fence, or has ended meanwhile.

        None: no lease goes on for it, and nobody needs to be told of its end.
        """
        held = next((each for each in self._holdings.leases.values() if each.lease.fence == survivor.fence), None)
        if held is not None and held.session is None and not held.ending:
            return self._holdings.sessions.adopt(held, survivor, cut)
        record = self._orphans.pop(survivor.fence, None)
        if record is None:
            return None
        if not survivor.ended:
            cut("the lease ended with the daemon that had granted it")
        return self._holdings.sessions.orphan(record, survivor)
