"""From which temperature on a phone is kept from which leases: the numbers, and what the configuration changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from farm.core.health import SensorGroup, ThrottleStatus
from farm.core.labels import of_model
from farm.core.requests import LeaseClass


@dataclass(frozen=True, slots=True)
class HeatLimits:
    """One table of limits; None: it says nothing about that. A reading above a limit closes the phone."""

    skin_c: float | None = None  # the warmest sensor of the group
    cpu_c: float | None = None  # likewise
    gpu_c: float | None = None  # likewise
    battery_c: float | None = None  # likewise
    throttle: int | None = None  # the highest thermal status that is let in: 0 none, 1 light ... 6 shutdown


@dataclass(frozen=True, slots=True)
class ModelHeat:
    """What is different for one phone model."""

    hard: HeatLimits = HeatLimits()
    interactive: HeatLimits = HeatLimits()
    bench: HeatLimits = HeatLimits()
    tune: HeatLimits = HeatLimits()
    end_leases: HeatLimits = HeatLimits()


@dataclass(frozen=True, slots=True)
class HeatConfig:
    """The thermal gate: `[heat]`, `[heat.bench]`, `[heat.model."MODEL".bench]`."""

    margin_c: float = 2.0  # skin and battery must fall so far below a limit: a touch or a short push warms by 1 °C
    core_margin_c: float = 5.0  # the same for CPU and GPU: one busy second warms a core by more than that
    cool_for_s: float = 20.0  # and stay there: two probes agree
    stale_s: float = 120.0  # a reading older than this is called old: a dozen probes were missed
    hard: HeatLimits = HeatLimits()  # for every class
    interactive: HeatLimits = HeatLimits()
    bench: HeatLimits = HeatLimits()
    tune: HeatLimits = HeatLimits()
    end_leases: HeatLimits = HeatLimits()  # above it not even its holder keeps the phone
    model: Mapping[str, ModelHeat] = field(default_factory=dict)  # by ro.product.model


# Vendors' own thresholds (`dumpsys thermalservice`, docs/facts.md): a Galaxy's skin is light at 36, moderate at 38,
# severe at 40, critical at 42, emergency at 45 °C, its battery emergency at 55 °C; a Shield TV's skin is severe at 50.
# Lithium cells are charged up to 45 °C. Cores are built for 95 to 105 °C and reach 85 °C under any full load.
HARD = HeatLimits(skin_c=48.0, cpu_c=105.0, gpu_c=105.0, battery_c=50.0, throttle=ThrottleStatus.SEVERE)
# A number must not depend on who had the phone before: below any clock limit, cores back at the body's temperature.
BENCH = HeatLimits(skin_c=38.0, cpu_c=60.0, gpu_c=60.0, battery_c=40.0, throttle=ThrottleStatus.NONE)
# Candidates are compared with each other within minutes: warm is fine, clocks held down (severe) are not.
TUNE = HeatLimits(skin_c=43.0, cpu_c=95.0, gpu_c=95.0, battery_c=44.0, throttle=ThrottleStatus.MODERATE)
# Nobody's work is worth a fire: cells are made for up to 60 °C and no healthy skin reaches 65 °C. "Emergency" is not
# the last word: some vendors say it at 45 °C skin (docs/facts.md). A core too hot switches the phone off by itself.
END_LEASES = HeatLimits(skin_c=65.0, battery_c=60.0, throttle=ThrottleStatus.EMERGENCY)
DEFAULTS = {LeaseClass.INTERACTIVE: HeatLimits(), LeaseClass.BENCH: BENCH, LeaseClass.TUNE: TUNE}
GROUPS = (SensorGroup.SKIN, SensorGroup.BATTERY, SensorGroup.CPU, SensorGroup.GPU)  # what cools slowest is told first
BODY = frozenset({SensorGroup.SKIN, SensorGroup.BATTERY})


@dataclass(frozen=True, slots=True)
class Limit:
    """One figure that closes a phone to a class."""

    most: float  # °C, or the highest thermal status
    margin: float
    whom: str  # "for bench"


@dataclass(frozen=True, slots=True)
class HeatPolicy:
    """What holds for one phone."""

    limits: Mapping[LeaseClass, Mapping[SensorGroup, Limit]]
    throttle: Mapping[LeaseClass, Limit]
    end_leases: HeatLimits
    cool_for_s: float
    stale_s: float


def policy_for(model: str, config: HeatConfig) -> HeatPolicy:
    """The limits of a phone of this model (`ro.product.model`)."""
    own = of_model(config.model, model) or ModelHeat()
    hard = _merged(HARD, config.hard, own.hard)
    limits: dict[LeaseClass, dict[SensorGroup, Limit]] = {}
    throttle: dict[LeaseClass, Limit] = {}
    for each in LeaseClass:
        table = _merged(DEFAULTS[each], getattr(config, each.value), getattr(own, each.value))
        limits[each] = {
            group: limit
            for group in GROUPS
            if (limit := _stricter(hard, table, f"{group.value}_c", each, _margin(group, config))) is not None
        }
        status = _stricter(hard, table, "throttle", each, 0.0)
        if status is not None:
            throttle[each] = status
    last = _merged(END_LEASES, config.end_leases, own.end_leases)
    return HeatPolicy(limits, throttle, last, config.cool_for_s, config.stale_s)


def _margin(group: SensorGroup, config: HeatConfig) -> float:
    return config.margin_c if group in BODY else config.core_margin_c


def _merged(*tables: HeatLimits) -> HeatLimits:
    """What the last table that says something says."""
    said = {
        each.name: [value for table in tables if (value := getattr(table, each.name)) is not None]
        for each in fields(HeatLimits)
    }
    return HeatLimits(**{name: values[-1] for name, values in said.items() if values})


def _stricter(hard: HeatLimits, table: HeatLimits, name: str, lease_class: LeaseClass, margin: float) -> Limit | None:
    for_all, for_class = getattr(hard, name), getattr(table, name)
    if for_class is not None and (for_all is None or for_class < for_all):
        return Limit(float(for_class), margin, f"for {lease_class.value}")
    return None if for_all is None else Limit(float(for_all), margin, "for any lease")
