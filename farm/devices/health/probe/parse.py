"""From a probe's output to a `Health`: its command, its output cut into sections, each given to its parser.

The script (`device_scripts/probe.sh`) is sent with each probe, without comments and indentation, and not kept on the
phone: so it works on a phone that is not provisioned, is always of this farm's version, and costs no second program.
3 KB over USB are nothing. Parsing is pure and never raises, whatever the phone printed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from farm.common.durations import many
from farm.common.phone_text import WORD, plain, split_sections
from farm.devices.health.probe import battery as batteries
from farm.devices.health.probe.system import (
    lists_processes,
    parse_boot,
    parse_cpu,
    parse_data,
    parse_gpu,
    parse_kernel,
    parse_meminfo,
    parse_processes,
)
from farm.devices.health.probe.thermal import parse_thermalservice, parse_zones
from farm.devices.server.phone_paths import scripts_folder
from farm.model.health import Battery, Dropped, Health, SensorGroup, Temperature, ThrottleStatus

# Sections in the order in which the phone prints them: those that may block in a driver stand last.
SECTIONS = (
    "boot",
    "memory",
    "cpu",
    "data",
    "battery",
    "thermal",
    "processes",
    "kernel",
    "supply",
    "zones",
    "gpu",
)
R = TypeVar("R", Temperature, Dropped)
END = "end"  # a probe that was not cut ends with it


@cache
def _script() -> str:
    text = (scripts_folder() / "probe.sh").read_text("utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def probe_command(sections: Collection[str] = SECTIONS) -> str:
    """The shell command that prints these sections.

    Raises:
        ValueError: there is no such section.
    """
    if unknown := set(sections) - set(SECTIONS):
        raise ValueError(f"the probe has no section {', '.join(sorted(unknown))}")
    wanted = " ".join(name for name in SECTIONS if name in sections)
    return _script() if len(wanted.split()) == len(SECTIONS) else f"SECTIONS='{wanted}'\n{_script()}"


MAX_SECTION_CHARACTERS = 64 << 10  # ten times what the longest section of a phone with 79 zones has
MAX_LINE_CHARACTERS = 4 << 10


@dataclass(frozen=True, slots=True)
class Sections:
    """The text of each section, and whether the probe came to its end."""

    texts: Mapping[str, str]
    whole: bool
    last: str  # the section in which a probe that is not whole was cut; "" when it printed none
    too_long: Mapping[str, int] = field(default_factory=dict)  # characters that were not read, by section

    def get(self, name: str) -> str:
        """A section's text, "" when it is not there."""
        return self.texts.get(name, "")


def cut_sections(output: bytes) -> Sections:
    """Split the probe's output. The last line of a cut output is left out: half a number is a wrong number.

    Lines and sections that are longer than any phone's are left out too, so that no phone keeps a parser busy.
    """
    by_section = split_sections(_as_utf8(output))
    texts = {name: _bounded(text) for name, text in by_section.items()}
    too_long = {name: unread for name, text in by_section.items() if (unread := len(text) - len(texts[name])) > 0}
    names = [name for name in texts if name]
    if END in names:
        return Sections(texts, True, "", too_long)
    last = names[-1] if names else ""
    if last:
        head, newline, _ = texts[last].rpartition("\n")
        texts[last] = head + newline
    return Sections(texts, False, last, too_long)


def _bounded(text: str) -> str:
    """Its first lines that are not too long."""
    if len(text) > MAX_LINE_CHARACTERS:
        text = "\n".join(line for line in text.split("\n") if len(line) <= MAX_LINE_CHARACTERS)
    if len(text) > MAX_SECTION_CHARACTERS:
        text = text[: text.rfind("\n", 0, MAX_SECTION_CHARACTERS) + 1]
    return text


def _as_utf8(output: bytes) -> bytes:
    """UTF-16 without a byte order mark as UTF-8 (dumps that went through a Windows shell); anything else as it is."""
    for at, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(output) > 3 and not any(output[at:64:2]):
            return output.decode(encoding, "replace").encode("utf-8", "replace")
    return output


MAX_TEMPERATURES = 256  # of the thermal service and of zones; the phone with the most has 110
MAX_DROPPED = 256


def parse_probe(output: bytes, asked: Collection[str] = SECTIONS) -> Health:
    """Interpret the probe's output; of a probe that was cut, the part that came.

    Args:
        output: standard output, as raw as the phone sent it.
        asked: the sections that were asked for; other sections are neither read nor missing.
    """
    return health_of(cut_sections(output), asked)


def health_of(parts: Sections, asked: Collection[str] = SECTIONS) -> Health:
    """`parse_probe` for an output that is cut into sections."""

    def whole(name: str) -> str:
        """Its text; "" if the probe was cut in it: half of it would give a wrong sum, or another disk's space."""
        return "" if name == parts.last else parts.get(name)

    boot_id, uptime_s, load_1min = parse_boot(parts.get("boot"))
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
    by_section = {
        "boot": bool(boot_id or uptime_s is not None),
        "memory": memory_total is not None,
        "cpu": bool(cpu),
        "data": data_total is not None,
        "battery": not batteries.source_is_silent(parts.get("battery")),
        "thermal": bool(thermal.temperatures) or thermal.throttle is not None,
        "processes": bool(busiest or server) or lists_processes(parts.get("processes")),
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
    believed, more = _believed((*thermal.temperatures, *zones))
    unread += more
    return Health(
        boot_id=boot_id,
        uptime_s=uptime_s,
        load_1min=load_1min,
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
        missing=tuple(name for name in SECTIONS if name in asked and (not by_section[name] or name in cut)),
        dropped=_limited([*unread, *battery_dropped, *thermal_dropped, *zones_dropped, *gpu_dropped, *cpu_dropped]),
    )


def _believed(found: tuple[Temperature, ...]) -> tuple[tuple[Temperature, ...], list[Dropped]]:
    """The first temperatures, fit for people, and the number of the rest."""
    believed = tuple(_made_plain(each, "sensor", "source") for each in found[:MAX_TEMPERATURES])
    if more := len(found) - len(believed):
        return believed, [Dropped("probe", "", f"{more} temperatures", "more than any phone has")]
    return believed, []


def _limited(dropped: list[Dropped]) -> tuple[Dropped, ...]:
    """The first of them, fit for people, and the number of the rest."""
    kept = [_made_plain(each, "source", "sensor", "raw") for each in dropped[:MAX_DROPPED]]
    if more := len(dropped) - len(kept):
        kept.append(Dropped("probe", "", many(more, "more reading"), "not kept"))
    return tuple(kept)


def _made_plain(record: R, *fields: str) -> R:
    """The record with these fields fit for people; itself where they are."""
    changed: dict[str, Any] = {
        name: text for name in fields if (text := plain(said := getattr(record, name), WORD)) is not said
    }
    return replace(record, **changed) if changed else record


def _battery(parts: Sections) -> tuple[Battery, list[Dropped]]:
    battery, dropped = batteries.parse_dumpsys(parts.get("battery"))
    battery, more = batteries.add_supply(battery, parts.get("supply"))
    return battery, dropped + more


def _of_battery(battery: Battery) -> tuple[Temperature, ...]:
    if battery.celsius is None:
        return ()
    return (Temperature("battery", battery.celsius, SensorGroup.BATTERY, batteries.DUMPSYS),)
