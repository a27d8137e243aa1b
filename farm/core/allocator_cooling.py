"""A line that starves while heat closes every phone to it has one of them kept cool.

A farm that is kept warm by tuning would else let a benchmark wait without bound: no phone ever cools, and a claim to
the next one that comes free is of no use. The rule:

- A line claims a phone when it has starved, its user may have one more, each phone that it might have soon (nobody has
  it, or a tune lease, which yields) is closed to its class, and for heat at least one of them. It claims the one that
  opens soonest. A line has one claim, a phone is claimed by one line; the line that waits longest comes first.
- A claimed phone is kept from all others but those who starve for longer, and people's own leases that do not tune
  (`State.kept_from`). A tune lease on it is asked to yield (`farm.core.allocator_yields`). When somebody gets it who
  does not yield, the line claims another one.
- The claim lasts until the line is served, and `cooling_hold_s` at most; then the line starves anew before it claims
  again, so that a phone which cannot cool is of use to others for `starved_s` at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nextafter

from farm.core.allocator_index import Group
from farm.core.allocator_state import KeptCool, State
from farm.core.waiting_lines import Line


class Cooling:
    """Makes and ends the claims in `State.kept`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._until_s: dict[Line, float] = {}  # ends of the claims of lines that have not been served since
        self._look_s = inf

    def next_look_s(self) -> float | None:
        """When a claim may begin or end because of time alone; None: never."""
        return None if self._look_s == inf else self._look_s

    def decide(self) -> set[str]:
        """End claims and make new ones; returns the devices whose claim has ended, be they claimed by others now."""
        state = self._state
        self._look_s = inf
        if not state.kept and not self._until_s and not any(state.warm.values()):
            return set()
        self._until_s = {line: at_s for line, at_s in self._until_s.items() if line.queue and state.starves(line)}
        before = dict(state.kept)
        for device, kept in tuple(state.kept.items()):
            if not (kept.line in self._until_s and kept.until_s > state.now_s and self._may_have(kept.line, device)):
                del state.kept[device]
        for line, device in self._claims():
            until_s = self._until_s.get(line)
            if until_s is None or until_s <= state.now_s:
                until_s = self._until_s[line] = state.now_s + state.policy.cooling_hold_s
            state.kept[device] = KeptCool(line, until_s)
        for kept in state.kept.values():
            self._look_at(kept.until_s)
        return {device for device, kept in before.items() if state.kept.get(device) != kept}

    def _claims(self) -> Iterator[tuple[Line, str]]:
        """Who claims which device now, those who wait longest first."""
        state = self._state
        claiming = {kept.line for kept in state.kept.values()}
        starving = [line for group in self._groups() for line in self._starving(group) if line not in claiming]
        for line in sorted(starving, key=lambda line: line.turn):
            if not state.ledger.may_hold_more(line.user) or not self._may_claim(line):
                continue
            soon = [device for device in line.group.devices if self._may_have(line, device)]
            lease_class = line.group.meaning.lease_class
            if all(device in state.closed[lease_class] for device in soon):
                warm = [device for device in soon if device in state.warm[lease_class] and device not in state.kept]
                if warm:
                    yield line, min(warm, key=lambda device: (state.opens_at_s(device, lease_class), device))

    def _groups(self) -> Iterator[Group]:
        """Groups with waiting requests that heat keeps from a device, and for none of whose devices that is vain."""
        state = self._state
        for lease_class, warm in state.warm.items():
            if not warm:
                continue
            might_have = state.free.union(filter(state.soon, state.held)) - state.closed[lease_class]
            for group in state.index.waiting_groups(warm):
                if group.meaning.lease_class is lease_class and (
                    state.reservations or group.devices.isdisjoint(might_have)
                ):
                    yield group

    def _starving(self, group: Group) -> Iterator[Line]:
        for line in group.lines.values():
            if not self._state.starves(line):
                self._look_at(line.since_s + self._state.policy.starved_s)
                return  # those behind it began later
            yield line

    def _may_claim(self, line: Line) -> bool:
        """Whether the line has a claim, or has starved anew since its last one ended."""
        until_s, now_s = self._until_s.get(line), self._state.now_s
        if until_s is None or now_s < until_s:
            return True
        again_s = until_s + self._state.policy.starved_s
        if now_s < again_s:
            self._look_at(again_s)
        return now_s >= again_s

    def _may_have(self, line: Line, device: str) -> bool:
        """Whether the line would get the device soon, were it open to it and nobody before it."""
        state = self._state
        return device in line.group.devices and state.soon(device) and bool(state.unreserved(line.first, {device}))

    def _look_at(self, at_s: float) -> None:
        # Rounding may put the moment a hair before the one from which on the answer is another.
        self._look_s = min(self._look_s, max(at_s, nextafter(self._state.now_s, inf)))
