"""Numbers of events in a database on a server, where several daemons write at a time.

A number taken from a sequence may be committed after a higher one, and a reader at the highest loses it. Here an
event's number is made of its transaction's number x: `start + (x << SHIFT) + n`. Numbers below those of the oldest
transaction that is still open are final, so a reader stops there: every writing transaction on the server, of other
databases too, holds readers up while it is open.

`start` stands in `meta` as `events`. The numbers continue above those that are there, also in a database that was
restored on another server. At a thousand transactions and savepoints a second 53 bits, which JSON readers keep, last
for 34 years.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, func, literal_column, select, update
from sqlalchemy import text as sql

from farm.store.schema import device_state, event, request

SHIFT = 13
CHANGED = literal_column("pg_current_xact_id()::text::bigint", BigInteger)  # of a row for farm.store.mailbox.NEWS
MAX_OF_ONE_WRITE = 1 << SHIFT - 1  # a commit takes no further write once it has as many: it has at most twice that

_START = "(SELECT value FROM meta WHERE name = 'events')"
_FIRST = literal_column(f"({_START} + (pg_current_xact_id()::text::bigint << {SHIFT}))", BigInteger)
_there = event.alias("there")
# In an INSERT: the number of its first row.
NEXT = (
    select(func.coalesce(func.max(_there.c.seq) + 1, _FIRST))
    .where(_there.c.seq.between(_FIRST, _FIRST + ((1 << SHIFT) - 1)))
    .scalar_subquery()
)
_HORIZON = sql(f"SELECT {_START} + (pg_snapshot_xmin(pg_current_snapshot())::text::bigint << {SHIFT})")
_END = literal_column("pg_snapshot_xmax(pg_current_snapshot())::text::bigint", BigInteger)
# Transactions from the snapshot's upper end on have not begun: only what was restored has higher numbers.
_BEGIN = sql(
    "INSERT INTO meta (name, value) SELECT 'events', "
    "coalesce(max(seq), 0) + 1 - (pg_snapshot_xmax(pg_current_snapshot())::text::bigint << :shift) FROM event "
    "ON CONFLICT (name) DO UPDATE SET value = greatest(meta.value, excluded.value)"
)


def begin_numbers(connection: Connection) -> None:
    """Let the numbers of events from now on be above all that are there, and those of changed rows below."""
    connection.execute(_BEGIN, {"shift": SHIFT})
    for table in (device_state, request):
        connection.execute(update(table).where(table.c.changed >= _END).values(changed=1))


def horizon(connection: Connection) -> int:
    """All events that are not committed yet will have this number or a higher one."""
    return int(connection.execute(_HORIZON).scalar_one())
