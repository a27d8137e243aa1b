"""A tuning run's database: TVM's in memory, every trial also in a folder that no kill can hurt."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tvm.s_tir import analysis
from tvm.s_tir import meta_schedule as ms

from farm.compiler.record_files import RecordFolder
from farm.compiler.records import (
    FAILED_S,
    MEASURED_BY,
    RECORDS,
    TASKS,
    WORKLOADS,
    Origin,
    Record,
    RecordSet,
    TuningTask,
    Workload,
    merge,
    record_key,
)
from farm.compiler.targets import records_for
from farm.compiler.tvm_errors import first_line
from farm.model.identity import target_key
from farm.tuning.candidate import host_errors_reported


@dataclass(frozen=True, slots=True)
class Tunable:
    """One operator of the model that has schedules to choose from."""

    task: TuningTask
    module: Any  # IRModule with one function
    workload: Any  # ms.database.Workload of `memory`


@dataclass(frozen=True, slots=True)
class WrittenTrial:
    """A trial that is written."""

    record: Record
    origin: Origin
    tuned: Any  # ms.database.TuningRecord


class TuningDatabase:
    """Records of one run, and those it began with. For one thread, but for `write`."""

    def __init__(self, folder: Path, target: Any, prior: RecordSet | None = None) -> None:
        """Open the folder, repaired if need be. Records count once `tasks` has named their tasks.

        Args:
            folder: where this run's records are; made if need be.
            target: tvm.target.Target of all of them.
            prior: records of other runs: known, and no trials of this one.
        """
        self.memory = ms.database.MemoryDatabase()
        self.target = target
        self.tunables: list[Tunable] = []
        self.left_out: list[str] = []  # what of the prior is of no use, in sentences
        self._place = folder
        self._folder = RecordFolder(folder)
        self._writing = threading.Lock()
        self._given = prior or RecordSet()
        self._prior = RecordSet()
        self._prior_defaults: dict[str, float] = {}
        self._trials: dict[str, Record] = {}  # this run's, by key, in their order
        self._known: dict[str, Record] = {}  # those and the prior's
        self._origins = dict(self._folder.found.set.origins)
        self._index = {name: number for number, name in enumerate(self._folder.found.set.workloads)}
        self._lines = dict(self._folder.found.set.workloads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    @property
    def damage(self) -> Sequence[str]:
        """The problems of the folder, in sentences."""
        return [str(each) for each in self._folder.damage]

    @property
    def trials(self) -> int:
        """Candidates this run has measured, failed ones and those of earlier attempts too."""
        return len(self._trials)

    @property
    def spent_s(self) -> float:
        """Seconds of search until the last trial."""
        return max((each.spent_s for each in self._origins.values()), default=0.0)

    def add_tasks(self, extracted: Sequence[Any]) -> list[Tunable]:
        """Take the model's tasks (MetaSchedule's ExtractedTask), and load every record that is about one of them."""
        found = self._folder.found.set
        wrong: dict[str, Workload] = {}
        # The most work first: a short run does not get to all of them.
        for each in sorted(extracted, key=lambda each: -int(each.weight) * _flop(each.dispatched[0])):
            module = each.dispatched[0]
            workload = self.memory.commit_workload(module)
            name, text = workload.as_json()
            known = found.tasks.get(str(name))
            task = TuningTask(
                workload=str(name),
                name=str(each.task_name),
                weight=int(each.weight),
                flop=_flop(module),
                default_s=known.default_s if known else 0.0,
                default_for=known.default_for if known else "",
            )
            self.tunables.append(Tunable(task, module, workload))
            line = Workload(str(name), str(text))
            if task.workload not in self._index:
                self._index[task.workload] = len(self._index)
                self._folder.append(WORKLOADS, line.line())
            elif self._lines[task.workload] != line:  # the hash is ours, the module is not
                wrong[task.workload] = line
            self._lines[task.workload] = line
            self._folder.append(TASKS, _json(task))
        if wrong:
            self._folder.put_right(wrong)
        self._load()
        return self.tunables

    def records(self, workload: str) -> list[tuple[Any, Record]]:
        """The known results of a task: its measured candidates (ms.MeasureCandidate) with their records."""
        found = next(each.workload for each in self.tunables if each.task.workload == workload)
        return [
            (_tuning_record(record, found).as_measure_candidate(), record)
            for record in self._known.values()
            if record.workload == workload
        ]

    def known(self, key: str) -> Record | None:
        """The earlier result of the candidate of that key (`record_key`)."""
        return self._known.get(key)

    def own(self) -> list[Record]:
        """This run's records in the order of their measurement."""
        return list(self._trials.values())

    def prior(self) -> list[Record]:
        """Those of the prior that are about this model's tasks and target."""
        return list(self._prior.records)

    def key_of(self, tunable: Tunable, candidate: Any) -> str:
        """The key of a candidate (ms.MeasureCandidate)."""
        tuned = ms.database.TuningRecord(candidate.sch.trace, tunable.workload, [FAILED_S], self.target, [])
        trace, _, target, _ = tuned.as_json()
        return record_key(tunable.task.workload, trace, target)

    def write(self, tunable: Tunable, candidate: Any, run_s: Sequence[float] | None, origin: Origin) -> WrittenTrial:
        """Make a trial safe from any kill. From any thread; it counts once `commit` has seen it.

        Args:
            tunable: what was measured.
            candidate: which schedule of it; ms.MeasureCandidate.
            run_s: scaled seconds of each run; None when it failed (`origin.error`).
            origin: who measured it; key and time are filled in.
        """
        seconds = list(run_s) if run_s else [FAILED_S]
        tuned = ms.database.TuningRecord(
            candidate.sch.trace, tunable.workload, seconds, self.target, candidate.args_info
        )
        trace, run_json, target, args = tuned.as_json()
        name = tunable.task.workload
        record = Record(name, trace, tuple(map(float, run_json)), target, args, record_key(name, trace, target))
        origin = replace(origin, key=record.key, at=origin.at or datetime.now(UTC).isoformat(timespec="milliseconds"))
        with self._writing, host_errors_reported(self._place):
            self._folder.append(MEASURED_BY, _json(origin))  # first: without its record it means nothing
            self._folder.append(RECORDS, record.line(self._index[name]))
        return WrittenTrial(record, origin, tuned)

    def commit(self, written: WrittenTrial) -> None:
        """Count the written records. TVM reads its database while it thinks of candidates: only between that."""
        key = written.record.key
        self._origins[key] = written.origin
        self._trials[key] = self._known[key] = written.record
        self.memory.commit_tuning_record(written.tuned)

    def set_default_latencies(self, seconds: Mapping[str, float]) -> None:
        """How long tasks take, by workload, as TVM schedules them by itself."""
        for number, each in enumerate(self.tunables):
            if each.task.workload in seconds:
                name = each.task.workload
                mine = next((target_key(one.target) for one in self._trials.values() if one.workload == name), "")
                task = replace(each.task, default_s=seconds[name], default_for=mine)
                self.tunables[number] = replace(each, task=task)
                self._folder.append(TASKS, _json(task))

    def defaults(self) -> dict[str, float]:
        """Seconds of tasks, by workload, as TVM schedules them by itself: measured in this run, else in the prior."""
        known = dict(self._prior_defaults)
        return known | {each.task.workload: each.task.default_s for each in self.tunables if each.task.default_s}

    def everything(self) -> RecordSet:
        """This run's records and the prior's, merged: the set that is kept and compiled with."""
        tasks = {each.task.workload: each.task for each in self.tunables}
        own = RecordSet(
            {name: line for name, line in self._lines.items() if name in tasks},
            tuple(self._trials.values()),
            self._origins,
            tasks,
        )
        return merge([own, self._prior])

    def only_own(self) -> RecordSet:
        """This run's records, in the order of their measurement."""
        tasks = {each.task.workload: each.task for each in self.tunables}
        return RecordSet(self._lines, tuple(self._trials.values()), self._origins, tasks)

    def _load(self) -> None:
        found = {each.task.workload: each.workload for each in self.tunables}
        wrong: dict[int, str] = {}
        for number, record in enumerate(self._folder.found.set.records):
            if record.workload not in found:
                continue  # of an operator that this TVM makes differently: it stays where it is
            try:
                self.memory.commit_tuning_record(_tuning_record(record, found[record.workload]))
                self._trials[record.key] = self._known[record.key] = record
            except Exception as error:  # noqa: BLE001 - whatever TVM raises over a trace, this record is of no use
                wrong[number] = f"TVM cannot use it: {first_line(error)}"
        if wrong:
            self._folder.set_aside(wrong)
            self._index = {name: number for number, name in enumerate(self._folder.found.set.workloads)}
        self._load_prior(found)

    def _load_prior(self, found: dict[str, Any]) -> None:
        if not self._given.records:
            return
        fitting, left_out = records_for(self.target, self._given, "the prior")
        if left_out:
            self.left_out.append(f"the prior: {left_out}")
        foreign = unusable = 0
        kept = []
        for record in fitting.records:
            if record.workload not in found:
                foreign += 1
                continue
            try:
                tuned = _tuning_record(record, found[record.workload])
            except Exception:  # noqa: BLE001 - as above
                unusable += 1
                continue
            kept.append(record)
            if record.key not in self._known:
                self._known[record.key] = record
                self.memory.commit_tuning_record(tuned)
        self._prior = RecordSet(
            {name: each for name, each in self._given.workloads.items() if name in found},
            tuple(kept),
            self._given.origins,
            {name: each for name, each in self._given.tasks.items() if name in found},
        )
        fits = {"", *(target_key(each.target) for each in kept)}
        self._prior_defaults = {
            name: each.default_s
            for name, each in self._prior.tasks.items()
            if each.default_s and each.default_for in fits
        }
        for count, why in (
            (foreign, "of operators that this model does not have"),
            (unusable, "that this TVM cannot use"),
        ):
            if count:
                self.left_out.append(f"{count} of the prior's {len(self._given.records)} records are {why}")


def _tuning_record(record: Record, workload: Any) -> Any:
    run_s = [each if math.isfinite(each) else FAILED_S for each in record.run_s]
    return ms.database.TuningRecord.from_json([record.trace, run_s, record.target, record.args], workload)


def _flop(module: Any) -> float:
    try:
        return float(analysis.estimate_tir_flops(module))
    except Exception:  # noqa: BLE001 - loops whose extents TVM cannot count; GFLOPS are then not shown
        return 0.0


def _json(row: Any) -> str:
    return json.dumps(asdict(row))
