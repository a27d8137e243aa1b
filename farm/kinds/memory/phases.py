"""Readings of a session's memory on a phone, and the phases between them. Pure.

A reading is taken between two phases, while the phone has nothing to do. The kernel keeps the peak of a process
meanwhile and forgets it when a reading says so (`clear_refs`), so nothing is read while a phase runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.common.phone_text import whole_number
from farm.measure.metrics import FIRST_LOAD_TIME, FIRST_RUN_TIME, PEAK_MEMORY, values_of

INIT, FIRST_LOAD, LATER_LOAD, FIRST_RUN, STEADY_RUN = "init", "first load", "later load", "first run", "steady run"
PHASES = (INIT, FIRST_LOAD, LATER_LOAD, FIRST_RUN, STEADY_RUN)
KIB = 1024
DIGITS = 19  # of a size, at most

ONE_PEAK = "the phone does not let its shell reset a peak: each is the largest since the process began"
NO_ROLLUP = "the phone shows no smaps_rollup: sizes are the kernel's counters, PSS and swap of shared pages unknown"
NO_GPU = "the phone does not tell its shell how much GPU memory a process has"
NO_GPU_PEAK = "the phone tells no peak of GPU memory: it is read at the end of each phase"


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The memory of a session's processes now, bytes; None: the phone does not report it."""

    now_s: int  # by the phone's clock
    processes: int
    rss: int
    peak_rss: int  # since the last reading that reset it, or since the process began
    swap: int
    pss: int | None = None
    gpu: int | None = None
    gpu_peak: int | None = None  # since the process began
    reset: bool = False  # whether the peaks count from here on
    kills: Sequence[str] = field(default=())  # lmkd's words about apps that it ended since the reading before


def read_lines(text: str) -> MemoryReading:
    """The output of memory.sh. What cannot be read is left out: a process may end meanwhile."""
    now_s, kills, android_gpu = 0, [], {}
    processes: dict[str, _Process] = {}
    current = _Process()
    for line in text.splitlines():
        match line.split():
            case ["now", value]:
                now_s = whole_number(value, DIGITS)
            case ["process", pid]:
                current = processes.setdefault(pid, _Process())
            case ["gpu", name, value]:
                current.gpu[name] = whole_number(value, DIGITS)
            case ["peaks", "reset"]:
                current.reset = True
            case ["kill", *_]:
                kills.append(line.removeprefix("kill ").strip()[:300])
            case ["Proc", pid, "total:", value]:
                android_gpu[pid] = whole_number(value, DIGITS)
            case [name, value, "kB"] if name.endswith(":"):
                current.sizes[name[:-1]] = whole_number(value, DIGITS) * KIB
    living = {pid: each for pid, each in processes.items() if each.sizes}
    return MemoryReading(
        now_s=now_s,
        processes=len(living),
        rss=sum(each.rss for each in living.values()),
        peak_rss=sum(max(each.rss, each.sizes.get("VmHWM", 0)) for each in living.values()),
        swap=sum(each.sizes.get("VmSwap", each.sizes.get("Swap", 0)) for each in living.values()),
        pss=_sum(each.sizes.get("Pss") for each in living.values()),
        gpu=_sum(each.gpu_bytes(android_gpu.get(pid)) for pid, each in living.items()),
        gpu_peak=_sum(each.gpu.get("kernel_max") for each in living.values()),
        reset=bool(living) and all(each.reset for each in living.values()),
        kills=tuple(kills),
    )


@dataclass(slots=True)
class _Process:
    """The lines about one process."""

    sizes: dict[str, int] = field(default_factory=dict)  # bytes
    gpu: dict[str, int] = field(default_factory=dict)  # files of kgsl
    reset: bool = False

    @property
    def rss(self) -> int:
        """smaps_rollup counts pages; the status adds up counters, which lag behind by some pages per core."""
        return self.sizes.get("Rss", self.sizes.get("VmRSS", 0))

    def gpu_bytes(self, android: int | None) -> int | None:
        """By kgsl, or as Android counts it."""
        mapped, unmapped = self.gpu.get("gpumem_mapped"), self.gpu.get("gpumem_unmapped")
        return android if mapped is None or unmapped is None else mapped + unmapped


@dataclass(frozen=True, slots=True)
class ModelPhase:
    """A phase that ended."""

    name: str
    seconds: float
    before: MemoryReading
    after: MemoryReading
    interval_s: tuple[float, float] | None = None  # of the seconds, where they are a median of many

    def to_wire(self) -> dict[str, Any]:
        """A row of the result."""
        low_s, high_s = self.interval_s or (None, None)
        return {
            "phase": self.name,
            "ms": self.seconds * 1e3,
            "low_ms": None if low_s is None else low_s * 1e3,
            "high_ms": None if high_s is None else high_s * 1e3,
            "peak_rss_bytes": self.after.peak_rss,
            "rss_before_bytes": self.before.rss,
            "rss_bytes": self.after.rss,
            "pss_bytes": self.after.pss,
            "swap_bytes": self.after.swap,
            "gpu_bytes": self.after.gpu,
            "gpu_peak_bytes": self.after.gpu_peak,
            "kills": list(self.after.kills),
        }


def in_order(phases: Iterable[ModelPhase]) -> list[dict[str, Any]]:
    """Rows as people read them: both loads beside each other."""
    return [each.to_wire() for each in sorted(phases, key=lambda each: PHASES.index(each.name))]


def notes_on(readings: Sequence[MemoryReading], *, on_gpu: bool) -> Iterator[str]:
    """What the phone did not let its shell see, a sentence each."""
    if not all(each.reset for each in readings):
        yield ONE_PEAK
    if any(each.pss is None for each in readings):
        yield NO_ROLLUP
    if on_gpu and readings[-1].gpu is None:
        yield NO_GPU
    elif on_gpu and readings[-1].gpu_peak is None:
        yield NO_GPU_PEAK


def peak_bytes(rows: Iterable[Mapping[str, Any]]) -> int:
    """The most that any phase needed, of memory and swap."""
    return max((row["peak_rss_bytes"] + row["swap_bytes"] for row in rows), default=0)


def values_in(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The `values` of a certificate: the peak, and what a cold start takes."""
    took = {row["phase"]: row["ms"] / 1e3 for row in rows}
    times = ((FIRST_LOAD_TIME, took[FIRST_LOAD]), (FIRST_RUN_TIME, took[FIRST_RUN]))
    return values_of(*((*each, None, None) for each in ((PEAK_MEMORY, float(peak_bytes(rows))), *times)))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None
