"""Settings that are each of the right kind and yet cannot be meant: out of range, or at odds with one another. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import product

from farm.core.attribution import parse_place
from farm.core.health import ThrottleStatus
from farm.core.health_rules import HealthConfig
from farm.core.heat_policy import DEFAULTS, END_LEASES, HARD, HeatConfig, HeatLimits, ModelHeat
from farm.core.power_policy import PowerConfig, UsbConfig
from farm.core.quiesce import QuiesceConfig
from farm.core.requests import LeaseClass
from farm.core.sensors import ProbeConfig

PROBE_S = (0.2, 3600.0)  # a probe takes some 0.1 s of a phone; rarer than hourly, nothing is noticed in time
RESTORE_S = (5.0, 86_400.0)  # the daemon renews a phone's patience three times within it
MARGIN_C = (0.0, 20.0)  # more, and a phone at work in a room never opens again
COOL_FOR_S = (0.0, 3600.0)
LIMIT_C = (10.0, 200.0)  # below, a phone in a room is always closed; the highest is no limit
STALE_S = (0.0, 86_400.0)
PERCENT = (0.0, 100.0)
BATTERY_HOT_C = (20.0, 80.0)
_TABLES = tuple(each.name for each in fields(ModelHeat))
_LIMITS = tuple(each.name for each in fields(HeatLimits))
_FIELD = re.compile(r"\{(\w+)\}")
_OF_PLACES = frozenset({"hub", "port", "path"})
_ROOT_HUB = re.compile(r"usb\d+")

Mistake = tuple[str, str]  # where and what; limits, or the way out


def mistakes(
    heat: HeatConfig,
    probe: ProbeConfig,
    health: HealthConfig,
    quiesce: QuiesceConfig,
    power: PowerConfig,
    usb: UsbConfig,
) -> Iterator[Mistake]:
    """Each with its place in the file."""
    ranges = (
        ("probe.every_s", probe.every_s, PROBE_S, "s"),
        ("quiesce.restore_after_s", quiesce.restore_after_s, RESTORE_S, "s"),
        ("heat.margin_c", heat.margin_c, MARGIN_C, "°C"),
        ("heat.core_margin_c", heat.core_margin_c, MARGIN_C, "°C"),
        ("heat.cool_for_s", heat.cool_for_s, COOL_FOR_S, "s"),
        ("heat.stale_s", heat.stale_s, STALE_S, "s"),
        ("health.worn_percent", health.worn_percent, PERCENT, "%"),
        ("health.battery_hot_c", health.battery_hot_c, BATTERY_HOT_C, "°C"),
    )
    for where, amount, (least, most), unit in ranges:
        if not least <= amount <= most:  # nan is not, either
            yield f"{where}: {amount:g} {unit} is out of range", f"{least:g} to {most:g} {unit}"
    if heat.stale_s <= probe.every_s:
        said = f"heat.stale_s: {heat.stale_s:g} s is not above probe.every_s ({probe.every_s:g} s): all would be old"
        yield said, "several times probe.every_s; 120 where probes come every 10 s"
    yield from _health(health)
    yield from _heat(heat)
    yield from _power(power)
    for serial, path in usb.places.items():
        if parse_place(path) is None:
            yield f"usb.places.{serial}: {path!r} is no USB port", 'as sysfs names it, "1-4.2"'


def _health(health: HealthConfig) -> Iterator[Mistake]:
    if health.data_full_mb > health.data_low_mb:
        yield (
            f"health.data_full_mb: {health.data_full_mb} is above data_low_mb ({health.data_low_mb})",
            "the warning comes before the quarantine: data_full_mb is at most data_low_mb",
        )
    if health.battery_cold_c >= health.battery_hot_c - health.battery_margin_c:
        again_c = health.battery_hot_c - health.battery_margin_c
        said = f"health.battery_cold_c: {health.battery_cold_c:g} °C is not below {again_c:g} °C, where a hot battery "
        yield f"{said}is well again (battery_hot_c less battery_margin_c)", "0, 55 and 8 °C where nothing is said"


def _heat(heat: HeatConfig) -> Iterator[Mistake]:
    """A class's limit above the one for all says nothing; leases that end below it would end as they begin."""
    scopes: dict[str, ModelHeat | HeatConfig] = {"heat": heat} | {
        f'heat.model."{name}"': each for name, each in heat.model.items()
    }
    for (scope, own), table, key in product(scopes.items(), _TABLES, _LIMITS):
        yield from _limit(f"{scope}.{table}.{key}", key, getattr(getattr(own, table), key))
    for (scope, own), key in product(scopes.items(), _LIMITS):

        def limit(table: str, default: HeatLimits, key: str = key, own: ModelHeat | HeatConfig = own) -> float | None:
            said = (getattr(getattr(each, table), key) for each in (own, heat))
            return next((each for each in (*said, getattr(default, key)) if each is not None), None)

        yield from _order(scope, key, limit)


def _limit(where: str, key: str, limit: float | None) -> Iterator[Mistake]:
    if limit is None:
        return
    if key == "throttle" and not 0 <= limit <= max(ThrottleStatus):
        hint = "the highest that is let in: 0 none, 1 light, 2 moderate, 3 severe ... 6 shutdown"
        yield f"{where}: {limit} is no thermal status", hint
    if key != "throttle" and not LIMIT_C[0] <= limit <= LIMIT_C[1]:
        yield f"{where}: {limit} °C is no limit for a phone", f"{LIMIT_C[0]:g} to {LIMIT_C[1]:g}"


def _order(scope: str, key: str, limit: Callable[[str, HeatLimits], float | None]) -> Iterator[Mistake]:
    hard, last = limit("hard", HARD), limit("end_leases", END_LEASES)
    for each in LeaseClass:
        own = limit(each.value, DEFAULTS[each])
        if own is not None and hard is not None and own > hard:
            where = f"{scope}.{each.value}.{key}"
            said = f"{where}: {own:g} is above {scope}.hard.{key} ({hard:g}), which holds for every class"
            yield said, f"{where} is at most {scope}.hard.{key}: change one of them"
    if hard is not None and last is not None and last < hard:
        where = f"{scope}.end_leases.{key}"
        said = f"{where}: {last:g} is below {scope}.hard.{key} ({hard:g}): leases would end as they begin"
        yield said, f"{where} is at least {scope}.hard.{key}"


def _power(power: PowerConfig) -> Iterator[Mistake]:
    if not 0 < power.timeout_s < math.inf:
        yield f"power.timeout_s: {power.timeout_s} is no time to wait", "seconds, more than 0"
    for name in power.hub:
        if parse_place(name) is None and _ROOT_HUB.fullmatch(name) is None:
            yield f'power.hub."{name}" is no hub and no port', 'as sysfs names them: "usb1", "1-4", "1-4.2"'
    rules = {"power": power} | {f'power.hub."{name}"': rule for name, rule in power.hub.items()}
    # A hub may define what the general command needs: that is asked of the hubs, and of [power] where it has none.
    shared = set(power.fields) | {field for rule in power.hub.values() for field in rule.fields}
    for where, rule in rules.items():
        if bool(rule.off) != bool(rule.on):
            yield f"{where}: off and on belong together", "docs/configuration.md, [power]"
        if rule.switch == "command" and not (rule.off or power.off):
            yield f"{where}: switch = command needs off and on", "docs/configuration.md, [power]"
        known = _OF_PLACES | shared | set(rule.fields)
        for verb in ("off", "on", "state"):
            used = {field for word in getattr(rule, verb) for field in _FIELD.findall(word)}
            for field in sorted(used - known):
                yield (
                    f"{where}.{verb}: nobody says what {{{field}}} is",
                    f"{{hub}}, {{port}}, {{path}}, or {where}.fields",
                )
