"""Which SoC a phone has: every place that may say so, from the surest to the vaguest. Pure; never raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.core.identity import Confidence, Soc
from farm.fleet.gpu import parse_gpu
from farm.fleet.soc_table import (
    SocRow,
    base_part,
    common,
    model_of_soc_id,
    part_name,
    rows_of_model,
    rows_of_platform,
    vendor_name,
)

PLATFORM = "ro.board.platform"  # names a board family: `lahaina` is SM8350 or SM7325
SOC_MODEL = "ro.soc.model"

SOC0 = "/sys/devices/soc0/"
OLD_SOC0 = "/sys/devices/system/soc/soc0/"  # where older kernels have it
SOC_FILES = (f"{SOC0}machine", f"{SOC0}soc_id", f"{OLD_SOC0}machine", f"{OLD_SOC0}id")
_SOC_ID_FILES = (f"{SOC0}soc_id", f"{OLD_SOC0}id")

# Properties that hold the part itself. Values that are only a brand ("kirin") do not count.
_STATING = ("ro.hardware.chipname", "ro.chipname", "ro.vendor.soc.model", "ro.vendor.soc.model.part_name")
_MARKETING = ("ro.hardware.alter", "ro.config.cpu_info_display")  # Huawei: "Hisilicon Kirin 659", "HUAWEI Kirin 990"
# Names of a family's first chip: Dimensity 1100 (MT6891) says MT6893, a MT6877 phone was seen to say MT6833 in the
# last.
_FAMILY = ("ro.hardware", "ro.vendor.mediatek.platform", "ro.mediatek.platform")
_NOT_A_MODEL = frozenset({"", "kirin", "unknown", "none", "n/a", "default", "0"})

# A cpufreq maximum belongs to a table row when it is this close to the row's rounded figure ("2.8 GHz" for 2803200
# kHz).
CLOCK_TOLERANCE_GHZ = 0.06


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known besides names: it tells apart parts that share a name."""

    gpu: str = ""  # model as the driver states it, "Adreno 660"
    max_khz: int = 0  # of the fastest core


def identify_soc(
    properties: Mapping[str, str], files: Mapping[str, str], hardware: str, evidence: Evidence
) -> tuple[Soc, tuple[SocRow, ...]]:
    """The SoC, and the table rows that fit it.

    Args:
        properties: getprop.
        files: first lines of `SOC_FILES`, by path.
        hardware: cpuinfo's Hardware line.
        evidence: GPU and clock, when the phone states them.
    """
    manufacturer = properties.get("ro.soc.manufacturer", "")
    for source, model, confidence in _stated(properties, files, hardware):
        rows = _fitting(rows_of_model(model), evidence)
        name = " / ".join(dict.fromkeys(row.name for row in rows if row.name))
        vendor = vendor_name(manufacturer, model) or common(row.vendor for row in rows) or ""
        return Soc(model, name, vendor, source, confidence), rows
    return _of_platform(properties.get(PLATFORM, "").strip(), manufacturer, evidence)


def _stated(
    properties: Mapping[str, str], files: Mapping[str, str], hardware: str
) -> Iterator[tuple[str, str, Confidence]]:
    """(source, part, confidence) of every place that names a part, surest first."""
    stated = properties.get(SOC_MODEL, "").strip()
    if stated.lower() not in _NOT_A_MODEL:
        yield SOC_MODEL, part_name(stated) or stated, Confidence.CERTAIN
    places = {name: properties.get(name, "") for name in _STATING}
    places |= {path: files.get(path, "") for path in SOC_FILES if path.endswith("machine")}
    places |= {"cpuinfo Hardware": hardware}
    places |= {name: properties.get(name, "") for name in _MARKETING}
    for source, text in places.items():
        if part := part_name(text):
            yield source, part, Confidence.CERTAIN
    for path in _SOC_ID_FILES:
        if part := model_of_soc_id(files.get(path, "")):
            yield path, part, Confidence.LIKELY
    for name in _FAMILY:
        if part := part_name(properties.get(name, "")):
            rows = rows_of_platform(properties[name])
            yield name, (common(base_part(row.model) for row in rows) or part), Confidence.LIKELY


def _of_platform(platform: str, manufacturer: str, evidence: Evidence) -> tuple[Soc, tuple[SocRow, ...]]:
    rows = _fitting(rows_of_platform(platform), evidence)
    models = tuple(dict.fromkeys(base_part(row.model) for row in rows if row.model))
    vendor = vendor_name(manufacturer, platform) or common(row.vendor for row in rows) or ""
    if len(models) > 1:
        return Soc("", "", vendor, PLATFORM, Confidence.GUESS, models), rows
    if models:
        name = " / ".join(dict.fromkeys(row.name for row in rows if row.name))
        return Soc(models[0], name, vendor, PLATFORM, Confidence.LIKELY), rows
    if part := part_name(platform):
        return Soc(part, "", vendor, PLATFORM, Confidence.GUESS), ()
    return Soc(vendor=vendor, source="ro.soc.manufacturer" if manufacturer.strip() else ""), ()


def _fitting(rows: Sequence[SocRow], evidence: Evidence) -> tuple[SocRow, ...]:
    """The rows that agree with the evidence; all of them when none does (the table may be the one that errs)."""
    by_gpu = _or_all((row for row in rows if evidence.gpu and _gpu_of(row) == evidence.gpu), rows)
    ghz = evidence.max_khz / 1e6
    return _or_all((row for row in by_gpu if abs(row.max_ghz - ghz) <= CLOCK_TOLERANCE_GHZ), by_gpu)


def _or_all(some: Iterable[SocRow], every: Sequence[SocRow]) -> tuple[SocRow, ...]:
    return tuple(some) or tuple(every)


def _gpu_of(row: SocRow) -> str:
    found = parse_gpu(row.gpu)
    return found[1] if found else ""
