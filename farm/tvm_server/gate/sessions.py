"""The daemon's record of the sessions at a gate process: opened and dialled for it, adopted, ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from farm.common.errors import FarmError
from farm.common.tasks import at_most, end_tasks
from farm.model.sessions import (
    STOPPING,
    MatchKeyBusyError,
    NoSuchMatchKeyError,
    OrphanedSession,
    SessionEnd,
    SessionOutcome,
    UpstreamSession,
)
from farm.tvm_server.gate import messages as m
from farm.tvm_server.gate.gate import Route

log = logging.getLogger(__name__)


class AdoptingRoute(Route, Protocol):
    """A Route that can take up leases that were granted before it was there (farm.leasing)."""

    def adopt(self, orphan: OrphanedSession, cut: Callable[[str], None]) -> UpstreamSession | None:
        """The upstream side of a session that continues; None when no lease continues for it."""


@dataclass(slots=True, eq=False)
class _SessionAtGate:
    """One connection at the gate, as the daemon knows it."""

    upstream: UpstreamSession | None = None
    task: asyncio.Task[None] | None = None  # opens or dials
    orphan: OrphanedSession | None = None  # of an earlier daemon, not taken up yet
    reported: bool = True  # that it was opened
    end: SessionEnd | None = None  # of one that is not taken up yet


class GateSessions:
    """Every session at the gate, by the gate's number."""

    def __init__(self, route: AdoptingRoute, send: Callable[..., None]) -> None:
        """`send(message, carried=None)` sends to the gate, while it is there; OSError: no descriptor is left."""
        self._route = route
        self._send = send
        self._sessions: dict[int, _SessionAtGate] = {}
        self.changed = asyncio.Event()  # a session is over

    def __len__(self) -> int:
        return sum(session.upstream is not None for session in self._sessions.values())

    @property
    def orphans(self) -> tuple[OrphanedSession, ...]:
        """Sessions that outlived an earlier daemon and are not taken up yet."""
        return tuple(
            replace(each.orphan, ended=each.end is not None)
            for each in self._sessions.values()
            if each.orphan is not None
        )

    def clear(self) -> None:
        """Forget the sessions that a gate reported before its link was complete."""
        self._sessions.clear()

    def end_all(self, reason: str) -> None:
        """The gate is gone, and every session with it."""
        for session in tuple(self._sessions.values()):
            if session.task is not None:
                session.task.cancel()
            if session.upstream is not None:
                session.upstream.ended(SessionEnd(SessionOutcome.CUT, detail=reason))
        self._sessions.clear()

    async def detach(self, limit_s: float, *, may_go_on: bool = True) -> int:
        """Stop opening; sessions whose lease may continue without this daemon do: how many. The others are cut.

        Not `may_go_on`: all are cut.
        """
        await end_tasks(*(each.task for each in self._sessions.values() if each.task is not None))
        detached = 0
        for n, session in tuple(self._sessions.items()):
            upstream = session.upstream
            if session.orphan is not None or (may_go_on and upstream is not None and upstream.detach()):
                detached += 1
                del self._sessions[n]
            elif upstream is not None:
                self._cut(n, STOPPING)
        async with at_most(limit_s):
            while len(self):
                self.changed.clear()
                await self.changed.wait()
        return detached

    # --- messages of the gate -------------------------------------------------------------------------------------

    def kept(self, message: m.KeptSession) -> None:
        """A session of an earlier daemon."""
        self._sessions[message.n] = _SessionAtGate(orphan=message.session, reported=message.reported)

    def open(self, message: m.OpenSession) -> None:
        """A client shows a match key."""
        session = self._sessions[message.n] = _SessionAtGate()
        session.task = asyncio.get_running_loop().create_task(self._open(message, session), name=f"session {message.n}")

    def dial(self, message: m.DialPhone) -> None:
        """The gate wants the phone of a granted session."""
        session = self._sessions.get(message.n)
        if session is not None and session.upstream is not None:
            session.task = asyncio.get_running_loop().create_task(
                self._dial(message, session, session.upstream), name=f"dial {message.n}"
            )

    def opened(self, n: int) -> None:
        """The phone's server has answered."""
        session = self._sessions.get(n)
        if session is None:
            return
        session.reported = session.orphan is None  # else reported when it is taken up
        if session.upstream is not None:
            session.upstream.opened()

    def _cut(self, n: int, reason: str) -> None:
        self._send(m.CutSession(n, m.clip(reason)))

    async def _open(self, message: m.OpenSession, session: _SessionAtGate) -> None:
        n = message.n
        try:
            upstream = await self._route.open(
                message.key, message.peer, message.timeout_s, lambda reason: self._cut(n, reason)
            )
        except NoSuchMatchKeyError as error:
            self._refuse(n, "unknown", error)
        except MatchKeyBusyError as error:
            self._refuse(n, "busy", error)
        except (FarmError, OSError) as error:
            self._refuse(n, "failed", error)
        else:
            session.upstream = upstream
            self._send(
                m.SessionGranted(n, upstream.session, upstream.fence, upstream.device, upstream.key, upstream.elsewhere)
            )
        session.task = None

    def _refuse(self, n: int, code: str, error: Exception) -> None:
        self._sessions.pop(n, None)
        self._send(_refusal(n, code, error))

    async def _dial(self, message: m.DialPhone, session: _SessionAtGate, upstream: UpstreamSession) -> None:
        try:
            stream = await upstream.dial(message.timeout_s)
            with stream.sock:
                self._send(m.PhoneDialled(message.n, stream.server_secret), stream.sock)
        except (FarmError, OSError) as error:  # the gate ends the session
            self._send(_refusal(message.n, "failed", error))
        session.task = None

    def ended(self, message: m.SessionEnded) -> None:
        """A session is over, or its client left before it was granted; one to be adopted is reported when it is."""
        session = self._sessions.get(message.n)
        if session is not None and session.orphan is not None:
            session.end = message.end
        else:
            self._over(message.n, message.end)

    def _over(self, n: int, end: SessionEnd) -> None:
        session = self._sessions.pop(n, None)
        self._send(m.Notice(m.Signal.END_NOTED, n))
        if session is not None:
            if session.task is not None:
                session.task.cancel()
            if session.upstream is not None:
                session.upstream.ended(end)
        self.changed.set()

    def adopt_all(self) -> None:
        """Attach the kept sessions to their leases, and cut those that have none."""
        for n, session in tuple(self._sessions.items()):
            orphan, session.orphan = session.orphan, None
            if orphan is None:
                continue
            session.upstream = self._route.adopt(orphan, lambda reason, n=n: self._cut(n, reason))  # type: ignore[misc]
            if session.upstream is None and session.end is None:
                log.warning("session %s of %s is cut: no lease continues for it", orphan.session, orphan.device)
                self._cut(n, "no lease continues for it")
            elif session.upstream is not None and not session.reported:
                session.upstream.opened()
            if session.end is not None:
                self._over(n, session.end)


def _refusal(n: int, code: str, error: Exception) -> m.SessionRefused:
    return m.SessionRefused(n, code, m.clip(str(error) or "the phone could not be reached in time"))
