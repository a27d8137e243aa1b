"""A connection to PostgreSQL that gives up a server which is there and does not answer.

A stopped server, or a proxy that passes nothing on, still acknowledges at TCP: neither keepalives nor the server's own
statement timeout end the wait. Imports psycopg: only where a server is used.
"""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any, TypeVar

from psycopg import Connection, OperationalError

ANSWER_LIMIT_S = 35.0  # beyond STATEMENT_TIMEOUT: a server that runs has answered by then

T = TypeVar("T")


class BoundedConnection(Connection[Any]):
    """Waits `answer_limit_s` for the next part of an answer; then it is closed, and the wait is an OperationalError."""

    answer_limit_s: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.answer_limit_s = ANSWER_LIMIT_S

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        """As psycopg's, which passes here whenever it waits for the server."""
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        try:
            awaited = next(gen)
            heard_s = monotonic()
            while True:
                ready = yield awaited
                if ready:  # nothing is, whenever psycopg's interval is over
                    heard_s = monotonic()
                elif monotonic() - heard_s > self.answer_limit_s:
                    self.close()
                    raise OperationalError(f"the server has not answered for {self.answer_limit_s:g} s")
                awaited = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value
