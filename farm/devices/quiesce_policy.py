"""Which phones are made quiet for a measurement, how far, and the changes in force: values and choices, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from farm.model.device import is_network
from farm.model.requests import LeaseClass

AS_IT_WAS = "(it was so)"  # ends the detail of what needed no change


class Level(StrEnum):
    """How much of a phone is changed while it measures (device_scripts/quiesce.sh)."""

    OFF = "off"
    GENTLE = "gentle"  # screen, animations, stay awake: no connection and no clock changes
    FULL = "full"  # also airplane mode (never where farm comes through it), scans, and clocks where root allows


@dataclass(frozen=True, slots=True)
class QuiesceConfig:
    """`[quiesce]`."""

    level: Level = Level.GENTLE  # of benches and comparisons: harmless for a phone that other people rely on too
    # A search holds phones for hours, and compares candidates that all ran under the same conditions.
    tune: Level = Level.OFF
    # A phone that is not renewed for so long changes itself back; the daemon renews it three times within it.
    restore_after_s: Annotated[float, Field(ge=5, le=86_400)] = 300.0

    def level_of(self, lease_class: LeaseClass, asked: str | None) -> Level:
        """The level under a lease of that class for a job whose option says `asked`."""
        if asked is not None:
            return Level(asked)
        return self.tune if lease_class is LeaseClass.TUNE else self.level


@dataclass(frozen=True, slots=True)
class QuiesceStep:
    """One thing that was to be changed."""

    name: str  # screen animations awake airplane background fixed-performance cpu gpu
    detail: str  # what was set, or why it was refused
    took: bool


@dataclass(frozen=True, slots=True)
class QuiesceResult:
    """The changes in force on a phone."""

    level: Level
    steps: tuple[QuiesceStep, ...] = ()

    @property
    def took(self) -> frozenset[str]:
        """Names of steps of which something took effect."""
        return frozenset(step.name for step in self.steps if step.took)

    @property
    def refused(self) -> frozenset[str]:
        """Names of steps of which something did not."""
        return frozenset(step.name for step in self.steps if not step.took)

    @property
    def changed(self) -> bool:
        """Whether anything is otherwise than it was."""
        return any(step.took and not step.detail.endswith(AS_IT_WAS) for step in self.steps)

    def to_wire(self) -> dict[str, Any]:
        """As a certificate has it."""
        return {
            "level": str(self.level),
            "took": _details(self.steps, took=True),
            "refused": _details(self.steps, took=False),
            "pinned": sorted((self.took - self.refused) & {"cpu", "fixed-performance", "gpu"}),
        }


def not_quiet(reason: str) -> dict[str, Any]:
    """The same where nothing was changed, or the changes are unknown."""
    return {"level": str(Level.OFF), "took": {}, "refused": {"all": [reason]} if reason else {}, "pinned": []}


def describe(wire: Mapping[str, Any]) -> str:
    """A certificate's quiet state in one line for people."""
    parts = [f"quiesce {wire['level']}"]
    if took := wire["took"]:
        parts.append("in force: " + ", ".join(took))
    parts += [f"refused: {name} ({'; '.join(why)})" for name, why in wire["refused"].items()]
    return "; ".join(parts)


def over_network(serial: str, devpath: str) -> bool:
    """Whether farm reaches a phone through its radios: airplane mode would cut the link. In doubt it does.

    Args:
        serial: as adb lists it.
        devpath: its USB path in adb's list; empty for network phones, emulators, and hosts whose adb does not list it.
    """
    if is_network(serial):
        return True
    return not devpath and not serial.startswith("emulator-")


def _details(steps: tuple[QuiesceStep, ...], *, took: bool) -> dict[str, list[str]]:
    details: dict[str, list[str]] = {}
    for step in steps:
        if step.took is took:
            details.setdefault(step.name, []).append(step.detail)
    return details
