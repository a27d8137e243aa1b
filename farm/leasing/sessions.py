"""Match keys and the sessions they open: at most one session per lease, and every end is told once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from farm.core.allocator import unleasable_reason
from farm.core.device import DeviceView, Life
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
    UnknownMatchKeyError,
)
from farm.leasing.model import Devices

MATCH_KEY_BYTES = 16  # 128 random bits

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
    internal: bool = False  # the checker's; unknown to the allocator
    keys: dict[str, bool] = field(default_factory=dict)  # match key -> single use
    session: Session | None = None
    ends_with_session: bool = False
    ending: str = ""  # why it ends as soon as its session is over
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
        held.keys[match_key] = single_use
        self._keys[match_key] = held
        return match_key

    def drop_keys(self, held: Held) -> None:
        """No key of this lease opens anything any more."""
        for match_key in held.keys:
            del self._keys[match_key]
        held.keys.clear()

    async def open(
        self,
        match_key: str,
        peer: Peer,
        timeout_s: float,
        cut: Callable[[str], None],
        view: Callable[[str], DeviceView],
    ) -> Leg:
        """See `Leasing.open`; `view` gives the device as the allocator knows it."""
        held = self._keys.get(match_key)
        if held is None or held.ending:
            raise UnknownMatchKeyError("no current lease has this match key")
        if held.session is not None:
            raise MatchKeyBusyError(f"session {held.session.id} is open under this lease")
        self._counter += 1
        session = Session(f"{self._prefix}-{self._counter}", peer, cut)
        held.session = session
        device = held.lease.device
        if not held.internal and view(device).life is not Life.READY:
            session.waits = True
            try:
                await self._until_ready(device, timeout_s, view)
            except BaseException:
                self._close(held, session)
                raise
            session.waits = False
        if held.keys[match_key]:
            del held.keys[match_key], self._keys[match_key]
        held.stop_timer()

        async def dial(limit_s: float) -> PhoneStream:
            sock, secret = await self._devices.dial(device, limit_s)
            return PhoneStream(sock, secret)

        return Leg(
            device,
            session.id,
            match_key.rpartition(":")[0],
            dial,
            lambda: self._opened(held, session),
            lambda end: self._ended(held, session, end),
        )

    async def _until_ready(self, device: str, timeout_s: float, view: Callable[[str], DeviceView]) -> None:
        ready = asyncio.Event()

        def look(changed: DeviceView) -> None:
            if changed.name == device and changed.life is Life.READY:
                ready.set()

        unsubscribe = self._devices.subscribe(look)
        try:
            async with asyncio.timeout(timeout_s):
                await ready.wait()
        except TimeoutError as error:
            raise PhoneError(f"{device} is not ready: {unleasable_reason(view(device))}") from error
        finally:
            unsubscribe()

    def _opened(self, held: Held, session: Session) -> None:
        self._publish("session.opened", held, session, peer=str(session.peer))

    def _ended(self, held: Held, session: Session, end: SessionEnd) -> None:
        if end.outcome in _FARM_ENDED:
            self._publish("session.cut", held, session, reason=end.detail)
        self._publish(
            "session.ended",
            held,
            session,
            outcome=end.outcome.value,
            bytes_up=end.bytes_up,
            bytes_down=end.bytes_down,
            seconds=round(end.seconds, 3),
            detail=end.detail,
        )
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
