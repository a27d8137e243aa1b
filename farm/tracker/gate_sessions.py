"""What the daemon knows of the sessions at a gate apart: opened and dialled for it, taken up, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from farm.core.errors import FarmError
from farm.core.sessions import (
    Leg,
    MatchKeyBusyError,
    Peer,
    SessionEnd,
    SessionOutcome,
    Survivor,
    UnknownMatchKeyError,
)
from farm.tracker import gate_messages as m
from farm.tracker.gate import Route

STOPPING = "the farm is stopping"

log = logging.getLogger(__name__)


class Sends(Protocol):
    """Says something to the gate, as long as it is there."""

    def __call__(self, message: m.Message, carried: socket.socket | None = None) -> None:
        """OSError: no descriptor is left for the copy of `carried` that goes along."""


class AdoptingRoute(Route, Protocol):
    """A Route that can take up what was granted before it was there (farm.leasing)."""

    def adopt(self, survivor: Survivor, cut: Callable[[str], None]) -> Leg | None:
        """The leg of a session that goes on; None when no lease goes on for it."""


@dataclass(slots=True, eq=False)
class _Session:
    """What the daemon knows of one connection at the gate."""

    leg: Leg | None = None
    task: asyncio.Task[None] | None = None  # opens or dials
    survivor: Survivor | None = None  # of an earlier daemon, not taken up yet
    told: bool = True  # that it was opened
    end: SessionEnd | None = None  # of one that is not taken up yet


class GateSessions:
    """Every session at the gate, by the gate's number."""

    def __init__(self, route: AdoptingRoute, send: Sends) -> None:
        self._route = route
        self._send = send
        self._sessions: dict[int, _Session] = {}
        self.changed = asyncio.Event()  # a session is over

    def __len__(self) -> int:
        return sum(session.leg is not None for session in self._sessions.values())

    @property
    def survivors(self) -> tuple[Survivor, ...]:
        """Sessions that outlived an earlier daemon and are not taken up yet."""
        return tuple(
            replace(each.survivor, ended=each.end is not None)
            for each in self._sessions.values()
            if each.survivor is not None
        )

    def clear(self) -> None:
        """What a gate has told does not count."""
        self._sessions.clear()

    def end_all(self, reason: str) -> None:
        """The gate is gone, and every session with it."""
        for session in tuple(self._sessions.values()):
            if session.task is not None:
                session.task.cancel()
            if session.leg is not None:
                session.leg.ended(SessionEnd(SessionOutcome.CUT, detail=reason))
        self._sessions.clear()

    async def leave(self, limit_s: float) -> int:
        """Stop opening; sessions whose lease may go on without this daemon do: how many. The others are cut."""
        tasks = [each.task for each in self._sessions.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = 0
        for n, session in tuple(self._sessions.items()):
            if session.survivor is not None or (session.leg is not None and session.leg.leave()):
                left += 1
                del self._sessions[n]
            elif session.leg is not None:
                self._cut(n, STOPPING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while len(self):
                    self.changed.clear()
                    await self.changed.wait()
        return left

    # --- what the gate says ---------------------------------------------------------------------------------------

    def kept(self, message: m.Kept) -> None:
        """A session of an earlier daemon."""
        peer = Peer(message.address, message.port, message.user)
        survivor = Survivor(
            message.session, message.fence, message.device, message.key, peer, message.seconds, message.secret
        )
        self._sessions[message.n] = _Session(survivor=survivor, told=message.told)

    def open(self, message: m.Open) -> None:
        """Somebody shows a match key."""
        session = self._sessions[message.n] = _Session()
        session.task = asyncio.get_running_loop().create_task(self._open(message, session), name=f"session {message.n}")

    def dial(self, message: m.Dial) -> None:
        """The gate wants the phone of a granted session."""
        session = self._sessions.get(message.n)
        if session is not None and session.leg is not None:
            session.task = asyncio.get_running_loop().create_task(
                self._dial(message, session, session.leg), name=f"dial {message.n}"
            )

    def opened(self, n: int) -> None:
        """The phone's server has answered."""
        session = self._sessions.get(n)
        if session is None:
            return
        session.told = session.survivor is None  # else told when it is taken up
        if session.leg is not None:
            session.leg.opened()

    def _cut(self, n: int, reason: str) -> None:
        self._send(m.Cut(n, m.clip(reason)))

    async def _open(self, message: m.Open, session: _Session) -> None:
        n, peer = message.n, Peer(message.address, message.port, message.user)
        try:
            leg = await self._route.open(message.key, peer, message.timeout_s, lambda reason: self._cut(n, reason))
        except UnknownMatchKeyError as error:
            self._refuse(n, "unknown", error)
        except MatchKeyBusyError as error:
            self._refuse(n, "busy", error)
        except (FarmError, OSError) as error:
            self._refuse(n, "failed", error)
        else:
            session.leg = leg
            self._send(m.Granted(n, leg.session, leg.fence, leg.device, leg.key))
        session.task = None

    def _refuse(self, n: int, code: str, error: Exception) -> None:
        self._sessions.pop(n, None)
        self._send(m.Refused(n, code, m.clip(str(error) or "the phone could not be reached in time")))

    async def _dial(self, message: m.Dial, session: _Session, leg: Leg) -> None:
        try:
            stream = await leg.dial(message.timeout_s)
            with stream.sock:
                self._send(m.Stream(message.n, stream.server_secret), stream.sock)
        except (FarmError, OSError) as error:  # the gate ends the session
            said = str(error) or "the phone could not be reached in time"
            self._send(m.Refused(message.n, "failed", m.clip(said)))
        session.task = None

    def withdrawn(self, n: int) -> None:
        """Nobody waits for the answer any more."""
        session = self._sessions.pop(n, None)
        if session is None:
            return
        if session.leg is not None:
            session.leg.ended(SessionEnd(SessionOutcome.ABANDONED, detail="the client left while it was opened"))
        elif session.task is not None:
            session.task.cancel()

    def ended(self, message: m.Ended) -> None:
        """A session is over; whose lease is not taken up yet, is told then."""
        session = self._sessions.get(message.n)
        try:
            outcome = SessionOutcome(message.outcome)
        except ValueError:
            outcome = SessionOutcome.CUT
        end = SessionEnd(outcome, message.up, message.down, message.seconds, message.detail)
        if session is not None and session.survivor is not None:  # told when it is taken up
            session.end = end
            return
        self._over(message.n, end)

    def _over(self, n: int, end: SessionEnd) -> None:
        session = self._sessions.pop(n, None)
        self._send(m.Noted(n))
        if session is not None:
            if session.task is not None:
                session.task.cancel()
            if session.leg is not None:
                session.leg.ended(end)
        self.changed.set()

    def take_up(self) -> None:
        """Attach what was kept to its leases, and cut what has none."""
        for n, session in tuple(self._sessions.items()):
            survivor, session.survivor = session.survivor, None
            if survivor is None:
                continue
            session.leg = self._route.adopt(survivor, lambda reason, n=n: self._cut(n, reason))  # type: ignore[misc]
            if session.leg is None and session.end is None:
                log.warning("session %s of %s is cut: no lease goes on for it", survivor.session, survivor.device)
                self._cut(n, "no lease goes on for it")
            elif session.leg is not None and not session.told:
                session.leg.opened()
            if session.end is not None:
                self._over(n, session.end)
