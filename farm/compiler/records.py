"""Sets of tuning records: MetaSchedule's JSON database and farm's own facts. No TVM, no I/O.

A set is four texts, one JSON value a line: `database_workload.json` [structural hash, module in base64] and
`database_tuning_record.json` [index of the workload, [trace, run seconds, target, arguments]] as TVM 0.27 writes and
reads them (src/s_tir/meta_schedule/database/json_database.cc), `measured_by.jsonl` (which phone measured a record) and
`tasks.jsonl` (what a workload is called in the model, how often it runs, its floating-point operations).

Writers only append, so a text that was cut anywhere still holds every line before the cut.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NoReturn

from farm.model.identity import target_key

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
MEASURED_BY = "measured_by.jsonl"
TASKS = "tasks.jsonl"
FILES = (WORKLOADS, RECORDS, MEASURED_BY, TASKS)
FAILED_S = 1e10  # what MetaSchedule notes as the seconds of a candidate that failed
MIN_FAILED_S = 1e9  # what "ran" longer than that did not run
MAX_PROBLEMS = 20  # lines that are reported one by one
MAX_DIGITS = 20  # of a whole number, with its sign


@dataclass(frozen=True, slots=True)
class Workload:
    """One operator to schedule."""

    hash: str  # TVM's structural hash of the module
    module: str  # base64 of TVM's JSON

    def line(self) -> str:
        """As `database_workload.json` has it."""
        return json.dumps([self.hash, self.module])


@dataclass(frozen=True, slots=True)
class Record:
    """One measured candidate."""

    workload: str  # its hash
    trace: Any
    run_s: tuple[float, ...]  # seconds of each timed run
    target: Any
    args: Any
    key: str  # identifies it: hash of workload, trace and target

    @property
    def seconds(self) -> float:
        """The mean of its runs; infinite when it failed."""
        mean = sum(self.run_s) / len(self.run_s) if self.run_s else math.inf
        return mean if mean < MIN_FAILED_S else math.inf

    def line(self, index: int) -> str:
        """As `database_tuning_record.json` has it; `index`: of its workload's line."""
        return json.dumps([index, [self.trace, list(self.run_s), self.target, self.args]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which phone measured a record."""

    key: str  # the record's
    device: str
    at: str  # ISO 8601, UTC
    factor: float = 1.0  # how much slower than the run's nominal speed this phone was: the seconds are divided by it
    spent_s: float = 0.0  # of search, those of earlier attempts too
    error: str = ""  # why the candidate failed


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTask:
    """A workload's name and weight in its model."""

    workload: str
    name: str
    weight: int = 1  # so often it runs in the model
    flop: float = 0.0  # floating-point operations of one run; 0: unknown
    default_s: float = 0.0  # of a run as TVM schedules it by itself, measured on the same phones; 0: unknown
    default_for: str = ""  # target_key of what that was measured for; "": of all records


@dataclass(frozen=True, slots=True)
class RecordDamage:
    """A line that cannot be used."""

    file: str
    line: int  # from 1
    why: str
    text: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line}: {self.why}"


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Records with all that belongs to them. Every record's workload is there."""

    workloads: Mapping[str, Workload] = field(default_factory=dict)  # by hash, in the order of their lines
    records: tuple[Record, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)  # by the record's key
    tasks: Mapping[str, TuningTask] = field(default_factory=dict)  # by the workload's hash

    def with_records(self, kept: tuple[Record, ...]) -> RecordSet:
        """Only these of its records, with all that belongs to them."""
        keys = {each.key for each in kept}
        origins = {key: each for key, each in self.origins.items() if key in keys}
        tasks = {name: each for name, each in self.tasks.items() if name in self.workloads}
        return RecordSet(self.workloads, kept, origins, tasks)

    def texts(self) -> dict[str, str]:
        """The files' contents."""
        index = {name: number for number, name in enumerate(self.workloads)}
        return {
            WORKLOADS: _text(each.line() for each in self.workloads.values()),
            RECORDS: _text(each.line(index[each.workload]) for each in self.records),
            MEASURED_BY: _text(json.dumps(asdict(each)) for each in self.origins.values()),
            TASKS: _text(json.dumps(asdict(each)) for each in self.tasks.values()),
        }


@dataclass(frozen=True, slots=True)
class RecordReading:
    """The records found in files."""

    set: RecordSet
    damage: tuple[RecordDamage, ...] = ()
    # False: a torn last line (what a kill leaves) or a workload's second line was dropped; no damage.
    whole: bool = True
    torn: tuple[RecordDamage, ...] = ()  # those last lines

    def problems(self, name: str) -> list[str]:
        """Sentences on the lines that were not read and on how much was; empty: all was read."""
        lines = [*self.damage, *self.torn]
        if not lines:
            return []
        more = [f"{name}: {len(lines) - MAX_PROBLEMS} more lines are wrong"] if len(lines) > MAX_PROBLEMS else []
        kept = f"{name}: {len(lines)} damaged, the other {len(self.set.records)} records are used"
        return [*(f"{name}: {each}" for each in lines[:MAX_PROBLEMS]), *more, kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best of one task."""

    name: str
    workload: str
    weight: int
    trials: int
    failed: int
    flop: float
    default_s: float  # 0: unknown
    seconds: float | None  # None: no candidate ran
    device: str
    kept_own: bool = False  # no candidate is faster than TVM's own schedule, which compiling keeps

    @property
    def gflops(self) -> float | None:
        """Thousand million operations per second; None when not known."""
        return self.flop / self.seconds / 1e9 if self.seconds and self.flop else None


def read(files: Mapping[str, bytes]) -> RecordReading:
    """A set from its files' contents; a file that is not given is empty."""
    damage: list[RecordDamage] = []
    torn: list[RecordDamage] = []
    whole = True

    def lines(name: str) -> list[tuple[int, str, Any]]:
        nonlocal whole
        found, wrong, last, complete = _lines(name, files.get(name, b""))
        damage.extend(wrong)
        torn.extend(last)
        whole = whole and complete
        return found

    at: dict[int, Workload] = {}  # by the number of its line, which is what records know it by
    for number, text, value in lines(WORKLOADS):
        try:
            at[number - 1] = _workload(value)
        except ValueError as error:
            damage.append(RecordDamage(WORKLOADS, number, str(error), text))
    records: list[Record] = []
    for number, text, value in lines(RECORDS):
        try:
            records.append(_record(value, at))
        except ValueError as error:
            damage.append(RecordDamage(RECORDS, number, str(error), text))
    origins = _by(Origin, MEASURED_BY, lines(MEASURED_BY), damage, "key")
    tasks = _by(TuningTask, TASKS, lines(TASKS), damage, "workload")
    keys = {each.key for each in records}
    workloads: dict[str, Workload] = {}
    for each in at.values():
        workloads.setdefault(each.hash, each)
    return RecordReading(
        RecordSet(
            workloads,
            tuple(records),
            {key: origin for key, origin in origins.items() if key in keys},  # it is noted before its record is written
            tasks,
        ),
        tuple(damage),
        whole and len(workloads) == len(at),
        tuple(torn),
    )


def merge(sets: Iterable[RecordSet]) -> RecordSet:
    """One set of several: of records with the same workload, trace and target the first of the fastest."""
    workloads: dict[str, Workload] = {}
    best: dict[str, Record] = {}
    origins: dict[str, Origin] = {}
    tasks: dict[str, TuningTask] = {}
    for each in sets:
        for workload in each.workloads.values():
            workloads.setdefault(workload.hash, workload)
        for task in each.tasks.values():
            there = tasks.setdefault(task.workload, task)
            if not there.default_s:  # the first that knows it
                tasks[task.workload] = replace(there, default_s=task.default_s, default_for=task.default_for)
        for record in each.records:
            known = best.get(record.key)
            if known is not None and known.seconds <= record.seconds:
                continue
            best[record.key] = record
            if record.key in each.origins:
                origins[record.key] = each.origins[record.key]
            else:
                origins.pop(record.key, None)
    return RecordSet(workloads, tuple(best.values()), {key: origins[key] for key in best if key in origins}, tasks)


def pruned(found: RecordSet) -> RecordSet:
    """The records to compile with: the fastest of each workload and target, if it is faster than TVM without one."""
    fastest: dict[tuple[str, str], Record] = {}
    for record in found.records:
        place = (record.workload, target_key(record.target))
        limit = fastest[place].seconds if place in fastest else default_schedule_s(found, record)
        if record.seconds < limit:
            fastest[place] = record
    used = {name for name, _ in fastest}
    workloads = {name: each for name, each in found.workloads.items() if name in used}
    return replace(found, workloads=workloads).with_records(tuple(fastest.values()))


def default_schedule_s(found: RecordSet, record: Record) -> float:
    """Seconds of TVM's own schedule in place of a record; infinite where it was not measured."""
    task = found.tasks.get(record.workload)
    known = task is not None and task.default_s > 0 and task.default_for in ("", target_key(record.target))
    return task.default_s if task and known else math.inf


def best(found: RecordSet) -> tuple[Best, ...]:
    """The best of each task, in the order of the workloads."""
    fastest: dict[str, Record] = {}
    trials = dict.fromkeys(found.workloads, 0)
    failed = dict.fromkeys(found.workloads, 0)
    for record in found.records:
        trials[record.workload] += 1
        failed[record.workload] += not math.isfinite(record.seconds)
        if record.workload not in fastest or record.seconds < fastest[record.workload].seconds:
            fastest[record.workload] = record
    rows = []
    for name in found.workloads:
        task = found.tasks.get(name, TuningTask(workload=name, name=name))
        record_ = fastest.get(name)
        ran = record_ is not None and math.isfinite(record_.seconds)
        origin = found.origins.get(record_.key) if record_ is not None and ran else None
        rows.append(
            Best(
                name=task.name,
                workload=name,
                weight=task.weight,
                trials=trials[name],
                failed=failed[name],
                flop=task.flop,
                default_s=task.default_s,
                seconds=record_.seconds if record_ is not None and ran else None,
                device=origin.device if origin else "",
                kept_own=record_ is None or record_.seconds >= default_schedule_s(found, record_),
            )
        )
    return tuple(rows)


def record_key(workload: str, trace: Any, target: Any) -> str:
    """The key of a candidate: a hash over its workload, its trace and its target as JSON."""
    text = json.dumps([workload, trace, target], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _text(lines: Iterable[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _lines(name: str, data: bytes) -> tuple[list[tuple[int, str, Any]], list[RecordDamage], list[RecordDamage], bool]:
    """Values with their line numbers; lines that are no JSON; a last line that is cut; whether the last is whole."""
    found: list[tuple[int, str, Any]] = []
    damage: list[RecordDamage] = []
    cut: list[RecordDamage] = []
    pieces = data.split(b"\n")
    torn = pieces.pop()
    for number, piece in enumerate([*pieces, torn] if torn else pieces, 1):
        last = torn and number > len(pieces)
        text = piece.decode("utf-8", "backslashreplace")
        try:
            found.append((number, text, _value(piece)))
        except ValueError as error:
            if last:
                cut.append(RecordDamage(name, number, "it is cut off", text))
            else:
                damage.append(RecordDamage(name, number, str(error), text))
    return found, damage, cut, not torn


def _value(piece: bytes) -> Any:
    try:
        return _DECODER.decode(piece.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is no text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"it has {word} for a number")


def _whole(digits: str) -> int:
    """TVM's whole numbers have 64 bits; larger ones are no seconds either, and no arithmetic continues with them."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits[:MAX_DIGITS])  # no JSON could be written of it


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_real, parse_constant=_refuse)


def _workload(value: Any) -> Workload:
    match value:
        case [str(name), str(module)] if name and module:
            return Workload(name, module)
        case _:
            raise ValueError("it is no workload [hash, module]")


def _record(value: Any, at: Mapping[int, Workload]) -> Record:
    match value:
        case [int(index), [[list(steps), list(decisions)], list(run_s), target, list(args)]] if run_s:
            if isinstance(index, bool) or index not in at:
                raise ValueError(f"its workload, line {index + 1} of {WORKLOADS}, is not there")
            if not all(isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in run_s):
                raise ValueError("its run times are no seconds")
            if not isinstance(target, dict | str):
                raise ValueError("it has no target")  # noqa: TRY004 - all that is wrong with a line is a ValueError
            name, trace = at[index].hash, [steps, decisions]
            return Record(name, trace, tuple(map(float, run_s)), target, args, record_key(name, trace, target))
        case _:
            raise ValueError("it is no record [workload, [trace, run seconds, target, arguments]]")


def _by(cls: Any, name: str, lines: list[tuple[int, str, Any]], damage: list[RecordDamage], key: str) -> dict[str, Any]:
    """Rows of one kind by one of their fields; the last of several counts."""
    kinds = {each.name: {"str": str, "int": int, "float": (int, float)}[str(each.type)] for each in fields(cls)}
    found = {}
    for number, text, value in lines:
        good = isinstance(value, dict) and all(
            each in kinds and isinstance(what, kinds[each]) and not isinstance(what, bool)  # type: ignore[arg-type]
            for each, what in value.items()
        )
        try:
            if not good:
                raise TypeError
            row = cls(**value)
            found[getattr(row, key)] = row
        except TypeError:
            damage.append(RecordDamage(name, number, "its fields are wrong", text))
    return found
