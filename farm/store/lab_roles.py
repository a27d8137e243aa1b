"""Roles of a PostgreSQL server for a lab: the administrator's, and one of each host.

Whoever owns a table can let it run code as every role that writes there. So the administrator's role owns the tables,
and no daemon logs in with it. Hosts are members of a group without a login, which may read and write the rows of farm's
tables, and nothing else. A host sets its own password through a function of the administrator, since only a role that
makes roles may change the time until which a password is valid.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import text as sql
from sqlalchemy.exc import DatabaseError

from farm.common.errors import Code, HostError, NotAllowedError
from farm.store.host_token_policy import role_of
from farm.store.schema import metadata

LOCK_LIMIT = "500ms"  # of a table: less than PostgreSQL's deadlock_timeout, so that this gives up, never a daemon
TRIES = 10
PAUSE_S = 0.3
TERMINATE_MS = 2000  # until a connection has ended: without rights its daemon would take each answer for a bug
LOCKED = ("55P03", "40P01")  # SQLSTATE: lock_timeout, deadlock
SETTLE = "public.farm_host_joined"
_SETTLE_BODY = "BEGIN EXECUTE format('ALTER ROLE %I PASSWORD %L VALID UNTIL ''infinity''', session_user, verifier); END"
_SESSION = sql(
    "SELECT session_user, current_database(), rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = session_user"
)
_EXISTS = sql("SELECT 1 FROM pg_roles WHERE rolname = :role")
_NOT_OWNED = sql(
    "SELECT relname, pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'public'::regnamespace "
    "AND relname = ANY(CAST(:tables AS text[])) AND relowner <> CAST(:owner AS regrole) "
    "AND relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY relname"
)
# What a table's earlier owner can have left there: code that runs as the role that reads or writes the table.
_CODE = sql(r"""
WITH farm AS (
    SELECT oid AS of, relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relname = ANY(CAST(:tables AS text[]))
)
SELECT 'trigger ' || tgname || ' of ' || relname FROM pg_trigger JOIN farm ON of = tgrelid WHERE NOT tgisinternal
UNION ALL SELECT 'rule ' || rulename || ' of ' || relname FROM pg_rewrite JOIN farm ON of = ev_class
UNION ALL SELECT 'policy ' || polname || ' of ' || relname FROM pg_policy JOIN farm ON of = polrelid
UNION ALL SELECT 'heir ' || inhrelid::regclass || ' of ' || relname FROM pg_inherits JOIN farm ON of = inhparent
UNION ALL SELECT 'index ' || indexrelid::regclass || ' of ' || relname FROM pg_index JOIN farm ON of = indrelid
    WHERE pg_get_indexdef(indexrelid) ~ '\w\('
UNION ALL SELECT 'constraint ' || conname || ' of ' || relname FROM pg_constraint c JOIN farm ON of = conrelid
    WHERE contype = 'c' AND pg_get_constraintdef(c.oid) ~ '\w\('
UNION ALL SELECT 'default in ' || relname FROM pg_attrdef JOIN farm ON of = adrelid
    WHERE regexp_replace(pg_get_expr(adbin, adrelid), '^nextval\(''\w+''::regclass\)$', '') ~ '\w\('
UNION ALL SELECT 'domain ' || oid::regtype FROM pg_type WHERE typtype = 'd' AND typnamespace = 'public'::regnamespace
    AND EXISTS (SELECT FROM farm)
UNION ALL SELECT 'function ' || p.oid::regprocedure FROM pg_proc p
    WHERE EXISTS (SELECT FROM farm) AND pronamespace = 'public'::regnamespace
        AND p.oid IS DISTINCT FROM to_regprocedure(:settle)
        AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = p.oid AND deptype = 'e')
""")
_GRANTED = sql("""
SELECT DISTINCT relname, privilege_type, coalesce(r.rolname, '') FROM pg_class, aclexplode(relacl) AS a
LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE relnamespace = 'public'::regnamespace AND relname = ANY(CAST(:tables AS text[])) AND a.grantee <> relowner
    AND (privilege_type NOT IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') OR is_grantable)
""")
_SEQUENCES = sql(
    "SELECT s.relname FROM pg_class s JOIN pg_depend d ON d.objid = s.oid AND d.deptype IN ('a', 'i') "
    "WHERE s.relkind = 'S' AND d.refobjid = ANY(CAST(CAST(:tables AS text[]) AS regclass[]))"
)
# Of earlier releases: all sessions of the lab's roles acted as the group, which owned the tables.
_ACTING = sql("""
SELECT rolname FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = setrole JOIN pg_database d ON d.oid = setdatabase
WHERE datname = current_database() AND 'role=' || :group = ANY(setconfig)
""")
_CREATES = sql("SELECT has_schema_privilege(:group, 'public', 'CREATE')")
_OF_THIS_LAB = sql("SELECT has_table_privilege(:group, 'public.meta', 'INSERT')")


class LabRoles:
    """Changes roles and rights in the caller's transaction, as the role that logged in."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tables = list(metadata.tables)
        self._before: set[str] = set()  # earlier owners of the tables
        self._run("SET LOCAL ROLE NONE")
        self._run("SET LOCAL search_path = public")
        self.session, self._database, self.may_make_roles = connection.execute(_SESSION).one()

    def check(self) -> None:
        """Whether the session may change roles.

        Raises:
            NotAllowedError: it may not.
        """
        if not self.may_make_roles:
            raise NotAllowedError(
                f"the database role {self.session} may not make roles, and each host of a lab has its own",
                hint="--url with the role of the database's administrator; as the server's superuser: "
                f"createuser --createrole NAME (not {self.session}, if a daemon logs in with it)",
            )

    def take_over(self) -> None:
        """Make the session's role the owner of all tables.

        Raises:
            HostError: see `refuse_code`.
        """
        self._run(f"SET LOCAL lock_timeout = '{LOCK_LIMIT}'")
        asked = {"tables": self._tables, "owner": self.session}
        for table, owner in self._connection.execute(_NOT_OWNED, asked).all():
            self._run(f"ALTER TABLE {self._quoted(table)} OWNER TO {self._quoted(self.session)}")
            self._before.add(owner)
        self.refuse_code()

    def refuse_code(self) -> None:
        """Look for code of an earlier owner, before the first statement that could run it.

        Raises:
            HostError: there is some.
        """
        asked = {"tables": self._tables, "settle": f"{SETTLE}(text)"}
        if code := self._connection.scalars(_CODE, asked).all():
            raise HostError(
                "the lab's database runs code that is not farm's",
                Code.DATABASE_UNUSABLE,
                hint=f"nothing was changed; drop the {code[0]} if you know it, else move the rows into a new database",
                evidence="\n".join(code),
            )

    def prepare(self, lab: str) -> None:
        """Give the hosts' group and earlier owners their rights, and revoke all others.

        Raises:
            HostError: the group may create things in the database, or belongs to another lab.
        """
        name = role_of(lab)
        group = self._quoted(name)
        if not self._exists(name):
            self._run(f"CREATE ROLE {group} NOLOGIN")
        elif name not in self._before and not self._connection.execute(_OF_THIS_LAB, {"group": name}).scalar_one():
            raise HostError(
                f"the role {name} belongs to another lab",
                Code.DATABASE_UNUSABLE,
                hint="were the rows of `meta` changed, or is this a copy of that lab's database? nothing was changed",
            )
        for member in sorted(self._before - {name}):
            self._run(f"GRANT {group} TO {self._quoted(member)}")
        for member in self._connection.scalars(_ACTING, {"group": name}).all():
            self._run(f"ALTER ROLE {self._quoted(member)} IN DATABASE {self._quoted(self._database)} RESET role")
        for table, right, holder in self._connection.execute(_GRANTED, {"tables": self._tables}).all():
            of = self._quoted(holder) if holder else "PUBLIC"
            self._run(f"REVOKE {right} ON TABLE {self._quoted(table)} FROM {of} CASCADE")
        tables = ", ".join(map(self._quoted, self._tables))
        self._run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {tables} TO {group}")
        if sequences := self._connection.scalars(_SEQUENCES, {"tables": self._tables}).all():
            self._run(f"GRANT USAGE ON SEQUENCE {', '.join(map(self._quoted, sequences))} TO {group}")
        self._run(f"REVOKE CREATE ON SCHEMA public FROM PUBLIC, {group}")
        if self._connection.execute(_CREATES, {"group": name}).scalar_one():
            raise HostError(
                "every role may create things in the database",
                Code.DATABASE_UNUSABLE,
                hint="as the server's superuser, in this database: REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            )
        self._run(
            f"CREATE OR REPLACE FUNCTION {SETTLE}(verifier text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER "
            f"SET search_path = pg_catalog, pg_temp AS $${_SETTLE_BODY}$$"
        )
        self._run(f"ALTER FUNCTION {SETTLE}(text) OWNER TO {self._quoted(self.session)}")
        self._run(f"REVOKE ALL ON FUNCTION {SETTLE}(text) FROM PUBLIC")
        self._run(f"GRANT EXECUTE ON FUNCTION {SETTLE}(text) TO {group}")

    def admit(self, lab: str, name: str, password: str, until: str = "infinity") -> str:
        """Let a host log in with this password until a time; returns its role."""
        role = role_of(lab, name)
        quoted, group = self._quoted(role), self._quoted(role_of(lab))
        if self._exists(role):
            self._run(f"GRANT {group} TO {quoted}")
        else:  # a member of it may end its connections; from PostgreSQL 16 on its maker is none
            self._run(f"CREATE ROLE {quoted} IN ROLE {group}")
            self._run(f"GRANT {quoted} TO {self._quoted(self.session)}")
        secret = verifier(self._connection, role, password)
        self._run(f"ALTER ROLE {quoted} LOGIN PASSWORD '{secret}' VALID UNTIL '{until}'")
        return role

    def has(self, lab: str, name: str) -> bool:
        """Whether a host has a role."""
        return self._exists(role_of(lab, name))

    def dismiss(self, lab: str, name: str) -> bool:
        """Take a host's right to log in, from the commit on; returns whether it has a role."""
        role = role_of(lab, name)
        if not self._exists(role):
            return False
        self._run(f"ALTER ROLE {self._quoted(role)} NOLOGIN PASSWORD NULL")
        return True

    def drop(self, lab: str, name: str) -> int:
        """End the connections of a dismissed role and drop it; returns the number of connections."""
        role = role_of(lab, name)
        ended = self._connection.execute(
            sql("SELECT count(pg_terminate_backend(pid, :ms)) FROM pg_stat_activity WHERE usename = :role"),
            {"role": role, "ms": TERMINATE_MS},
        ).scalar_one()
        self._run(f"REVOKE {self._quoted(role_of(lab))} FROM {self._quoted(role)}")
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
