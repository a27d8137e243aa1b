"""The gates of every device: to which classes of leases it is closed now, for its heat or for the work on its hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from farm.devices.thermal.thermal_rules import (
    NO_THERMOMETER,
    HeatConfig,
    HeatPolicy,
    HeatState,
    closed,
    policy_for,
    stale_s,
    take,
    too_hot,
)
from farm.model.device import Closed, DeviceView, Heat, Life
from farm.model.health import Health
from farm.model.requests import LeaseClass

LOOK_EVERY_S = 30.0  # whether readings have become old; they come every 10 to 30 s themselves
# A push fills the cable that all phones of a hub share; a phone that recovers is reset, rebooted or power-cycled.
DISTURBS_HUB = frozenset({Life.PROVISIONING, Life.RECOVERING})


def loud(view: DeviceView) -> bool:
    """Whether it disturbs its hub: a phone that was sent away is booting somewhere, though adb does not show it."""
    return view.life in DISTURBS_HUB or view.sent_away


@dataclass(slots=True)
class _HeatOfDevice:
    policy: HeatPolicy
    model: str
    thermal: HeatState = field(default_factory=HeatState)


class ThermalGates:
    """The heat of each device, by serial. Used from the event loop's thread."""

    def __init__(self, heat: HeatConfig | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._heat = heat or HeatConfig()
        self._now_s = monotonic
        self._devices: dict[str, _HeatOfDevice] = {}
        self.holds: Callable[[str], bool] = lambda _: False  # whether the device of that name is leased

    def use(self, heat: HeatConfig) -> None:
        """Judge by this configuration from now on, each device's known heat too."""
        self._heat = heat
        for known in self._devices.values():
            known.policy = policy_for(known.model, heat)

    def take(
        self, serial: str, model: str, health: Health, at_s: float, *, idle: bool
    ) -> tuple[Mapping[LeaseClass, Closed], Collection[LeaseClass]]:
        """Take one more probe; an old one again changes nothing. Returns the classes that it closed and opened.

        Args:
            serial: the device.
            model: its `ro.product.model`, "" while unknown.
            health: the probe.
            at_s: when it was read, monotonic seconds.
            idle: the device is not leased and nothing is done with it.
        """
        known = self._devices.get(serial)
        if known is None or known.model != model:
            policy = policy_for(model, self._heat)
            known = self._devices[serial] = _HeatOfDevice(policy, model, known.thermal if known else HeatState())
        before = known.thermal
        if before.probed_at_s is not None and at_s <= before.probed_at_s:
            return {}, ()
        known.thermal = take(before, health, at_s, known.policy, idle=idle)
        shut = closed(known.thermal, known.policy, self._now_s())
        return {each: why for each, why in shut.items() if each not in before.shut}, before.shut.keys() - shut.keys()

    def policy(self, serial: str) -> HeatPolicy | None:
        """The limits in force for a device; None before its first probe."""
        known = self._devices.get(serial)
        return None if known is None else known.policy

    def forget(self, serial: str) -> None:
        """The device is gone for good, or is known by another serial."""
        self._devices.pop(serial, None)

    def apply(self, view: DeviceView, beside: Iterable[DeviceView]) -> DeviceView:
        """The view with the state of its gates; `beside`: the other devices on its hub."""
        known = self._devices.get(view.serial)
        shut = {} if known is None else closed(known.thermal, known.policy, self._now_s())
        heat = Heat.COOLING if set(LeaseClass) <= shut.keys() else Heat.OK
        disturb = sorted(other.name for other in beside if loud(other))
        if disturb and LeaseClass.BENCH not in shut:
            shut[LeaseClass.BENCH] = Closed(
                f"{', '.join(disturb)} on the same hub is being set up or recovered", heat=False
            )
        return replace(view, heat=heat, closed=shut, too_hot=too_hot(known.thermal, known.policy) if known else "")

    def busy_beside(self, view: DeviceView, views: Iterable[DeviceView]) -> int | None:
        """The number of other phones on its hub in use, set up or recovering; None if its hub is unknown."""
        if view.place is None:
            return None
        return sum(self.holds(each.name) or loud(each) for each in others_on_hub(view, views))

    def note(self, serial: str) -> str:
        """A note about the device's heat beside the reason why it is closed; "": none."""
        known = self._devices.get(serial)
        if known is None:
            return ""
        if known.thermal.blind:
            return NO_THERMOMETER
        old_s = stale_s(known.thermal, known.policy, self._now_s())
        return "" if old_s is None else f"its heat was read {old_s / 60:.0f} min ago: nothing newer decides"


def others_on_hub(view: DeviceView, views: Iterable[DeviceView]) -> list[DeviceView]:
    """The other devices on the view's hub; none when its hub is unknown."""
    if view.place is None:
        return []
    hub = view.place.hub
    return [each for each in views if each.serial != view.serial and each.place is not None and each.place.hub == hub]
