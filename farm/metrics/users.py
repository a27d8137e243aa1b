"""A bounded set of names for labels."""

from __future__ import annotations

MOST_USERS = 20
OTHER = "other"


class FewUsers:
    """The first `most` users keep their names for good, so that their counters never jump; the rest are "other"."""

    def __init__(self, most: int = MOST_USERS) -> None:
        self._most = most
        self._known: set[str] = set()

    def name(self, user: str) -> str:
        """How this user is called in labels."""
        if user not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(user)
        return user or "farm"
