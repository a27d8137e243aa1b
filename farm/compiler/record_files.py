"""Sets of tuning records as folders and .tar files.

A writer may be killed at any moment: the next one that opens the folder finds every record whose line was written:
a torn last line is cut off; lines that are wrong go into `corrupt.jsonl`, and the files are made again from the others.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from farm.common.errors import Code, HostError, UserError
from farm.common.files import publish
from farm.compiler.files import TarError, tar_archive, tar_members
from farm.compiler.nodes import check_nodes
from farm.compiler.records import (
    FILES,
    MEASURED_BY,
    RECORDS,
    TASKS,
    WORKLOADS,
    RecordDamage,
    RecordReading,
    RecordSet,
    Workload,
    merge,
    read,
)

LOCK = "lock"  # held by the process that writes the folder
ASIDE = "corrupt.jsonl"  # lines that were wrong, with where they stood and why
REPAIRED = "repaired"  # a folder with files that replace the damaged ones; whole as soon as it has this name
# What a record needs is written before it, so it is read after it.
ORDER = (RECORDS, MEASURED_BY, WORKLOADS, TASKS)


class BadRecordsError(UserError):
    """These are no tuning records."""

    code = "bad_records"


def is_path(which: Path | str) -> bool:
    """Whether `which` is a path, not the model name of records that the farm keeps (its file may lie here, too)."""
    path = Path(which)
    return path.is_dir() or path.suffix == ".tar" or len(path.parts) > 1


def read_records(source: Path | bytes, name: str = "") -> RecordReading:
    """The records in a folder, a .tar (a package too) or the bytes of one.

    Raises:
        BadRecordsError: there are none, or it cannot be read.
    """
    name = name or (source.absolute().name if isinstance(source, Path) else "the records")
    files = _in_folder(source) if isinstance(source, Path) and source.is_dir() else _in_tar(source, name)
    if WORKLOADS not in files or RECORDS not in files:
        raise BadRecordsError(f"{name} has no tuning records", hint=f"a folder or .tar with {WORKLOADS} and {RECORDS}")
    found = checked(read(files))
    if not found.set.records and found.damage:
        raise BadRecordsError(
            f"{name} has no record that can be read: {found.damage[0]}", evidence="\n".join(map(str, found.damage[:20]))
        )
    return found


def write_records(found: RecordSet, target: Path) -> None:
    """Write a set as a .tar when `target` ends in .tar, else as a folder; an existing one is replaced.

    Raises:
        UserError: it cannot be written.
    """
    try:
        if target.suffix == ".tar":
            target.write_bytes(packed(found))
            return
        target.mkdir(parents=True, exist_ok=True)
        for name, text in found.texts().items():
            (target / name).write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}", hint="name a folder or a .tar of yours") from error


def packed(found: RecordSet) -> bytes:
    """The set as the .tar that artifacts are: the same bytes for the same set."""
    return tar_archive((name, text.encode()) for name, text in found.texts().items())


class RecordFolder:
    """A folder of records that one process writes: opened, repaired, appended to."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, made if need be, and repair it.

        Raises:
            HostError: another process has it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = (folder / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the kernel however this process ends
        except OSError as error:
            self._lock.close()
            raise HostError(
                f"another process writes {folder}", Code.RECORDS_BUSY, hint="it ends with its job"
            ) from error
        self.found = _repaired(folder)
        self.damage = self.found.damage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
        self._lock.close()

    def append(self, name: str, line: str) -> None:
        """Add one line to a file of the set. It is in the kernel's hands when this returns: no kill loses it.

        Raises:
            HostError: the disk is full, or the folder is gone.
        """
        data = memoryview(line.encode() + b"\n")
        try:
            handle = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                while data:
                    data = data[os.write(handle, data) :]
            finally:
                os.close(handle)
        except OSError as error:
            raise HostError(f"cannot keep a tuning record in {self._folder}: {error.strerror}") from error

    def set_aside(self, record_lines: Mapping[int, str]) -> None:
        """Drop records that look right and are wrong: their numbers in `found` (from 0), and why.

        For damage that only TVM can find. `found` is the rest afterwards, with what was appended since.
        """
        now = read(_in_folder(self._folder)).set
        kept, damage = [], []
        for number, record in enumerate(now.records):
            if number in record_lines:
                damage.append(RecordDamage(RECORDS, number + 1, record_lines[number], record.line(0)))
            else:
                kept.append(record)
        self._rewrite(replace(now, records=tuple(kept)), damage)

    def put_right(self, workloads: Mapping[str, Workload]) -> None:
        """Replace workloads, by hash, whose modules do not match it. `found` is as after `set_aside`."""
        now = read(_in_folder(self._folder)).set
        damage = [
            RecordDamage(
                WORKLOADS, number, "its module is another one than this TVM makes, which is now there", each.line()
            )
            for number, each in enumerate(now.workloads.values(), 1)
            if each.hash in workloads
        ]
        right = {name: workloads.get(name, each) for name, each in now.workloads.items()}
        self._rewrite(replace(now, workloads=right), damage)

    def add(self, others: RecordSet) -> int:
        """Take in records of the same search from another place, before its own; returns how many it did not have."""
        own = self.found.set
        together = merge([others, own])
        if more := len(together.records) - len({each.key for each in own.records}):
            self._rewrite(together, ())
        return more

    def _rewrite(self, rest: RecordSet, damage: Sequence[RecordDamage]) -> None:
        _replace(self._folder, rest, tuple(damage))
        self.damage = (*self.damage, *damage)
        self.found = RecordReading(rest)


def _repaired(folder: Path) -> RecordReading:
    """The content of the folder, with the files repaired."""
    shutil.rmtree(folder / f"{REPAIRED}.partial", ignore_errors=True)
    _move_in(folder)
    found = read(_in_folder(folder))
    if found.damage or not found.whole:
        _replace(folder, found.set, found.damage)
    return found


def _replace(folder: Path, rest: RecordSet, damage: tuple[RecordDamage, ...]) -> None:
    """Put the files of `rest` in place of the ones that are there: all of them, or none if killed on the way."""
    if damage:
        with (folder / ASIDE).open("a") as aside:
            aside.writelines(json.dumps(asdict(each)) + "\n" for each in damage)
    partial = folder / f"{REPAIRED}.partial"
    partial.mkdir()
    for name, text in rest.texts().items():
        (partial / name).write_text(text)
    publish(partial, folder / REPAIRED)
    _move_in(folder)


def _move_in(folder: Path) -> None:
    repaired = folder / REPAIRED
    if not repaired.is_dir():
        return
    for name in FILES:
        if (repaired / name).exists():  # moved already, when this was killed half way
            (repaired / name).replace(folder / name)
    repaired.rmdir()


def _in_folder(folder: Path) -> dict[str, bytes]:
    found = {}
    for name in FILES:
        try:
            found[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadRecordsError(f"cannot read {folder / name}: {error.strerror}") from error
    return found


def _in_tar(source: Path | bytes, name: str) -> dict[str, bytes]:
    try:
        data = source if isinstance(source, bytes) else source.read_bytes()
        found: dict[str, bytes] = {}
        for member, content in tar_members(data, skip_folders=True):
            base = Path(member).name
            if base not in FILES:
                continue
            if base in found:
                raise BadRecordsError(f"{name} has {base} twice")
            found[base] = content
    except OSError as error:
        hint = "a .tar or a folder; farm records export SET -o SET.tar writes a set that the farm keeps"
        raise BadRecordsError(f"cannot read {name}: {error.strerror or error}", hint=hint) from error
    except TarError as error:
        raise BadRecordsError(
            f"{name}: no folder and no .tar of tuning records: {error}", hint="farm records export writes one"
        ) from error
    return found


_LENGTH_BYTES = 8  # before the document, little-endian


def checked(found: RecordReading) -> RecordReading:
    """A reading without the modules and traces that stock TVM cannot load, or that are unsafe to load: they are damage.

    A module may still not be the one of its hash; only TVM can check that.
    """
    damage: list[RecordDamage] = []
    workloads = {}
    for number, workload in enumerate(found.set.workloads.values(), 1):
        try:
            check_nodes(_document(workload.module))
            workloads[workload.hash] = workload
        except ValueError as error:
            damage.append(RecordDamage(WORKLOADS, number, f"its module is not read: {error}", workload.line()))
    records = []
    for number, record in enumerate(found.set.records, 1):
        try:
            if record.workload not in workloads:
                raise ValueError(f"its workload {record.workload} is not read")
            _check_trace(record.trace)
            records.append(record)
        except ValueError as error:
            damage.append(RecordDamage(RECORDS, number, str(error), json.dumps(record.trace)))
    if not damage:
        return found
    rest = replace(found.set, workloads=workloads).with_records(tuple(records))
    return RecordReading(rest, (*found.damage, *damage), found.whole, found.torn)


def _document(module: str) -> str:
    data = base64.b64decode(module, validate=True)
    text = data[_LENGTH_BYTES:]
    if base64.b64encode(data).decode() != module or int.from_bytes(data[:_LENGTH_BYTES], "little") != len(text):
        raise ValueError("it is no module of TVM's")
    return text.decode()


def _check_trace(trace: Any) -> None:
    """Instructions that change layouts have them as documents."""
    left = [trace]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, str) and value.lstrip(' \t\r\n"').startswith("{"):
            try:
                check_nodes(value)
            except ValueError as error:
                raise ValueError(f"its trace is not read: {error}") from error


class FolderParts:
    """Reads a folder to which only lines are appended."""

    def __init__(self, folder: Path, whole: Sequence[str] = ()) -> None:
        """`whole`: other small files of the folder, which are replaced; a part has those that changed."""
        self._folder = folder
        self._whole = whole
        self._taken: dict[str, int] = {}  # bytes that parts have had, by file
        self._replaced: dict[str, bytes] = {}
        self._next: tuple[dict[str, int], dict[str, bytes]] = {}, {}

    def next(self) -> bytes:
        """A .tar of the lines since the last part that was `taken`; b"": none.

        Raises:
            OSError: the folder cannot be read.
        """
        lines, replaced = {}, {}
        for name in ORDER:
            added = _read_from(self._folder / name, self._taken.get(name, 0))
            if added := added[: added.rfind(b"\n") + 1]:  # the rest of a line that is being written comes next time
                lines[name] = added
        for name in self._whole:
            content = _read_from(self._folder / name, 0)
            if content and content != self._replaced.get(name):
                replaced[name] = content
        self._next = {name: len(added) for name, added in lines.items()}, replaced
        return tar_archive([*lines.items(), *replaced.items()]) if RECORDS in lines else b""

    def taken(self) -> None:
        """The latest part is kept."""
        for name, size_bytes in self._next[0].items():
            self._taken[name] = self._taken.get(name, 0) + size_bytes
        self._replaced |= self._next[1]
        self._next = {}, {}


def read_parts(parts: Iterable[bytes]) -> tuple[RecordReading, dict[str, bytes]]:
    """The records of parts in their order, and the folder's other files as the latest part has them.

    Raises:
        BadRecordsError: one is no part.
    """
    lines = dict.fromkeys(FILES, b"")
    others = {}
    for number, part in enumerate(parts, 1):
        try:
            for name, content in tar_members(part):
                if name in lines:
                    lines[name] += content
                else:
                    others[name] = content
        except TarError as error:
            raise BadRecordsError(f"part {number} of the records: {error}") from error
    return checked(read(lines)), others


def _read_from(path: Path, begin: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read()
    except FileNotFoundError:
        return b""
