"""Leasing for the TVM server: the tracker's backend, the gate's route, and sessions that outlive a daemon.

A separate gate carries sessions through a restart of the daemon, and each is attached to its lease again: first
`restore_leases`, then people's leases are restored by their jobs, then each session is adopted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from farm.common.advertised import address_for, parse_advertised
from farm.common.errors import HostUnreachableError, NotAllowedError, UserError
from farm.common.peers import name_at
from farm.common.phone_text import plain
from farm.common.selector import Selector, normalise
from farm.common.tasks import BackgroundTasks
from farm.head.reports import merged
from farm.leasing.lab_rules import MEND_LINK
from farm.leasing.sessions import digest, invented_key
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.model.sessions import FleetSummary, NoSuchMatchKeyError, OrphanedSession, Peer, UpstreamSession
from farm.store.leases import LeaseRecord

if TYPE_CHECKING:
    from farm.leasing.lab_view import LabView
    from farm.leasing.leases import Leasing

log = logging.getLogger(__name__)
LOG_EVERY_S = 10.0  # a key that no phone has: clients may ask for thousands, and `farm status` names all


class TvmLeases:
    """A part of `Leasing`, over its leases.

    `request` waits for a grant, `open` for a recovering phone; nothing else here waits.
    """

    def __init__(self, leasing: Leasing, clock: Callable[[], float], wall: Callable[[], datetime]) -> None:
        self._leasing = leasing
        self._head = leasing.head
        self._active = leasing.active
        self._clock = clock
        self._wall = wall
        self.lab: LabView | None = None  # the other hosts; None: there are none
        self._orphans: dict[int, LeaseRecord] = {}  # by fence: sessions outlived them
        self.users_at = ""  # see `farm.common.peers.name_at`
        # Whether a login of this host may use the TVM port ([tvm] local); None: every login may.
        self.may_use: Callable[[str], Awaitable[bool]] | None = None
        self._logged_s = -LOG_EVERY_S  # the latest key that no phone has
        self._tasks = BackgroundTasks()

    def admit(self, peer: Peer) -> Awaitable[None] | None:
        """An awaitable that checks whether a client may use the port; None: it may.

        Raises:
            NotAllowedError: when awaited: it is a process of a login of this host that may not.
        """
        if self.may_use is None or not _is_of_this_host(peer):
            return None
        return self._check(self.may_use, peer.user)

    async def _check(self, may_use: Callable[[str], Awaitable[bool]], login: str) -> None:
        if not await may_use(login):
            raise NotAllowedError(
                f"{login} may not use phones: it is not in the group farm", hint=f"as root: usermod -aG farm {login}"
            )

    # --- the tracker's backend ------------------------------------------------------------------------------------

    async def request(self, key: str, user: str, priority: int, peer: Peer) -> str:
        """Wait for a device that answers to `key` (an alias, or any selector) and return a single-use match key.

        The key of a personal lease is its own answer, as soon as no session is open under it: tools that know only
        trackers (MetaSchedule's TVM_TRACKER_KEY) run on the leased device then.

        A priority above what the user may ask for is lowered to it: stock clients have no way to read a refusal.

        Raises:
            UserError: `key` is no selector, or the key of a lease that has ended.
            HostUnreachableError: the phone's host cannot be reached from here: no session would open.
        """
        if await self._active.sessions.wait_until_free(key):
            return key
        if ":" in key and await self._leasing.elsewhere.find(key, peer) is not None:
            return key
        if ":" in key:  # no key of a phone: of a lease that has ended, and nothing will ever answer to it
            raise NoSuchMatchKeyError("no current lease has this match key")
        if user != peer.address:  # a login of this host
            user = name_at(user, self.users_at)
        log.debug("%s (%s) wants %s", user, peer, key)
        priority = min(priority, self._leasing.quota_of(user).priority)
        lease_class = self._leasing.policy.class_of(key)
        selector, match_key = Selector.parse(key), invented_key(key)
        if not (selector.labels or self.serves(key)) and self._clock() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = self._clock()
            log.warning("%s (%s) waits for the key %s, which no phone has: farm explain key", user, peer, plain(key))
        lease = await self._leasing.acquire(
            LeaseRequest(
                selector, user, LeaseSource.TVM, priority, lease_class, key=key, match_sha256=digest(match_key)
            )
        )
        host = self._leasing.elsewhere.host_of(match_key)
        if self.lab is None or not self.lab.unreached(host) or self.direct_address(match_key, peer) is not None:
            return match_key
        why = "its client has gone"
        try:
            why = await self.lab.still_unreached(host)
        finally:
            if why:
                self._leasing.release(lease.id, why)
        if why:
            raise HostUnreachableError(f"{lease.device}: {why}", hint=f"{MEND_LINK}; or ask at {host}")
        return match_key

    def direct_address(self, match_key: str, peer: Peer) -> tuple[str, int] | None:
        """Where the phone's host has advertised its TVM port to this client; None: the session goes through here."""
        if self.lab is None or (host := self._leasing.elsewhere.host_of(match_key)) == "":
            return None
        found = self.lab.latest.host(host)
        try:
            return None if found is None else address_for(peer.address, parse_advertised(found.advertise, host))
        except UserError:  # the row is damaged
            return None

    def serves(self, key: str) -> bool:
        """Whether a farm device answers to `key`; devices of other hosts by the latest picture of the lab."""
        key = normalise(key)
        if self._head.serves(key):
            return True
        if self.lab is not None and self.refresh() is not None:
            return any(row.key == key for row in self.lab.latest.summary.servers)
        return False

    def summary(self) -> FleetSummary:
        """The tracker's rows: a server per (device in service, alias), free and waiting per key."""
        own = self._head.summary()
        return own if self.lab is None else merged((own, self.lab.latest.summary))

    def refresh(self) -> asyncio.Future[Any] | None:
        """Done when the picture of the lab is at most a second old; None: there is no other host."""
        if self.lab is None or not self.lab.own:
            return None
        return self._tasks.spawn(self._look(self.lab), "a picture of the lab")

    async def _look(self, lab: LabView) -> None:
        await lab.look()

    # --- the gate's route -----------------------------------------------------------------------------------------

    async def open(self, match_key: str, peer: Peer, timeout_s: float, cut: Callable[[str], None]) -> UpstreamSession:
        """The device that `match_key` allows. A job's phone that is recovering is waited for, `timeout_s` at most.

        Raises:
            NoSuchMatchKeyError: no current lease has this key.
            MatchKeyBusyError: its lease has a session.
            PhoneError: the phone did not come back in time.
            NotAllowedError: the client may not use the port.
        """
        if (admission := self.admit(peer)) is not None:
            await admission
        sessions = self._active.sessions
        if not sessions.knows(match_key) and (found := await self._leasing.elsewhere.find(match_key, peer)) is not None:
            return self._leasing.elsewhere.session(found, match_key, peer)
        return await sessions.open(match_key, peer, timeout_s, cut, self._leasing.view)

    def restore_leases(self, records: Iterable[LeaseRecord], orphans: Iterable[OrphanedSession]) -> frozenset[str]:
        """Restore the leases of stock clients with such a session; returns their ids.

        Any other lease with one is restored elsewhere (people's), or over.

        Args:
            records: every open lease in the store.
            orphans: what the gate carries.
        """
        fences = {each.fence for each in orphans}
        kept = set()
        for record in records:
            if record.fence not in fences:
                continue
            if record.source is not LeaseSource.TVM:
                self._orphans[record.fence] = record
                continue
            request = LeaseRequest(
                Selector.parse(record.selector),
                record.user,
                LeaseSource.TVM,
                lease_class=record.lease_class,
                key=record.key,
            )
            held_s = max(0.0, (self._wall() - record.granted_at).total_seconds())
            self._leasing.restore(Lease(record.id, record.device, record.fence, request, self._clock() - held_s))
            self._active.leases[record.id].ends_with_session = True
            kept.add(record.id)
        return frozenset(kept)

    def adopt(self, orphan: OrphanedSession, cut: Callable[[str], None]) -> UpstreamSession | None:
        """A session continues under its lease, found by the fence, or has ended meanwhile.

        None: no lease continues for it, and its end need not be reported.
        """
        active = next((each for each in self._active.leases.values() if each.lease.fence == orphan.fence), None)
        if active is not None and active.session is None and not active.ending:
            return self._active.sessions.adopt(active, orphan, cut)
        record = self._orphans.pop(orphan.fence, None)
        if record is None:
            return None
        if not orphan.ended:
            cut("the lease ended with the daemon that had granted it")
        return self._active.sessions.report_orphan(record, orphan)


def _is_of_this_host(peer: Peer) -> bool:
    """Whether a login of this host is the client, or a process of this host whose login is not known."""
    if "@" in peer.user:  # another host serves it, and has admitted it
        return False
    return peer.user != peer.address or ipaddress.ip_address(peer.address).is_loopback
