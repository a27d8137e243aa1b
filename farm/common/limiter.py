"""The one admission limiter: bounds for all keys together, and for each of them. No I/O.

A key is a user, an address or a connection; an amount is a count or bytes. The caller asks `fits` before it takes, and
words the refusal itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable
from math import inf
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Limiter(Generic[Key]):
    """Counts the units that each key holds. A key that has given everything back is forgotten."""

    def __init__(
        self, total: float = inf, per_key: float = inf, *, reserved: int = 0, operators: Container[Key] = ()
    ) -> None:
        """Begin with nothing taken.

        Args:
            total: the bound of all keys together.
            per_key: the bound of one key.
            reserved: the part of `total` that only `operators` may take.
            operators: keys without a bound of their own.
        """
        self.total = total
        self.per_key = per_key
        self._reserved = reserved
        self._operators = operators
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
        return key in self._operators or self._taken[key] + amount <= self.per_key

    def total_fits(self, key: Key, amount: int = 1) -> bool:
        """Whether all keys together stay within this key's part of the total."""
        return self.taken + amount <= self.total - (0 if key in self._operators else self._reserved)

    def fits(self, key: Key, amount: int = 1) -> bool:
        """Whether the key may take so much more."""
        return self.key_fits(key, amount) and self.total_fits(key, amount)

    def take(self, key: Key, amount: int = 1) -> None:
        """Count, whether it fits or not."""
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
