"""Leases of other hosts' phones, in a lab of several hosts: their match keys lead to sessions through the other host.

The keys of this host's own clients come with the letters of the hosts that armed their leases. Any other key may be of
a client that asked at another host: it is looked up in the database, so seldom that a client cannot search for keys.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from farm.leasing.sessions import digest
from farm.model.requests import Lease
from farm.model.sessions import Peer, PhoneStream, SessionEnd, UpstreamSession
from farm.store.leases import LeaseTable

MAX_KNOWN = 4096  # leases; an older one is looked up
MAX_UNKNOWN = 4096  # keys that were looked up in vain
UNKNOWN_S = 5.0  # for how long such a key is not looked up again
LOOK_UPS = 20  # most of one address within WITHIN_S
WITHIN_S = 10.0

# Connects to the gate of another host, for this client, within so many seconds; the socket awaits the client's hello.
DialGate = Callable[[str, Peer, float], Awaitable[socket.socket]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseElsewhere:
    """A lease that another host holds."""

    id: str
    host: str
    device: str
    fence: int
    key: str  # the stock TVM key asked for


class LeasesElsewhere:
    """The known leases of other hosts. Empty until `connect`, which a single host never calls."""

    def __init__(self, table: LeaseTable, session_prefix: str, clock: Callable[[], float]) -> None:
        """`table`: for looking up keys. `clock`: monotonic seconds."""
        self._table = table
        self._prefix = session_prefix
        self._clock = clock
        self._host = ""
        self._dial: DialGate | None = None
        self._known: OrderedDict[str, LeaseElsewhere] = OrderedDict()  # by the key's SHA-256
        self._of_lease: dict[str, str] = {}  # lease -> the key's SHA-256
        self._unknown: OrderedDict[str, float] = OrderedDict()  # key's SHA-256 -> until when
        self._look_ups: Counter[str] = Counter()  # by address, since ...
        self._since_s = 0.0
        self._sessions = 0

    def connect(self, host: str, dial: DialGate) -> None:
        """This host, named `host`, reaches other hosts by `dial`."""
        self._host, self._dial = host, dial

    @property
    def connected(self) -> bool:
        """Whether there are other hosts."""
        return self._dial is not None

    def add(self, lease: Lease, host: str) -> None:
        """The host holds a lease that a requester of this host asked for."""
        request = lease.request
        found = LeaseElsewhere(lease.id, host, lease.device, lease.fence, request.key or lease.device)
        self._remember(request.match_sha256, found)

    def has(self, lease_id: str) -> bool:
        """Whether another host holds that lease, as far as is known here."""
        return lease_id in self._of_lease

    def host_of(self, match_key: str) -> str:
        """The other host whose lease the key opens, if that is known here; "": it is not."""
        found = self._known.get(digest(match_key)) if self._known else None
        return "" if found is None else found.host

    def forget(self, lease_id: str) -> str:
        """Forget the lease; returns its host, "" if it is not known here."""
        found = self._known.pop(self._of_lease.pop(lease_id, ""), None)
        return "" if found is None else found.host

    async def find(self, match_key: str, peer: Peer) -> LeaseElsewhere | None:
        """The lease of another host that the key opens; None: there is none, or this address had too many look-ups.

        Raises:
            HostError: the database cannot be read.
        """
        if self._dial is None:
            return None
        sha256 = digest(match_key)
        if (known := self._known.get(sha256)) is not None:
            return known
        if not self._may_look_up(sha256, peer):
            return None
        record = await self._table.read(self._table.with_key, sha256)
        if record is None or record.host in ("", self._host):
            self._unknown[sha256] = self._clock() + UNKNOWN_S
            if len(self._unknown) > MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            return None
        found = LeaseElsewhere(record.id, record.host, record.device, record.fence, record.key or record.device)
        self._remember(sha256, found)
        return found

    def session(self, lease: LeaseElsewhere, match_key: str, peer: Peer) -> UpstreamSession:
        """A session under the lease: the other host's gate acts as the phone's RPC server, and checks the key."""
        assert self._dial is not None
        dial_gate = self._dial
        self._sessions += 1

        async def dial(limit_s: float) -> PhoneStream:
            return PhoneStream(await dial_gate(lease.host, peer, limit_s), match_key)

        def ended(end: SessionEnd) -> None:
            log.debug("a session of %s at %s ended here: %s %s", lease.device, lease.host, end.outcome, end.detail)

        session = f"{self._prefix}-elsewhere-{self._sessions}"
        return UpstreamSession(lease.device, session, lease.key, dial, lambda: None, ended, lease.fence, elsewhere=True)

    def _remember(self, sha256: str, found: LeaseElsewhere) -> None:
        self._known[sha256], self._of_lease[found.id] = found, sha256
        if len(self._known) > MAX_KNOWN:
            _, oldest = self._known.popitem(last=False)
            self._of_lease.pop(oldest.id, None)

    def _may_look_up(self, sha256: str, peer: Peer) -> bool:
        now_s = self._clock()
        if self._unknown.get(sha256, 0.0) > now_s:
            return False
        if now_s - self._since_s > WITHIN_S:
            self._look_ups.clear()
            self._since_s = now_s
        self._look_ups[peer.address] += 1
        return self._look_ups[peer.address] <= LOOK_UPS
