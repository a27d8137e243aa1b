"""The phone of one lease, made quiet before its first session, and changed back before anybody else gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.core.errors import FarmError
from farm.core.quiesce import Level, QuiesceConfig, describe, not_quiet
from farm.fleet.quiesce import Quieting
from farm.jobs.executor import Running
from farm.leasing import Leasing


@dataclass(slots=True)
class QuietParts:
    """What it takes. `config` may be exchanged: leases that have begun keep what they began with."""

    phones: Quieting
    leases: Leasing
    config: QuiesceConfig


class QuietLease:
    """One lease's phone. `begin` any number of times, `end` once, whatever happened.

    Until `end` has worked, the lease is one whose phone must be cleaned and checked: however it ends (its phone lost,
    taken away, the daemon killed), the life cycle changes the phone back before anybody gets it.
    """

    def __init__(self, parts: QuietParts, running: Running, lease: str, device: str) -> None:
        asked = getattr(running.spec, "quiesce", None)
        self._parts = parts
        self._running = running
        self._lease = lease
        self._device = device
        self._asked = asked is not None
        self._config = parts.config
        self._level = parts.config.of(running.spec.kind, asked)
        self._begun = False
        self._cut = False  # cancelled while it was begun: the phone may hear of it after an end
        self._told = not_quiet("")
        self._changed = False

    async def begin(self) -> None:
        """Make the phone quiet, if it is not yet. What a phone refuses is told, and measured without."""
        if self._begun or self._level is Level.OFF:
            return
        if not self._parts.leases.changed_phone(self._lease, changed=True):
            return
        self._begun = self._cut = True
        try:
            quiet = await self._parts.phones.begin(self._device, self._level, self._lease, self._config.restore_after_s)
        except FarmError as error:
            self._running.log(f"{self._device} is measured as it is: {error.message}", "warning")
            self._told = not_quiet(error.message)
        else:
            self._told, self._changed = quiet.to_wire(), quiet.changed
        self._cut = False

    async def end(self) -> None:
        """Change the phone back, if this lease still has it."""
        leases, begun, self._begun = self._parts.leases, self._begun, False
        if not begun or self._cut or not leases.changed_phone(self._lease, changed=True):
            return
        try:
            restored = await self._parts.phones.end(self._device, self._lease)
        except FarmError as error:
            self._running.log(f"{self._device} is cleaned and checked: {error.message}", "warning")
        else:
            leases.changed_phone(self._lease, changed=False)
            if self._changed and not restored.restored and not restored.left:
                self._told = not_quiet("it changed itself back, or was rebooted, while it measured")

    def to_wire(self) -> Mapping[str, Any]:
        """What was in force, for the certificate."""
        return self._told

    def notes(self) -> list[str]:
        """What people should read beside the number: all of it, if the job asked for a level; pinned clocks anyway."""
        told = [describe(self._told)] if self._asked else []
        if pinned := self._told["pinned"]:
            told.append(f"clocks pinned at their highest: {', '.join(pinned)}; heat still lowers them")
        return told
