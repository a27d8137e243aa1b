"""Profiles: the output of genuine phones about themselves, as package data (SOURCES.tsv has the sources)."""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from farm.common.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

VIRTUAL_ABI = "x86_64"  # what really runs on most virtual phones, whatever their getprop claims
ARM64_ABI = "arm64-v8a"  # on a phone whose programs qemu runs
ARM64_SUFFIX = "+arm64"  # behind a profile's name: a phone of that ABI
ROOT_SUFFIX = "+root"  # behind a profile's name: its shell is root
OPENCL_SUFFIX = "+opencl"  # behind a profile's name: its GPU can be used, by OpenCL
ABI_PROPERTY = "farm.virtual.abi"
GPU_PROPERTY = "farm.virtual.gpu"  # what the GPU can be used by
_SERIAL_DIGITS = "0123456789abcdef"
_BLOCK = re.compile(r"^==> (\S+) <==\n(.*?)(?=^==> |\Z)", re.MULTILINE | re.DOTALL)
_PROPERTY = re.compile(r"^\[([^\]\n]+)\]: \[(.*?)\]\r?$(?=\n\[|\n*\Z)", re.MULTILINE | re.DOTALL)
_SERIAL_NAMES = frozenset({"ro.serialno", "ro.boot.serialno", "ril.serialnumber", "persist.radio.serialno"})


@dataclass(frozen=True, slots=True)
class ThermalZone:
    """One directory of /sys/class/thermal.

    `unit` is `mc` (millidegrees), `dc` (tenths), `c` (degrees) or `raw` (no temperature, or a sensor that is not
    there); `group` is a key of `PhoneState.temps_c`, empty for zones that never change.
    """

    type: str
    value: int  # as captured, in `unit`
    unit: str
    group: str


@dataclass(frozen=True, slots=True)
class Profile:
    """One model of phone. Texts are exactly as the programs print them or the files hold them."""

    name: str
    title: str
    soc: str
    gpu: str
    notes: str
    getprop: str  # Unix line ends; serial numbers still X-ed
    cpuinfo: str
    meminfo: str
    sysfs: Mapping[str, str]  # absolute path -> content
    zones: tuple[ThermalZone, ...]
    battery: str  # dumpsys battery
    thermalservice: str  # dumpsys thermalservice; empty: this Android has no such service

    def properties(
        self, serial: str, abi: str = VIRTUAL_ABI, *, rooted: bool = False, opencl: bool = False
    ) -> dict[str, str]:
        """The phone's properties with its own serial number and the ABI that really runs."""
        found: dict[str, str] = dict(_PROPERTY.findall(self.getprop))
        for name in _SERIAL_NAMES & found.keys():
            found[name] = serial
        found["ro.serialno"] = found["ro.boot.serialno"] = serial
        found[ABI_PROPERTY] = abi
        if opencl:
            found[GPU_PROPERTY] = OPENCL_SUFFIX[1:]
        if rooted:
            found |= {"ro.debuggable": "1", "ro.build.type": "userdebug", "service.adb.root": "1"}
        return found


def list_profiles() -> tuple[str, ...]:
    """Names of the profiles, sorted."""
    return tuple(sorted(entry.name for entry in _root().iterdir() if (entry / "profile.toml").is_file()))


@cache
def load_profile(name: str) -> Profile:
    """Read a profile."""
    if name not in list_profiles():
        raise UserError(f"no such profile: {name!r}", hint=f"one of {', '.join(list_profiles())}")
    folder = _root() / name
    about = tomllib.loads(_text(folder / "profile.toml"))
    thermalservice = folder / "dumpsys_thermalservice.txt"
    return Profile(
        name=name,
        title=about["title"],
        soc=about["soc"],
        gpu=about["gpu"],
        notes=about["notes"],
        getprop=_text(folder / "getprop.txt"),
        cpuinfo=_text(folder / "cpuinfo.txt"),
        meminfo=_text(folder / "meminfo.txt"),
        sysfs=MappingProxyType(dict(_BLOCK.findall(_text(folder / "sysfs.txt")))),
        zones=tuple(_zones(_text(folder / "thermal_zones.tsv"))),
        battery=_text(folder / "dumpsys_battery.txt"),
        thermalservice=_text(thermalservice) if thermalservice.is_file() else "",
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A profile and the options of its suffixes: `NAME`, `NAME+arm64`, `NAME+root`, `NAME+opencl+root` ..."""

    profile: str
    arm64: bool  # qemu runs its programs (farm.simulation.arm64)
    rooted: bool
    opencl: bool  # it has an OpenCL driver (farm.simulation.opencl)


def choose(text: str) -> Choice:
    """Read a profile's name and its suffixes."""
    name, *suffixes = text.split("+")
    unknown = sorted({f"+{suffix}" for suffix in suffixes} - {ARM64_SUFFIX, ROOT_SUFFIX, OPENCL_SUFFIX})
    # A suffix that nobody knows makes a profile that does not exist: who loads it says so.
    chosen = (suffix[1:] in suffixes for suffix in (ARM64_SUFFIX, ROOT_SUFFIX, OPENCL_SUFFIX))
    return Choice("".join([name, *unknown]), *chosen)


def serial_of(phone: str, profile: Profile) -> str:
    """A serial number for a phone: the same for the same name, as long as the profile's genuine one was."""
    match = re.search(r"^\[ro\.serialno\]: \[(X+)\]", profile.getprop, re.MULTILINE)
    length = len(match[1]) if match else 16
    digest = hashlib.sha256(f"farm virtual phone {phone}".encode()).digest()
    return "".join(_SERIAL_DIGITS[byte % 16] for byte in digest[:length])


def format_properties(properties: Mapping[str, str]) -> str:
    """Properties as `getprop` lists them."""
    return "".join(f"[{name}]: [{properties[name]}]\n" for name in sorted(properties))


def _root() -> Traversable:
    return resources.files(__name__)


def _text(file: Traversable) -> str:
    # Captures hold stray bytes that are no UTF-8 (a serial number of a OnePlus): they must survive the round trip.
    return file.read_bytes().decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def _zones(table: str) -> list[ThermalZone]:
    rows = (line.split("\t") for line in table.splitlines()[1:])
    return [ThermalZone(type_, int(value), unit, group) for type_, value, unit, group in rows]
