"""The SoC table: what is known about systems on chip by part name or board platform, with sources.

`data/soc_table.tsv` says per row where the platform/part pair and the facts were seen; empty cells are unknown, nothing
in it was filled in from memory. `data/qcom_soc_ids.tsv` maps the number in /sys/devices/soc0/soc_id to a part name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

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
_KIRIN = re.compile(r"kirin\s*(\d{3,4}[a-z]?)\b", re.IGNORECASE)
_EXYNOS = re.compile(r"(?:exynos|universal)\s*(\d{3,5})\b", re.IGNORECASE)
_SAMSUNG_PART = re.compile(r"\bs5e(\d{4})\b", re.IGNORECASE)
_HISILICON_PART = re.compile(r"\bhi(\d{4})\b", re.IGNORECASE)
_TENSOR_PART = re.compile(r"\b(gs\d{3}|zuma(?:pro)?)\b", re.IGNORECASE)
_UNISOC = re.compile(r"\b(ums\d{3,4}|sp\d{4}[a-z]?|sc\d{4}[a-z]?)\b", re.IGNORECASE)
_VARIANT = re.compile(r"(?:-A[A-F]| Pro)$")


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

    MediaTek package codes (`MT6853V/TNZA`) are dropped: they tell packages apart, not silicon that runs code
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
    if found := _KIRIN.search(text):
        return f"Kirin {found.group(1)}"
    if found := _EXYNOS.search(text):
        return f"Exynos {found.group(1)}"
    if found := _SAMSUNG_PART.search(text):
        return f"S5E{found.group(1)}"
    if found := _HISILICON_PART.search(text):
        return f"Hi{found.group(1)}"
    for pattern in (_TENSOR_PART, _UNISOC):
        if found := pattern.search(text):
            return found.group(1).upper()
    return ""


def base_part(model: str) -> str:
    """The part without its speed grade: `SM8350-AC` -> `SM8350`. Phones usually state only this."""
    return _VARIANT.sub("", model)


def vendor_name(manufacturer: str, model: str = "") -> str:
    """A SoC vendor's usual name from ro.soc.manufacturer, or else from the part name; empty when neither tells."""
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
    text = files("farm.fleet").joinpath("data", name).read_text(encoding="utf-8")
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
