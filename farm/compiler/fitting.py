"""Which tuning records are for a target: one answer for compiling (--records, --records-b) and tuning (--prior).

A record is a schedule: loops, vector lengths and intrinsics chosen for one kind of chip. It is for a target when these
are the same, in TVM's own spelling of both targets:

- the kind (llvm, opencl ...) and its keys (adreno, arm_cpu ...): they choose the schedule rules;
- of a CPU, the architecture (the first word of mtriple), mcpu and mattr: they say which vector instructions there are;
- of a GPU, how many threads and how much shared memory a block may have, and the warp: no schedule may exceed them.

Not compared: the rest of mtriple (a schedule does not know the system), num-cores (it changes which schedule is fast,
and any of them runs), the host of a GPU's target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.compiler.record_files import BadRecordsError, read_records, write_records
from farm.compiler.records import RecordSet, for_target, pruned
from farm.compiler.targets import TargetError, described, target_from

_CPU = ("mcpu", "mattr")
_GPU = ("max_num_threads", "max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size")


@dataclass(frozen=True, slots=True)
class Fitting:
    """The records of a set that are for a target."""

    set: RecordSet
    left_out: str = ""  # how many are not, and for what they are: one sentence; empty when all are


class ForeignRecordsError(BadRecordsError):
    """All records are for other targets, or for other models."""

    code = "foreign_records"


def same_target(one: object, other: object) -> bool:
    """Whether schedules for one target are for the other (TVM targets, or what `target_from` takes)."""
    return _sort(one) == _sort(other)


def fitting(found: RecordSet, target: object, name: str = "the records") -> Fitting:
    """The records that are for `target`.

    Raises:
        ForeignRecordsError: there are some, and none of them is.
        TargetError: TVM does not know `target`.
    """
    wanted = _sort(target)
    known: dict[str, bool] = {}
    foreign: dict[str, int] = {}  # by what they are for: how many

    def fits(its: Any) -> bool:
        said = json.dumps(its, sort_keys=True)
        if said not in known:
            try:
                known[said] = _sort(its) == wanted
            except TargetError:
                known[said] = False
        if not known[said]:
            foreign[words(its)] = foreign.get(words(its), 0) + 1
        return known[said]

    kept = for_target(found, fits)
    if not foreign:
        return Fitting(found)
    others = ", ".join(f"{count} for {its}" for its, count in foreign.items())
    if not kept.records:
        raise foreign_records(name, target, others)
    return Fitting(kept, f"{sum(foreign.values())} of {len(found.records)} records are left out: {others}")


def foreign_records(name: str, target: object, others: str) -> ForeignRecordsError:
    """The error that says for what records should be and for what they are."""
    return ForeignRecordsError(
        f"{name}: no record is for {words(target)}: {others}",
        hint="farm tune makes records for this target; records fit one CPU model or GPU only",
    )


def unpack(source: Path | bytes, target: object, folder: Path, name: str = "") -> tuple[str, ...]:
    """Write what compiling for `target` needs of records into a folder, as `Recipe.records` takes it.

    Returns:
        what was damaged or left out, in sentences.

    Raises:
        BadRecordsError: there are no records, or none for this target.
    """
    reading = read_records(source, name)
    fit = fitting(reading.set, target, name or (source.name if isinstance(source, Path) else "the records"))
    write_records(pruned(fit.set), folder)
    return (*reading.told("the records"), *filter(None, (fit.left_out,)))


def _sort(target: object) -> tuple[object, ...]:
    """What must be the same."""
    known = _tvm(target)
    said = known.attrs
    architecture = str(said.get("mtriple", "")).partition("-")[0]
    cpu = (architecture, *(_plain(said.get(name)) for name in _CPU)) if known.kind.name == "llvm" else ()
    gpu = tuple(_plain(said.get(name)) for name in _GPU)
    return (str(known.kind.name), frozenset(map(str, known.keys)), cpu, gpu)


def _plain(value: Any) -> object:
    if value is None or isinstance(value, str | int | float):
        return value or None
    return frozenset(map(str, value)) or None


def _tvm(target: object) -> Any:
    return target if not isinstance(target, Mapping | str) else target_from(target)


def words(target: object) -> str:
    """A target in a few words, with its features."""
    try:
        known = _tvm(target)
        features = ",".join(map(str, known.attrs.get("mattr") or ()))
        return " ".join(filter(None, (described(known), features)))
    except TargetError:
        return json.dumps(target)[:80]
