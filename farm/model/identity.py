"""The identity of a phone, read from its properties, cpuinfo and sysfs; and the facts that distinguish targets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Confidence(StrEnum):
    """How sure a fact is."""

    CERTAIN = "certain"  # the phone states it itself (ro.soc.model, kgsl gpu_model ...)
    LIKELY = "likely"  # derived from the only matching table row
    GUESS = "guess"  # several rows match, or only a family is known
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Soc:
    """System on chip. `model` is the vendor's part name (`SM8550`), empty when unknown."""

    model: str = ""
    name: str = ""  # marketing name, "Snapdragon 8 Gen 2"
    vendor: str = ""
    source: str = ""  # where the fact came from: a property, a file or a table row
    confidence: Confidence = Confidence.UNKNOWN
    candidates: tuple[str, ...] = ()  # the possible models when `model` is not the only one


@dataclass(frozen=True, slots=True)
class Gpu:
    """Graphics processor. `family` is `adreno`, `mali`, `powervr`, `xclipse`, ... or empty."""

    family: str = ""
    model: str = ""  # "Adreno 740", "Mali-G610": never with a revision or a core count
    cores: int = 0  # shader cores ("MC6"), 0 when the phone does not say
    source: str = ""
    confidence: Confidence = Confidence.UNKNOWN


@dataclass(frozen=True, slots=True)
class CpuCluster:
    """Cores of one kind. `mcpu` is LLVM's name (`cortex-a76`), empty when it has none."""

    cores: int
    name: str = ""  # "Cortex-A76"
    mcpu: str = ""
    max_khz: int = 0


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """The identity of a phone, as far as it is known; constant between two OTA updates.

    `abi` is the ABI that really runs (on a virtual phone `farm.virtual.abi`), `abis` what the phone claims.
    """

    hardware_serial: str = ""
    vendor: str = ""
    model: str = ""  # the vendor's model number, "24069PC21I"
    market_name: str = ""  # what is printed on the box, "POCO F6"; often empty
    android_release: str = ""
    sdk: int = 0
    fingerprint: str = ""
    abi: str = ""
    abis: tuple[str, ...] = ()
    soc: Soc = field(default_factory=Soc)
    gpu: Gpu = field(default_factory=Gpu)
    cpu: tuple[CpuCluster, ...] = ()
    cpu_features: tuple[str, ...] = ()
    virtual: bool = False
    clock_policy: str = ""  # governors of its CPU clusters and GPU when it was identified, as far as readable
    # TVM targets that follow, by farm's name for them ("cpu", "adreno", "opencl"): a tag or a target dict.
    targets: Mapping[str, object] = field(default_factory=dict)
    raw: Mapping[str, str] = field(default_factory=dict)  # the properties the facts came from, unnormalised


def target_key(target: object) -> str:
    """The hash of a target's canonical JSON: of a TVM tag, or a target dict in whatever order."""
    document = json.dumps(target, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(document.encode()).hexdigest()[:16]


def target_typed(target: object) -> str:
    """A target as `--target` takes it: a TVM tag, or a dict as JSON."""
    return target if isinstance(target, str) else json.dumps(target)


def target_words(target: object) -> str:
    """A target in a word or two."""
    if not isinstance(target, Mapping):
        return str(target)
    return " ".join(str(target[key]) for key in ("tag", "kind", "mtriple", "mcpu") if key in target)
