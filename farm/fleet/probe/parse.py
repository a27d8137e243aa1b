"""What a probe printed -> a `Health`. Pure; never raises, whatever the phone printed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from farm.core.health import Battery, Dropped, Health, SensorGroup, Temperature, ThrottleStatus
from farm.core.phone_text import WORD, plain
from farm.fleet.probe import battery as batteries
from farm.fleet.probe.boot import parse_boot
from farm.fleet.probe.command import SECTIONS
from farm.fleet.probe.cpu import parse_cpu
from farm.fleet.probe.gpu import parse_gpu
from farm.fleet.probe.kernel import parse_kernel
from farm.fleet.probe.memory import parse_data, parse_meminfo
from farm.fleet.probe.processes import parse_processes
from farm.fleet.probe.sections import Sections, cut_sections
from farm.fleet.probe.thermal import parse_thermalservice
from farm.fleet.probe.zones import parse_zones

MOST_TEMPERATURES = 256  # of the thermal service and of zones; the phone with the most has 110
MOST_DROPPED = 256


def parse_probe(output: bytes, asked: Collection[str] = SECTIONS) -> Health:
    """Interpret what the probe's command printed; a probe that was cut keeps what came.

    Args:
        output: standard output, as raw as the phone sent it.
        asked: the sections that were asked for; others are neither read nor missing.
    """
    return health_of(cut_sections(output), asked)


def health_of(parts: Sections, asked: Collection[str] = SECTIONS) -> Health:
    """The same for sections."""

    def whole(name: str) -> str:
        """Its text; nothing where half of it tells something else: memory that is a sum, another file system's room."""
        return "" if name == parts.last else parts.get(name)

    boot = parse_boot(parts.get("boot"))
    memory_total, memory_available = parse_meminfo(whole("memory"))
    data_total, data_free = parse_data(whole("data"))
    cpu, cpu_dropped = parse_cpu(parts.get("cpu"))
    battery, battery_dropped = _battery(parts)
    thermal, thermal_dropped = parse_thermalservice(parts.get("thermal"))
    if parts.last == "thermal" and thermal.throttle is ThrottleStatus.NONE:
        thermal = replace(thermal, throttle=None)  # the sensor that throttles may be on a line that did not come
    zones, zones_dropped = parse_zones(parts.get("zones"))
    gpu, gpu_temperatures, gpu_dropped = parse_gpu(parts.get("gpu"))
    busiest, server = parse_processes(parts.get("processes"))
    faults, readable = parse_kernel(parts.get("kernel"))
    said = {
        "boot": bool(boot.boot_id or boot.uptime_s is not None),
        "memory": memory_total is not None,
        "cpu": bool(cpu),
        "data": data_total is not None,
        "battery": not batteries.source_is_silent(parts.get("battery")),
        "thermal": bool(thermal.temperatures) or thermal.throttle is not None,
        "processes": bool(busiest or server),
        "kernel": readable and "kernel" in parts.texts,
        "supply": bool(parts.get("supply").strip()),
        "zones": bool(zones),
        "gpu": bool(parts.get("gpu").strip()),
    }
    cut = {parts.last, *parts.too_long}
    unread = [
        Dropped("probe", name, f"{count} characters", "longer than any phone's")
        for name, count in parts.too_long.items()
    ]
    found = (*thermal.temperatures, *zones)
    believed = tuple(
        replace(each, sensor=plain(each.sensor, WORD), source=plain(each.source, WORD))
        for each in found[:MOST_TEMPERATURES]
    )
    if more := len(found) - len(believed):
        unread.append(Dropped("probe", "", f"{more} temperatures", "more than any phone has"))
    return Health(
        boot_id=boot.boot_id,
        uptime_s=boot.uptime_s,
        load_1min=boot.load_1min,
        battery=battery,
        temperatures=(*believed, *gpu_temperatures, *_of_battery(battery)),
        throttle=thermal.throttle,
        throttled_by=plain(thermal.throttled_by, WORD),
        gpu=gpu,
        cpu=cpu,
        memory_total_bytes=memory_total,
        memory_available_bytes=memory_available,
        data_total_bytes=data_total,
        data_free_bytes=data_free,
        busiest=busiest,
        server=server,
        gpu_faults=faults,
        missing=tuple(name for name in SECTIONS if name in asked and (not said[name] or name in cut)),
        dropped=_bounded([*unread, *battery_dropped, *thermal_dropped, *zones_dropped, *gpu_dropped, *cpu_dropped]),
    )


def _bounded(dropped: list[Dropped]) -> tuple[Dropped, ...]:
    """The first of them, fit for people; of the others how many there are."""
    kept = [
        replace(each, source=plain(each.source, WORD), sensor=plain(each.sensor, WORD), raw=plain(each.raw, WORD))
        for each in dropped[:MOST_DROPPED]
    ]
    if more := len(dropped) - len(kept):
        kept.append(Dropped("probe", "", f"{more} more readings", "not kept"))
    return tuple(kept)


def _battery(parts: Sections) -> tuple[Battery, list[Dropped]]:
    battery, dropped = batteries.parse_dumpsys(parts.get("battery"))
    battery, more = batteries.add_supply(battery, parts.get("supply"))
    return battery, dropped + more


def _of_battery(battery: Battery) -> tuple[Temperature, ...]:
    if battery.celsius is None:
        return ()
    return (Temperature("battery", battery.celsius, SensorGroup.BATTERY, batteries.DUMPSYS),)
