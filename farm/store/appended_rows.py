"""Rows that changes only append (events, letters, leases): a commit adds those of all its writes at its end.

A server takes them, the deletion of letters that were read and the number of the transaction in one statement: each
statement is a round trip, and a phone's next lease waits for two commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Insert,
    Table,
    Update,
    bindparam,
    column,
    delete,
    func,
    insert,
    select,
)

from farm.common.events import Event
from farm.store.event_numbers import CHANGED, NEXT
from farm.store.schema import event

AppendedRows = Sequence[tuple[Table, Mapping[str, Any]]]

_EVENT_COLUMNS = tuple(event.c.keys())


def event_rows(events: Iterable[Event]) -> AppendedRows:
    """The rows of events; on a server they get other numbers."""
    return [(event, {name: getattr(each, name) for name in _EVENT_COLUMNS}) for each in events]


def append_rows(connection: Connection, rows: AppendedRows) -> None:
    """Insert rows, those of one table in their order: a statement for each table."""
    on_file = connection.dialect.name == "sqlite"
    for table, some in _by_table(rows).items():
        if on_file:
            connection.execute(insert(table), some)
        else:
            connection.execute(_appending(table), _as_arrays(table, some))


def close_transaction(
    connection: Connection,
    mark: Update,
    values: Mapping[str, object],
    rows: AppendedRows,
    read: Mapping[Table, Sequence[int]],
) -> bool:
    """On a server: insert rows, delete the rows with these ids, and execute `mark` with its values, in one statement.

    Returns whether `mark` has changed a row.
    """
    appended = _by_table(rows)
    closing = _closing(mark, tuple(appended), tuple(read))
    parameters = dict(values)
    for table, some in appended.items():
        parameters |= _as_arrays(table, some)
    for table, ids in read.items():
        parameters[f"{table.name}_read"] = ids
    return connection.execute(closing, parameters).rowcount > 0


def _by_table(rows: AppendedRows) -> Mapping[Table, Sequence[Mapping[str, Any]]]:
    of_table: defaultdict[Table, list[Mapping[str, Any]]] = defaultdict(list)
    for table, values in rows:
        of_table[table].append(values)
    return dict(sorted(of_table.items(), key=lambda item: item[0].name))  # as few different statements as possible


@lru_cache(maxsize=256)
def _closing(mark: Update, appended: Sequence[Table], read: Sequence[Table]) -> Update:
    parts = [_appending(table).cte(f"{table.name}_appended") for table in appended]
    for table in read:
        ids = bindparam(f"{table.name}_read", type_=ARRAY(BigInteger))
        parts.append(delete(table).where(table.c.id == func.any(ids)).cte(f"{table.name}_deleted"))
    return mark.add_cte(*parts)


@lru_cache(maxsize=16)
def _appending(table: Table) -> Insert:
    """The insertion of rows whose values a server takes as arrays (`_as_arrays`), in their order."""
    own = [table.c[name] for name in _given(table)]
    arrays = (bindparam(f"{table.name}_{each.name}", type_=ARRAY(each.type, dimensions=1)) for each in own)
    columns = (column(each.name, each.type) for each in own)
    rows = func.unnest(*arrays).table_valued(*columns, with_ordinality="place").render_derived()
    numbers: dict[str, Any] = {"seq": NEXT + rows.c.place - 1} if table is event else {}
    if "changed" in table.c:
        numbers["changed"] = CHANGED
    values = select(*(rows.c[each.name] for each in own), *numbers.values()).order_by(rows.c.place)
    return insert(table).from_select([*_given(table), *numbers], values)


def _as_arrays(table: Table, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {f"{table.name}_{name}": [values[name] for values in rows] for name in _given(table)}


@lru_cache(maxsize=16)
def _given(table: Table) -> Sequence[str]:
    """The columns whose values the rows bring; a server numbers its rows by itself."""
    own = {"changed", "seq" if table is event else getattr(table.autoincrement_column, "name", "")}
    return [each.name for each in table.c if each.name not in own]
