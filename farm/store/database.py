"""The way to the database that every table shares: short reads where they are called, writes through one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, RowMapping, Select, Table, UpdateBase
from sqlalchemy.exc import DBAPIError

from farm.core.errors import HostError
from farm.core.events import Drafts, Event
from farm.store.rows import insert_events, put
from farm.store.trouble import trouble_of
from farm.store.writer import Writer

T = TypeVar("T")


class StoreReadError(HostError):
    """The database could not be read."""

    code = "store_read"


class NothingWrittenError(Exception):
    """Raised inside a write whose condition does not hold: what it did so far is undone. Never leaves the store."""


class Database:
    """One engine to read with and one writer."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self.engine = engine
        self.writer = writer

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for a few selects, which see one state of the database.

        Raises:
            StoreReadError: the database as a whole cannot be read now: its server is away, its disk failed.
        """
        try:
            with self.engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            said = f"the database cannot be read: {trouble.reason}"
            raise StoreReadError(said, hint=trouble.hint, evidence=trouble.evidence) from error

    def rows(self, wanted: Select[Any]) -> Sequence[RowMapping]:
        """Every row of one select.

        Raises:
            StoreReadError: as `reading`.
        """
        with self.reading() as connection:
            return connection.execute(wanted).mappings().all()

    async def write(
        self, statement: Callable[[Connection], T], events: Sequence[Event] = (), *, last: bool = False
    ) -> T:
        """Commit `statement` and the events that tell it, together; drafts learn what became of them.

        Args:
            statement: what to do; anything it raises undoes it, and only it.
            events: kept with it.
            last: an end that must be kept when the disk is full: the reserve pays for it.

        Raises:
            StoreConflictError: a rule of the schema refused it.
            StoreWriteError: nothing can be written now.
        """

        def with_events(connection: Connection) -> T:
            value = statement(connection)
            insert_events(connection, events)
            return value

        def settled(*, committed: bool) -> None:
            if isinstance(events, Drafts):
                events.settle(committed=committed)

        return await self.writer.write(with_events, last=last, settled=settled)

    async def write_if(
        self, statement: Callable[[Connection], object], events: Sequence[Event] = (), *, last: bool = False
    ) -> bool:
        """The same for a write with a condition; False when `statement` raised NothingWrittenError."""
        try:
            await self.write(statement, events, last=last)
        except NothingWrittenError:
            return False
        return True

    async def execute(self, statement: Executable, events: Sequence[Event] = ()) -> None:
        """`write` of one statement."""
        await self.write(lambda connection: connection.execute(statement) and None, events)

    async def put(self, table: Table, values: Mapping[str, Any], events: Sequence[Event] = ()) -> None:
        """`write` of one row: insert it, or replace the one with its primary key."""
        await self.write(lambda connection: put(connection, table, values), events)

    async def change(self, statement: UpdateBase, events: Sequence[Event] = (), *, last: bool = False) -> bool:
        """`write_if` of one statement; False when it finds no row."""
        return await self.write_if(
            lambda connection: must_change(connection.execute(statement).rowcount), events, last=last
        )


def must_change(changed_rows: int) -> None:
    """A conditional UPDATE that found no row means the condition does not hold.

    Raises:
        NothingWrittenError: no row was changed.
    """
    if changed_rows == 0:
        raise NothingWrittenError
