"""Match keys and the sessions they open: at most one session per lease, and every end is told once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from farm.core.allocator_explain import unleasable_reason
from farm.core.device import DeviceView, Life
from farm.core.device_news import seen
from farm.core.errors import FarmError, PhoneError
from farm.core.events import EventLog
from farm.core.requests import Lease
from farm.core.sessions import (
    ABNORMAL_OUTCOMES,
    Leg,
    MatchKeyBusyError,
    Peer,
    PhoneStream,
    SessionEnd,
    SessionOutcome,
    Survivor,
    UnknownMatchKeyError,
)
from farm.leasing.model import Devices
from farm.store.records import LeaseRecord

MATCH_KEY_BYTES = 16  # 128 random bits
# A client that closes a session and opens the next is sometimes quicker than the end of the first is here.
TURN_S = 2.0

_FARM_ENDED = frozenset({SessionOutcome.CUT, SessionOutcome.IDLE, SessionOutcome.TIMED_OUT})


@dataclass(slots=True, eq=False)
class Session:
    """One connection at the gate."""

    id: str
    peer: Peer
    cut: Callable[[str], None]
    waits: bool = False  # for its phone to be ready; nothing is open yet
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class Held:
    """A lease and what hangs on it."""

    lease: Lease
    granted_at: datetime
    internal: bool = False  # the checker's; unknown to the allocator and the store
    ends_s: float | None = None  # monotonic; it is given back by then
    keys: dict[str, bool] = field(default_factory=dict)  # digest of a match key -> single use
    session: Session | None = None
    ends_with_session: bool = False
    ending: str = ""  # why it ends as soon as its session is over
    lent: bool = False  # its holder may have another bundle on the phone than its own
    changed: bool = False  # its holder has changed the phone, and will change it back
    dirty: bool = False  # its holder says that the phone must be cleaned and checked after it
    phone_closed: bool = False  # its last session was ended by the phone's side
    left: bool = False  # its session goes on while the farm stops: the next daemon takes both up
    told_hot: bool = False  # its holder knows that the phone is above a hard limit
    awaited: bool = False  # of the time before a restart, its phone not seen ready yet
    taken: asyncio.Future[FarmError] = field(  # why it was taken from its holder; never set when that gave it back
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    timer: asyncio.TimerHandle | None = None  # unused grant, or mending phone

    def stop_timer(self) -> None:
        """Nothing is waited for any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Sessions:
    """The key table of a host and what is open under it."""

    def __init__(self, devices: Devices, events: EventLog, prefix: str, over: Callable[[Held], None]) -> None:
        """Start empty.

        Args:
            devices: dialled, and told of broken sessions.
            events: gets session.opened, session.cut, session.ended.
            prefix: of session ids.
            over: called after a lease's session has ended or could not begin.
        """
        self._devices = devices
        self._events = events
        self._prefix = prefix
        self._over = over
        self._keys: dict[str, Held] = {}
        self._counter = 0

    def new_key(self, held: Held, name: str, *, single_use: bool) -> str:
        """A match key `<name>:<random>` to the held device."""
        match_key = f"{name}:{secrets.token_hex(MATCH_KEY_BYTES)}"
        self._add(held, digest(match_key), single_use=single_use)
        return match_key

    def adopt_key(self, held: Held, sha256: str) -> None:
        """Let a match key of the time before a restart, known by its digest, open the held device again."""
        self._add(held, sha256, single_use=False)

    def _add(self, held: Held, key_digest: str, *, single_use: bool) -> None:
        held.keys[key_digest] = single_use
        self._keys[key_digest] = held

    def drop_keys(self, held: Held) -> None:
        """No key of this lease opens anything any more."""
        for key_digest in held.keys:
            del self._keys[key_digest]
        held.keys.clear()

    async def open(
        self,
        match_key: str,
        peer: Peer,
        timeout_s: float,
        cut: Callable[[str], None],
        view: Callable[[str], DeviceView | None],
    ) -> Leg:
        """See `Leasing.open`; `view` gives the device as the allocator knows it, if it does."""
        key_digest = digest(match_key)
        if (before := self._current(key_digest).session) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(TURN_S, timeout_s)):
                    await before.over.wait()
        held = self._current(key_digest)
        if held.session is not None:
            raise MatchKeyBusyError(f"session {held.session.id} is open under this lease")
        self._counter += 1
        session = Session(f"{self._prefix}-{self._counter}", peer, cut)
        held.session = session
        device = held.lease.device
        if not held.internal and not _is_ready(view(device)):
            session.waits = True
            try:
                await self._until_ready(device, timeout_s, view)
            except BaseException:
                self._close(held, session)
                raise
            session.waits = False
        if held.keys[key_digest]:
            del held.keys[key_digest], self._keys[key_digest]
        held.stop_timer()

        async def dial(limit_s: float) -> PhoneStream:
            sock, secret = await self._devices.dial(device, limit_s)
            return PhoneStream(sock, secret)

        return self._leg(held, session, match_key.rpartition(":")[0], dial)

    def adopt(self, held: Held, survivor: Survivor, cut: Callable[[str], None]) -> Leg:
        """A session that was open under this lease before the farm's restart goes on, or has ended meanwhile."""
        session = held.session = Session(survivor.session, survivor.peer, cut)
        return self._leg(held, session, survivor.key, _no_dial)

    def _leg(self, held: Held, session: Session, key: str, dial: Callable[[float], Awaitable[PhoneStream]]) -> Leg:
        return Leg(
            held.lease.device,
            session.id,
            key,
            dial,
            lambda: self._opened(held, session),
            lambda end: self._ended(held, session, end),
            held.lease.fence,
            lambda: _leave(held),
        )

    def orphan(self, record: LeaseRecord, survivor: Survivor) -> Leg:
        """A session whose lease ended with the daemon before this one: its end is told all the same."""

        def told_end(end: SessionEnd) -> None:
            self._events.publish(
                "session.ended", record.id, device=record.device, user=record.user, session=survivor.session,
                fence=record.fence, **_facts(end),
            )  # fmt: skip

        return Leg(record.device, survivor.session, survivor.key, _no_dial, lambda: None, told_end, record.fence)

    async def turn(self, match_key: str) -> bool:
        """Whether this is a key for more than one session; returns when no session is open under its lease."""
        key_digest = digest(match_key)
        while (held := self._keys.get(key_digest)) is not None and not held.keys[key_digest]:
            if held.session is None:
                return not held.ending
            await held.session.over.wait()
        return False

    def _current(self, key_digest: str) -> Held:
        held = self._keys.get(key_digest)
        if held is None or held.ending:
            raise UnknownMatchKeyError("no current lease has this match key")
        return held

    async def _until_ready(self, device: str, timeout_s: float, view: Callable[[str], DeviceView | None]) -> None:
        with seen(self._devices, device, lambda life: life is Life.READY) as ready:
            try:
                async with asyncio.timeout(timeout_s):
                    await ready
            except TimeoutError as error:
                now = view(device)
                why = "it has not come back yet" if now is None else unleasable_reason(now)
                raise PhoneError(f"{device} is not ready: {why}") from error

    def _opened(self, held: Held, session: Session) -> None:
        self._publish("session.opened", held, session, peer=str(session.peer))

    def _ended(self, held: Held, session: Session, end: SessionEnd) -> None:
        if end.outcome in _FARM_ENDED:
            self._publish("session.cut", held, session, reason=end.detail)
        self._publish("session.ended", held, session, **_facts(end))
        held.phone_closed = end.outcome is SessionOutcome.PHONE_CLOSED
        # Before the lease ends: the next client must not get a phone that is still busy with this one.
        if not held.internal and end.outcome in ABNORMAL_OUTCOMES:
            reason = end.detail or end.outcome.value
            if held.ends_with_session and not held.ending:
                held.ending = reason
            self._devices.report_broken_session(held.lease.device, reason)
        self._close(held, session)

    def _close(self, held: Held, session: Session) -> None:
        held.session = None
        session.over.set()
        self._over(held)

    def _publish(self, kind: str, held: Held, session: Session, **data: object) -> None:
        lease = held.lease
        self._events.publish(
            kind, lease.id, device=lease.device, user=lease.request.user, session=session.id, fence=lease.fence, **data
        )


def _facts(end: SessionEnd) -> dict[str, object]:
    return {
        "outcome": end.outcome.value,
        "bytes_up": end.bytes_up,
        "bytes_down": end.bytes_down,
        "seconds": round(end.seconds, 3),
        "detail": end.detail,
    }


def _leave(held: Held) -> bool:
    """The farm stops: a stock client's lease and a person's go on with their session."""
    held.left = not held.internal and not held.ending and (held.ends_with_session or held.lease.request.personal)
    return held.left


async def _no_dial(_limit_s: float) -> PhoneStream:
    raise FarmError("this session was dialled before the farm's restart")


def digest(match_key: str) -> str:
    """What is kept of a match key, in memory and in the store: whoever reads it cannot open anything with it."""
    return hashlib.sha256(match_key.encode(errors="backslashreplace")).hexdigest()


def _is_ready(view: DeviceView | None) -> bool:
    return view is not None and view.life is Life.READY
