"""Rows that changes only append, events and letters: a commit adds those of all its writes with a statement a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ARRAY, Connection, Insert, Table, bindparam, column, func, insert, select

from farm.common.events import Event
from farm.store.event_numbers import NEXT
from farm.store.schema import event

AppendedRows = Sequence[tuple[Table, Mapping[str, Any]]]

_EVENT_COLUMNS = tuple(event.c.keys())


def event_rows(events: Iterable[Event]) -> AppendedRows:
    """The rows of events; on a server they get other numbers."""
    return [(event, {name: getattr(each, name) for name in _EVENT_COLUMNS}) for each in events]


def append_rows(connection: Connection, rows: AppendedRows) -> None:
    """Insert rows, those of one table in their order."""
    of_table: defaultdict[Table, list[Mapping[str, Any]]] = defaultdict(list)
    for table, values in rows:
        of_table[table].append(values)
    for table, some in of_table.items():
        appending, names = _appending(table, on_file=connection.dialect.name == "sqlite")
        connection.execute(appending, {name: [values[name] for values in some] for name in names} or some)


@lru_cache(maxsize=8)
def _appending(table: Table, *, on_file: bool) -> tuple[Insert, Sequence[str]]:
    """The statement, and the columns whose values a server takes as arrays: it numbers the rows by itself."""
    if on_file:
        return insert(table), ()
    own = [each for each in table.c if not each.primary_key]
    arrays = (bindparam(each.name, type_=ARRAY(each.type, dimensions=1)) for each in own)
    columns = (column(each.name, each.type) for each in own)
    given = func.unnest(*arrays).table_valued(*columns, with_ordinality="place").render_derived()
    names = [each.name for each in own]
    numbers = {"seq": NEXT + given.c.place - 1} if table is event else {}
    rows = select(*(given.c[name] for name in names), *numbers.values()).order_by(given.c.place)
    return insert(table).from_select([*names, *numbers], rows), names
