"""Places that all users share, and nobody may have for himself. Values only, no I/O."""

from __future__ import annotations

from collections import Counter

PARTS = 4  # one user has at most a quarter: whoever takes that much leaves room for the others
FEWEST = 16  # of one user, however few there are


class Places:
    """How many of `most` places each user has taken."""

    def __init__(self, most: int) -> None:
        """`most`: of all users together; whether to go on above that is the caller's choice."""
        self.most = most
        self.share = max(FEWEST, most // PARTS)
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of.total()

    @property
    def full(self) -> bool:
        """Whether all are taken."""
        return len(self) >= self.most

    def used_up(self, user: str) -> bool:
        """Whether `user` has a whole share."""
        return self._of[user] >= self.share

    def take(self, user: str) -> None:
        """`user` has one more."""
        self._of[user] += 1

    def leave(self, user: str) -> None:
        """`user` has one less; who has none is forgotten."""
        self._of[user] -= 1
        if not self._of[user]:
            del self._of[user]


def why_not_wait(places: Places, user: str) -> str:
    """Why `user` may not wait for an absent daemon; "" when there is room."""
    if places.full:
        return f"the farm's daemon is away, and {places.most} wait for it already"
    if places.used_up(user):
        return f"the farm's daemon is away, and {places.share} of {user} wait for it already"
    return ""
