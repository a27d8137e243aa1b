"""The logs of attempts: one file of JSON lines each, bounded, read by position while it grows and after a restart.

Appending is synchronous: a line costs some 20 us in the page cache, less than handing it to a thread. Thousands of
lines are appended in portions.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from farm.common.errors import HostError
from farm.model.job import Attempt
from farm.store.jobs import JobTable
from farm.store.retention import EVERY_S, FIRST_AFTER_S

MAX_LOG_BYTES = 4 << 20  # of one attempt; 1,000 chatty jobs are then 4 GB at worst
RESERVE_BYTES = 256 << 10  # beyond that, for lines of farm itself and for errors: how it ended is always kept
MAX_LINE_CHARS = 4096  # longer lines are cut: one page must fit one message
PAGE_BYTES = 256 << 10  # read at once
PAGE_LINES = 1000
FARM = "farm"
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # a job's id becomes a folder's name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of an attempt's log."""

    at: str  # ISO 8601 with its zone
    level: str  # debug, info, warning, error
    source: str  # where it is from: farm, worker, stdout, stderr
    text: str

    def to_wire(self) -> dict[str, Any]:
        """The line as JSON fields."""
        return asdict(self)

    def check(self) -> None:
        """ValueError: farm did not write this line."""
        if not all(isinstance(each, str) for each in asdict(self).values()):
            raise ValueError(f"a log line has a field that is no text: {self}")
        if datetime.fromisoformat(self.at).tzinfo is None:
            raise ValueError(f"a log line has a time without a zone: {self.at}")


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines in a row from position `start` (0: the log's beginning) to `next`, where to read on."""

    lines: tuple[LogLine, ...]
    start: int
    next: int


class LogReader(ABC):
    """Reads the log of one attempt, of this host or another one."""

    @abstractmethod
    async def read(self, after: int, limit: int = PAGE_LINES) -> LogPage:
        """See `AttemptLogs.read`."""

    @abstractmethod
    async def read_back(self, before: int | None, limit: int) -> LogPage:
        """See `AttemptLogs.read_back`."""

    @abstractmethod
    async def grown(self, after: int) -> None:
        """See `AttemptLogs.grown`."""

    @abstractmethod
    def lost(self) -> tuple[LogLine, ...]:
        """See `AttemptLogs.lost`."""


class LocalLog(LogReader):
    """The log of one attempt of this host."""

    def __init__(self, logs: AttemptLogs, job: str, number: int) -> None:
        self._logs = logs
        self._job = job
        self._number = number

    async def read(self, after: int, limit: int = PAGE_LINES) -> LogPage:
        """See `AttemptLogs.read`."""
        return await asyncio.to_thread(self._logs.read, self._job, self._number, after, limit)

    async def read_back(self, before: int | None, limit: int) -> LogPage:
        """See `AttemptLogs.read_back`."""
        return await asyncio.to_thread(self._logs.read_back, self._job, self._number, before, limit)

    async def grown(self, after: int) -> None:
        """See `AttemptLogs.grown`."""
        await self._logs.grown(self._job, self._number, after)

    def lost(self) -> tuple[LogLine, ...]:
        """See `AttemptLogs.lost`."""
        return self._logs.lost(self._job, self._number)


class AttemptLogs:
    """Every attempt's log. Used on one event loop; `read` may be called in threads."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made if need be, open to the daemon alone: people ask it for the lines."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._waiters: dict[tuple[str, int], set[asyncio.Future[None]]] = {}
        self._cut: set[tuple[str, int]] = set()  # full ones that have their last line
        # the line that says so, in logs that could not be written
        self._lost: dict[tuple[str, int], tuple[LogLine]] = {}

    async def keep_tidy(self, jobs: JobTable) -> None:
        """Remove daily the logs of jobs that a head apart has pruned, until cancelled."""
        await asyncio.sleep(FIRST_AFTER_S)
        while True:
            try:
                await self.remove_orphans(jobs)
            except HostError as error:
                logger.warning("logs of pruned jobs stay: %s", error)
            await asyncio.sleep(EVERY_S)

    async def remove_orphans(self, jobs: JobTable) -> None:
        """Remove the logs of jobs that the database does not have.

        Raises:
            HostError: the database cannot be read.
        """
        names = await asyncio.to_thread(lambda: [each.name for each in self._folder.iterdir()])
        kept = {job.id for job in await jobs.in_thread(jobs.several, names)}
        if orphans := [name for name in names if name not in kept]:
            await asyncio.to_thread(self.remove, orphans)

    def store(self, attempt: Attempt, text: str, level: str = "info", source: str = FARM) -> None:
        """Append text of this moment; each of its lines is one of the log's."""
        if (attempt.job, attempt.number) in self._cut and not _spared(level, source):
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = (LogLine(now, level, source, line) for line in text.split("\n"))
        self.append(attempt.job, attempt.number, *lines)

    def append(self, job: str, number: int, *lines: LogLine) -> None:
        """Append to the log of the job's attempt `number`; a full log or a full disk loses lines, never the attempt."""
        path = self._path(job, number)
        try:
            try:
                self._append(path, (job, number), lines)
            except FileNotFoundError:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                self._append(path, (job, number), lines)
        except OSError as error:
            logger.warning("a line of the log of %s.%d is lost: %s", job, number, error)
            text = f"output is missing here: {error.strerror or error}; its end: farm job show {job}"
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._lost.setdefault((job, number), (LogLine(now, "warning", FARM, text),))
        for waiter in self._waiters.get((job, number), ()):
            if not waiter.done():
                waiter.set_result(None)

    def read(self, job: str, number: int, after: int = 0, limit: int = PAGE_LINES) -> LogPage:
        """At most `limit` lines from the position `after`: 0, or `next` of an earlier page. Blocking.

        An attempt without output, or unknown, has no lines. A position inside a line continues with the next one.

        Raises:
            HostError: the file cannot be read.
        """
        with self._opened(job, number) as file:
            begin = max(0, min(after - 1, file.seek(0, os.SEEK_END)))  # no file system takes every number
            file.seek(begin)
            data = file.read(PAGE_BYTES)
        if after > 0:  # from the byte before: it ends a line, unless the position is no line's
            whole = data.find(b"\n") + 1
            begin, data = begin + whole, data[whole:] if whole else b""
        lines: list[LogLine] = []
        position = max(after, begin)
        for raw in data.splitlines(keepends=True):
            if len(lines) >= limit or not raw.endswith(b"\n"):
                break
            position += len(raw)
            line = _parsed(raw)
            if line is not None:
                lines.append(line)
        return LogPage(tuple(lines), after, position)

    def read_back(self, job: str, number: int, before: int | None = None, limit: int = PAGE_LINES) -> LogPage:
        """The last `limit` lines that end at or before the position `before`; None: at the end. Blocking.

        Raises:
            HostError: the file cannot be read.
        """
        with self._opened(job, number) as file:
            end = file.seek(0, os.SEEK_END)
            end = end if before is None else max(0, min(before, end))
            begin = max(0, end - PAGE_BYTES)
            file.seek(begin)
            data = file.read(end - begin)
        if begin:  # the first line may be half of one
            cut = data.find(b"\n") + 1
            begin, data = begin + cut, data[cut:]
        whole = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        shown = whole[-limit:]
        start = begin + sum(map(len, whole[: len(whole) - len(shown)]))
        lines = tuple(line for raw in shown if (line := _parsed(raw)) is not None)
        return LogPage(lines, start, start + sum(map(len, shown)))

    def lost(self, job: str, number: int) -> tuple[LogLine, ...]:
        """The line that says that others could not be written, unless the log itself has it by now."""
        return self._lost.get((job, number), ())

    async def grown(self, job: str, number: int, after: int) -> None:
        """Return as soon as the log has something at or beyond the position `after`."""
        while self._size(job, number) <= after:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._waiters.setdefault((job, number), set())
            waiters.add(waiter)
            try:
                await waiter
            finally:
                waiters.remove(waiter)
                if not waiters and self._waiters.get((job, number)) is waiters:
                    del self._waiters[job, number]

    @asynccontextmanager
    async def open(self, attempt: Attempt) -> AsyncIterator[LogReader]:
        """The log of an attempt of this host."""
        yield LocalLog(self, attempt.job, attempt.number)

    def remove(self, jobs: Collection[str]) -> None:
        """Delete the logs of jobs that are forgotten. Blocking."""
        for job in jobs:
            shutil.rmtree(self._path(job, 1).parent, ignore_errors=True)
        for key in (*self._cut, *self._lost):  # a copy: the loop may add to it meanwhile
            if key[0] in jobs:
                self._cut.discard(key)
                self._lost.pop(key, None)

    def _append(self, path: Path, key: tuple[str, int], lines: Collection[LogLine]) -> None:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(file).st_size
            # A daemon that died in the middle of a line left it without an end.
            data = bytearray(b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b"")
            for line in (*self.lost(*key), *lines):
                spared = _spared(line.level, line.source)
                if key in self._cut and not spared:
                    continue
                encoded = _encoded(line)
                if size + len(data) + len(encoded) <= MAX_LOG_BYTES + RESERVE_BYTES * spared:
                    data += encoded
                elif key not in self._cut:
                    self._cut.add(key)
                    full = f"the log has more than {MAX_LOG_BYTES >> 20} MiB: the rest is not kept"
                    data += _encoded(LogLine(line.at, "warning", FARM, full))
            if data:
                _write(file, data)
            self._lost.pop(key, None)
        finally:
            os.close(file)

    def _opened(self, job: str, number: int) -> BinaryIO:
        """The log to read; an empty one where there is none."""
        try:
            return self._path(job, number).open("rb")
        except FileNotFoundError:
            return io.BytesIO()
        except OSError as error:
            reason = f"the log of {job}.{number} cannot be read: {error.strerror or error}"
            raise HostError(reason, hint=f"how it ended: farm job show {job}") from error

    def _size(self, job: str, number: int) -> int:
        with contextlib.suppress(OSError):
            return self._path(job, number).stat().st_size
        return 0

    def _path(self, job: str, number: int) -> Path:
        if not is_job_id(job):
            raise ValueError(f"{job[:80]!r} is no job's id")
        return self._folder / job / f"{number:d}.jsonl"


def is_job_id(text: str) -> bool:
    """Whether a job may be called so: then a folder may be, too."""
    return _JOB.fullmatch(text) is not None


def _spared(level: str, source: str) -> bool:
    return source == FARM or level == "error"


def _encoded(line: LogLine) -> bytes:
    fields = asdict(line)
    if len(line.text) > MAX_LINE_CHARS:
        fields["text"] = f"{line.text[:MAX_LINE_CHARS]} ... ({len(line.text)} characters)"
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _parsed(raw: bytes) -> LogLine | None:
    """None for half a line, as a daemon that was killed leaves it, and for a line that farm did not write."""
    try:
        line = LogLine(**json.loads(raw))
        line.check()
    except (ValueError, TypeError, RecursionError):
        return None
    return line


def _write(file: int, data: bytes | bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
