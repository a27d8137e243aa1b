"""Who is signed in: sessions of this daemon's life, by the cookie that a browser keeps. No I/O."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

IDLE_S = 8 * 3600.0  # a working day
LONGEST_S = 24 * 3600.0
MOST_SESSIONS = 256
ID_BYTES = 32


@dataclass(slots=True)
class Session:
    """One browser that showed a token."""

    id: str
    csrf: str
    account: str
    began_s: float
    seen_s: float
    notice: str = ""  # said on the next page, once


class Sessions:
    """Sessions by the value of their cookie; the one unused for longest makes room."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, account: str) -> Session:
        """A new session of an account whose token was shown."""
        now = self._clock()
        session = Session(secrets.token_urlsafe(ID_BYTES), secrets.token_urlsafe(ID_BYTES), account, now, now)
        while len(self._sessions) >= MOST_SESSIONS:
            self._sessions.popitem(last=False)
        self._sessions[session.id] = session
        return session

    def get(self, session_id: str) -> Session | None:
        """The session of a cookie, if it is not over."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        now = self._clock()
        if now - session.seen_s > IDLE_S or now - session.began_s > LONGEST_S:
            self.end(session_id)
            return None
        session.seen_s = now
        self._sessions.move_to_end(session_id)
        return session

    def end(self, session_id: str) -> None:
        """Sign out."""
        self._sessions.pop(session_id, None)

    def end_of(self, account: str) -> None:
        """End every session of an account that is revoked."""
        for session in [each for each in self._sessions.values() if each.account == account]:
            self.end(session.id)
