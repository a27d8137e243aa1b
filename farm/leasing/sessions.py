"""Match keys and the sessions they open: at most one session per lease, and every end is reported once."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import inf

from farm.common.errors import FarmError, PhoneError
from farm.common.events import EventLog
from farm.common.tasks import at_most
from farm.devices.fleet import Fleet
from farm.head.allocator.explain import unleasable_reason
from farm.leasing.model import view_when
from farm.model.device import DeviceView, Life
from farm.model.requests import Lease, LeaseClass
from farm.model.sessions import (
    ABNORMAL_OUTCOMES,
    MatchKeyBusyError,
    NoSuchMatchKeyError,
    OrphanedSession,
    Peer,
    PhoneStream,
    SessionEnd,
    SessionOutcome,
    UpstreamSession,
)
from farm.store.leases import LeaseRecord

MATCH_KEY_BYTES = 16  # 128 random bits
# A client that closes a session and opens the next is sometimes quicker than the end of the first is here.
FREE_WAIT_S = 2.0

_FARM_ENDED = frozenset({SessionOutcome.CUT, SessionOutcome.IDLE, SessionOutcome.TIMED_OUT})


@dataclass(slots=True, eq=False)
class LeaseSession:
    """One connection at the gate."""

    id: str
    peer: Peer
    cut: Callable[[str], None]
    waits: bool = False  # for its phone to be ready; nothing is open yet
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class ActiveLease:
    """A delivered lease with its session, keys and timers."""

    lease: Lease
    granted_at: datetime
    internal: bool = False  # the checker's; unknown to the allocator and the store
    ends_s: float | None = None  # monotonic; it is given back by then
    keys: dict[str, bool] = field(default_factory=dict)  # digest of a match key -> single use
    session: LeaseSession | None = None
    ends_with_session: bool = False
    ending: str = ""  # why it ends as soon as its session is over
    bundle_overridden: bool = False  # its holder may have another bundle on the phone than its own
    changed: bool = False  # its holder has changed the phone, and will change it back
    dirty: bool = False  # its holder says that the phone must be cleaned and checked after it
    yield_wanted: bool = False  # others wait for the phone of this tune lease
    phone_closed: bool = False  # its last session was ended by the phone's side
    detached: bool = False  # its session continues while the farm stops: the next daemon takes both up
    reported_hot: bool = False  # its holder was notified that the phone is above a hard limit
    awaiting_device: bool = False  # restored after a restart, and its phone was not ready since
    phone_away: bool = False  # its holder has cut the USB port's power: the absent phone is not lost
    revocation: asyncio.Future[FarmError] = field(  # why it was taken from its holder; never set when that gave it back
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    timer: asyncio.TimerHandle | None = None  # unused grant, or recovering phone

    def stop_timer(self) -> None:
        """Nothing is waited for any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class LeaseSessions:
    """The key table of a host and the sessions open under it."""

    def __init__(self, devices: Fleet, events: EventLog, prefix: str, over: Callable[[ActiveLease], None]) -> None:
        """Start empty.

        Args:
            devices: dialled; broken sessions are reported to it.
            events: gets session.opened, session.cut, session.ended.
            prefix: of session ids.
            over: called after a lease's session has ended or could not begin.
        """
        self._devices = devices
        self._events = events
        self._prefix = prefix
        self._over = over
        self._keys: dict[str, ActiveLease] = {}
        self._counter = 0

    def new_key(self, active: ActiveLease, name: str, *, single_use: bool) -> str:
        """A match key `<name>:<random>` to the held device."""
        match_key = invented_key(name)
        self.adopt_key(active, digest(match_key), single_use=single_use)
        return match_key

    def adopt_key(self, active: ActiveLease, sha256: str, *, single_use: bool = False) -> None:
        """Let a match key, known by its digest, open the held device: one of another host or from before a restart."""
        active.keys[sha256] = single_use
        self._keys[sha256] = active

    def knows(self, match_key: str) -> bool:
        """Whether the key opens a device of this host."""
        return digest(match_key) in self._keys

    def drop_keys(self, active: ActiveLease) -> None:
        """No key of this lease opens anything any more."""
        for key_digest in active.keys:
            del self._keys[key_digest]
        active.keys.clear()

    async def open(
        self,
        match_key: str,
        peer: Peer,
        timeout_s: float,
        cut: Callable[[str], None],
        view: Callable[[str], DeviceView | None],
    ) -> UpstreamSession:
        """See `TvmLeases.open`; `view` gives the device as the allocator knows it, if it does."""
        key_digest = digest(match_key)
        active = await without_session(partial(self._current, key_digest), timeout_s)
        self._counter += 1
        session = LeaseSession(f"{self._prefix}-{self._counter}", peer, cut)
        active.session = session
        device = active.lease.device
        if not active.internal and ((now := view(device)) is None or now.life is not Life.READY):
            session.waits = True
            try:
                await self._until_ready(device, timeout_s, view)
            except BaseException:
                self._close(active, session)
                raise
            session.waits = False
        if active.keys[key_digest]:
            del active.keys[key_digest], self._keys[key_digest]
        active.stop_timer()

        async def dial(limit_s: float) -> PhoneStream:
            sock, secret = await self._devices.dial(device, limit_s)
            return PhoneStream(sock, secret)

        return self._upstream(active, session, match_key.rpartition(":")[0], dial)

    def adopt(self, active: ActiveLease, orphan: OrphanedSession, cut: Callable[[str], None]) -> UpstreamSession:
        """A session that was open under this lease before the farm's restart continues, or has ended meanwhile."""
        session = active.session = LeaseSession(orphan.session, orphan.peer, cut)
        return self._upstream(active, session, orphan.key, _no_dial)

    def _upstream(
        self, active: ActiveLease, session: LeaseSession, key: str, dial: Callable[[float], Awaitable[PhoneStream]]
    ) -> UpstreamSession:
        return UpstreamSession(
            active.lease.device,
            session.id,
            key,
            dial,
            lambda: self._opened(active, session),
            lambda end: self._ended(active, session, end),
            active.lease.fence,
            lambda: _detach(active),
        )

    def report_orphan(self, record: LeaseRecord, orphan: OrphanedSession) -> UpstreamSession:
        """A session whose lease ended with the daemon before this one: its end is reported all the same."""

        def report_end(end: SessionEnd) -> None:
            self._events.publish(
                "session.ended", record.id, device=record.device, user=record.user, session=orphan.session,
                fence=record.fence, **_facts(end),
            )  # fmt: skip

        return UpstreamSession(
            record.device, orphan.session, orphan.key, _no_dial, lambda: None, report_end, record.fence
        )

    async def wait_until_free(self, match_key: str) -> bool:
        """Whether this is a key for more than one session; returns when no session is open under its lease."""
        key_digest = digest(match_key)
        while (active := self._keys.get(key_digest)) is not None and not active.keys[key_digest]:
            if active.session is None:
                return not active.ending
            await active.session.over.wait()
        return False

    def _current(self, key_digest: str) -> ActiveLease:
        active = self._keys.get(key_digest)
        if active is None or active.ending:
            raise NoSuchMatchKeyError("no current lease has this match key")
        return active

    async def _until_ready(self, device: str, timeout_s: float, view: Callable[[str], DeviceView | None]) -> None:
        with view_when(self._devices, device, lambda life: life is Life.READY) as ready:
            try:
                async with asyncio.timeout(timeout_s):
                    await ready
            except TimeoutError as error:
                now = view(device)
                why = "it has not come back yet" if now is None else unleasable_reason(now, LeaseClass.INTERACTIVE)
                raise PhoneError(f"{device} is not ready: {why}") from error

    def _opened(self, active: ActiveLease, session: LeaseSession) -> None:
        self._publish("session.opened", active, session, peer=str(session.peer))

    def _ended(self, active: ActiveLease, session: LeaseSession, end: SessionEnd) -> None:
        if end.outcome in _FARM_ENDED:
            self._publish("session.cut", active, session, reason=end.detail)
        self._publish("session.ended", active, session, **_facts(end))
        active.phone_closed = end.outcome is SessionOutcome.PHONE_CLOSED
        # Before the lease ends: the next client must not get a phone that is still busy with this one.
        if not active.internal and end.outcome in ABNORMAL_OUTCOMES:
            reason = end.detail or end.outcome.value
            if active.ends_with_session and not active.ending:
                active.ending = reason
            self._devices.report_broken_session(active.lease.device, reason)
        self._close(active, session)

    def _close(self, active: ActiveLease, session: LeaseSession) -> None:
        active.session = None
        session.over.set()
        self._over(active)

    def _publish(self, kind: str, active: ActiveLease, session: LeaseSession, **data: object) -> None:
        lease = active.lease
        self._events.publish(
            kind, lease.id, device=lease.device, user=lease.request.user, session=session.id, fence=lease.fence, **data
        )


async def without_session(find: Callable[[], ActiveLease], limit_s: float = inf) -> ActiveLease:
    """The lease that `find` gives, when its session is over; `find` is asked again then.

    Raises:
        MatchKeyBusyError: a session is open under it after `limit_s` (at most FREE_WAIT_S), or again.
    """
    if (before := find().session) is not None:
        async with at_most(min(FREE_WAIT_S, limit_s)):
            await before.over.wait()
    active = find()
    if active.session is not None:
        raise MatchKeyBusyError(f"session {active.session.id} is open under this lease")
    return active


def _facts(end: SessionEnd) -> dict[str, object]:
    return {
        "outcome": end.outcome.value,
        "bytes_up": end.bytes_up,
        "bytes_down": end.bytes_down,
        "seconds": round(end.seconds, 3),
        "detail": end.detail,
    }


def _detach(active: ActiveLease) -> bool:
    """The farm stops: a stock client's lease and a person's continue with their session."""
    active.detached = (
        not active.internal and not active.ending and (active.ends_with_session or active.lease.request.personal)
    )
    return active.detached


async def _no_dial(_limit_s: float) -> PhoneStream:
    raise FarmError("this session was dialled before the farm's restart")


def invented_key(name: str) -> str:
    """A new match key, `<name>:<random>`."""
    return f"{name}:{secrets.token_hex(MATCH_KEY_BYTES)}"


def digest(match_key: str) -> str:
    """A match key as stored, in memory and in the store: a reader of it cannot open anything."""
    return hashlib.sha256(match_key.encode(errors="backslashreplace")).hexdigest()
