"""A folder of tuning records in parts, while it grows: each has the lines appended since the one before.

All parts in their order are the folder: they are kept at another place, where the search continues if its host is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from farm.compiler.files import TarError, tar_archive, tar_members
from farm.compiler.record_files import BadRecordsError, checked
from farm.compiler.records import FILES, MEASURED_BY, RECORDS, TASKS, WORKLOADS, RecordReading, read

# What a record needs is written before it, so it is read after it.
ORDER = (RECORDS, MEASURED_BY, WORKLOADS, TASKS)


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
