"""Opening a database on a PostgreSQL server: one daemon, or one head with its hosts, serves from it at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, select, update
from sqlalchemy import text as sql
from sqlalchemy.exc import ArgumentError, DatabaseError

from farm.common.doctor_findings import FAIL, WARN, Diagnosis, of_error
from farm.common.errors import Code, HostError, UserError
from farm.common.install import pip_install
from farm.store.database import insert_new
from farm.store.engine import (
    DRIVER,
    HEAD_PROGRAM,
    NOT_ALLOWED,
    PROGRAM,
    WRITER_IDLE_TIMEOUT,
    close_engine,
    outage_of,
    server_engine,
    server_url,
    shown_url,
    without_limits,
)
from farm.store.event_numbers import begin_numbers
from farm.store.files import read_starts, write_starts
from farm.store.lab_state import adopt_rows
from farm.store.opening import OpenDatabase, create_tables, database_error, next_epoch, version_of
from farm.store.schema import SCHEMA_VERSION, meta
from farm.store.schema import host as host_table
from farm.store.server_facts import read_facts
from farm.store.server_rules import CHECK, DOCTOR_ONLY, GUIDE, JOIN, UPGRADE, ServerFacts, findings_of
from farm.store.term import Term, rest_of_term, take_term
from farm.store.writer import NUMBER

logger = logging.getLogger(__name__)
LOCK = 0x6661726D  # "farm": the advisory lock of a daemon that begins to serve from a database, while it does
LOCK_LIMIT_S = 3.0  # longer than an open transaction of a daemon that was stopped (farm.store.term)
LOOK_AGAIN_S = 0.25  # while the term of a daemon that has gone holds
LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE
MAX_UNKNOWN = 200  # terms of heads and starts of hosts since the backup of which a database was restored
NAMESAKE_S = 8.0  # a beat that is younger proves a running daemon; longer than three beats (farm.head.beats)
_SILENT = sql("SELECT extract(epoch FROM clock_timestamp()) - beat_at FROM host WHERE name = :name")
# Of any earlier schema: a column may be missing.
_RUNNING = sql(
    "SELECT name, to_jsonb(host)->>'version', protocol FROM host WHERE name <> :own AND "
    "extract(epoch FROM clock_timestamp()) - beat_at < :silent_s AND to_jsonb(host)->>'removed_at' IS NULL "
    "ORDER BY name"
)
_BELONGS = sql("SELECT removed_at IS NULL FROM host WHERE name = :name")
EPOCH, STARTS = "epoch", "starts"  # in `meta`: the number of the term, and of the latest start of a host


class StoreRole(StrEnum):
    """The part of a process in serving from a database on a server."""

    HEAD = "head"  # decides: one at a time; others wait for the end of its term
    HOST = "host"  # holds phones: there are many


class DatabaseAwayError(HostError):
    """The database's server cannot be used now, but may be later without a changed setting."""

    code = Code.DATABASE_UNUSABLE


class TermHeldError(HostError):
    """Another head has the term of the database."""

    code = "term_held"


def open_server(
    url: str, role: StoreRole, host: str = "", state: Path | None = None, protocols: Collection[int] | None = None
) -> OpenDatabase:
    """Open a database on a server, bring it up to this schema, and count this start; a head takes the next term.

    Args:
        url: its address.
        role: of this process.
        host: a host's name.
        state: a host's state folder, which knows the number of its latest start.
        protocols: those between hosts and head that this release understands; None: any.

    Raises:
        TermHeldError: another head has the term.
        HostError: it cannot be reached or used, another daemon has the host's name, or it is of another farm release.
    """
    is_head = role is StoreRole.HEAD
    program = HEAD_PROGRAM if is_head else PROGRAM
    name, engine = named_engine(url, program)
    with contextlib.ExitStack() as opened:
        opened.callback(close_engine, engine)
        seen = 0 if state is None else read_starts(state)
        try:
            with engine.connect() as connection:
                facts = check_server(connection, name)
                stored = start_number(connection, EPOCH if is_head else STARTS)
            with engine.begin() as connection:
                if is_head:
                    epoch = _begin_head(connection, name, protocols)
                else:
                    epoch = _begin_host(connection, name, host, seen if state else None, protocols)
        except DatabaseError as error:
            if getattr(error.orig, "sqlstate", "") == LOCK_NOT_AVAILABLE:
                raise _locked(name, role) from error
            raise server_error(name, error) from error
        notes: tuple[Diagnosis, ...] = ()
        if stored is not None and stored < seen:
            notes = (_went_back(stored, seen, epoch),)
            logger.warning("%s", notes[0].detail)
        if state is not None:
            write_starts(state, epoch)
        term = None
        if is_head:
            term = Term(engine, epoch)
            opened.callback(term.close)
        # An engine of its own: the writer closes it, and the term ends after the last write.
        writing = server_engine(url, WRITER_IDLE_TIMEOUT, program)
        return OpenDatabase(engine, writing, epoch, opened.pop_all().close, term, notes, facts)


def check_server(connection: Connection, name: str) -> ServerFacts:
    """Look at the server, and log problems.

    Raises:
        HostError: farm cannot use it.
    """
    facts = read_facts(connection)
    for finding in findings_of(facts):
        if finding.verdict is FAIL:
            kind = DatabaseAwayError if facts.standby or facts.read_only else HostError  # it may be promoted
            message = f"cannot use the database {name}: {finding.detail}"
            raise kind(message, Code.DATABASE_UNUSABLE, hint=finding.fix)
        if finding.verdict is WARN and finding.check not in DOCTOR_ONLY:
            logger.warning("%s: %s (%s)", finding.check, finding.detail, finding.fix)
    return facts


def look_at_server(url: str, own: str = "") -> list[Diagnosis]:
    """Every finding about the server of a database, or why there are none. `own`: this host's name in its lab."""
    try:
        name, engine = named_engine(url)
        try:
            with engine.connect() as connection:
                found = [*findings_of(read_facts(connection))]
                has_tables = start_number(connection) is not None  # the first start makes them
                if own and has_tables and not connection.execute(_BELONGS, {"name": own}).scalar():
                    problem = f"{own} is no host of this lab: it was removed, or has never started"
                    found.append(Diagnosis("lab hosts", FAIL, problem, f"start its daemon; if that is refused: {JOIN}"))
                return found
        except DatabaseError as error:
            raise server_error(name, error) from error
        finally:
            engine.dispose()
    except HostError as error:
        return [of_error(CHECK, FAIL, error)]


def server_error(name: str, error: DatabaseError) -> HostError:
    """The error for a database on a server that cannot be used."""
    evidence = str(error.orig).strip()
    if getattr(error.orig, "sqlstate", "") == NOT_ALLOWED:
        return database_error(
            f"cannot use the database {name}: the role has no right to do that there",
            hint=f"a new database: as the server's superuser, ALTER DATABASE ... OWNER TO ...; {UPGRADE}",
            evidence=evidence,
        )
    outage = outage_of(error)
    if outage is None:
        return database_error(f"cannot use the database {name}", hint=GUIDE, evidence=evidence)
    hint = outage.start_hint or outage.hint
    kind = HostError if outage.mistake else DatabaseAwayError
    message = f"cannot use the database {name}: {outage.reason}"
    return kind(message, Code.DATABASE_UNUSABLE, hint=hint, evidence=outage.evidence)


def start_number(connection: Connection, of: str = EPOCH) -> int | None:
    """The number of the latest start, or of a host's (`STARTS`); None in a database without farm's tables."""
    if meta.name not in inspect(connection).get_table_names():
        return None
    number: int | None = connection.execute(select(meta.c.value).where(meta.c.name == of)).scalar_one_or_none()
    return number


class Standby:
    """Reads when the term of a database on a server ends, for a head that waits. Blocking."""

    def __init__(self, url: str) -> None:
        """HostError: it is no PostgreSQL address, or the driver is missing."""
        self._name, self._engine = named_engine(url, HEAD_PROGRAM)

    def rest_s(self) -> float:
        """The seconds until the end of the present term; at most 0 when it is over, or there is none.

        Raises:
            HostError: the server cannot be reached.
        """
        try:
            with self._engine.connect() as connection:
                return 0.0 if start_number(connection) is None else rest_of_term(connection)[1]
        except DatabaseError as error:
            raise server_error(self._name, error) from error

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


def _went_back(stored: int, seen: int, epoch: int) -> Diagnosis:
    detail = (
        f"the database has gone back in time (restored from a backup, or another one?): its latest start is number "
        f"{stored}, this host has seen {seen}; farm continues as number {epoch}"
    )
    fix = "jobs and leases since that backup are unknown: submit those jobs again"
    return Diagnosis(CHECK, WARN, detail, fix)


def _locked(name: str, role: StoreRole) -> HostError:
    if role is StoreRole.HEAD:
        return TermHeldError(f"another head begins over the database {name}", hint="wait for its end")
    return database_error(f"another daemon begins over the database {name}", hint="try again")


def _begin_head(connection: Connection, name: str, protocols: Collection[int] | None) -> int:
    """Take the next term, whose number is returned.

    Raises:
        TermHeldError: the present one is not over.
        HostError: the database is of another farm release.
    """
    version = _lock(connection, name)
    rest_s = 0.0 if version is None else rest_of_term(connection)[1]
    if rest_s > 0:
        raise TermHeldError(f"another head decides over the database {name}", hint="wait for its end")
    bring_up_to_date(connection, name, version, protocols=protocols)
    insert_new(connection, meta, {"name": NUMBER, "value": 0})
    # It has no state folder: a number may have been used every second since the latest term.
    known = max(start_number(connection, STARTS) or 0, start_number(connection) or 0)
    epoch = next_epoch(connection, known + min(int(-rest_s), MAX_UNKNOWN))
    begin_numbers(connection)
    take_term(connection)
    return epoch


def _begin_host(
    connection: Connection, name: str, host: str, seen: int | None, protocols: Collection[int] | None
) -> int:
    """The number of a host's start: above those of all hosts and terms before, so that ids made of it are new.

    `seen`: of its latest start, by its state folder; None: it has no state folder.

    Raises:
        HostError: another daemon has the host's name.
    """
    version = _lock(connection, name)
    bring_up_to_date(connection, name, version, own=host, protocols=protocols)
    if seen is not None:
        _refuse_namesake(connection, host, seen)
    adopt_rows(connection, host)
    for row in (STARTS, mark_of(host)):
        insert_new(connection, meta, {"name": row, "value": 0})
    number = max(start_number(connection, STARTS) or 0, start_number(connection) or 0, seen or 0) + 1
    connection.execute(update(meta).where(meta.c.name == STARTS).values(value=number))
    begin_numbers(connection)
    return number


def _refuse_namesake(connection: Connection, host: str, seen: int) -> None:
    """Refuse to be a host that another daemon is: the two would take each other's letters.

    Raises:
        HostError: a daemon that this state folder does not know beat as this host a moment ago.
    """
    written = start_number(connection, mark_of(host)) or 0
    if written >> 32 <= seen:
        return
    silent_s = connection.execute(_SILENT, {"name": host}).scalar_one_or_none()
    if silent_s is not None and silent_s < NAMESAKE_S:
        raise database_error(
            f"another daemon is host {host} of this lab: its latest beat is {silent_s:.1f} s old",
            hint='give this one another name, [lab] host = "..."; if its state folder was lost, start again in 10 s',
        )


def mark_of(host: str) -> str:
    """The row of `meta` with the number of the latest transaction of a host."""
    return f"{NUMBER} {host}"


def _lock(connection: Connection, name: str) -> int | None:
    """Begin alone, to the end of the transaction; the version of the schema, None: the database is empty."""
    connection.execute(sql(f"SET LOCAL lock_timeout = '{LOCK_LIMIT_S:g}s'"))
    connection.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    return version_of(connection, name)


def bring_up_to_date(
    connection: Connection, name: str, version: int | None, *, own: str = "", protocols: Collection[int] | None = None
) -> None:
    """Make the tables, if there are none, or those of this release out of an earlier one's.

    Args:
        connection: in a transaction, with the lock.
        name: of the database.
        version: of its schema; None: it is empty.
        own: the name of the host that this is.
        protocols: see `open_server`.

    Raises:
        HostError: a daemon runs that could not continue afterwards.
    """
    if version is None:
        create_tables(connection)
    elif version < SCHEMA_VERSION:
        from farm.store.migrations import keeps_daemons, migrate

        _refuse_beside(connection, name, own, protocols, keeps=keeps_daemons(version))
        logger.info("%s has schema version %d; brought up to %d", name, version, SCHEMA_VERSION)
        with without_limits(connection):
            migrate(connection, version)


def _refuse_beside(
    connection: Connection, name: str, own: str, protocols: Collection[int] | None, *, keeps: bool
) -> None:
    """Refuse a migration of a lab's database that a running daemon could not work with.

    Raises:
        HostError: names the hosts.
    """
    known = inspect(connection).has_table(host_table.name)
    unfit = [
        f"{host} (farm {version or 'of another release'}, protocol {protocol})"
        for host, version, protocol in (
            connection.execute(_RUNNING, {"own": own, "silent_s": NAMESAKE_S}) if known else ()
        )
        if not keeps or (protocols is not None and protocol not in protocols)
    ]
    if not keeps and rest_of_term(connection)[1] > 0:
        unfit.append("its head")
    if unfit:
        raise HostError(
            f"{name} is of an earlier release, with which these still run: {', '.join(unfit)}; nothing was changed",
            Code.BAD_HOST_VERSION,
            hint="stop farm and farm-head there, do this again, then start them with this release",
        )


def named_engine(url: str, program: str = PROGRAM) -> tuple[str, Engine]:
    """A server's engine, see `server_engine`, and its address as `shown_url` writes it.

    Raises:
        UserError: it is no PostgreSQL address.
        HostError: the driver is missing.
    """
    try:
        made = server_url(url)
        if made.drivername != DRIVER:
            raise UserError(
                f"farm does not support {made.drivername} databases ([store] url or --url)",
                Code.DATABASE_UNUSABLE,
                hint="postgresql://USER@HOST/DATABASE, or leave [store] url empty for farm.db in the state folder",
            )
        return shown_url(url), server_engine(url, program=program)
    except ArgumentError as error:
        raise UserError(
            "the database's URL ([store] url, or --url) is no address",
            Code.DATABASE_UNUSABLE,
            hint="postgresql://USER@HOST/DATABASE",
        ) from error
    except ModuleNotFoundError as error:
        raise database_error(
            f"[store] url needs the Python package {error.name}", hint=pip_install("postgres")
        ) from error
