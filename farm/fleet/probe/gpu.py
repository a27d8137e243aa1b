"""The GPU's driver files: kgsl of Adreno, devfreq of anything, what Samsung and Arm put beside. Pure; never raises.

Sources: drivers/gpu/msm/kgsl_pwrctrl.c and adreno_sysfs.c of Qualcomm's kernels, and for devfreq
Documentation/ABI/testing/sysfs-class-devfreq.
`throttling` of kgsl is a switch, not a state: it says 1 on an idle, cool phone. `thermal_pwrlevel` is the state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from farm.core.health import Dropped, GpuReading, SensorGroup, Temperature
from farm.fleet.probe.readings import celsius, clock_hz, files, first_of, leading_integer

KGSL = "kgsl"
_GPU_FILE = re.compile(r"kgsl|mali|gpu|sgpu|/ged/", re.IGNORECASE)
_GPU_DEVFREQ = re.compile(r"/devfreq/[^/]*(?:mali|gpu|kgsl|g3d)[^/]*/|kgsl-3d0/devfreq/|/mali0/device/devfreq/")
_MOST_LEVELS = 64
_PAIR = re.compile(r"\s*([0-9]{1,18})\s+([0-9]{1,18})\s*", re.ASCII)


def parse_gpu(text: str) -> tuple[GpuReading, tuple[Temperature, ...], list[Dropped]]:
    """The reading, the driver's own thermometer as a temperature, and what was not believed."""
    found = files(text)
    values: dict[str, str] = {}  # kgsl comes first in the section; the first of a name counts
    for path, value in found.items():
        folder, _, name = path.rpartition("/")
        if _GPU_DEVFREQ.search(f"{folder}/"):
            values.setdefault(f"devfreq/{name}", value)
        elif _GPU_FILE.search(folder):
            values.setdefault(name, value)
    dropped: list[Dropped] = []

    def clock(*names: str) -> int | None:
        for name in names:
            if name in values:
                if (hertz := clock_hz(values[name])) is not None:
                    return hertz
                dropped.append(Dropped(_source(found), name, values[name][:80], "no GPU's clock in Hz, kHz or MHz"))
        return None

    steps = _steps(values)
    level = leading_integer(values.get("thermal_pwrlevel"))
    now = clock("gpuclk", "devfreq/cur_freq", "clock_mhz", "gpu_clock", "clock")
    degrees = _temperature(values, dropped)
    reading = GpuReading(
        clock_hz=now,
        min_hz=clock("devfreq/min_freq", "gpu_min_clock"),
        max_hz=clock("max_gpuclk", "devfreq/max_freq", "gpu_max_clock"),
        hardware_max_hz=max(steps, default=None),
        governor=_word(first_of((values.get("devfreq/governor"), values.get("gpu_governor")))),
        busy_percent=_busy(values, dropped),
        throttled=level[0] > 0 if level and 0 <= level[0] < _MOST_LEVELS else None,
        power_level=steps.index(now) if now in steps else None,
        celsius=degrees,
    )
    temperatures = (Temperature("gpu", degrees, SensorGroup.GPU, _source(found)),) if degrees is not None else ()
    return reading, temperatures, dropped


def _source(found: Mapping[str, str]) -> str:
    return KGSL if any("kgsl" in path for path in found) else "gpu"


def _steps(values: Mapping[str, str]) -> list[int]:
    """The clocks it can have, the fastest first. kgsl's own list counts: devfreq's may name more than there are."""
    listed = first_of((values.get("gpu_available_frequencies"), values.get("devfreq/available_frequencies")))
    steps = {clock_hz(word) for word in listed.split()[:_MOST_LEVELS]}
    return sorted((step for step in steps if step is not None), reverse=True)


def _word(text: str) -> str:
    return text.strip() if re.fullmatch(r"\s*[A-Za-z][\w.+-]{1,40}\s*", text, re.ASCII) else ""


def _busy(values: Mapping[str, str], dropped: list[Dropped]) -> float | None:
    """Percent: as printed, else busy and total time of the last interval. `0 0` is a GPU that had no interval."""
    for name in ("gpu_busy_percentage", "gpu_busy", "gpu_utilization", "utilization", "devfreq/gpu_load"):
        if found := leading_integer(values.get(name)):
            if 0 <= found[0] <= 100 and found[1] in ("", "%"):
                return float(found[0])
            dropped.append(Dropped(KGSL, name, values[name][:80], "not a percentage"))
    pair = _PAIR.fullmatch(values.get("gpubusy", ""))
    if pair is None or int(pair[2]) == 0:
        return None
    percent = 100 * int(pair[1]) / int(pair[2])
    if percent > 100:
        dropped.append(Dropped(KGSL, "gpubusy", values["gpubusy"].strip(), "busier than time went by"))
        return None
    return round(percent, 1)


def _temperature(values: Mapping[str, str], dropped: list[Dropped]) -> float | None:
    for name in ("temp", "gpu_tmu"):
        if found := leading_integer(values.get(name)):
            degrees = celsius(found[0], (1000, 10, 1))
            if degrees is None:
                dropped.append(Dropped(KGSL, name, values[name][:80], "no temperature in any unit, or in two"))
            return round(degrees, 1) if degrees is not None else None
    return None
