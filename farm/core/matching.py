"""Maximum bipartite matching that grows by one vertex at a time (augmenting paths).

The vertices that can be matched together form a matroid (Edmonds and Fulkerson 1965: transversal matroids), so adding
them greedily in order of merit matches as many as possible AND the most deserving of them; whoever could not be added
once never can be later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Left = TypeVar("Left", bound=Hashable)
Right = TypeVar("Right", bound=Hashable)


class Matching(Generic[Left, Right]):
    """Who of the left is matched with whom of the right."""

    def __init__(self) -> None:
        self.right_of: dict[Left, Right] = {}
        self.left_of: dict[Right, Left] = {}
        self._suits: dict[Left, Iterable[Right]] = {}

    def add(self, left: Left, suits: Iterable[Right]) -> bool:
        """Match `left` with one of `suits`, if need be by matching others anew; they all stay matched.

        Args:
            left: a new vertex.
            suits: its neighbours, tried in this order; iterated several times.

        Returns:
            Whether it could be matched; if not, nothing has changed.
        """
        self._suits[left] = suits
        reached_from: dict[Right, Left] = {}
        frontier = deque((left,))
        while frontier:
            current = frontier.popleft()
            for right in self._suits[current]:
                if right in reached_from:
                    continue
                reached_from[right] = current
                holder = self.left_of.get(right)
                if holder is None:
                    self._shift(left, right, reached_from)
                    return True
                frontier.append(holder)
        del self._suits[left]
        return False

    def _shift(self, left: Left, right: Right, reached_from: dict[Right, Left]) -> None:
        """Walk the path back: each takes the next one's, the last one takes `right`, which was free."""
        while True:
            current = reached_from[right]
            before = self.right_of.get(current)
            self.right_of[current] = right
            self.left_of[right] = current
            if current == left or before is None:
                return
            right = before
