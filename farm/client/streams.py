"""The daemon's streams, continued over its restarts: each item once, none left out; and the news about a wait."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from farm.client.connection import DaemonConnection
from farm.client.model import JobInfo, LogLine, event_from, job_from, line_from
from farm.common.errors import DaemonUnreachableError
from farm.common.events import Event
from farm.common.tasks import end_tasks

WATCHED_JOBS = 1000  # ids and arrays in one question
MAX_IDLE_S = 10.0  # between two None in a long silence

Watched = AsyncGenerator[Event | tuple[JobInfo, ...], None]
_NUMBER = re.compile(r"(?<!\S)\d[\d.]*")  # a word of its own: "53 s more", not the phone "galaxy-s9"


async def events(
    connection: DaemonConnection, kind: str, since: int, **fields: Any
) -> AsyncGenerator[Event | Mapping[str, Any], None]:
    """The events of a stream after `since`, then the fields of its answer."""
    while True:
        try:
            async with aclosing(connection.stream(kind, since=since, **fields)) as replies:
                async for reply in replies:
                    if not reply.more:
                        yield reply.fields
                    elif reply.fields["seq"] > since:
                        event = event_from(reply.fields)
                        since = event.seq
                        yield event
        except DaemonUnreachableError as error:
            await connection.wait_until_back(error)
        else:
            return


async def watched(
    connection: DaemonConnection, names: tuple[str, ...], since: int, *, attended: bool = False
) -> Watched:
    """Events of jobs and arrays, then the jobs as they ended; more than a thousand names in several rounds.

    `attended`: the daemon cancels what has not begun when this process dies.
    """
    for start in range(0, len(names), WATCHED_JOBS):
        some = list(names[start : start + WATCHED_JOBS])
        async with aclosing(events(connection, "job.watch", since, jobs=some, attended=attended)) as stream:
            async for each in stream:
                yield each if isinstance(each, Event) else tuple(map(job_from, each["jobs"]))


async def log_lines(
    connection: DaemonConnection, job: str, attempt: int | None, *, follow: bool
) -> AsyncGenerator[LogLine, None]:
    """Lines of an attempt's log; of the latest and, with `follow`, of those after it when `attempt` is None."""
    every = attempt is None and follow
    asked = number = attempt
    after = 0
    while True:
        # A place in one attempt's log is none in another's.
        fresh, elsewhere = after == 0 or asked is not None, False
        stream = connection.stream("job.logs", job=job, number=asked, after=after, follow=follow)
        try:
            async with aclosing(stream) as pages:
                async for page in pages:
                    received = page.fields.get("number", number)
                    elsewhere = not fresh and received != number
                    fresh = True
                    if elsewhere:
                        asked, number, after = received, received, 0
                        break
                    for line in page.fields.get("lines", ()):
                        yield line_from(line)
                    number, after = received, page.fields.get("next", after)
        except DaemonUnreachableError as error:
            await connection.wait_until_back(error)
            asked = number  # read that attempt to its end, before those that came after it
        else:
            if not elsewhere and (asked is None or not every):
                return
            asked = asked if elsewhere else None


async def with_idle(items: AsyncGenerator[Any, None], idle_s: float) -> AsyncGenerator[Any, None]:
    """`items`, and None when none came for `idle_s`; in a longer silence again, less and less often."""
    end = object()
    pending: asyncio.Task[Any] | None = None
    wait_s = idle_s
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(items, end))
            done, _ = await asyncio.wait((pending,), timeout=wait_s)
            if not done:
                yield None
                wait_s = max(idle_s, min(2 * wait_s, MAX_IDLE_S))
                continue
            item, pending, wait_s = pending.result(), None, idle_s
            if item is end:
                return
            yield item
    finally:
        if pending is not None:
            await end_tasks(pending)
        await items.aclose()


class Reasons:
    """The latest reason that was printed for each job."""

    def __init__(self) -> None:
        self._printed: dict[str, str] = {}  # job -> reason without numbers

    def is_news(self, job: str, reason: str) -> bool:
        """Whether to print it; it counts as printed then."""
        plain = _NUMBER.sub("", reason)
        if not reason or self._printed.get(job) == plain:
            return False
        self._printed[job] = plain
        return True
