"""The clocks of CPU and GPU as sysfs shows them: heat's limit, root's settings, and the load's demand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from farm.simulation.state import PhoneState

_CPU = "/sys/devices/system/cpu"
KGSL = "/sys/class/kgsl/kgsl-3d0"
_CPU_FILE = re.compile(rf"{_CPU}/cpu(\d+)/cpufreq/(\w+)")
_MALI = re.compile(r"(/sys/class/misc/mali0/device/devfreq/[^/]+)/cur_freq")
_BUSY_WINDOW_US = 100_000  # gpubusy: microseconds busy, microseconds looked at
_SETTABLE = frozenset(
    {"scaling_governor", "scaling_min_freq", "scaling_max_freq", "min_pwrlevel", "max_pwrlevel", "governor"}
    | {"min_freq", "max_freq", "force_clk_on"}
)
_CPU_GOVERNORS = "performance powersave userspace ondemand conservative schedutil interactive"


@dataclass(frozen=True, slots=True)
class _Band:
    """The limits of one clock: all in its file's unit, `steps` ascending."""

    steps: list[int]
    low: int
    high: int

    def at(self, busy: float) -> int:
        """The lowest step that serves that load."""
        wanted = self.low + busy * (self.high - self.low)
        return min((step for step in self.steps if self.high >= step >= wanted), default=self.high)


def policies(sysfs: Mapping[str, str]) -> dict[int, int]:
    """Core -> the first core of its cluster, which names the policy."""
    found = {}
    for path, text in sysfs.items():
        match = _CPU_FILE.fullmatch(path)
        if match and match[2] == "related_cpus":
            found[int(match[1])] = min(_numbers(text))
    return found


def place_of(path: str, leaders: Mapping[int, int]) -> str | None:
    """Where a captured file lies: those of a policy once, as in Linux; None if another core's file has it."""
    match = _CPU_FILE.fullmatch(path)
    if match is None or int(match[1]) not in leaders:
        return path
    core, name = int(match[1]), match[2]
    return f"{_CPU}/cpufreq/policy{core}/{name}" if leaders[core] == core else None


def constant_files(sysfs: Mapping[str, str]) -> dict[str, str]:
    """The captured files at their places, and those that every kernel has beside them."""
    leaders = policies(sysfs)
    files = {place: text for path, text in sysfs.items() if (place := place_of(path, leaders))}
    for core in set(leaders.values()):
        files.setdefault(f"{_CPU}/cpufreq/policy{core}/scaling_available_governors", f"{_CPU_GOVERNORS}\n")
    for folder, _ in _malis(sysfs):
        files.setdefault(f"{folder}/governor", "simple_ondemand\n")
    return files


def links(sysfs: Mapping[str, str]) -> dict[str, str]:
    """Symbolic links: path -> target."""
    return {f"{_CPU}/cpu{core}/cpufreq": f"../cpufreq/policy{leader}" for core, leader in policies(sysfs).items()}


def is_settable(path: str) -> bool:
    """Whether root can write a file below /sys and mean something by it."""
    return path.rpartition("/")[2] in _SETTABLE and ("cpufreq/" in path or "kgsl" in path or "mali" in path)


def clock_files(sysfs: Mapping[str, str], state: PhoneState) -> Iterator[tuple[str, str]]:
    """Every file about a clock in this state."""
    for core in sorted(set(policies(sysfs).values())):
        yield from _cpu(sysfs, state, core)
    if f"{KGSL}/gpu_available_frequencies" in sysfs:
        yield from _kgsl(sysfs, state)
    for folder, text in _malis(sysfs):
        yield from _mali(folder, int(text), sysfs, state)


def _cpu(sysfs: Mapping[str, str], state: PhoneState, core: int) -> Iterator[tuple[str, str]]:
    captured, folder = f"{_CPU}/cpu{core}/cpufreq", f"{_CPU}/cpufreq/policy{core}"
    lowest, highest = int(sysfs[f"{captured}/cpuinfo_min_freq"]), int(sysfs[f"{captured}/cpuinfo_max_freq"])
    steps = sorted(_numbers(sysfs.get(f"{captured}/scaling_available_frequencies", "")) or [lowest, highest])
    governor = state.knobs.get(f"{folder}/scaling_governor", sysfs.get(f"{captured}/scaling_governor", "")).strip()
    asked = _knob(state, f"{folder}/scaling_max_freq", highest)
    high = min(_step_below(asked, steps), _allowed(highest, steps, state.clock_scale))
    low = min(_knob(state, f"{folder}/scaling_min_freq", lowest), high)
    band = _Band(steps, low, high)
    yield f"{folder}/scaling_governor", f"{governor}\n"
    yield f"{folder}/scaling_max_freq", f"{high}\n"
    yield f"{folder}/scaling_min_freq", f"{low}\n"
    if governor == "performance":
        now = high
    elif governor == "powersave":
        now = low
    elif state.cpu_busy is None:
        now = max(low, min(high, int(sysfs.get(f"{captured}/scaling_cur_freq", lowest))))
    else:
        now = band.at(state.cpu_busy)
    yield f"{folder}/scaling_cur_freq", f"{now}\n"


def _kgsl(sysfs: Mapping[str, str], state: PhoneState) -> Iterator[tuple[str, str]]:
    """Adreno: power levels count from the fastest, which is 0."""
    levels = sorted(_numbers(sysfs[f"{KGSL}/gpu_available_frequencies"]), reverse=True)
    last = len(levels) - 1
    steps = levels[::-1]
    thermal = levels.index(_allowed(levels[0], steps, state.clock_scale))
    top = min(last, _knob(state, f"{KGSL}/max_pwrlevel", 0))
    bottom = min(last, max(top, _knob(state, f"{KGSL}/min_pwrlevel", last)))
    devfreq = f"{KGSL}/devfreq"
    ceiling = min(_step_below(_knob(state, f"{devfreq}/max_freq", levels[0]), steps), levels[max(top, thermal)])
    floor = min(ceiling, max(levels[bottom], _knob(state, f"{devfreq}/min_freq", levels[last])))
    governor = state.knobs.get(f"{devfreq}/governor", sysfs.get(f"{devfreq}/governor", "msm-adreno-tz")).strip()
    busy = state.gpu_busy or 0.0
    captured = int(sysfs.get(f"{KGSL}/gpuclk", levels[last]))
    if governor == "performance":
        now = ceiling
    elif governor == "powersave":
        now = floor
    elif state.gpu_busy is None:
        now = max(floor, min(ceiling, captured))
    else:
        now = _Band(steps, floor, ceiling).at(busy)
    files = {
        "num_pwrlevels": len(levels),
        "max_pwrlevel": top,
        "min_pwrlevel": bottom,
        "thermal_pwrlevel": thermal,
        "max_gpuclk": ceiling,
        "gpuclk": now,
        "clock_mhz": now // 1_000_000,
        "reset_count": int(sysfs.get(f"{KGSL}/reset_count", "0")) + state.gpu_resets,
        "gpu_busy_percentage": f"{busy * 100:.0f} %",
        "gpubusy": f"{busy * _BUSY_WINDOW_US:7.0f} {_BUSY_WINDOW_US if busy else 0:7d}",
        "temp": f"{state.temps_c['gpu'] * 1000:.0f}",
        "devfreq/cur_freq": now,
        "devfreq/min_freq": floor,
        "devfreq/max_freq": ceiling,
        "devfreq/governor": governor,
    }
    for name, value in files.items():
        yield f"{KGSL}/{name}", f"{value}\n"


def _malis(sysfs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Folder of each Mali's devfreq, and its highest clock."""
    found = (_MALI.fullmatch(path) for path in sysfs)
    return [(match[1], sysfs[f"{match[1]}/max_freq"]) for match in found if match]


def _mali(folder: str, highest: int, sysfs: Mapping[str, str], state: PhoneState) -> Iterator[tuple[str, str]]:
    lowest = int(sysfs.get(f"{folder}/min_freq", sysfs[f"{folder}/cur_freq"]))
    steps = _numbers(sysfs.get(f"{folder}/available_frequencies", ""))
    # Where the capture has no list: eight even steps.
    steps = sorted(steps or [lowest + (highest - lowest) * number // 7 for number in range(8)])
    high = min(_knob(state, f"{folder}/max_freq", highest), _allowed(highest, steps, state.clock_scale))
    low = min(high, _knob(state, f"{folder}/min_freq", lowest))
    governor = state.knobs.get(f"{folder}/governor", "simple_ondemand").strip()
    fixed = {"performance": high, "powersave": low}
    now = fixed.get(governor, _Band(steps, low, high).at(state.gpu_busy or 0.0))
    yield f"{folder}/available_frequencies", " ".join(map(str, steps)) + "\n"
    yield f"{folder}/governor", f"{governor}\n"
    yield f"{folder}/min_freq", f"{low}\n"
    yield f"{folder}/max_freq", f"{high}\n"
    yield f"{folder}/cur_freq", f"{now}\n"


def _knob(state: PhoneState, path: str, default: int) -> int:
    text = state.knobs.get(path, "").strip()
    return int(text) if text.isdecimal() else default


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def _allowed(maximum: int, steps: list[int], scale: float) -> int:
    """The highest step not above `scale` of the maximum; the lowest step when none is."""
    return _step_below(int(maximum * scale), [*steps, maximum])


def _step_below(limit: int, steps: list[int]) -> int:
    return max((step for step in steps if step <= limit), default=min(steps))
