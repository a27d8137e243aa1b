"""Rules of settings that pydantic does not check: addresses, names, contradictions between settings. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING

from farm.common.advertised import parse_advertised
from farm.common.errors import UserError
from farm.common.limits import HOST_NAME
from farm.devices.health.health_rules import HealthConfig
from farm.devices.power.power_rules import PowerConfig
from farm.devices.thermal.thermal_rules import DEFAULTS, END_LEASES, HARD, HeatConfig, HeatLimits, ModelHeat
from farm.model.device import parse_place
from farm.model.requests import LeaseClass

if TYPE_CHECKING:
    from farm.config import BuildersConfig, ControlConfig, FarmConfig, WebConfig
    from farm.head.config import LabConfig


_LIMITS = tuple(each.name for each in fields(HeatLimits))
_FIELD = re.compile(r"\{(\w+)\}")
_OF_PLACES = frozenset({"hub", "port", "path"})
_ROOT_HUB = re.compile(r"usb\d+")

MAX_PORT = 65_535
_LISTEN = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{1,5})")

Mistake = tuple[str, str]  # place in the file with the mistake; hint


def mistakes(config: FarmConfig) -> Iterator[Mistake]:
    """Every mistake."""
    yield from _web(config.web)
    yield from _control(config.control)
    yield from _builders(config.builders)
    yield from _lab(config.lab, config.store.url)
    yield from _same_port(config.lab.listen, config.builders.listen)
    heat, probe, battery = config.heat, config.probe, config.battery
    if heat.stale_s <= probe.every_s:
        problem = f"heat.stale_s: {heat.stale_s:g} s is not above probe.every_s ({probe.every_s:g} s): all would be old"
        yield problem, "several times probe.every_s; 120 where probes come every 10 s"
    if battery.low_percent >= battery.high_percent:
        yield "battery: low_percent must be below high_percent", "0 to 100"
    yield from _health(config.health)
    yield from _heat(heat)
    yield from _power(config.power)
    if config.tvm.gate and not config.tvm.gate.startswith("/"):
        yield f"tvm.gate: {config.tvm.gate!r} is no path of a socket", '"", or "/run/farm-gate/gate.sock"'
    for serial, path in config.usb.places.items():
        if parse_place(path) is None:
            yield f"usb.places.{serial}: {path!r} is no USB port", 'as sysfs names it, "1-4.2"'


def address_of(listen: str) -> tuple[str, int] | None:
    """Host and port of a `listen`, None if it is no such address. Port 0: the kernel chooses."""
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found[2]) > MAX_PORT:
        return None
    try:
        return str(ipaddress.ip_address(found[1].strip("[]"))), int(found[2])
    except ValueError:
        return None


def own_ports(config: FarmConfig) -> frozenset[int]:
    """The ports of farm's processes on this host, except those that the kernel chooses."""
    listens = (address_of(each) for each in (config.control.listen, config.lab.listen, config.builders.listen))
    control, lab, builders = (0 if each is None else each[1] for each in listens)
    return frozenset({config.tvm.port, config.web.port, config.web.head_port, control, lab, builders} - {0})


def _control(control: ControlConfig) -> Iterator[Mistake]:
    address = address_of(control.listen)
    if address is None and control.listen:
        yield f"control.listen: {control.listen!r} is no address", '"tcp://127.0.0.1:9192"; a number, not a name'
    elif address is not None and ipaddress.ip_address(address[0]).is_unspecified:
        yield f"control.listen: {control.listen!r} leads nowhere from elsewhere", "key files name it: one address"


def _builders(builders: BuildersConfig) -> Iterator[Mistake]:
    address = address_of(builders.listen)
    if address is None and builders.listen:
        yield f"builders.listen: {builders.listen!r} is no address", '"tcp://192.0.2.10:9193"; a number, not a name'
    elif address is not None and ipaddress.ip_address(address[0]).is_unspecified and not builders.advertise:
        yield "builders.advertise: missing", "builders dial it: this host's name or address, as listen is any"


def _lab(lab: LabConfig, store_url: str) -> Iterator[Mistake]:
    if lab.host and HOST_NAME.fullmatch(lab.host) is None:
        problem = f"lab.host: {lab.host!r} is no host name"
        yield problem, "small letters, digits, - and . after the first letter or digit; at most 40"
    if lab.head_apart and not lab.host:
        yield "lab.host: missing", 'each host of a lab has a name: [lab] host = "lab1"'
    if lab.head_apart and not store_url:
        hint = '[store] url = "postgresql://..."; docs/many-hosts.md. A single host needs no head apart'
        yield 'lab.head: "apart" needs a database on a server', hint
    if store_url and not lab.head_apart:
        hint = "farm lab create; on one host without a lab: no [store] url"
        yield "store.url: PostgreSQL is for a lab, also of one host", hint
    address = address_of(lab.listen)
    if address is None and lab.listen:
        yield f"lab.listen: {lab.listen!r} is no address", '"tcp://192.0.2.10:9194"; a number, not a name'
    elif address is not None and ipaddress.ip_address(address[0]).is_unspecified:
        yield f"lab.listen: {lab.listen!r} is no one address", "the other hosts dial it: this host's own"
    for network, target in lab.advertise.items():
        if not _leads_to_port(network, target):
            yield f"lab.advertise: {network!r} = {target!r}", '"10.8.0.0/16" = "lab1.example.org:9190", with a port'
    for key in ("listen", "object_store", "users_at", "advertise"):
        if getattr(lab, key) and not lab.head_apart:
            yield (
                f"lab.{key.removesuffix('_at')}: this is the only host of its database",
                '[lab] head = "apart", or no such key',
            )


def _same_port(lab: str, builders: str) -> Iterator[Mistake]:
    """Builders and other hosts connect at a port each."""
    hosts, theirs = address_of(lab), address_of(builders)
    if hosts is None or theirs is None or not theirs[1]:
        return
    same_address = theirs[0] == hosts[0] or ipaddress.ip_address(theirs[0]).is_unspecified
    if same_address and hosts[1] == theirs[1]:
        yield f"lab.listen: builders have port {hosts[1]} ([builders] listen)", "another one"


def _leads_to_port(network: str, target: str) -> bool:
    try:
        ((_, _, port),) = parse_advertised({network: target}, "lab.advertise")
    except UserError:
        return False
    return port > 0


def _web(web: WebConfig) -> Iterator[Mistake]:
    for name in web.allow_hosts:
        if not name or "/" in name or name.strip("[]").count(":") == 1 or name != name.strip():
            yield f"web.allow_hosts: {name!r} is no host name", 'a bare name, e.g. "farm.lab.example"'


def _health(health: HealthConfig) -> Iterator[Mistake]:
    if health.data_full_mb > health.data_low_mb:
        yield (
            f"health.data_full_mb: {health.data_full_mb} is above data_low_mb ({health.data_low_mb})",
            "the warning comes before the quarantine: data_full_mb is at most data_low_mb",
        )
    if health.battery_cold_c >= health.battery_hot_c - health.battery_margin_c:
        again_c = health.battery_hot_c - health.battery_margin_c
        problem = (
            f"health.battery_cold_c: {health.battery_cold_c:g} °C is not below {again_c:g} °C, where a hot battery "
        )
        yield f"{problem}is well again (battery_hot_c less battery_margin_c)", "0, 55 and 8 °C by default"


def _heat(heat: HeatConfig) -> Iterator[Mistake]:
    """A class's limit above the one for all has no effect; leases that end below it would end as they begin."""
    scopes: dict[str, ModelHeat | HeatConfig] = {"heat": heat} | {
        f'heat.model."{name}"': each for name, each in heat.model.items()
    }
    for (scope, own), key in product(scopes.items(), _LIMITS):

        def limit(table: str, default: HeatLimits, key: str = key, own: ModelHeat | HeatConfig = own) -> float | None:
            configured = (getattr(getattr(each, table), key) for each in (own, heat))
            return next((each for each in (*configured, getattr(default, key)) if each is not None), None)

        yield from _order(scope, key, limit)


def _order(scope: str, key: str, limit: Callable[[str, HeatLimits], float | None]) -> Iterator[Mistake]:
    hard, last = limit("hard", HARD), limit("end_leases", END_LEASES)
    for each in LeaseClass:
        own = limit(each.value, DEFAULTS[each])
        if own is not None and hard is not None and own > hard:
            where = f"{scope}.{each.value}.{key}"
            problem = f"{where}: {own:g} is above {scope}.hard.{key} ({hard:g}), which holds for every class"
            yield problem, f"{where} is at most {scope}.hard.{key}: change one of them"
    if hard is not None and last is not None and last < hard:
        where = f"{scope}.end_leases.{key}"
        problem = f"{where}: {last:g} is below {scope}.hard.{key} ({hard:g}): leases would end as they begin"
        yield problem, f"{where} is at least {scope}.hard.{key}"


def _power(power: PowerConfig) -> Iterator[Mistake]:
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
                    f"{where}.{verb}: {{{field}}} is not defined",
                    f"{{hub}}, {{port}}, {{path}}, or {where}.fields",
                )
