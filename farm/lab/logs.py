"""Logs of attempts between hosts: the service `log`, over which one connection reads one attempt's log.

log {job, number} -> {}, then lines of JSON in turn: a question, its answer. Positions are bytes in the log:
{"id": 1, "after": 0, "limit": 200} -> {"id": 1, "lines": [...], "start": 0, "next": 512}   the first lines after it
{"id": 2, "before": null, "limit": 200} -> the same                   the last lines before it; null: the last of all
{"id": 3, "grown": 512} -> {"id": 3}                                  answered as soon as the log is longer
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic import TypeAdapter

from farm.common.errors import (
    Code,
    FarmError,
    HostError,
    HostUnreachableError,
    ProtocolError,
    error_from_wire,
    error_to_wire,
)
from farm.common.tasks import end_tasks
from farm.jobs.logs import PAGE_LINES, AttemptLogs, LocalLog, LogLine, LogPage, LogReader, is_job_id
from farm.lab.link import HostLink, LinkCall
from farm.model.job import Attempt

_PAGE = TypeAdapter(LogPage)
MAX_LINE_BYTES = 4 << 20  # a page: PAGE_BYTES of the file, escaped
ANSWER_LIMIT_S = 10.0  # of a page


class HostLogs:
    """Sends this host's logs to other hosts, and reads theirs."""

    def __init__(self, link: HostLink, logs: AttemptLogs, host_of: Callable[[Attempt], Awaitable[str]]) -> None:
        """Serve the other hosts from now on. `host_of`: the host where an attempt runs or ran; "": here."""
        self._link = link
        self._logs = logs
        self._host_of = host_of
        link.serve("log", self._send)

    @asynccontextmanager
    async def open(self, attempt: Attempt) -> AsyncIterator[LogReader]:
        """The log of an attempt, of this host or another one.

        Raises:
            HostError: its host does not answer.
        """
        host = await self._host_of(attempt)
        if host in ("", self._link.identity.name):
            yield LocalLog(self._logs, attempt.job, attempt.number)
            return
        try:
            connection = await self._link.dial(host, "log", {"job": attempt.job, "number": attempt.number})
        except HostUnreachableError as error:
            message = f"the log is at another host: {error.message}"
            raise HostError(message, Code.LOG_AWAY, hint=error.hint) from error
        try:
            yield _RemoteLog(host, *await connection.streams(MAX_LINE_BYTES))
        finally:
            await connection.close()

    async def _send(self, call: LinkCall) -> None:
        """The service `log`. A new question, or the end of the connection, cancels the question before it."""
        job, number = call.fields.get("job"), call.fields.get("number")
        if not isinstance(job, str) or not is_job_id(job) or not isinstance(number, int):
            raise ProtocolError("a log is asked for without its job and number")
        log = LocalLog(self._logs, job, number)
        await call.accept()
        reader, writer = await call.streams()
        asked = asyncio.ensure_future(reader.readline())
        try:
            while line := await asked:
                asked = asyncio.ensure_future(reader.readline())
                answering = asyncio.ensure_future(_answer(log, line))
                await asyncio.wait((answering, asked), return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    writer.write(json.dumps(answering.result()).encode() + b"\n")
                    await call.drain()
                else:
                    await end_tasks(answering)
        except ValueError as error:
            raise ProtocolError("a question about a log that is too long") from error
        finally:
            await end_tasks(asked)


class _RemoteLog(LogReader):
    """The log of an attempt at another host, over one connection."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._asked = 0

    async def read(self, after: int, limit: int = PAGE_LINES) -> LogPage:
        return self._page(await self._ask({"after": after, "limit": limit}), after)

    async def read_back(self, before: int | None, limit: int) -> LogPage:
        return self._page(await self._ask({"before": before, "limit": limit}), 0)

    async def grown(self, after: int) -> None:
        await self._ask({"grown": after}, None)

    def lost(self) -> tuple[LogLine, ...]:
        return ()

    async def _ask(self, question: dict[str, Any], limit_s: float | None = ANSWER_LIMIT_S) -> dict[str, Any]:
        """May be cancelled: the next question then skips the late answer."""
        self._asked += 1
        try:
            async with asyncio.timeout(limit_s):
                self._writer.write(json.dumps({**question, "id": self._asked}).encode() + b"\n")
                await self._writer.drain()
                answer: dict[str, Any] = {}
                while answer.get("id") != self._asked:
                    answer = json.loads(await self._reader.readline())
        except (OSError, ValueError, AttributeError, RecursionError, TimeoutError) as error:  # the third: no object
            raise self._away(error) from error
        if answer.get("error") is not None:
            raise error_from_wire(answer["error"])
        return answer

    def _page(self, answer: Mapping[str, Any], least: int) -> LogPage:
        try:
            page = _PAGE.validate_python({name: answer.get(name) for name in LogPage.__dataclass_fields__})
            _check(page, least)
        except ValueError as error:
            raise HostError(
                f"host {self._host}, which has the log, sends lines that farm cannot read",
                Code.LOG_AWAY,
                hint=f"run the same release of farm at all hosts: farm host list; or read the log at {self._host}",
                evidence=str(error),
            ) from error
        return page

    def _away(self, error: Exception) -> HostError:
        return HostError(
            f"host {self._host}, which has the log, does not answer",
            Code.LOG_AWAY,
            hint=f"see whether the daemon of {self._host} runs; how the attempt ended: farm job show",
            evidence=str(error),
        )


def _check(page: LogPage, least: int) -> None:
    """ValueError: farm did not write these lines, or they would be read forever: they end at no later position."""
    for line in page.lines:
        line.check()
    if page.next < least + len(page.lines):
        raise ValueError(f"{len(page.lines)} lines from position {least} to {page.next}")


async def _answer(log: LogReader, line: bytes) -> dict[str, Any]:
    question = None
    try:
        question = json.loads(line)
        match question:
            case {"id": number, "grown": int(after)}:
                await log.grown(after)
                return {"id": number}
            case {"id": number, "after": int(after), "limit": int(limit)}:
                page = await log.read(after, limit)
            case {"id": number, "before": int() | None as before, "limit": int(limit)}:
                page = await log.read_back(before, limit)
            case _:
                raise ProtocolError("that is no question about a log")
    except (FarmError, ValueError, RecursionError) as error:
        wrong = error if isinstance(error, FarmError) else ProtocolError("that is no question about a log")
        return {"id": question.get("id") if isinstance(question, dict) else None, "error": error_to_wire(wrong)}
    return {"id": number, "lines": [each.to_wire() for each in page.lines], "start": page.start, "next": page.next}
