"""Engines: how a connection to the database is made and begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url

BUSY_TIMEOUT_MS = 5_000  # `farm store backup` or a curious sqlite3 shell may hold the file for a moment
INCREMENTAL = 2  # auto_vacuum: free pages go when they are asked to
CONNECT_TIMEOUT_S = 10
# A server that vanished (power, cable, firewall) is given up after ten seconds, not after TCP's quarter of an hour:
# reads run on the event loop too, and everybody waits for the one writer.
SERVER = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "tcp_user_timeout": 10_000,  # ms for what was sent to be taken
    "keepalives": 1,  # while only its answer is awaited: asked after 5 s, given up after 3 questions 2 s apart
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
STATEMENT_TIMEOUT = "30s"  # of one statement on the server: ours take milliseconds, a prune's batch too


def sqlite_engine(
    path: Path,
    *,
    begin: str = "BEGIN",
    synchronous: str = "NORMAL",
    journal: str = "WAL",
    foreign_keys: bool = True,
) -> Engine:
    """An engine over a file. `begin` is how its transactions open: BEGIN to read, BEGIN IMMEDIATE to write."""
    engine = create_engine(f"sqlite:///{path}")
    pragmas = (
        f"journal_mode = {journal}",
        f"synchronous = {synchronous}",
        f"foreign_keys = {'ON' if foreign_keys else 'OFF'}",
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver's own comes too late
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        # So that pruning shrinks the file. Only of one that is made now: to say it again takes the write lock, so
        # whoever came to read would wait for a commit on a slow disk.
        if connection.execute("PRAGMA auto_vacuum").fetchone() != (INCREMENTAL,):
            connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def server_engine(url: str) -> Engine:
    """An engine over a PostgreSQL server. A connection that broke meanwhile is made anew.

    What the URL says (`?tcp_user_timeout=...`, `?options=-c statement_timeout=...`) goes before these limits.
    """
    limits = {**SERVER, "options": f"-c statement_timeout={STATEMENT_TIMEOUT}"}
    said = make_url(url).query
    return create_engine(
        url, pool_pre_ping=True, connect_args={name: value for name, value in limits.items() if name not in said}
    )
