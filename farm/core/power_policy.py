"""Who switches the power of which USB port, and where phones are that nobody can see: `[power]` and `[usb]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from farm.core.attribution import UsbPlace

TIMEOUT_S = 20.0  # of one call: uhubctl talks to every hub of the host, each of which may take USB's 5 s to answer

Switch = Literal["", "uhubctl", "command", "none"]


@dataclass(frozen=True, slots=True)
class PowerRule:
    """Who switches a hub's ports, or one port. What is left out is taken from `[power]`."""

    switch: Switch = ""  # who cuts: "uhubctl", "command" (off and on below), "none"; empty: as [power] says
    off: tuple[str, ...] = ()  # the words of a command, never a shell's line
    on: tuple[str, ...] = ()  # likewise
    state: tuple[str, ...] = ()  # a command that prints on or off; without one the others' exit codes are believed
    fields: Mapping[str, str] = field(default_factory=dict)  # what {name} in the words stands for


@dataclass(frozen=True, slots=True)
class PowerConfig(PowerRule):
    """`[power]`: for every hub without a table of its own; `[power.hub."1-4"]` or one port, `[power.hub."1-4.2"]`."""

    switch: Switch = "uhubctl"  # used only if it is installed
    uhubctl: str = ""  # the program; empty: PATH
    timeout_s: float = TIMEOUT_S  # for one call
    hub: Mapping[str, PowerRule] = field(default_factory=dict)

    def rule_for(self, place: UsbPlace) -> PowerRule:
        """The rule of a port: its own, its hub's, or the general one; fields of all three together."""
        merged = PowerRule(self.switch, self.off, self.on, self.state, self.fields)
        for name in (place.hub, place.path):
            own = self.hub.get(name)
            if own is not None:
                merged = PowerRule(
                    own.switch or ("command" if own.off else merged.switch),
                    own.off or merged.off,
                    own.on or merged.on,
                    own.state or merged.state,
                    {**merged.fields, **own.fields},
                )
        return merged


@dataclass(frozen=True, slots=True)
class UsbConfig:
    """`[usb]`."""

    places: Mapping[str, str] = field(default_factory=dict)  # serial -> path, "1-4.2": what sysfs cannot know
    sysfs: str = "/sys"  # where the kernel's sysfs is
