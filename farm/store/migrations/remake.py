"""A table made anew with its rows: SQLite cannot add to a table what the schema says of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from alembic import op
from sqlalchemy import Table
from sqlalchemy import text as sql

NOTHING: Mapping[str, str] = MappingProxyType({})


def remake(table: Table, kept: str, also: Mapping[str, str] = NOTHING) -> None:
    """Exchange the table of that name for `table`.

    Args:
        table: as this step means it.
        kept: its columns that were there, whose values stay.
        also: columns that were not, and an expression for each over a row of `before`; others have their default.
    """
    connection = op.get_bind()
    connection.execute(sql(f"CREATE TEMPORARY TABLE before AS SELECT {kept} FROM {table.name}"))  # noqa: S608 (names of ours)
    op.drop_table(table.name)
    table.create(connection)
    columns, values = ", ".join((kept, *also)), ", ".join((kept, *also.values()))
    connection.execute(sql(f"INSERT INTO {table.name} ({columns}) SELECT {values} FROM before"))  # noqa: S608 (names of ours)
    connection.execute(sql("DROP TABLE before"))
