"""Whether a phone that adb lists under a new serial is one that the farm remembers under another.

A phone states its own serial number (ro.serialno) itself: another may state the same, by chance (boards and clones ship
with default numbers) or on purpose. So more must agree, and a number that two devices had at once proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from farm.core.identity import DeviceIdentity
from farm.core.lifecycle_state import LINK_DOWN
from farm.fleet.agent import Agent

_DEFAULTS = frozenset({"0123456789abcdef", "1234567890abcdef", "123456789", "1234567890", "unknown", "emulator", "n/a"})


def tells(hardware_serial: str) -> bool:
    """Whether a serial number may be one phone's own: no maker's default, not all one character."""
    plain = hardware_serial.strip().lower()
    return len(set(plain)) > 1 and plain not in _DEFAULTS


def same_kind(one: DeviceIdentity | None, other: DeviceIdentity | None) -> bool:
    """Whether both are known to be of one vendor and model (an update changes the fingerprint, not these)."""
    if one is None or other is None:
        return False
    return (one.vendor, one.model, one.abi) == (other.vendor, other.model, other.abi)


class SerialHistory:
    """Which serial numbers were seen twice, and whose record came from where. Of one run of the daemon."""

    def __init__(self) -> None:
        self._shared: set[str] = set()
        self._came_from: dict[str, str] = {}  # serial in adb's list -> the one before

    def note(self, agent: Agent, identity: DeviceIdentity, agents: Iterable[Agent]) -> None:
        """A device was identified: does another that is there now state the same number?"""
        if any(_is_there(other) and _number(other) == identity.hardware_serial for other in agents if other != agent):
            self._shared.add(identity.hardware_serial)

    def may_follow(self, identity: DeviceIdentity, former: Agent, *, by_rule: bool) -> bool:
        """Whether the record of `former`, which adb does not list, is that of the device identified now.

        `by_rule`: a rule adopts the device anyway; else one whose model nobody remembers is nobody.
        """
        number = identity.hardware_serial
        if not tells(number) or number in self._shared:
            return False
        return same_kind(identity, former.identity) if former.identity is not None else by_rule

    def traded(self, identity: DeviceIdentity, own: str, former: Agent, *, by_rule: bool) -> bool:
        """Whether the device identified now, where one of number `own` is remembered, is what `former` was.

        Two phones trade serials when both were away (network addresses dealt anew, equal numbers told apart by ports).
        """
        return (
            tells(own)
            and own not in self._shared
            and not _is_there(former)
            and self.may_follow(identity, former, by_rule=by_rule)
        )

    def moved(self, serial: str, to: str) -> None:
        """A record moved."""
        if self._came_from.pop(serial, None) != to:
            self._came_from[to] = serial

    def is_home(self, serial: str, record_serial: str) -> bool:
        """Whether the record that is at `record_serial` now came from `serial`."""
        return self._came_from.get(record_serial) == serial


def _is_there(agent: Agent) -> bool:
    return agent.device is not None and agent.state.identified and agent.state.life not in LINK_DOWN


def _number(agent: Agent) -> str:
    return agent.identity.hardware_serial if agent.identity else ""


def claimed(agent: Agent, agents: Iterable[Agent]) -> bool:
    """Whether another device that is there states the same serial number, or has the same port."""
    number = _number(agent)
    others = [other for other in agents if other is not agent and _is_there(other)]
    return any((number and _number(other) == number) or other.place == agent.place for other in others)


def sick_twin(agent: Agent, agents: Iterable[Agent]) -> Agent | None:
    """Another adopted device in quarantine that says it is the same phone."""
    number = _number(agent)
    for other in agents:
        if other is agent or not tells(number) or _number(other) != number:
            continue
        if other.state.adopted and other.state.quarantine is not None and same_kind(agent.identity, other.identity):
            return other
    return None
