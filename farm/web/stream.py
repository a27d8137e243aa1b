"""`/events`: small hints of events, as server-sent events (WHATWG HTML §9.2). Pages then fetch the changed part.

A reader has a queue of bounded length. A reader that is too slow is cut, and resumes by the number of its last hint.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from farm.common.events import Event, EventLog
from farm.common.limiter import ClientLimiter, Limiter

MAX_READERS = 100
NAMELESS = ""  # the account of readers that are not signed in
MAX_NAMELESS = 75  # the other places are kept for those who are signed in
MAX_OF_ONE = 25  # of one account
MAX_BEHIND = 512  # hints; then a reader is cut
HEARTBEAT_S = 15.0  # proxies and browsers give a silent connection up after about a minute
RETRY_MS = 2000
MAX_RESUMED = 1000  # older news are worth one reload of the page


def hint_of(event: Event) -> bytes:
    """One hint as it is sent. Pages ask verbs for the event's data, in the reader's role."""
    hint = {"seq": event.seq, "at": event.at.isoformat(), "kind": event.kind, "subject": event.subject}
    for name in ("device", "user"):
        if isinstance(value := event.data.get(name), str):
            hint[name] = value
    return f"id: {event.seq}\nevent: hint\ndata: {json.dumps(hint)}\n\n".encode()


class _Reader:
    """The changes that one reader has not been sent yet."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()  # hints alone: a worker's progress may have half a megabyte
        self.news = asyncio.Event()
        self.over = False

    def on_event(self, event: Event) -> None:
        """Something happened."""
        if self.over:  # what came after the gap would hide it: the reader resumes before it
            return
        if len(self.waiting) >= MAX_BEHIND:
            self.end()
        else:
            self.waiting.append(hint_of(event))
        self.news.set()

    def end(self) -> None:
        """No more for this one."""
        self.over = True
        self.waiting.clear()
        self.news.set()


class HintReaders:
    """Every reader of hints."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._readers: set[_Reader] = set()
        self._closed = False
        self._admission: ClientLimiter[str] = ClientLimiter(
            Limiter(MAX_READERS, MAX_OF_ONE, bounds={NAMELESS: MAX_NAMELESS})
        )

    def enter(self, account: str) -> Callable[[], None] | None:
        """Count a reader of `account` before its stream begins.

        Returns the function to call at its end; None: it is one too many.
        """
        place = self._admission.enter(account, lambda: None)
        if place is None:
            return None
        self._admission.mark_active(place)
        return partial(self._admission.leave, place)

    def close(self) -> None:
        """End every stream: the daemon stops."""
        self._closed = True
        for reader in self._readers:
            reader.end()

    async def read(self, since: int | None, *, heartbeat_s: float = HEARTBEAT_S) -> AsyncIterator[bytes]:
        """Hints after `since` (None: from now on), then as they happen, until the reader is too slow or it is over."""
        reader = _Reader()
        self._readers.add(reader)
        stop = self._events.subscribe(reader.on_event)
        missed = self._missed(since)  # in the same step of the loop: no hint is lost or sent twice
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            for hint in missed:
                yield hint
            while not (reader.over or self._closed):
                reader.news.clear()  # before, not after: an end while a hint is sent is news too
                while reader.waiting:
                    yield reader.waiting.popleft()
                try:
                    async with asyncio.timeout(heartbeat_s):
                        await reader.news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            stop()
            self._readers.discard(reader)

    def _missed(self, since: int | None) -> list[bytes]:
        """The changes since a reader left; one `reset` when that is too much or forgotten."""
        newest = self._events.seq
        if since is None or since == newest:
            return []
        missed = self._events.since(since)
        known = since + 1 >= self._events.oldest and since <= newest
        if not known or len(missed) > MAX_RESUMED:
            return [f"id: {newest}\nevent: reset\ndata: {{}}\n\n".encode()]
        return [hint_of(event) for event in missed]


class HintStream(StreamingResponse):
    """The answer to one reader. It calls `leave` at its end, also if the reader left before the first byte."""

    def __init__(self, hints: AsyncIterator[bytes] | tuple[()], leave: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(hints, media_type="text/event-stream", headers=headers)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream (ASGI)."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def number_of(text: str | None) -> int | None:
    """An event's number as a client gives it; None when it is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else None
