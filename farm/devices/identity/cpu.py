"""CPU facts: /proc/cpuinfo and /sys/devices/system/cpu -> clusters and features. Pure; never raises on any input.

What the kernel shows varies: 64-bit kernels print one block per *online* core, old 32-bit ones list the cores and then
the part of whichever core happened to run, single-core ones do not even number it. Cores that sleep are missing from
cpuinfo and are completed from sysfs (`present`, `related_cpus`, MIDR_EL1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as package_files

from farm.common.phone_text import WORD, plain
from farm.model.identity import CpuCluster

_MAX_LIST = 400  # characters: 64 cores, each by its number, are 182
_MAX_FLAGS = 256  # of a core; ARM has some 60, x86 130
MAX_CPUS = 64  # phones have at most 10 cores; a larger number in a file is damage, not a core

_CPU_DIR = "/sys/devices/system/cpu/"
_CORE_FILE = re.compile(r"cpu(\d{1,3})/(?:cpufreq|regs/identification)/(\w+)")
_POLICY_FILE = re.compile(r"cpufreq/policy(\d{1,3})/(\w+)")


@dataclass(frozen=True, slots=True)
class ArmPart:
    """A core design by MIDR implementer and part number; one row of data/arm_parts.tsv.

    `llvm_aarch64` and `llvm_arm` are the features that LLVM takes for granted on this `-mcpu`, of those its code
    generator uses unasked; None means that LLVM does not know the core on that architecture.
    """

    name: str
    mcpu: str
    llvm_aarch64: frozenset[str] | None
    llvm_arm: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """The known facts about a CPU.

    `lead` is the core design to schedule code for: the fastest known one, or the only one the kernel would name.
    """

    clusters: tuple[CpuCluster, ...] = ()
    features: tuple[str, ...] = ()  # what every listed core states, in the kernel's words
    cores: int = 0
    hardware: str = ""  # cpuinfo's Hardware line
    lead: ArmPart | None = None
    parts: tuple[ArmPart, ...] = ()  # every design that was seen, the lead included


@dataclass(slots=True)
class _Core:
    part: ArmPart | None = None
    features: tuple[str, ...] | None = None
    max_khz: int = 0
    group: int = -1  # first core that shares its clock


def read_cpu(cpuinfo: str, sysfs: Mapping[str, str], core_kinds: int = 0) -> CpuFacts:
    """Combine cpuinfo with sysfs.

    Args:
        cpuinfo: /proc/cpuinfo, decoded.
        sysfs: first lines of files, by path; those below /sys/devices/system/cpu are used.
        core_kinds: how many core designs the SoC is known to have, 0 when unknown.
    """
    cores: dict[int, _Core] = {}
    hardware, shared = _read_cpuinfo(cpuinfo, cores)
    _read_sysfs(sysfs, cores)
    groups = {core.group for core in cores.values() if core.group >= 0}
    if shared is not None and len(groups) <= 1 and core_kinds <= 1:
        for core in cores.values():
            core.part = core.part or shared
    for core in cores.values():
        if core.part is None and core.group >= 0:
            core.part = next((c.part for c in cores.values() if c.group == core.group and c.part), None)
    stated = [core.features for core in cores.values() if core.features]
    common = frozenset(stated[0]).intersection(*stated) if stated else frozenset()
    features = [flag for flag in stated[0] if flag in common] if stated else []
    ranked = [(core.max_khz, number, core.part) for number, core in cores.items() if core.part and core.part.mcpu]
    lead = max(ranked, key=lambda entry: entry[:2])[2] if ranked else shared
    seen = dict.fromkeys(part for part in (lead, *(core.part for core in cores.values())) if part)
    return CpuFacts(_clusters(cores), tuple(dict.fromkeys(features)), len(cores), hardware, lead, tuple(seen))


def arm_part(implementer: int, part: int) -> ArmPart:
    """The core design with these MIDR fields. A design that the table lacks is named by its numbers and has no mcpu."""
    return arm_parts().get((implementer, part)) or ArmPart(f"ARM {implementer:#04x}/{part:#05x}", "", None, None)


@cache
def arm_parts() -> Mapping[tuple[int, int], ArmPart]:
    """The part table: (implementer, part) -> design. Sources are in the table."""
    text = package_files("farm.devices.identity").joinpath("data", "arm_parts.tsv").read_text(encoding="utf-8")
    table = {}
    for line in text.splitlines()[1:]:
        implementer, part, name, mcpu, aarch64, arm, _source = line.split("\t")
        table[int(implementer, 16), int(part, 16)] = ArmPart(name, mcpu, _feature_set(aarch64), _feature_set(arm))
    return table


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """`0-3,6` (present, online) or `0 1 2 3` (related_cpus) -> core numbers; damage is skipped."""
    numbers: list[int] = []
    for word in re.split(r"[,\s]+", text[:_MAX_LIST].strip()):
        if found := re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", word):
            first, last = int(found.group(1)), int(found.group(2) or found.group(1))
            numbers.extend(number for number in range(first, min(last, MAX_CPUS) + 1) if number < MAX_CPUS)
    return tuple(dict.fromkeys(numbers))


def _read_cpuinfo(text: str, cores: dict[int, _Core]) -> tuple[str, ArmPart | None]:
    """Fill `cores`; return the Hardware line and the part that an old kernel printed once for all."""
    hardware = ""
    preamble: dict[str, str] = {}
    numbered: list[tuple[int, dict[str, str]]] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if not colon:
            continue
        if key == "processor":
            if re.fullmatch(r"[0-9]{1,3}", value) and int(value) < MAX_CPUS:
                numbered.append((int(value), {}))
        elif key == "Hardware":
            hardware = hardware or plain(value)
        else:
            (numbered[-1][1] if numbered else preamble).setdefault(key, value)
    if not numbered and ("CPU part" in preamble or "Features" in preamble):
        numbered = [(0, preamble)]
    for number, fields in numbered:
        flags = fields.get("Features") or fields.get("flags") or ""
        cores[number] = _Core(_part_of(fields), tuple(flags.split()[:_MAX_FLAGS]) or None)
    parts = [number for number, fields in numbered if "CPU part" in fields]
    if len(numbered) > 1 and parts == [numbered[-1][0]]:
        # One part for several cores: it is that of the core which ran `cat`, not of the last one listed.
        last = cores[parts[0]]
        shared, last.part = last.part, None
        return hardware, shared
    return hardware, None


def _part_of(fields: Mapping[str, str]) -> ArmPart | None:
    try:
        return arm_part(int(fields["CPU implementer"], 16), int(fields["CPU part"], 16))
    except (KeyError, ValueError):
        name = fields.get("model name", "")
        # ARM kernels print the architecture here, x86 ones the product.
        return ArmPart(plain(" ".join(name.split()), WORD), "", None, None) if "vendor_id" in fields and name else None


def _read_sysfs(sysfs: Mapping[str, str], cores: dict[int, _Core]) -> None:
    clocks: dict[int, int] = {}
    related: dict[int, tuple[int, ...]] = {}
    for number in parse_cpu_list(sysfs.get(_CPU_DIR + "present", "")):
        cores.setdefault(number, _Core())
    for path, value in sysfs.items():
        if not path.startswith(_CPU_DIR):
            continue
        below = path.removeprefix(_CPU_DIR)
        found = _CORE_FILE.fullmatch(below) or _POLICY_FILE.fullmatch(below)
        if found is None or int(found.group(1)) >= MAX_CPUS:
            continue
        number, name = int(found.group(1)), found.group(2)
        if name == "cpuinfo_max_freq" and re.fullmatch(r"[0-9]{1,9}", value.strip()):
            clocks[number] = int(value)
        elif name == "related_cpus":
            related[number] = parse_cpu_list(value)
        elif name == "midr_el1" and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value.strip()):
            core = cores.setdefault(number, _Core())
            midr = int(value, 16)
            core.part = core.part or arm_part((midr >> 24) & 0xFF, (midr >> 4) & 0xFFF)
    for number, khz in clocks.items():
        members = related.get(number) or (number,)
        for member in {number, *members}:
            core = cores.setdefault(member, _Core())
            core.max_khz = core.max_khz or khz
            core.group = min(members)


def _clusters(cores: Mapping[int, _Core]) -> tuple[CpuCluster, ...]:
    members: dict[tuple[str, str, int, int], int] = {}
    for _, core in sorted(cores.items()):
        name, mcpu = (core.part.name, core.part.mcpu) if core.part else ("", "")
        key = (name, mcpu, core.max_khz, core.group)
        members[key] = members.get(key, 0) + 1
    return tuple(CpuCluster(count, name, mcpu, khz) for (name, mcpu, khz, _), count in members.items())


def _feature_set(cell: str) -> frozenset[str] | None:
    return None if cell == "-" else frozenset(_words(cell.split(",")))


def _words(words: Iterable[str]) -> Iterable[str]:
    return (word for word in words if word)
