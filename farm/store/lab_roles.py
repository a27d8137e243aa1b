"""Roles of a PostgreSQL server for a lab: one that owns its tables and cannot log in, and one of each host, a member.

Every session in the lab's database acts as the owning role (`ALTER ROLE ... SET role`), so all hosts can use the tables
that one has created, and a removed host loses everything with its right to log in. Only a role that may make roles can
set this up; hosts cannot. A host sets its own password through a function of that role, since only such a role may
change the time until which a password is valid.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import text as sql
from sqlalchemy.exc import DatabaseError

from farm.common.errors import NotAllowedError
from farm.store.host_token_policy import role_of
from farm.store.schema import metadata

LOCK_LIMIT = "500ms"  # of a table: less than PostgreSQL's deadlock_timeout, so that this gives up, never a daemon
TRIES = 10
PAUSE_S = 0.3
LOCKED = ("55P03", "40P01")  # SQLSTATE: lock_timeout, deadlock
SETTLE = "farm_host_joined"
_SETTLE_BODY = "BEGIN EXECUTE format('ALTER ROLE %I PASSWORD %L VALID UNTIL ''infinity''', session_user, verifier); END"
_SESSION = sql(
    "SELECT session_user, current_database(), rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = session_user"
)
_OWNER = sql("SELECT tableowner FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'meta'")
_EXISTS = sql("SELECT 1 FROM pg_roles WHERE rolname = :role")
_NOT_OWNED = sql(
    "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tableowner <> :owner ORDER BY tablename"
)


class LabRoles:
    """Changes roles in the caller's transaction, as the role that logged in."""

    def __init__(self, connection: Connection) -> None:
        """Act as that role from now on.

        Raises:
            NotAllowedError: it may make no roles.
        """
        self._connection = connection
        connection.execute(sql("SET LOCAL ROLE NONE"))
        self.session, self._database, may_make_roles = connection.execute(_SESSION).one()
        if not may_make_roles:
            raise NotAllowedError(
                f"the database role {self.session} may not make roles, and each host of a lab has its own",
                hint=f"as the server's superuser: ALTER ROLE {self._quoted(self.session)} CREATEROLE; "
                "or name a role that may: --url",
            )

    def prepare(self, lab: str) -> None:
        """Give the lab's tables to the role that owns them, once."""
        name_of_owner = role_of(lab)
        owner, before = self._quoted(name_of_owner), self._connection.execute(_OWNER).scalar_one()
        if not self._exists(name_of_owner):
            self._run(f"CREATE ROLE {owner} NOLOGIN")
        for member in sorted({before, self.session} - {name_of_owner}):
            name = self._quoted(member)
            self._run(f"GRANT {owner} TO {name}")
            self._run(f"ALTER ROLE {name} IN DATABASE {self._quoted(self._database)} SET role = {owner}")
        self._run(f"GRANT USAGE, CREATE ON SCHEMA public TO {owner}")
        self._run(f"SET LOCAL lock_timeout = '{LOCK_LIMIT}'")
        for table in self._connection.execute(_NOT_OWNED, {"owner": name_of_owner}).scalars().all():
            if table in metadata.tables:
                self._run(f"ALTER TABLE {self._quoted(table)} OWNER TO {owner}")
        self._run(
            f"CREATE OR REPLACE FUNCTION {SETTLE}(verifier text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER "
            f"SET search_path = pg_catalog, pg_temp AS $${_SETTLE_BODY}$$"
        )
        self._run(f"REVOKE ALL ON FUNCTION {SETTLE}(text) FROM PUBLIC")
        self._run(f"GRANT EXECUTE ON FUNCTION {SETTLE}(text) TO {owner}")

    def admit(self, lab: str, name: str, password: str, until: str) -> str:
        """Let a host log in with this password until a time; returns its role."""
        role = role_of(lab, name)
        quoted, owner = self._quoted(role), self._quoted(role_of(lab))
        if self._exists(role):
            self._run(f"GRANT {owner} TO {quoted}")
        else:  # a member of it may end its connections
            self._run(f"CREATE ROLE {quoted} IN ROLE {owner} ADMIN {self._quoted(self.session)}")
        secret = verifier(self._connection, role, password)
        self._run(f"ALTER ROLE {quoted} LOGIN PASSWORD '{secret}' VALID UNTIL '{until}'")
        self._run(f"ALTER ROLE {quoted} IN DATABASE {self._quoted(self._database)} SET role = {owner}")
        return role

    def dismiss(self, lab: str, name: str) -> bool:
        """Take a host's right to log in, from the commit on; returns whether it has a role."""
        role = role_of(lab, name)
        if not self._exists(role):
            return False
        self._run(f"ALTER ROLE {self._quoted(role)} NOLOGIN PASSWORD NULL")
        self._run(f"REVOKE {self._quoted(role_of(lab))} FROM {self._quoted(role)}")
        return True

    def drop(self, lab: str, name: str) -> int:
        """End the connections of a dismissed role and drop it; returns the number of connections."""
        role = role_of(lab, name)
        ended = self._connection.execute(
            sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = :role"), {"role": role}
        ).scalar_one()
        try:
            with self._connection.begin_nested():
                self._run(f"DROP ROLE {self._quoted(role)}")
        except DatabaseError:  # it owns something in another database: it stays, without the right to log in
            pass
        return int(ended)

    def _exists(self, role: str) -> bool:
        return self._connection.execute(_EXISTS, {"role": role}).first() is not None

    def _run(self, statement: str) -> None:
        """A statement that takes no parameters."""
        self._connection.exec_driver_sql(statement.replace("%", "%%"))

    def _quoted(self, name: str) -> str:
        return self._connection.dialect.identifier_preparer.quote_identifier(name)


def verifier(connection: Connection, role: str, password: str) -> str:
    """The server's form of a password (SCRAM): a statement with it may stand in the server's log."""
    driver: Any = connection.connection.dbapi_connection
    made: bytes = driver.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
    return made.decode()


def is_locked(error: DatabaseError) -> bool:
    """Whether a daemon's transaction held a table, so that another try may help."""
    return getattr(error.orig, "sqlstate", "") in LOCKED


def pause() -> None:
    """Between two tries."""
    time.sleep(PAUSE_S)
