"""The SoC and GPU of a phone: parsers, the SoC table, and every place that may name the part, the surest first.

Pure; never raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from farm.model.identity import Confidence, Gpu, Soc

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
# The platform's own part goes first: a Meizu M2 Note has ro.hardware mt6735, ro.board.platform mt6753.
_FAMILY = (PLATFORM, "ro.hardware", "ro.vendor.mediatek.platform", "ro.mediatek.platform")
# Vendors' own properties and names of packages; some hold made-up parts ("SDM855"):
# a part counts that the table has, with the GPU that the phone has.
_VENDORS_OWN = (
    "ro.meizu.hardware.soc",
    "ro.arch",  # Meizu, old: "exynos7420"
    "ro.board.chiptype",  # Huawei: "kirin990_cs2"
    "ro.vendor.qti.soc_model",
    "ro.product.oplus.cpuinfo",
    "ro.vivo.product.platform",
    "ro.vendor.config.lgsi.cpuinfo",
    "ro.boot.platform_name",
    "ro.boot.hardware.platform",
    "ro.hardware.cpuinfo",
)
_NOT_A_MODEL = frozenset({"", "kirin", "unknown", "none", "n/a", "default", "0"})

# A cpufreq maximum belongs to a table row when it is this close to the row's rounded figure ("2.8 GHz" for 2803200
# kHz).
CLOCK_TOLERANCE_GHZ = 0.06


@dataclass(frozen=True, slots=True)
class SocEvidence:
    """Known facts besides names: they distinguish parts that share a name."""

    gpu: str = ""  # model as the driver states it, "Adreno 660"
    max_khz: int = 0  # of the fastest core


def identify_soc(
    properties: Mapping[str, str], files: Mapping[str, str], hardware: str, evidence: SocEvidence
) -> tuple[Soc, tuple[SocRow, ...]]:
    """The SoC, and the table rows that fit it.

    Args:
        properties: getprop.
        files: first lines of `SOC_FILES`, by path.
        hardware: cpuinfo's Hardware line.
        evidence: GPU and clock, when the phone states them.
    """
    manufacturer = properties.get("ro.soc.manufacturer", "")
    for source, model, confidence in _stated(properties, files, hardware, evidence):
        rows = _fitting(rows_of_model(model), evidence)
        name = " / ".join(dict.fromkeys(row.name for row in rows if row.name))
        vendor = vendor_name(manufacturer, model) or common(row.vendor for row in rows)
        vendor = vendor or vendor_name("", properties.get(PLATFORM, ""))  # of a part that is just T612
        return Soc(model, name, vendor, source, confidence), rows
    return _of_platform(properties.get(PLATFORM, "").strip(), manufacturer, evidence)


def _stated(
    properties: Mapping[str, str], files: Mapping[str, str], hardware: str, evidence: SocEvidence
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
        part = part_name(properties.get(name, ""))
        if part and (name != PLATFORM or _MEDIATEK.search(part)):
            rows = rows_of_platform(properties[name])
            yield name, (common(base_part(row.model) for row in rows) or part), Confidence.LIKELY
    for name in _VENDORS_OWN:
        part = part_name(properties.get(name, ""))
        if any(evidence.gpu in ("", _gpu_of(row)) for row in rows_of_model(part)):
            yield name, part, Confidence.LIKELY


def _of_platform(platform: str, manufacturer: str, evidence: SocEvidence) -> tuple[Soc, tuple[SocRow, ...]]:
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


def _fitting(rows: Sequence[SocRow], evidence: SocEvidence) -> tuple[SocRow, ...]:
    """The rows that agree with the evidence; all of them when none does (the table may be the one that errs)."""
    by_gpu = _or_all((row for row in rows if evidence.gpu and _gpu_of(row) == evidence.gpu), rows)
    if not evidence.max_khz:
        return by_gpu
    ghz = evidence.max_khz / 1e6
    return _or_all((row for row in by_gpu if abs(row.max_ghz - ghz) <= CLOCK_TOLERANCE_GHZ), by_gpu)


def _or_all(some: Iterable[SocRow], every: Sequence[SocRow]) -> tuple[SocRow, ...]:
    return tuple(some) or tuple(every)


def _gpu_of(row: SocRow) -> str:
    found = parse_gpu(row.gpu)
    return found[1] if found else ""


# Files in which a driver states its GPU, by path: Qualcomm kgsl, ARM's Mali kernel driver, Samsung's own node.
STATED_IN = (
    "/sys/class/kgsl/kgsl-3d0/gpu_model",
    "/sys/class/misc/mali0/device/gpuinfo",
    "/sys/kernel/gpu/gpu_model",
)
SURFACE_FLINGER = "SurfaceFlinger"  # key under which its "GLES:" line is handed in

_ADRENO = re.compile(r"adreno\W{0,4}(?:\(?tm\)?)?\W{0,4}([0-9]{3}[a-z]?)(?=v[0-9]|[^a-z0-9]|$)", re.IGNORECASE)
_MALI = re.compile(
    r"\b(mali|immortalis)[-_ ]([a-z][0-9]{1,4}[a-z]{0,8}(?:-(?:ultra|premium|pro))?|[0-9]{3}[a-z]?)", re.IGNORECASE
)
_MALI_CORES = re.compile(r"\b(?:MC|MP)([0-9]{1,2})\b|\b([0-9]{1,2}) cores\b")
_XCLIPSE = re.compile(r"xclipse[-_ ]?([0-9]{3,4}[a-z]?)", re.IGNORECASE)
_POWERVR = re.compile(  # "Rogue GE8320", "B-Series BXM-8-256"
    r"powervr[-_ ]?((?:[a-z]{1,16}(?:-[a-z]{1,16})? ){0,3}[a-z]{0,4}-?[0-9][a-z0-9-]{0,20})",
    re.IGNORECASE,
)
_MALEOON = re.compile(r"maleoon[-_ ]?([0-9]{3}[a-z]?)", re.IGNORECASE)

# Values of the properties that name the graphics library. `meow` is MediaTek's wrapper around any of its GPUs.
_LIBRARY_FAMILIES = {
    "adreno": "adreno",
    "mali": "mali",
    "powervr": "powervr",
    "powervr_rogue": "powervr",
    "samsung": "xclipse",
}
_LIBRARY_PROPERTIES = ("ro.hardware.vulkan", "ro.hardware.egl")


def parse_gpu(text: str) -> tuple[str, str, int] | None:
    """Family, model and shader cores named in `text`, or None.

    Revisions are dropped: `Adreno740v2`, `Adreno (TM) 740` and `QUALCOMM Adreno(TM) 740` are all `Adreno 740`;
    `Mali-G610 MC6 r0p0` is `Mali-G610` with 6 cores.
    """
    if found := _ADRENO.search(text):
        return "adreno", f"Adreno {found.group(1).upper()}", 0
    if found := _MALI.search(text):
        cores = _MALI_CORES.search(text, found.end())
        count = int(cores.group(1) or cores.group(2)) if cores else 0
        series, model = found.group(1).capitalize(), found.group(2)
        return "mali", f"{series}-{model[0].upper()}{model[1:].lower()}", count
    for pattern, family, name in (
        (_XCLIPSE, "xclipse", "Xclipse"),
        (_POWERVR, "powervr", "PowerVR"),
        (_MALEOON, "maleoon", "Maleoon"),
    ):
        if found := pattern.search(text):
            return family, f"{name} {found.group(1)}", 0
    return None


def read_gpu(stated: Mapping[str, str], properties: Mapping[str, str], rows: Sequence[SocRow], soc: Confidence) -> Gpu:
    """The GPU from the driver's statement, else from the SoC's table rows, else the family from library names.

    Args:
        stated: first lines of `STATED_IN` files and SurfaceFlinger's GLES line.
        properties: getprop.
        rows: the table rows that fit the SoC.
        soc: how sure the SoC is.
    """
    for source in (*STATED_IN, SURFACE_FLINGER):
        if found := parse_gpu(stated.get(source, "")):
            family, model, cores = found
            return Gpu(family, model, cores, source, Confidence.CERTAIN)
    library, source = _library_family(properties)
    listed = common(parsed[:2] for row in rows if (parsed := parse_gpu(row.gpu)))
    if listed and library in ("", listed[0]):
        confidence = Confidence.GUESS if soc is Confidence.GUESS else Confidence.LIKELY
        cores = common(parsed[2] for row in rows if (parsed := parse_gpu(row.gpu))) or 0
        return Gpu(listed[0], listed[1], cores, "SoC table", confidence)
    return Gpu(family=library, source=source, confidence=Confidence.GUESS) if library else Gpu()


def _library_family(properties: Mapping[str, str]) -> tuple[str, str]:
    for name in _LIBRARY_PROPERTIES:
        if family := _LIBRARY_FAMILIES.get(properties.get(name, "").strip().lower()):
            return family, name
    return "", ""


T = TypeVar("T")

_VENDORS = {
    "qti": "Qualcomm",
    "qualcomm": "Qualcomm",
    "mediatek": "MediaTek",
    "samsung": "Samsung",
    "hisilicon": "HiSilicon",
    "google": "Google",
    "nvidia": "NVIDIA",
    "spreadtrum": "Unisoc",
    "unisoc": "Unisoc",
}

# Part names as vendors write them in properties, file names and marketing texts. Group 1 is what identifies the part.
_QUALCOMM = re.compile(r"\b((?:SM|SD[MA]|MSM|APQ|QC[SM]|QM)\d{3,4}[A-Z]{0,4})(?:[-_ ]?(A[A-F]|PRO))?\b", re.IGNORECASE)
_MEDIATEK = re.compile(r"\bMT(\d{4})([A-Z]?)(/?)", re.IGNORECASE)
_KIRIN = re.compile(r"kirin\s*(\d{3,4}[a-z]{0,2})(?![a-z0-9])", re.IGNORECASE)
_EXYNOS = re.compile(r"(?:exynos|universal)\s*(\d{3,5})\b", re.IGNORECASE)
_SAMSUNG_PART = re.compile(r"\bs5e(\d{4})\b", re.IGNORECASE)
_HISILICON_PART = re.compile(r"\bhi(\d{4})\b", re.IGNORECASE)
_TENSOR_PART = re.compile(r"\b(gs\d{3}|zuma(?:pro)?)\b", re.IGNORECASE)
_UNISOC = re.compile(r"\b(ums\d{3,4}|sp\d{4}[a-z]?|sc\d{4}[a-z]?)\b", re.IGNORECASE)
_VARIANT = re.compile(r"(?:-A[A-F]| Pro|(?<=^MT\d{4})[A-Z])$")


@dataclass(frozen=True, slots=True)
class SocRow:
    """One row of the table; empty strings and 0 are unknown."""

    platform: str
    model: str
    vendor: str
    name: str
    gpu: str
    core_kinds: int  # how many kinds of core the CPU has
    cores: int
    max_ghz: float  # of the fastest core


def part_name(text: str) -> str:
    """The part named in `text` in its canonical spelling (`SM8550`, `MT6891`, `Kirin 980`), or an empty string.

    MediaTek package codes (`MT6853V/TNZA`) are dropped: they distinguish packages, not silicon that runs code
    differently.
    """
    if found := _QUALCOMM.search(text):
        part, variant = found.group(1).upper(), (found.group(2) or "").upper()
        if variant == "PRO":
            return f"{part} Pro"
        return f"{part}-{variant}" if variant else part
    if found := _MEDIATEK.search(text):
        digits, letter, package = found.groups()
        letter = letter.upper()
        return f"MT{digits}" + ("" if package or letter == "V" else letter)
    for pattern, name in ((_KIRIN, "Kirin "), (_EXYNOS, "Exynos "), (_SAMSUNG_PART, "S5E"), (_HISILICON_PART, "Hi")):
        if found := pattern.search(text):
            return name + found.group(1)
    for pattern in (_TENSOR_PART, _UNISOC):
        if found := pattern.search(text):
            return found.group(1).upper()
    return ""


def base_part(model: str) -> str:
    """The part without its speed grade: `SM8350-AC` -> `SM8350`, `MT6797T` -> `MT6797`. Phones state only this."""
    return _VARIANT.sub("", model)


def vendor_name(manufacturer: str, model: str = "") -> str:
    """A SoC vendor's usual name from ro.soc.manufacturer, or else from the part name; empty where neither has it."""
    known = _VENDORS.get(manufacturer.strip().lower())
    if known or manufacturer.strip():
        return known or manufacturer.strip()
    for pattern, vendor in (
        (_QUALCOMM, "Qualcomm"),
        (_MEDIATEK, "MediaTek"),
        (_KIRIN, "HiSilicon"),
        (_HISILICON_PART, "HiSilicon"),
        (_EXYNOS, "Samsung"),
        (_SAMSUNG_PART, "Samsung"),
        (_TENSOR_PART, "Google"),
        (_UNISOC, "Unisoc"),
    ):
        if pattern.search(model):
            return vendor
    return ""


def rows_of_model(model: str) -> tuple[SocRow, ...]:
    """Rows of this part: the part itself, and its speed grades when `model` has none."""
    wanted = _key(model)
    if not wanted:
        return ()
    return tuple(row for row in _table() if wanted in (_key(row.model), _key(base_part(row.model))))


def rows_of_platform(platform: str) -> tuple[SocRow, ...]:
    """Rows seen with this ro.board.platform. Several parts may share one (`lahaina`: SM8350 and SM7325)."""
    wanted = platform.strip().lower()
    return tuple(row for row in _table() if wanted and row.platform == wanted)


def model_of_soc_id(soc_id: str) -> str:
    """The Qualcomm part with this socinfo id (decimal text), or an empty string."""
    return _soc_ids().get(soc_id.strip(), "")


def common(values: Iterable[T]) -> T | None:
    """The one truthy value among `values`, None when there is none or they differ."""
    distinct = {value for value in values if value}
    return distinct.pop() if len(distinct) == 1 else None


def _key(model: str) -> str:
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _read(name: str) -> list[list[str]]:
    text = files("farm.devices.identity").joinpath("data", name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()[1:] if line.strip()]


@cache
def _soc_ids() -> dict[str, str]:
    return {soc_id: model for soc_id, model, _source in _read("qcom_soc_ids.tsv")}


@cache
def _table() -> tuple[SocRow, ...]:
    return tuple(_row(cells) for cells in _read("soc_table.tsv"))


def _row(cells: Sequence[str]) -> SocRow:
    platform, model, manufacturer, name, gpu, cpu, cores, freq = cells[:8]
    # Marketing names carry the vendor ("Samsung Exynos 9810"); parts without a number are known by that name alone.
    vendor_word, _, rest = name.partition(" ")
    if vendor_word.lower() in _VENDORS and rest:
        name = rest
        manufacturer = manufacturer or vendor_word
    if name == f"({model})":
        name = ""
    if not model or (model.lower() == "kirin"):
        model = part_name(name) or part_name(platform) or name
    else:
        model = part_name(model) or model
    ghz = [float(number) for number in re.findall(r"(\d(?:\.\d+)?)\s*g?hz", re.sub(r"\d+\s*x\s*", "", freq.lower()))]
    return SocRow(
        platform=platform.lower(),
        model=model,
        vendor=vendor_name(manufacturer, model),
        name=name,
        gpu=gpu,
        core_kinds=cpu.count("&") + 1 if cpu else 0,
        cores=int(cores) if cores.isdigit() else 0,
        max_ghz=max(ghz, default=0.0),
    )
