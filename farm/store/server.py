"""Opening a PostgreSQL database: the same tables, one daemon at a time."""

from __future__ import annotations

import logging
import time

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy import text as sql
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from farm.core.extras import pip_install
from farm.store.engine import server_engine
from farm.store.opening import DatabaseUnusableError, create_tables, next_epoch, version_of
from farm.store.schema import SCHEMA_VERSION

LOCK = 0x6661726D  # "farm": the advisory lock of whoever serves from a database
LEAVING_S = 3.0  # a server notices a moment later that the daemon before this one has gone
LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE
MOST_SKEW_S = 5.0  # between this host's clock and the server's: times in the store are this host's

logger = logging.getLogger(__name__)


class Server:
    """A database on a server, held by this daemon."""

    def __init__(self, url: str) -> None:
        """Open it, bring it up to this schema, and count this start.

        Raises:
            DatabaseUnusableError: it cannot be reached, another daemon serves from it, or it is of a newer farm.
        """
        self.name, self.engine = _engine(url)
        try:
            self._held = self.engine.connect()
            self._held.detach()  # the lock lives and dies with this connection: no pool may keep it
            try:
                self.epoch = self._begin(self._held)
            except BaseException:
                self._held.close()
                raise
        except DatabaseError as error:
            self.engine.dispose()
            raise DatabaseUnusableError(
                f"cannot use the database {self.name}", hint="is the server running, and [store] url right?",
                evidence=str(error.orig).strip(),
            ) from error  # fmt: skip
        except BaseException:
            self.engine.dispose()
            raise

    def close(self) -> None:
        """Let the next daemon in."""
        self._held.close()
        self.engine.dispose()

    def _begin(self, connection: Connection) -> int:
        try:
            connection.execute(sql(f"SET LOCAL lock_timeout = '{LEAVING_S:g}s'"))
            connection.execute(sql("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
            connection.execute(sql("SET LOCAL lock_timeout = DEFAULT"))
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", "") != LOCK_NOT_AVAILABLE:
                raise
            raise DatabaseUnusableError(
                f"another daemon serves from the database {self.name}",
                hint="stop it, or give this one a database of its own: [store] url",
            ) from error
        version = version_of(connection, self.name)
        if version is None:
            create_tables(connection)
        elif version < SCHEMA_VERSION:
            from farm.store.migrate import migrate

            connection.execute(sql("SET LOCAL statement_timeout = 0"))  # it reads and writes whole tables
            logger.info("%s has schema version %d; brought up to %d", self.name, version, SCHEMA_VERSION)
            migrate(connection, version)
        epoch = next_epoch(connection)
        skew_s = time.time() - float(
            connection.execute(sql("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
        )
        connection.commit()
        if abs(skew_s) > MOST_SKEW_S:
            logger.warning("the clock of the database server and this host's differ by %.0f s", abs(skew_s))
        return epoch


def _engine(url: str) -> tuple[str, Engine]:
    try:
        made = make_url(url)
        if made.get_backend_name() != "postgresql":
            raise DatabaseUnusableError(
                f"[store] url: farm does not know databases of {made.get_backend_name()}",
                hint="postgresql+psycopg://USER@HOST/DATABASE, or leave it empty for farm.db in the state folder",
            )
        return made.render_as_string(hide_password=True), server_engine(url)
    except ArgumentError as error:
        raise DatabaseUnusableError(
            "[store] url is no database's address", hint="postgresql+psycopg://USER@HOST/DATABASE"
        ) from error
    except ModuleNotFoundError as error:
        raise DatabaseUnusableError(
            f"[store] url needs the Python package {error.name}", hint=pip_install("postgres")
        ) from error
