"""Bounds for all keys together and for each key, and the admission of clients within them. No I/O.

A key is a user, an address or a connection; an amount is a count or bytes. The caller of a `Limiter` asks `fits` before
it takes, and words the refusal itself. Every port that clients reach has a `ClientLimiter`, which counts a client
before anything is known of it: a burst is counted as it comes, and silent clients keep no other client out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping
from math import inf
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Limiter(Generic[Key]):
    """Counts the units that each key holds. A key that has given everything back is forgotten."""

    def __init__(
        self,
        total: float = inf,
        per_key: float = inf,
        *,
        reserved: int = 0,
        operators: Container[Key] = (),
        bounds: Mapping[Key, float] | None = None,
    ) -> None:
        """Begin with nothing taken.

        Args:
            total: the bound of all keys together.
            per_key: the bound of one key.
            reserved: the part of `total` that only `operators` may take.
            operators: keys without a bound of their own.
            bounds: of keys, in place of `per_key`.
        """
        self.total = total
        self.per_key = per_key
        self._reserved = reserved
        self._operators = operators
        self._bounds = bounds or {}
        self._taken: Counter[Key] = Counter()
        self.taken: int = 0

    @classmethod
    def shared(cls, total: int, parts: int, *, at_least: int = 0) -> Limiter[Key]:
        """One key may take at most such a part of the total, so that no caller shuts the others out."""
        return cls(total, max(at_least, total // parts))

    def of(self, key: Key) -> int:
        """The amount that the key has taken."""
        return self._taken[key]

    def key_fits(self, key: Key, amount: int = 1) -> bool:
        """Whether the key stays within its bound with so much more."""
        return key in self._operators or self._taken[key] + amount <= self._bounds.get(key, self.per_key)

    def total_fits(self, key: Key, amount: int = 1) -> bool:
        """Whether all keys together stay within this key's part of the total."""
        return self.taken + amount <= self.total - (0 if key in self._operators else self._reserved)

    def may_displace(self, key: Key, other: Key) -> bool:
        """Whether `other` may have to make room for the key: operators do for operators only."""
        return other not in self._operators or key in self._operators

    def fits(self, key: Key, amount: int = 1) -> bool:
        """Whether the key may take so much more."""
        return self.key_fits(key, amount) and self.total_fits(key, amount)

    def take(self, key: Key, amount: int = 1) -> None:
        """Count the amount even beyond the bound."""
        self._taken[key] += amount
        self.taken += amount

    def give_back(self, key: Key, amount: int = 1) -> None:
        """End `take`."""
        self._taken[key] -= amount
        self.taken -= amount
        if not self._taken[key]:
            del self._taken[key]

    def set(self, key: Key, amount: int) -> None:
        """Let the key have taken this much, no more and no less."""
        self.taken += amount - self._taken.pop(key, 0)
        if amount:
            self._taken[key] = amount

    @property
    def largest(self) -> Key:
        """The key that has taken most; of equals, the one that was set first."""
        return max(self._taken, key=self._taken.__getitem__)


class ClientPlace(Generic[Key]):
    """One client's place at a port."""

    def __init__(self, key: Key, cut: Callable[[], object]) -> None:
        self.key = key
        self.cut = cut
        self.over = False  # the client has left, or was cut


class ClientLimiter(Generic[Key]):
    """Gives each client of a port a place, counted from its first moment until it leaves.

    A client is silent until `mark_active`. A silent one makes room for another client: the oldest of the same key where
    the key is at its bound, and where the port is full the oldest of the key with the most silent clients.
    """

    def __init__(self, limiter: Limiter[Key]) -> None:
        self.limiter = limiter
        self._silent: dict[Key, dict[ClientPlace[Key], None]] = {}  # the oldest first

    def enter(self, key: Key, cut: Callable[[], object]) -> ClientPlace[Key] | None:
        """A place, to be given back by `leave`; None: there is none.

        `cut` ends the client to make room for another one. It returns False if the client is not silent any more.
        """
        place = self.count(key, cut)
        if self.make_room(place):
            return place
        self.leave(place)
        return None

    def count(self, key: Key, cut: Callable[[], object]) -> ClientPlace[Key]:
        """Count a client even beyond the bound; `make_room` follows."""
        self.limiter.take(key)
        return ClientPlace(key, cut)

    def make_room(self, place: ClientPlace[Key]) -> bool:
        """Cut silent clients until this one fits; False: it does not."""
        while not self.limiter.key_fits(place.key, 0):
            if place.key not in self._silent:
                return False
            self._cut_oldest(place.key)
        while not self.limiter.total_fits(place.key, 0):
            others = [key for key in self._silent if self.limiter.may_displace(place.key, key)]
            if not others:
                return False
            self._cut_oldest(max(others, key=lambda key: len(self._silent[key])))
        self.mark_silent(place)
        return True

    @property
    def full(self) -> bool:
        """Whether a further client would find no place."""
        return self.limiter.taken >= self.limiter.total and not self._silent

    def mark_silent(self, place: ClientPlace[Key]) -> None:
        """The client has nothing under way. Clients that are silent already are cut before it."""
        self.mark_active(place)
        if not place.over:
            self._silent.setdefault(place.key, {})[place] = None

    def mark_active(self, place: ClientPlace[Key]) -> None:
        """The client has said what it wants, and keeps its place."""
        silent = self._silent.get(place.key, {})
        silent.pop(place, None)
        if not silent:
            self._silent.pop(place.key, None)

    def rename(self, place: ClientPlace[Key], key: Key) -> None:
        """Count the client under another key, such as its user; `make_room` follows."""
        self.mark_active(place)
        self.limiter.give_back(place.key)
        self.limiter.take(key)
        place.key = key

    def leave(self, place: ClientPlace[Key]) -> None:
        """Give a place back. Harmless when repeated."""
        if not place.over:
            self.mark_active(place)
            place.over = True
            self.limiter.give_back(place.key)

    def _cut_oldest(self, key: Key) -> None:
        place = next(iter(self._silent[key]))
        if place.cut() is False:
            self.mark_active(place)
        else:
            self.leave(place)
