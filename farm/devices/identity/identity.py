"""The identity of a phone: one read-only shell command, and the pure step from its output to a `DeviceIdentity`.

A phone that is not adopted gets `READ_COMMAND` and nothing else. It writes nothing, needs no root, and forks only for
`cat`, `getprop` and (where no driver file names the GPU) `dumpsys`; files are read by the shell itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farm.adb.client import AdbClient
from farm.common.errors import Code, PhoneError
from farm.common.phone_text import LINE, SECTION, WORD, decode, parse_getprop, plain, split_sections, whole_number
from farm.devices.identity.cpu import read_cpu
from farm.devices.identity.soc import (
    PLATFORM,
    SOC_FILES,
    SOC_MODEL,
    STATED_IN,
    SURFACE_FLINGER,
    SocEvidence,
    common,
    identify_soc,
    parse_gpu,
    read_gpu,
)
from farm.devices.identity.targets import targets_of
from farm.model.identity import DeviceIdentity

READ_TIMEOUT_S = 20.0  # generous on purpose: no real phone under load was measured

MAX_OUTPUT_BYTES = 1 << 20  # ten times what the most talkative phone of 60 prints; strangers are asked too
_MANY_BYTES = 128 << 10  # parsed beside the event loop
_MAX_FILES = 1024
_MAX_CPUINFO = 256 << 10  # characters; a server's 128 cores have 200 KB
_MAX_VALUE = 1000  # characters of a property or a file's first line; Android allows 92, read-only ones more
_MAX_ABIS, _MAX_FEATURES, _MAX_GOVERNORS = 16, 256, 8
_EVIDENCE_BYTES = 2000  # of an answer that makes no sense; enough to see what it is
_CPU_GLOBS = (
    "/sys/devices/system/cpu/present",
    "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq",
    "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/related_cpus",
    "/sys/devices/system/cpu/cpufreq/policy[0-9]*/cpuinfo_max_freq",
    "/sys/devices/system/cpu/cpufreq/policy[0-9]*/related_cpus",
    "/sys/devices/system/cpu/cpu[0-9]*/regs/identification/midr_el1",
)
_CPU_GOVERNORS = "/sys/devices/system/cpu/cpufreq/policy[0-9]*/scaling_governor"
_GPU_GOVERNOR = "/sys/class/kgsl/kgsl-3d0/devfreq/governor"
_VIRTUAL_ABI = "farm.virtual.abi"
_VIRTUAL_GPU = "farm.virtual.gpu"
_MARKET_NAMES = (
    "ro.product.marketname",  # Xiaomi
    "ro.product.vendor.marketname",
    "ro.config.marketing_name",  # Huawei, Honor
    "ro.vivo.market.name",
    "ro.vendor.oplus.market.enname",  # OPPO, OnePlus, realme: in Latin letters
    "ro.vendor.oplus.market.name",
    "ro.oppo.market.name",
)
# Kept in the identity as they are, for people who doubt what was made of them.
_KEPT_PROPERTIES = (
    "ro.product.manufacturer",
    "ro.product.brand",
    "ro.product.model",
    "ro.product.device",
    "ro.build.version.release",
    "ro.build.version.sdk",
    "ro.product.cpu.abilist",
    "ro.product.cpu.abi",
    "ro.soc.manufacturer",
    SOC_MODEL,
    PLATFORM,
    "ro.hardware",
    "ro.hardware.chipname",
    "ro.chipname",
    "ro.hardware.egl",
    "ro.hardware.vulkan",
    _VIRTUAL_ABI,
)

# As processes.sh reads it. Some phones hide the first file.
BOOT_ID = 'cat "${FARM_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}" 2>/dev/null || grep btime /proc/stat 2>/dev/null'

# For mksh (Android 4.0 and later) and any POSIX sh. `show` prints the first line of each readable file with shell
# built-ins only: a `cat` per file would be some 40 forks.
READ_COMMAND = f"""\
show() {{
  for path in "$@"; do
    line=''
    {{ IFS= read -r line < "$path"; }} 2>/dev/null
    [ -n "$line" ] && echo "$path=$line"
  done
}}
echo '{SECTION}files'
show {" ".join((*SOC_FILES, *_CPU_GLOBS, _CPU_GOVERNORS, _GPU_GOVERNOR))}
gpu=$(show {" ".join(STATED_IN)})
echo "$gpu"
echo '{SECTION}gles'
[ -n "$gpu" ] || dumpsys -t 2 SurfaceFlinger 2>/dev/null | grep 'GLES:' 2>/dev/null
echo '{SECTION}cpuinfo'
cat /proc/cpuinfo 2>/dev/null
echo '{SECTION}boot'
{BOOT_ID}
echo '{SECTION}getprop'
getprop
"""


@dataclass(frozen=True, slots=True)
class RawIdentity:
    """A phone's statements about itself, not yet interpreted."""

    properties: Mapping[str, str] = field(default_factory=dict)
    cpuinfo: str = ""
    files: Mapping[str, str] = field(default_factory=dict)  # path -> first line
    gles: str = ""  # SurfaceFlinger's "GLES: vendor, renderer, version" line
    boot: str = ""  # the name of this boot

    @classmethod
    def parse(cls, output: bytes) -> RawIdentity:
        """Split the output of `READ_COMMAND`; whatever is missing stays empty."""
        sections = split_sections(output, last="getprop")
        files = [
            line.split("=", 1) for line in sections.get("files", "").split("\n") if line.startswith("/") and "=" in line
        ]
        return cls(
            properties={name: value[:_MAX_VALUE] for name, value in parse_getprop(sections.get("getprop", "")).items()},
            cpuinfo=sections.get("cpuinfo", "")[:_MAX_CPUINFO],
            files={path: value[:_MAX_VALUE] for path, value in files[:_MAX_FILES]},
            gles=sections.get("gles", "")[:_MAX_VALUE].strip(),
            boot=sections.get("boot", "")[:_MAX_VALUE].strip(),
        )


async def read_identity(client: AdbClient, serial: str) -> RawIdentity:
    """Read a phone's identity, in one shell round trip.

    Raises:
        AdbError: the phone or the adb server did not do its part.
        PhoneError: the command ran but printed no property; the evidence is what it printed.
    """
    result = await client.shell(serial, READ_COMMAND, timeout_s=READ_TIMEOUT_S, most_bytes=MAX_OUTPUT_BYTES)
    if len(result.stdout) > _MANY_BYTES:
        raw = await asyncio.to_thread(RawIdentity.parse, result.stdout)
    else:
        raw = RawIdentity.parse(result.stdout)
    if not raw.properties:
        evidence = decode(result.stdout[:_EVIDENCE_BYTES])
        raise PhoneError(
            f"phone {serial} runs commands but `getprop` printed no property",
            Code.NO_IDENTITY,
            hint=f"try `{client.address.command(serial)} shell getprop`; the phone may still be booting",
            evidence=evidence,
        )
    return raw


def identify(raw: RawIdentity) -> DeviceIdentity:
    """Interpret a phone's answer. Total: any input gives an identity, unknown facts stay empty."""
    properties = raw.properties
    cpu = read_cpu(raw.cpuinfo, raw.files)
    stated_gpu = {**{path: raw.files.get(path, "") for path in STATED_IN}, SURFACE_FLINGER: raw.gles}
    gpu_seen = next((found[1] for text in stated_gpu.values() if (found := parse_gpu(text))), "")
    max_khz = max((cluster.max_khz for cluster in cpu.clusters), default=0)
    soc, rows = identify_soc(properties, raw.files, cpu.hardware, SocEvidence(gpu_seen, max_khz))
    soc = replace(soc, model=plain(soc.model, WORD), vendor=plain(soc.vendor, WORD))
    if kinds := common(row.core_kinds for row in rows):
        cpu = read_cpu(raw.cpuinfo, raw.files, kinds)
    gpu = read_gpu(stated_gpu, properties, rows, soc.confidence)
    virtual_abi = plain(properties.get(_VIRTUAL_ABI, "").strip(), WORD)
    abis = _abis(properties)
    abi = virtual_abi or (abis[0] if abis else "")
    return DeviceIdentity(
        hardware_serial=_first(properties, "ro.serialno", "ro.boot.serialno"),
        vendor=_first(properties, "ro.product.manufacturer", "ro.product.vendor.manufacturer", "ro.product.brand"),
        model=_first(properties, "ro.product.model", "ro.product.vendor.model", "ro.product.device"),
        market_name=_first(properties, *_MARKET_NAMES),
        android_release=_first(properties, "ro.build.version.release"),
        sdk=whole_number(properties.get("ro.build.version.sdk", "").strip()),
        fingerprint=_first(properties, "ro.build.fingerprint", "ro.vendor.build.fingerprint"),
        abi=abi,
        abis=abis,
        soc=soc,
        gpu=gpu,
        cpu=cpu.clusters,
        cpu_features=tuple(plain(flag, WORD) for flag in cpu.features[:_MAX_FEATURES]),
        virtual=bool(virtual_abi),
        clock_policy=clock_policy(raw.files),
        targets=targets_of(
            abi, cpu, gpu.family, virtual=bool(virtual_abi), virtual_gpu=bool(properties.get(_VIRTUAL_GPU))
        ),
        raw=_kept(raw),
    )


def clock_policy(files: Mapping[str, str]) -> str:
    """Which governors set the clocks, "schedutil, gpu msm-adreno-tz"; empty when nothing is readable.

    Clusters are not distinguished: a cluster that is offline just then shows no governor, and that is no other policy.
    """
    cpu = {
        plain(text.strip(), WORD) for path, text in files.items() if path.endswith("/scaling_governor") and text.strip()
    }
    gpu = plain(files.get(_GPU_GOVERNOR, "").strip(), WORD)
    return ", ".join([*sorted(cpu)[:_MAX_GOVERNORS], *([f"gpu {gpu}"] if gpu else [])])


def _first(properties: Mapping[str, str], *names: str) -> str:
    """The first of these properties that is not blank, on one line."""
    for name in names:
        if value := " ".join(properties.get(name, "").split()):
            return plain(value)
    return ""


def _abis(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The ABIs that the phone claims, best first. Android before 5.0 has no list, only a first and a second."""
    listed = properties.get("ro.product.cpu.abilist", "") or properties.get("ro.system.product.cpu.abilist", "")
    claims = listed.split(",") if listed.strip() else []
    claims += [properties.get("ro.product.cpu.abi", ""), properties.get("ro.product.cpu.abi2", "")]
    return tuple(dict.fromkeys(plain(claim.strip(), WORD) for claim in claims[:_MAX_ABIS] if claim.strip()))


def _kept(raw: RawIdentity) -> dict[str, str]:
    kept = {name: raw.properties[name] for name in _KEPT_PROPERTIES if raw.properties.get(name)}
    kept |= {path: raw.files[path] for path in (*SOC_FILES, *STATED_IN) if raw.files.get(path)}
    kept |= {SURFACE_FLINGER: raw.gles} if raw.gles else {}
    return {name: plain(text, LINE) for name, text in kept.items()}
