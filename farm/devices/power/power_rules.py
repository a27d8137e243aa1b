"""Power switches of USB ports and losses of phones: the configuration and the rules. Pure.

`[power]` says what switches which port, `[usb]` where a phone is if it cannot be found. When several phones are lost at
once, `attribute` finds whose fault it is: each phone's, their hub's, or the host's; `UsbLosses` remembers it from list
to list. A place is named as sysfs names it: `1-4.2` is port 2 of hub `1-4`, which is in port 4 of bus 1's root hub
`usb1`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from farm.model.device import UsbPlace, hubs_above

TIMEOUT_S = 20.0  # of one call: uhubctl talks to every hub of the host, each of which may take USB's 5 s to answer

Switch = Literal["", "uhubctl", "command", "none"]


@dataclass(frozen=True, slots=True)
class PowerRule:
    """The switch of a hub's ports, or of one port. Missing values are those of `[power]`."""

    switch: Switch = ""  # who cuts: "uhubctl", "command" (off and on below), "none"; empty: as [power] says
    off: tuple[str, ...] = ()  # the words of a command, never a shell's line
    on: tuple[str, ...] = ()  # likewise
    state: tuple[str, ...] = ()  # a command that prints on or off; without it exit codes of `off` and `on` count
    fields: Mapping[str, str] = field(default_factory=dict)  # what {name} in the words stands for


@dataclass(frozen=True, slots=True)
class PowerConfig(PowerRule):
    """`[power]`: for every hub without a table of its own; `[power.hub."1-4"]` or one port, `[power.hub."1-4.2"]`."""

    switch: Switch = "uhubctl"  # used only if it is installed
    uhubctl: str = ""  # the program; empty: PATH
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = TIMEOUT_S  # for one call
    hub: Mapping[str, PowerRule] = field(default_factory=dict)
    # a phone's name -> the words of a command that prints the power of that phone (docs/energy.md)
    meter: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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


_FEWEST = 2  # devices lost at once before the cause is a hub or the host, not the phone itself


@dataclass(frozen=True, slots=True)
class LossCause:
    """The cause of one or more losses."""

    devices: tuple[str, ...]  # serials, sorted
    reason: str = ""  # a phrase about each device; "" for a phone that went alone
    hub: str = ""  # the faulty hub; "" with a reason: the host


def attribute(
    losses: Collection[str],
    places: Mapping[str, UsbPlace],
    present: Collection[str],
    *,
    dead: Collection[str] = (),
    server_lost: bool = False,
) -> tuple[LossCause, ...]:
    """The causes of the loss of these devices within a short time.

    The cause is a hub when nothing that is known to hang on it is left and at least two devices went; of several such
    hubs in a row the lowest that has them all. When that leaves nothing on any hub, and no single hub had them all,
    it is the host (its controller, its power, its kernel).

    Args:
        losses: serials of the devices lost.
        places: where devices, lost or present, are plugged in; network phones have none.
        present: serials of the devices that adb still lists as alive.
        dead: serials of those that it lists as dead: they did not vanish.
        server_lost: whether the adb server itself went: then no other part is at fault.
    """

    def how(serials: Collection[str]) -> str:
        return "went silent" if all(serial in dead for serial in serials) else "vanished"

    lost = tuple(sorted(losses))
    if server_lost:
        return (LossCause(lost, "the adb server went away"),) if lost else ()
    placed = [serial for serial in lost if serial in places]
    alone = [serial for serial in lost if serial not in places]
    left = {hub for serial in present if serial in places for hub in hubs_above(places[serial])}
    groups: dict[str, list[str]] = {}
    for serial in placed:
        empty = [hub for hub in hubs_above(places[serial]) if hub not in left]
        groups.setdefault(empty[-1] if empty else "", []).append(serial)
    alone += groups.pop("", [])
    if not left and len(placed) >= _FEWEST and _common_hub(placed, places) == "":
        count = len(placed)
        return (
            LossCause(tuple(placed), f"all USB phones of this host ({count}) {how(placed)} together"),
            *(LossCause((serial,)) for serial in alone),
        )
    causes: list[LossCause] = []
    for group in groups.values():
        if len(group) < _FEWEST:
            alone += group
            continue
        hub = _common_hub(group, places) or hubs_above(places[group[0]])[-1]
        what = f"its hub {hub}" if not hub.startswith("usb") else f"its USB bus {hub.removeprefix('usb')}"
        causes.append(LossCause(tuple(group), f"{what} {how(group)} with {len(group)} phones", hub))
    return (*causes, *(LossCause((serial,)) for serial in sorted(alone)))


def _common_hub(serials: Collection[str], places: Mapping[str, UsbPlace]) -> str:
    """The lowest hub that has them all; "" when only a root hub does over several hubs, or none at all."""
    chains = [hubs_above(places[serial]) for serial in serials]
    for hub in chains[0]:
        if all(hub in chain for chain in chains):
            one = len({places[serial].hub for serial in serials}) == 1
            return hub if one or not hub.startswith("usb") else ""
    return ""


WINDOW_S = 3.0  # the kernel tears a hub's devices down one by one, 0.1-0.3 s each; adb lists each as it notices


@dataclass(frozen=True, slots=True)
class UsbFault:
    """A hub, or the host, that lost its phones and has none of them back."""

    cause: LossCause
    names: tuple[str, ...]  # of its phones
    announced: bool  # as an event and a problem; the watcher announces the adb server's end

    @property
    def subject(self) -> str:
        """Of its events."""
        return self.cause.hub or "usb"

    def event(self, what: str) -> str:
        """The kind of its event; `what` is lost or back."""
        return f"hub.{what}" if self.cause.hub else f"host.usb_{what}"


@dataclass(frozen=True, slots=True)
class UsbLosses:
    """The phones that adb listed last, and those that it lost."""

    listed: frozenset[str] = frozenset()  # serials, without dead ones
    lost_at: Mapping[str, float] = field(default_factory=dict)  # monotonic seconds, by serial
    faults: tuple[UsbFault, ...] = ()

    def update(
        self,
        listed: frozenset[str],
        names: Mapping[str, str],
        places: Mapping[str, UsbPlace],
        now_s: float,
        *,
        dead: Collection[str] = (),
        sent_away: Collection[str] = (),
        server_lost: bool = False,
    ) -> tuple[UsbLosses, tuple[UsbFault, ...]]:
        """The losses after adb's next list, and the faults that are over: one phone back proves its hub.

        Args:
            listed: the serials on the list whose transport is alive.
            names: of every known device, by serial; forgotten ones are not missed.
            places: where devices are plugged in.
            now_s: monotonic seconds.
            dead: serials that are listed and whose transport is dead: a hub that hangs keeps its phones listed.
            sent_away: serials that recovery disconnected: no loss.
            server_lost: whether the list is empty because the adb server is gone.
        """
        gone = self.listed - listed
        lost_at = {**self.lost_at, **dict.fromkeys((gone & names.keys()) - set(sent_away), now_s)}
        lost_at = {serial: at for serial, at in lost_at.items() if serial not in listed and serial in names}
        over = tuple(
            each
            for each in self.faults
            if not listed.isdisjoint(each.cause.devices) or names.keys().isdisjoint(each.cause.devices)
        )
        faults = [each for each in self.faults if each not in over]
        recent = [serial for serial, at in lost_at.items() if now_s - at <= WINDOW_S] if gone else []
        for cause in attribute(recent, places, listed, dead=dead, server_lost=server_lost):
            devices = set(cause.devices)
            if not cause.reason or any(devices.issubset(each.cause.devices) for each in faults):
                continue  # a phone that went alone, or part of a loss that is announced already
            faults = [each for each in faults if not devices.issuperset(each.cause.devices)]
            faults.append(UsbFault(cause, tuple(sorted(names[each] for each in cause.devices)), not server_lost))
        return UsbLosses(listed, lost_at, tuple(faults)), over
