"""GPU facts: what the driver, OpenGL or properties call it -> one spelling per model. Pure; never raises."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from farm.core.identity import Confidence, Gpu
from farm.fleet.soc_table import SocRow, common

# Files in which a driver states its GPU, by path: Qualcomm kgsl, ARM's Mali kernel driver, Samsung's own node.
STATED_IN = (
    "/sys/class/kgsl/kgsl-3d0/gpu_model",
    "/sys/class/misc/mali0/device/gpuinfo",
    "/sys/kernel/gpu/gpu_model",
)
SURFACE_FLINGER = "SurfaceFlinger"  # key under which its "GLES:" line is handed in

_ADRENO = re.compile(r"adreno\W{0,4}(?:\(?tm\)?)?\W{0,4}([0-9]{3}[a-z]?)(?=v[0-9]|[^a-z0-9]|$)", re.IGNORECASE)
_MALI = re.compile(r"\b(mali|immortalis)[-_ ]([a-z][0-9]{1,4}[a-z]{0,8}|[0-9]{3}[a-z]?)", re.IGNORECASE)
_MALI_CORES = re.compile(r"\b(?:MC|MP)([0-9]{1,2})\b|\b([0-9]{1,2}) cores\b")
_XCLIPSE = re.compile(r"xclipse[-_ ]?([0-9]{3,4}[a-z]?)", re.IGNORECASE)
_POWERVR = re.compile(  # "Rogue GE8320", "B-Series BXM-8-256"
    r"powervr[-_ ]?((?:[a-z]{1,16}(?:-[a-z]{1,16})? ){0,3}[a-z]{0,4}-?[0-9][a-z0-9-]{0,20})",
    re.IGNORECASE,
)
_MALEOON = re.compile(r"maleoon[-_ ]?([0-9]{3}[a-z]?)", re.IGNORECASE)

# Values of the properties that name the graphics library. `meow` is MediaTek's wrapper around any of its GPUs.
_LIBRARY_FAMILIES = {"adreno": "adreno", "mali": "mali", "powervr": "powervr", "samsung": "xclipse"}
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
    """The GPU from what the driver states, else from the SoC's table rows, else the family from library names.

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
