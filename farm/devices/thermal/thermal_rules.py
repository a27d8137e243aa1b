"""The thermal gate: to which classes of leases a phone is closed for its heat, why, and for about how long.

A class closes when a reading is above a limit, and opens when all are a margin below theirs and stayed there. What was
not read lately neither opens nor closes anything: while a class is closed, the last reading of each source stands until
a newer one of that source, and the sentence says how old it is. A phone without any thermometer is let through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from pydantic import Field

from farm.common.selector import of_model
from farm.devices.thermal.cooling_rules import BODY_TAU_S, CORE_TAU_S, CoolingCurve
from farm.model.device import Closed
from farm.model.health import Health, SensorGroup, ThrottleStatus
from farm.model.requests import LeaseClass

Degrees = Annotated[float, Field(ge=10, le=200)]  # below, a phone in a room is always closed; 200 is no limit
Margin = Annotated[float, Field(ge=0, le=20)]  # more, and a phone at work in a room never opens again


@dataclass(frozen=True, slots=True)
class HeatLimits:
    """One table of limits; None: it says nothing about that. A reading above a limit closes the phone."""

    skin_c: Degrees | None = None  # the warmest sensor of the group
    cpu_c: Degrees | None = None  # likewise
    gpu_c: Degrees | None = None  # likewise
    battery_c: Degrees | None = None  # likewise
    # the highest thermal status that is let in: 0 none, 1 light ... 6 shutdown
    throttle: Annotated[int, Field(ge=ThrottleStatus.NONE, le=max(ThrottleStatus))] | None = None


@dataclass(frozen=True, slots=True)
class ModelHeat:
    """The settings of one phone model that differ."""

    hard: HeatLimits = HeatLimits()
    interactive: HeatLimits = HeatLimits()
    bench: HeatLimits = HeatLimits()
    tune: HeatLimits = HeatLimits()
    end_leases: HeatLimits = HeatLimits()


@dataclass(frozen=True, slots=True)
class HeatConfig:
    """The thermal gate: `[heat]`, `[heat.bench]`, `[heat.model."MODEL".bench]`."""

    margin_c: Margin = 2.0  # skin and battery must fall so far below a limit: a touch or a short push warms by 1 °C
    core_margin_c: Margin = 5.0  # the same for CPU and GPU: one busy second warms a core by more than that
    cool_for_s: Annotated[float, Field(ge=0, le=3600)] = 20.0  # and stay there: two probes agree
    # a reading older than this is called old: a dozen probes were missed
    stale_s: Annotated[float, Field(ge=0, le=86_400)] = 120.0
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
GROUPS = (SensorGroup.SKIN, SensorGroup.BATTERY, SensorGroup.CPU, SensorGroup.GPU)  # what cools slowest is named first
BODY = frozenset({SensorGroup.SKIN, SensorGroup.BATTERY})


@dataclass(frozen=True, slots=True)
class Limit:
    """One figure that closes a phone to a class."""

    most: float  # °C, or the highest thermal status
    margin: float
    whom: str  # "for bench"


@dataclass(frozen=True, slots=True)
class HeatPolicy:
    """The limits in force for one phone."""

    limits: Mapping[LeaseClass, Mapping[SensorGroup, Limit]]
    throttle: Mapping[LeaseClass, Limit]
    end_leases: HeatLimits
    cool_for_s: float
    stale_s: float

    @property
    def battery_c(self) -> float:
        """The battery's temperature above which no class of leases gets the phone."""
        return max(self.limits[each][SensorGroup.BATTERY].most for each in LeaseClass)


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
    """The limits of all tables: of each, the value in the last table that has one."""
    limits = {
        each.name: [value for table in tables if (value := getattr(table, each.name)) is not None]
        for each in fields(HeatLimits)
    }
    return HeatLimits(**{name: values[-1] for name, values in limits.items() if values})


def _stricter(hard: HeatLimits, table: HeatLimits, name: str, lease_class: LeaseClass, margin: float) -> Limit | None:
    for_all, for_class = getattr(hard, name), getattr(table, name)
    if for_class is not None and (for_all is None or for_class < for_all):
        return Limit(float(for_class), margin, f"for {lease_class.value}")
    return None if for_all is None else Limit(float(for_all), margin, "for any lease")


NO_THERMOMETER = "no thermometer can be read: heat is not looked at"
_NAMES = {SensorGroup.CPU: "CPU", SensorGroup.GPU: "GPU"}


@dataclass(frozen=True, slots=True)
class PeakReading:
    """The warmest sensor of a group."""

    celsius: float
    at_s: float


@dataclass(frozen=True, slots=True)
class HeatState:
    """The heat of one phone, by its probes so far. Times are monotonic seconds."""

    probed_at_s: float | None = None
    seen: Mapping[SensorGroup, PeakReading] = field(default_factory=dict)
    throttle: ThrottleStatus | None = None
    throttled_by: str = ""
    throttle_at_s: float = 0.0
    idle: bool = True  # it was not leased at the last probe
    curves: Mapping[SensorGroup, CoolingCurve] = field(default_factory=dict)
    shut: Mapping[LeaseClass, float | None] = field(default_factory=dict)  # closed classes: cool enough since then

    @property
    def blind(self) -> bool:
        """Whether there is nothing to judge by: probes came, and none read any heat."""
        return self.probed_at_s is not None and not self.seen and self.throttle is None


def take(thermal: HeatState, health: Health, at_s: float, policy: HeatPolicy, *, idle: bool) -> HeatState:
    """One more probe.

    Args:
        thermal: what is known so far.
        health: the probe.
        at_s: when it was read.
        policy: the phone's limits.
        idle: the phone is not leased and nothing is done with it: its curves learn from that only.
    """
    warmest: dict[SensorGroup, float] = {}
    for each in health.temperatures:
        warmest[each.group] = max(each.celsius, warmest.get(each.group, each.celsius))
    if health.battery.celsius is not None:
        warmest.setdefault(SensorGroup.BATTERY, health.battery.celsius)
    oldest_s = -math.inf if thermal.shut else at_s - policy.stale_s
    kept = {group: seen for group, seen in thermal.seen.items() if seen.at_s >= oldest_s}
    seen = kept | {
        group: PeakReading(celsius, at_s) for group, celsius in warmest.items() if group is not SensorGroup.OTHER
    }
    curves = dict(thermal.curves)
    for group, reading in seen.items():
        if reading.at_s == at_s:
            curve = curves.get(group) or CoolingCurve(BODY_TAU_S if group in BODY else CORE_TAU_S)
            curves[group] = curve.take(at_s, reading.celsius, idle=idle)
    now = replace(thermal, probed_at_s=at_s, seen=seen, idle=idle, curves=curves)
    if health.throttle is not None or thermal.throttle_at_s < oldest_s:
        now = replace(now, throttle=health.throttle, throttled_by=health.throttled_by, throttle_at_s=at_s)
    return replace(now, shut=_shut(now, thermal.shut, policy))


def closed(thermal: HeatState, policy: HeatPolicy, now_s: float) -> dict[LeaseClass, Closed]:
    """The classes that the phone is closed to now, each with its reason and an estimate."""
    return {each: _closed(thermal, each, since_s, policy, now_s) for each, since_s in thermal.shut.items()}


def too_hot(thermal: HeatState, policy: HeatPolicy) -> str:
    """Why no lease may continue with the phone; "" when its heat does not forbid it."""
    for group in GROUPS:
        seen, most_c = thermal.seen.get(group), getattr(policy.end_leases, f"{group.value}_c")
        if seen is not None and most_c is not None and seen.celsius > most_c:
            name = _NAMES.get(group, group.value)
            return f"{name} {seen.celsius:.1f} °C is above {most_c:g} °C, where every lease ends"
    status, most = thermal.throttle, policy.end_leases.throttle
    if status is not None and most is not None and status > most:
        return f"thermal status {status.name.lower()} is above {ThrottleStatus(most).name.lower()}: every lease ends"
    return ""


def stale_s(thermal: HeatState, policy: HeatPolicy, now_s: float) -> float | None:
    """How old the last probe is, when that is too old to decide anything; else None."""
    if thermal.probed_at_s is None or now_s - thermal.probed_at_s <= policy.stale_s:
        return None
    return now_s - thermal.probed_at_s


def _shut(
    now: HeatState, before: Mapping[LeaseClass, float | None], policy: HeatPolicy
) -> dict[LeaseClass, float | None]:
    """The classes closed after a probe, and since when each is cool enough."""
    at_s = now.probed_at_s or 0.0
    shut: dict[LeaseClass, float | None] = {}
    for each in LeaseClass:
        was_shut = each in before
        if _too_warm(now, each, policy, margins=was_shut):
            shut[each] = None
        elif was_shut:
            cool_since_s = before[each]
            since_s = at_s if cool_since_s is None else cool_since_s
            if at_s - since_s < policy.cool_for_s:
                shut[each] = since_s
    return shut


def _too_warm(
    thermal: HeatState, lease_class: LeaseClass, policy: HeatPolicy, *, margins: bool
) -> list[tuple[str, float]]:
    """Readings above the limits, or above those that open the phone again; each in words and when it was read."""
    found: list[tuple[str, float]] = []
    for group, limit in policy.limits[lease_class].items():
        seen = thermal.seen.get(group)
        if seen is None or not _counts(group, lease_class, thermal):
            continue
        name = _NAMES.get(group, group.value)
        if seen.celsius > limit.most:
            found.append((f"{name} {seen.celsius:.1f} °C is above {limit.most:g} °C {limit.whom}", seen.at_s))
        elif margins and seen.celsius > limit.most - limit.margin:
            down = f"is not down to {limit.most - limit.margin:g} °C {limit.whom}"
            found.append((f"{name} {seen.celsius:.1f} °C {down}", seen.at_s))
    status, highest = thermal.throttle, policy.throttle.get(lease_class)
    if status is not None and highest is not None and status > highest.most:
        by = f" ({thermal.throttled_by})" if thermal.throttled_by else ""
        allowed = ThrottleStatus(int(highest.most)).name.lower()
        above = f"thermal status {status.name.lower()}{by} is above {allowed} {highest.whom}"
        found.append((above, thermal.throttle_at_s))
    return found


def _counts(group: SensorGroup, lease_class: LeaseClass, thermal: HeatState) -> bool:
    """A busy core is hot, and cool seconds after its work ends: for bench it counts only while the phone is idle."""
    return group in BODY or thermal.idle or lease_class is not LeaseClass.BENCH


def _closed(
    thermal: HeatState, lease_class: LeaseClass, since_s: float | None, policy: HeatPolicy, now_s: float
) -> Closed:
    too_warm = _too_warm(thermal, lease_class, policy, margins=False) or _too_warm(
        thermal, lease_class, policy, margins=True
    )
    read_s = [at_s for _, at_s in too_warm] or [thermal.probed_at_s or 0.0]
    age_s, stale = now_s - read_s[0], now_s - min(read_s) > policy.stale_s
    old = "" if age_s <= policy.stale_s else f"Last read {age_s / 60:.0f} min ago."
    if not too_warm:
        left_s = policy.cool_for_s - (now_s - (now_s if since_s is None else since_s))
        reason = f"cool enough for {lease_class.value} if it stays so for {policy.cool_for_s:g} s"
        return Closed(reason, None if stale else max(0.0, left_s), evidence=old)
    opens_s, floor_c = _cools(thermal, lease_class, policy, now_s)
    stays = "" if floor_c is None else f"It will not cool below {floor_c:.0f} °C by itself."
    if opens_s is not None:
        opens_s = None if stale else opens_s + policy.cool_for_s
    return Closed(too_warm[0][0], opens_s, evidence=" ".join(filter(None, (old, stays))))


def _cools(
    thermal: HeatState, lease_class: LeaseClass, policy: HeatPolicy, now_s: float
) -> tuple[float | None, float | None]:
    """Seconds until all readings are a margin below; and the temperature at which one of them stays, if it does.

    Throttling is taken to end with the warmth that caused it.
    """
    longest_s: float | None = None  # a throttled phone that is not warm: vendors do not say what ends it
    for group, limit in policy.limits[lease_class].items():
        seen, curve, target_c = thermal.seen.get(group), thermal.curves.get(group), limit.most - limit.margin
        if seen is None or curve is None or seen.celsius <= target_c or not _counts(group, lease_class, thermal):
            continue
        if (floor_c := curve.floor_c(target_c)) is not None:
            return None, floor_c
        seconds = curve.seconds_until(target_c, seen.celsius)
        if seconds is None:
            return None, None
        longest_s = max(longest_s or 0.0, seconds - (now_s - seen.at_s))
    return longest_s, None
