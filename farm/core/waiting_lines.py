"""Who waits, and in which order they are served.

A line is what one user wants of one kind: same user, same priority, same devices. Inside a line it is first come, first
served. The order of the lines for a device:

1. Starved lines: those that got nothing for `starved_s` (since they began, or since they were served last), the longest
   first. So no line goes without a phone for longer than `starved_s` and the time that the lines which starve for
   longer need, whatever priority and share of others; and one user's ten thousand jobs still cannot displace another's,
   because each line is served in this way once in `starved_s` only.
2. Higher priority.
3. Users who have had less for their weight (`farm.core.shares`); when equal, whose first request is older.
4. The older request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import takewhile

from farm.core.allocator_index import Group
from farm.core.requests import LeaseRequest


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A request without a device."""

    id: str
    request: LeaseRequest
    line: Line
    arrival: int  # 1 for the first request ever
    lasts_s: float  # how long its lease is taken to last


@dataclass(slots=True, eq=False)
class Line:
    """Requests of one user and priority for the same devices, by arrival."""

    user: str
    priority: int
    group: Group
    turn: int  # grows with every line that begins or is served: sorts as `since_s`, without ties
    since_s: float  # when it was last served, or began
    lasts_s: float  # none of its requests was ever taken to last shorter
    queue: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)

    @property
    def first(self) -> Waiting:
        """Who is served next."""
        return next(iter(self.queue.values()))


@dataclass(slots=True, eq=False)
class _Claim:
    """What one user waits for with one priority."""

    lines: dict[Group, Line] = field(default_factory=dict)
    queue: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)


class Lines:
    """Every waiting request."""

    def __init__(self, starved_s: float) -> None:
        """Begin empty; `starved_s` is the bound of rule 1."""
        self._starved_s = starved_s
        self._waiting: dict[str, Waiting] = {}
        self._tiers: dict[int, dict[str, _Claim]] = {}  # by priority, then user
        self._by_turn: OrderedDict[Line, None] = OrderedDict()
        self._arrivals = 0
        self._turns = 0

    @property
    def waiting(self) -> Mapping[str, Waiting]:
        """Everybody who waits, by request id, in order of arrival."""
        return self._waiting

    @property
    def longest_first(self) -> Iterable[Line]:
        """All of them, by how long they have got nothing."""
        return self._by_turn

    def join(self, request_id: str, request: LeaseRequest, group: Group, lasts_s: float, now_s: float) -> Waiting:
        """Stand at the end of the line; the lease is taken to last `lasts_s`."""
        self._arrivals += 1
        claim = self._tiers.setdefault(request.priority, {}).setdefault(request.user, _Claim())
        line = claim.lines.get(group)
        if line is None:
            self._turns += 1
            line = Line(request.user, request.priority, group, self._turns, now_s, lasts_s)
            claim.lines[group] = line
            group.lines[request.priority, request.user] = line
            self._by_turn[line] = None
        line.lasts_s = min(line.lasts_s, lasts_s)
        waiting = Waiting(request_id, request, line, self._arrivals, lasts_s)
        line.queue[request_id] = claim.queue[request_id] = self._waiting[request_id] = waiting
        return waiting

    def served(self, waiting: Waiting, now_s: float) -> None:
        """A request got its device: its line starts to wait anew."""
        line = waiting.line
        self._turns += 1
        line.turn, line.since_s = self._turns, now_s
        self._by_turn.move_to_end(line)
        line.group.lines.move_to_end((line.priority, line.user))
        self.leave(waiting)

    def leave(self, waiting: Waiting) -> None:
        """Go away."""
        line = waiting.line
        tier = self._tiers[line.priority]
        claim = tier[line.user]
        del self._waiting[waiting.id], line.queue[waiting.id], claim.queue[waiting.id]
        if line.queue:
            return
        del claim.lines[line.group], self._by_turn[line], line.group.lines[line.priority, line.user]
        if not claim.lines:
            del tier[line.user]
            if not tier:
                del self._tiers[line.priority]

    def starves(self, line: Line, now_s: float) -> bool:
        """Whether the line goes before all that do not."""
        return line.since_s <= now_s - self._starved_s

    def starving(self, now_s: float) -> Iterator[Line]:
        """Starved lines, the longest first."""
        return takewhile(lambda line: self.starves(line, now_s), self._by_turn)

    def claims(
        self, now_s: float, turns: Callable[[Mapping[str, object], float], Mapping[str, float]]
    ) -> Iterator[tuple[int, str, float, Iterable[Waiting]]]:
        """Priority, user, how much they have had, and their requests by arrival; as served, starvation apart."""
        for priority in sorted(self._tiers, reverse=True):
            claims = self._tiers[priority]
            turn = turns(claims, now_s)
            for user in sorted(claims, key=lambda user: (turn[user], _oldest(claims[user]))):
                yield priority, user, turn[user], claims[user].queue.values()

    def in_order(
        self,
        groups: set[Group],
        now_s: float,
        turns: Callable[[Mapping[str, object], float], Mapping[str, float]],
        may: Callable[[str], bool],
    ) -> Iterator[Line]:
        """Lines of `groups` as they are served; a starved line comes twice. Whatever changes, begin anew.

        Args:
            groups: whose lines.
            now_s: the time.
            turns: how much each of some users has had (`Ledger.turns`).
            may: whether a user may have a device at all.
        """
        for line in self._starved(groups, now_s):
            if may(line.user):
                yield line
        for priority in sorted(self._tiers, reverse=True):
            tier = self._tiers[priority].items()
            claims = {user: claim for user, claim in tier if not groups.isdisjoint(claim.lines) and may(user)}
            turn = turns(claims, now_s)
            for user in sorted(claims, key=lambda user: (turn[user], _oldest(claims[user]))):
                claim = claims[user]
                lines = [claim.lines[group] for group in claim.lines.keys() & groups]
                lines.sort(key=lambda line: line.first.arrival)
                yield from lines

    def _starved(self, groups: Iterable[Group], now_s: float) -> Iterator[Line]:
        oldest = next(iter(self._by_turn), None)
        if oldest is None or not self.starves(oldest, now_s):
            return
        fronts = []
        for group in groups:
            rest = iter(group.lines.values())
            line = next(rest, None)
            if line is not None and self.starves(line, now_s):
                fronts.append((line.turn, line, rest))
        heapify(fronts)
        while fronts and self.starves((front := fronts[0])[1], now_s):
            yield front[1]
            following = next(front[2], None)
            if following is None:
                heappop(fronts)
            else:
                heapreplace(fronts, (following.turn, following, front[2]))


def _oldest(claim: _Claim) -> int:
    return next(iter(claim.queue.values())).arrival
