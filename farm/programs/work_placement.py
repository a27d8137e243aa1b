"""Where the work of a program ran: what benchmark tools tell of delegates, providers and layers. Pure.

A reader takes the text of one call and returns the parts of the work, by the unit that did them. What a tool does not
tell is None: farm never takes a silent tool for one that used the accelerator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from farm.programs.outputs import ProgramOutput

# Units that are the phone's CPU: of a runtime itself, and of delegates for it.
_OWN_CPU = frozenset({"CPU", "cpu", "CPUExecutionProvider", "TfLiteXNNPackDelegate", "BLAS"})
_CPU = _OWN_CPU | {
    "XnnpackExecutionProvider", "DnnlExecutionProvider", "ACLExecutionProvider", "ArmNNExecutionProvider",
}  # fmt: skip
MAX_NAME = 64  # characters
MAX_COUNT = 10_000_000
_TFLITE_PART = re.compile(
    r"Replacing (\d{1,8}) (?:out of (\d{1,8}) )?node\(s\) with delegate \(([^)]*)\) node, yielding \d+ partitions"
    r"(?: for subgraph (\d{1,8}))?"
)
_TFLITE_ALL = re.compile(r"pplied (\S+) delegate, and the model graph will be completely executed")
_TFLITE_SOME = re.compile(r"pplied (\S+) delegate(?:\.|, and the model graph will be partially executed)")
_TFLITE_NONE = re.compile(r"Though (\S+) delegate is explicitly applied, the model graph will not be executed")
_MNN_CPU, _NCNN_CPU = re.compile(r"Forward type: \*\*CPU\*\*"), re.compile(r"^gpu_device = -1$")
_LLAMA_LAYER = re.compile(r"layer +(\d{1,6}) assigned to device ([^\s,]+)")
_LLAMA_OFFLOADED = re.compile(r"offloaded (\d{1,6})/(\d{1,6}) layers to GPU")


_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class WorkPart:
    """The work that one unit did."""

    unit: str  # as the runtime calls it
    count: int | None  # nodes, layers or operators; None: not told
    ms: float | None = None  # of one run; None: not told

    @property
    def on_cpu(self) -> bool:
        """Whether the unit is the CPU."""
        return self.unit in _CPU


@dataclass(frozen=True, slots=True)
class WorkPlacement:
    """All parts of the work."""

    of: str  # what is counted: nodes, layers, operators
    parts: tuple[WorkPart, ...]  # each unit once

    @property
    def offloaded(self) -> float | None:
        """The part of the work that no CPU did, from 0 to 1: of the time where it is told, else of the count."""
        if all(each.on_cpu for each in self.parts):
            return 0.0
        if not any(each.on_cpu for each in self.parts):
            return 1.0
        weights = [each.ms for each in self.parts]
        if None in weights or not sum(each or 0.0 for each in weights):
            weights = [each.count for each in self.parts]
        total = sum(each or 0.0 for each in weights)
        if None in weights or not total:
            return None
        return sum(each or 0.0 for each, part in zip(weights, self.parts, strict=True) if not part.on_cpu) / total

    @property
    def delegated(self) -> bool:
        """Whether anything but the runtime's own code for CPUs did a part."""
        return any(each.unit not in _OWN_CPU and each.count != 0 for each in self.parts)

    @property
    def words(self) -> str:
        """As histories have it: "NnapiExecutionProvider 53 nodes, CPUExecutionProvider 2 nodes"."""
        counts = ("" if each.count is None else f" {each.count} {self.of}" for each in self.parts)
        return ", ".join(f"{each.unit}{count}" for each, count in zip(self.parts, counts, strict=True))

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        parts = [{"unit": each.unit, "on_cpu": each.on_cpu, "count": each.count, "ms": each.ms} for each in self.parts]
        return {"of": self.of, "parts": parts, "offloaded": self.offloaded, "words": self.words}


def placement_of(of: str, parts: Iterable[tuple[str, int | None, float | None]]) -> WorkPlacement | None:
    """Parts added up by their units, accelerators first, then the larger ones; None: there are none."""
    found: dict[str, WorkPart] = {}
    for name, count, ms in parts:
        unit = name[:MAX_NAME]
        known = found.get(unit, WorkPart(unit, 0, 0.0))
        found[unit] = WorkPart(unit, _added(count, known.count), _added(ms, known.ms))
    ordered = sorted(found.values(), key=lambda each: (each.on_cpu, -(each.count or 0), each.unit))
    return WorkPlacement(of, tuple(ordered)) if ordered else None


def read_placement(form: str, output: ProgramOutput) -> WorkPlacement | None:
    """Where the work of one call ran; None: the output does not tell, or its format has no reader."""
    reader = PLACEMENT_READERS.get(form)
    return reader(output) if reader else None


def read_lines(output: ProgramOutput) -> WorkPlacement | None:
    """The last JSON line with `ran_on`, units with their numbers of nodes: `{"ran_on": {"GPU": 12, "CPU": 2}}`."""
    for line in reversed(output.lines):
        if line.startswith("{") and "ran_on" in line:
            found = _json(line)
            units = found.get("ran_on") if isinstance(found, Mapping) else None
            if isinstance(units, Mapping):
                return placement_of("nodes", ((str(name), _count(each), None) for name, each in units.items()))
    return None


def read_ort_profile(output: ProgramOutput) -> WorkPlacement | None:
    """ONNX Runtime's profile: the nodes of the last run and their times, by execution provider.

    A provider that compiles a part of the graph has it as one node: hence the share is of the time.
    """
    events = _json(output.stdout[max(output.stdout.find("["), 0) :])
    if not isinstance(events, list):
        return None
    run: dict[tuple[str, str], tuple[str, float]] = {}  # the last event of each node
    for each in events:
        arguments = each.get("args") if isinstance(each, Mapping) else None
        name = str(each.get("name")) if isinstance(arguments, Mapping) else ""
        if isinstance(arguments, Mapping) and name.endswith("_kernel_time") and arguments.get("provider"):
            us = each.get("dur")
            key = (name, str(arguments.get("node_index")))
            run[key] = str(arguments["provider"]), float(us) if isinstance(us, int | float) and us >= 0 else 0.0
    return placement_of("nodes", ((provider, 1, us / 1e3) for provider, us in run.values()))


def read_benchmark_model(output: ProgramOutput) -> WorkPlacement | None:
    """LiteRT's: the lines "Replacing 31 out of 33 node(s) ...", unless a delegate is then said to execute nothing.

    Nodes that no delegate took ran on the CPU. XNNPACK, a delegate for CPUs, is applied to these.
    """
    totals: dict[str, int | None] = {}  # of each subgraph, before the first delegate
    parts: list[tuple[str, int | None, float | None]] = []
    whole, partly, refused = (set[str]() for _ in range(3))
    for line in output.lines:
        if found := _TFLITE_PART.search(line):
            totals.setdefault(found[4] or "", int(found[2]) if found[2] else None)
            parts.append((found[3] or "unknown", int(found[1]), None))
        for pattern, names in ((_TFLITE_ALL, whole), (_TFLITE_SOME, partly), (_TFLITE_NONE, refused)):
            names |= {found[1] for found in [pattern.search(line)] if found}
    parts = [each for each in parts if not any(_names(name, each[0]) for name in refused)]
    taken = sum(count or 0 for unit, count, _ in parts if unit not in _CPU)
    parts += [(name, None, None) for name in sorted(whole | partly) if not any(_names(name, each[0]) for each in parts)]
    others = None if None in totals.values() or not totals else sum(each or 0 for each in totals.values()) - taken
    if whole and all(unit not in _CPU for unit, _, _ in parts):
        others = 0
    kept = [each for each in parts if each[0] not in _CPU]
    return placement_of("nodes", [*kept, *([] if others == 0 and kept else [("CPU", others, None)])])


def read_llama_bench(output: ProgramOutput) -> WorkPlacement | None:
    """llama-bench's with -v: the device of each layer; of older ones how many layers the GPU has."""
    text = output.stderr + output.stdout
    layers = dict(_LLAMA_LAYER.findall(text))
    if layers:
        return placement_of("layers", ((device, 1, None) for device in layers.values()))
    if offloaded := _LLAMA_OFFLOADED.findall(text):
        taken, total = map(int, offloaded[-1])
        units = [("GPU", taken, None), ("CPU", total - taken, None)]
        return placement_of("layers", [each for each in units if each[1] > 0])
    tests = _json(output.stdout[max(output.stdout.find("[\n"), 0) :])
    backends = tests[0].get("backends") if isinstance(tests, list) and tests and isinstance(tests[0], Mapping) else None
    only_cpu = bool(backends) and set(str(backends).split(",")) <= _OWN_CPU
    return placement_of("layers", [("CPU", None, None)]) if only_cpu else None


def read_choice(cpu: re.Pattern[str], output: ProgramOutput) -> WorkPlacement | None:
    """A tool's that prints its choice of a device: the CPU is certain, of others a part may run on the CPU untold."""
    return placement_of("nodes", [("CPU", None, None)]) if any(map(cpu.search, output.lines)) else None


PLACEMENT_READERS: Mapping[str, Callable[[ProgramOutput], WorkPlacement | None]] = {
    "json-lines": read_lines,
    "onnxruntime_perf_test": read_ort_profile,
    "benchmark_model": read_benchmark_model,
    "llama-bench": read_llama_bench,
    "mnn": partial(read_choice, _MNN_CPU),
    "ncnn": partial(read_choice, _NCNN_CPU),
}


def _names(short: str, delegate: str) -> bool:
    """Whether a delegate's name in a sentence (GPU, NNAPI) means the one of a graph (TfLiteGpuDelegateV2)."""
    return short == "EXTERNAL" or short.lower() in delegate.lower()


def _json(text: str) -> Any:
    """The JSON that a text begins with; None: none."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def _added(one: _Number | None, other: _Number | None) -> _Number | None:
    return None if one is None or other is None else one + other
