"""Which of a phone's thermometers count, and for what: its own words, corrected by what operators know of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from farm.core.health import Dropped, Health, SensorGroup, Temperature

# What the thermal service reads was chosen and named by the phone's maker; zones are whatever the kernel has.
_FIRST = "thermalservice"


@dataclass(frozen=True, slots=True)
class SensorPolicy:
    """What operators say about one model's sensors."""

    ignore: tuple[str, ...] = ()  # names of sensors that lie; * and ? stand for any characters
    skin: str = ""  # the sensor that is the skin; empty: those that the phone calls so


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """How often phones are probed, and what of it counts: `[probe]` and `[probe.model."MODEL"]`."""

    every_s: float = 10.0  # per device; a phone under full load warms by less than 5 °C meanwhile
    model: Mapping[str, SensorPolicy] = field(default_factory=dict)  # by ro.product.model


def counted(health: Health, policy: SensorPolicy) -> Health:
    """The same health with only the sensors that count, in the groups they count for.

    A throttle status that only an ignored sensor claims is unknown, not none.
    """
    if not policy.ignore and not policy.skin:
        return health
    kept: list[Temperature] = []
    dropped: list[Dropped] = []
    for each in health.temperatures:
        if _ignored(each.sensor, policy):
            dropped.append(Dropped(each.source, each.sensor, f"{each.celsius:g} °C", "ignored by [probe.model]"))
        else:
            kept.append(_grouped(each, policy.skin))
    doubtful = bool(health.throttled_by) and _ignored(health.throttled_by, policy)
    return replace(
        health,
        temperatures=tuple(kept),
        dropped=(*health.dropped, *dropped),
        throttle=None if doubtful else health.throttle,
        throttled_by="" if doubtful else health.throttled_by,
    )


def one_temperature(health: Health) -> Temperature | None:
    """The one figure to show: the hottest that the thermal service reads, else the hottest of any other sensor."""
    first = [each for each in health.temperatures if each.source == _FIRST]
    others = [each for each in health.temperatures if each.source != "battery"]
    return max(first or others or health.temperatures, key=lambda each: each.celsius, default=None)


def _ignored(sensor: str, policy: SensorPolicy) -> bool:
    return any(fnmatchcase(sensor, pattern) for pattern in policy.ignore)


def _grouped(temperature: Temperature, skin: str) -> Temperature:
    if skin and temperature.sensor == skin:
        return replace(temperature, group=SensorGroup.SKIN)
    if skin and temperature.group is SensorGroup.SKIN:
        return replace(temperature, group=SensorGroup.OTHER)
    return temperature
