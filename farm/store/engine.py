"""Engines: how a connection to the database is made and begun, and which of its errors concern the whole database.

Such an outage is recognised by the engine's error codes, never by its texts.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy import text as sql
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InvalidatePoolError, OperationalError

from farm.store.server_rules import connect_fault, is_mistake

BUSY_TIMEOUT_MS = 5_000  # `farm store backup` or a curious sqlite3 shell may hold the file for a moment
INCREMENTAL = 2  # auto_vacuum: free pages are given back on request
CONNECT_TIMEOUT_S = 10
# A server that vanished (power, cable, firewall) is given up after ten seconds, not after TCP's quarter of an hour:
# all callers wait for the one writer. One that is there and does not answer: see farm.store.bounded_connection.
SERVER = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "tcp_user_timeout": 10_000,  # ms for what was sent to be taken
    "keepalives": 1,  # while only its answer is awaited: asked after 5 s, given up after 3 questions 2 s apart
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
STATEMENT_TIMEOUT = "30s"  # of one statement on the server: ours take milliseconds, a prune's batch too
ROOM_HINT = "free disk space; farm notices by itself and continues"
IDLE_S = 0.5  # a connection that lay unused for so long is tried before it is used
IDLE_TIMEOUT = "10s"  # of a transaction between two statements: a stopped daemon must not keep its locks
WRITER_IDLE_TIMEOUT = "2s"  # of the writer's: each locks a row that the next daemon needs for its term
_PRIMARY_CODE = 0xFF  # SQLite's extended codes carry their primary one in the low byte (sqlite.org/rescode.html)
_SQLITE = {
    sqlite3.SQLITE_FULL: ("the disk is full", ROOM_HINT),
    sqlite3.SQLITE_IOERR: ("the disk under it failed", "look at the host's kernel log (dmesg)"),
    sqlite3.SQLITE_READONLY: ("it is read-only", "is its file system mounted read-only? farm continues once it is not"),
    sqlite3.SQLITE_CANTOPEN: ("its file cannot be opened", "is the state folder still there, and farm's own?"),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", "stop farm, then: farm store check"),
    sqlite3.SQLITE_NOTADB: ("it is damaged", "stop farm, then: farm store check"),
    sqlite3.SQLITE_BUSY: ("another program keeps it locked", "close other programs that have it open (sqlite3?)"),
    sqlite3.SQLITE_NOMEM: ("the host is out of memory", "end what needs so much of it"),
}
DRIVER = "postgresql+psycopg"
PROGRAM = "farm"
HEAD_PROGRAM = "farm head"
_OPTION = re.compile(r"(?P<name>[?&][^=&]+)=[^&]*")  # of an address
NOT_ALLOWED = "42501"  # SQLSTATE
READ_ONLY = "25006"  # SQLSTATE: after a failover another server is writable
_SERVER: Mapping[str, tuple[str, ...]] = {  # reason and hints, by SQLSTATE or its class (PostgreSQL manual, appendix A)
    "53100": ("the database server's disk is full", "free space there; farm notices by itself and continues"),
    "53": ("the database server has no memory or connections left", "look at its log; farm continues once it has"),
    "08": (
        "the database server cannot be reached",
        "is it running? farm continues once it answers",
        "does it run, and may this machine and role connect (pg_hba.conf)?",
    ),
    "25P03": ("the database server ended a transaction that stood still", "was farm stopped? it continues by itself"),
    "57014": ("the database server took too long", "is it overloaded, or does another client hold a lock there?"),
    "57": ("the database server is stopping", "farm continues once it is back"),
    "58": ("the database server's disk failed", "look at its log"),
    NOT_ALLOWED: ("the database role has lost its rights there", "was this host removed from its lab? farm host list"),
    READ_ONLY: ("the database server is read-only", "is it a standby? [store] url must name the primary, or all hosts"),
    "XX": ("the database server is damaged", "look at its log"),
}
_GONE = ("its file was removed or replaced", "put it back, or restart farm to begin with what is there")


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
        connection.isolation_level = None  # the `begin` listener issues BEGIN: the driver's own comes too late
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        # So that pruning shrinks the file. Only for a new file: setting it again takes the write lock, so a reader
        # would wait for a commit on a slow disk.
        if connection.execute("PRAGMA auto_vacuum").fetchone() != (INCREMENTAL,):
            connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    _close_what_returns_late(engine)
    return engine


def server_url(text: str) -> URL:
    """The address of a PostgreSQL database, as SQLAlchemy or as libpq writes it (several hosts with commas between).

    Raises:
        ArgumentError: it is no address.
    """
    scheme, slashes, rest = text.partition("://")
    login, at, place = rest.rpartition("@")
    hosts, path, tail = place.partition("/")
    several = hosts.split(",") if "," in hosts else []
    if several:
        tail += "".join(f"{'&' if '?' in tail or number else '?'}host={host}" for number, host in enumerate(several))
        hosts = ""
    try:
        url = make_url(scheme + slashes + login + at + hosts + path + tail)
    except ValueError as error:  # of a port that is no number
        raise ArgumentError("its port is no number") from error
    return url.set(drivername=DRIVER) if url.drivername in ("postgresql", "postgres") else url


def server_hosts(url: URL) -> list[str]:
    """The names or addresses at which the database is dialled; none for a socket in the file system."""
    given = url.query.get("host", ())
    hosts = [url.host or "", *((given,) if isinstance(given, str) else given)]
    return [each for each in hosts if each and not each.startswith("/")]


def shown_url(text: str) -> str:
    """The address as it was typed, for people: with *** for passwords."""
    scheme, slashes, rest = _OPTION.sub(_without_password, text).partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{slashes}{user}{colon and ':***'}{at}{place}"


def _without_password(option: re.Match[str]) -> str:
    return f"{option['name']}=***" if "password" in unquote(option["name"]).lower() else option[0]


def server_engine(url: str, idle_timeout: str = IDLE_TIMEOUT, program: str = PROGRAM) -> Engine:
    """An engine over a PostgreSQL server, which lists its connections as `program`. A broken one is made again.

    Of several hosts the one that is writable is connected to. Options of the URL (`?tcp_user_timeout=...`,
    `?options=-c statement_timeout=...`) replace these limits.
    """
    options = f"-c statement_timeout={STATEMENT_TIMEOUT} -c idle_in_transaction_session_timeout={idle_timeout}"
    name = f"{program} {socket.gethostname()[:40]} {os.getpid()}"  # in pg_stat_activity, which cuts it at 63 bytes
    limits: dict[str, Any] = {**SERVER, "options": options, "fallback_application_name": name}
    address = server_url(url)
    if isinstance(more := address.query.get("options"), str):  # of one setting that stands twice the last one holds
        limits["options"] += f" {more}"
        address = address.difference_update_query(["options"])
    given = address.query
    if not isinstance(given.get("host", ""), str):
        limits["target_session_attrs"] = "read-write"
    engine = create_engine(address, connect_args={name: value for name, value in limits.items() if name not in given})
    _try_idle(engine)
    _close_what_returns_late(engine)
    from psycopg.types.array import ListBinaryDumper  # after the engine, which reports a missing psycopg

    from farm.store.bounded_connection import BoundedConnection

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, arguments: Any, options: Any) -> BoundedConnection:
        connection = BoundedConnection.connect(*arguments, **options)
        connection.adapters.register_dumper(list, ListBinaryDumper)  # as text, a letter takes 60 µs to escape its JSON
        return connection

    @event.listens_for(engine, "handle_error")
    def leave(context: Any) -> None:
        """After a failover the server of the open connections may be a standby: all are made again."""
        if getattr(context.original_exception, "sqlstate", "") == READ_ONLY:
            context.is_disconnect = True

    return engine


def _try_idle(engine: Engine) -> None:
    """Try a connection that lay unused before it is used: all of a server that has gone meanwhile are made again.

    One that has just been used is not tried: that takes as long as most of what it is used for.
    """

    @event.listens_for(engine, "checkin")
    def note(_connection: object, record: Any) -> None:
        record.info["unused_from_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, _proxy: object) -> None:
        if time.monotonic() - record.info.get("unused_from_s", math.inf) > IDLE_S:
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise InvalidatePoolError from error


def close_engine(engine: Engine) -> None:
    """Close the connections of an engine; one that a thread still uses is closed as soon as it is returned."""
    engine.update_execution_options(is_closed=True)
    engine.dispose()


def _close_what_returns_late(engine: Engine) -> None:
    @event.listens_for(engine, "checkin")
    def close(_connection: object, record: Any) -> None:
        if engine.get_execution_options().get("is_closed"):
            record.close()  # no pool keeps it: the engine has dropped the one that it came from


@contextmanager
def without_limits(connection: Connection) -> Iterator[None]:
    """The statements of this transaction go through whole tables of a server, and take as long as they need."""
    connection.execute(sql("SET LOCAL statement_timeout = 0"))
    driver: Any = connection.connection.dbapi_connection  # also of a detached one
    limit_s, driver.answer_limit_s = driver.answer_limit_s, math.inf
    try:
        yield
    finally:
        driver.answer_limit_s = limit_s


@dataclass(frozen=True, slots=True)
class DatabaseOutage:
    """Why nothing can be written, and the remedy."""

    reason: str
    hint: str
    start_hint: str = ""  # while farm starts; "": the same hint
    evidence: str = field(default="", kw_only=True)
    mistake: bool = field(default=False, kw_only=True)  # it lasts until somebody changes a setting

    def __str__(self) -> str:
        return f"the database cannot be written: {self.reason} ({self.hint})"


class FileGoneError(OSError):
    """The database's file is not where it was opened any more."""


def outage_of(error: BaseException | None) -> DatabaseOutage | None:
    """The outage of the whole database that an error shows; None when it is about one statement.

    The causes of the error count too: undoing a transaction that the engine has undone itself fails on top.
    """
    while error is not None:
        if isinstance(error, FileGoneError):
            return DatabaseOutage(*_GONE, evidence=str(error))
        found = None
        if isinstance(error, DBAPIError):
            found = _of_driver(error)
        elif isinstance(error, sqlite3.Error):  # of a statement outside the engine's transactions (VACUUM)
            found = _of_sqlite(error)
        if found is not None:
            return found
        error = error.__cause__ or error.__context__
    return None


def is_damage(error: Exception) -> bool:
    """Whether SQLite found the file damaged, or no database."""
    return _sqlite_code(getattr(error, "orig", None) or error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _of_driver(error: DBAPIError) -> DatabaseOutage | None:
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause)
    state = getattr(cause, "sqlstate", None)
    if state is None:  # the driver has no server that could give a code
        lost = isinstance(error, OperationalError | InterfaceError)
        said = str(cause).strip()
        found = connect_fault(said) or _SERVER["08"]
        return DatabaseOutage(*found, evidence=said, mistake=is_mistake(said)) if lost else None
    words = _SERVER.get(state) or _SERVER.get(state[:2])
    return DatabaseOutage(*words, evidence=str(cause).strip()) if words else None


def _of_sqlite(cause: sqlite3.Error) -> DatabaseOutage | None:
    words = _SQLITE.get(_sqlite_code(cause))
    return DatabaseOutage(*words, evidence=str(cause)) if words else None


def _sqlite_code(cause: BaseException) -> int:
    return int(getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & _PRIMARY_CODE
