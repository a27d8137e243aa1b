"""Membership of hosts in a lab: its id, tokens, joining and removal, in the lab's database itself. Blocking.

Only an administrator does all but joining, by a URL with a role that no daemon has. A token is a role of the server
with a password that is good for a day, and a row of `host_token`. Joining replaces the password by one that only the
new host knows and the row by one of `host`, in one transaction. Removing a host takes its role's right to log in, ends
its connections and marks its row. The head ends its leases and attempts and deletes the row (farm.head.host_watch).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import URL, Connection, delete, exists, insert, select, update
from sqlalchemy import text as sql
from sqlalchemy.exc import DatabaseError

from farm.common.errors import Code, HostError, UserError
from farm.common.selector import did_you_mean
from farm.store.accounts import AuditRecord
from farm.store.database import insert_new, put, values_of
from farm.store.engine import HEAD_PROGRAM, server_engine, server_hosts, server_url
from farm.store.host_token_policy import LIFE_S, HostToken, check_host_name, role_of
from farm.store.lab_roles import SETTLE, TRIES, LabRoles, is_locked, pause, verifier
from farm.store.opening import database_error, version_of
from farm.store.schema import SCHEMA_VERSION, audit, device, host, host_token, meta
from farm.store.server_opening import LOCK, NAMESAKE_S, bring_up_to_date, check_server, named_engine, server_error
from farm.store.server_rules import UPGRADE

LAB = "lab"  # in `meta`: the lab's id
SECRET_BYTES = 24
OF_THIS_HOST = frozenset({"passfile", "password", "user", "sslcert", "sslkey"})  # parts of a URL for this host only
REFUSED = ("password authentication failed", "is not permitted to log in", "does not exist")
_NAMES = select(host.c.name).where(host.c.removed_at.is_(None)).order_by(host.c.name)
# Of a host: the age of its latest beat, and whether all heads that the server lists log in with its role.
_LEAVING = sql("""
SELECT extract(epoch FROM clock_timestamp())::float8 - beat_at AS silent_s, drained,
    (SELECT bool_and(usename = :role) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name LIKE :heads) AS has_heads
FROM host WHERE name = :name AND removed_at IS NULL
""")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of a removal."""

    name: str
    had_role: bool  # of its own; False: it still has the password of the owner's role
    connections: int  # how many were ended


@dataclass(frozen=True, slots=True)
class OrderedBy:
    """The author of an order, for the audit log."""

    user: str
    origin: str  # "uid 0 on lab1"


def found_lab(url: str, protocols: Collection[int] | None = None) -> tuple[str, tuple[str, ...]]:
    """Make the tables of a lab in an empty database, or bring them and the rights of its hosts up to date.

    With a role that may make no roles the tables are made for one daemon, which has that role. `protocols`: those
    between hosts and head that this release understands; None: any.

    Returns:
        The lab's id, and the names of the hosts that it has already.

    Raises:
        HostError: the database cannot be used, is of another release or program, or a daemon runs that could not
            continue.
    """

    def begin(connection: Connection, roles: LabRoles) -> tuple[str, tuple[str, ...]]:
        lab = lab_of(connection)
        if roles.may_make_roles:
            roles.prepare(lab)
        return lab, tuple(connection.scalars(_NAMES))

    return _in_one_go(url, begin, create=True, protocols=protocols)


def first_login(url: str, name: str, keep: Callable[[str], None], *, kept: bool) -> str:
    """Give the lab's first host a role and a password of its own, unless it has them.

    Args:
        url: of the lab's database, of its administrator.
        name: of the host.
        keep: writes the password down; called before it is valid.
        kept: whether it was written down before.

    Returns:
        The URL without a password for that host; "": the role of `url` may make no roles, and is the daemon's own.

    Raises:
        UserError: the name cannot be one, or a host has it and its password is not here.
        HostError: the database cannot be used.
    """

    def admit(connection: Connection, roles: LabRoles) -> str:
        if not roles.may_make_roles:
            return ""
        check_host_name(name)
        lab = lab_of(connection)
        if roles.has(lab, name) and not kept:
            raise UserError(
                f"host {name} has a password already, and not here",
                hint=f"farm host remove {name} --url URL, farm host token {name} --url URL, then here: farm host join",
            )
        if not roles.has(lab, name):
            password = secrets.token_urlsafe(SECRET_BYTES)
            roles.admit(lab, name, password)
            keep(password)
        return _url_of(url, role_of(lab, name))

    return _in_one_go(url, admit)


def lab_of(connection: Connection) -> str:
    """The lab's id, made at the first call."""
    insert_new(connection, meta, {"name": LAB, "value": secrets.randbits(63)})
    return _lab_id(connection)


def new_token(
    url: str, name: str, release: str, protocol: int, by: OrderedBy, *, address: str = ""
) -> tuple[HostToken, bool]:
    """A token with which a machine joins as the host `name`; an earlier one for that name is void.

    Args:
        url: of the lab's database, of its administrator.
        name: of the new host.
        release: of farm here.
        protocol: of messages between hosts and head here.
        by: its maker.
        address: the database's URL for the new host; "": the same.

    Returns:
        The token, and whether its URL leads to the database from other machines too.

    Raises:
        UserError: the name cannot be one, or a host has it.
        NotAllowedError: the role may make no roles.
        HostError: the database cannot be used.
    """
    check_host_name(name)

    def make(connection: Connection, roles: LabRoles) -> HostToken:
        roles.check()
        _check_free(connection, name)
        lab, password = lab_of(connection), secrets.token_urlsafe(SECRET_BYTES)
        roles.prepare(lab)
        expires_s, until = connection.execute(
            sql("SELECT extract(epoch FROM t)::float8, t::text FROM (SELECT clock_timestamp() + :life * interval '1 s')"
                " AS made (t)"), {"life": LIFE_S},
        ).one()  # fmt: skip
        role = roles.admit(lab, name, password, until)
        row = {"name": name, "role": role, "expires_at": datetime.fromtimestamp(expires_s, UTC), "made_by": by.user}
        put(connection, host_token, row)
        _note(connection, by, "host.token", name)
        return HostToken(lab, name, _url_of(address or url, role), password, release, protocol, expires_s)

    token = _in_one_go(url, make)
    return token, _leads_here_from_elsewhere(server_url(token.url))


def join(token: HostToken, release: str, protocol: int, keep: Callable[[str], None]) -> int:
    """Use a token up; from then on the host logs in with a password of its own.

    Args:
        token: of the lab.
        release: of farm here.
        protocol: of messages between hosts and head here.
        keep: writes the new password down; called before the token is used up.

    Returns:
        How many hosts the lab has with it.

    Raises:
        UserError: this farm is of another release than the lab, or the database is of another lab.
        NotAllowedError: the token was used, taken back or has expired.
        HostError: the database cannot be used.
    """
    token.check_release(release, protocol)
    password, hosts = secrets.token_urlsafe(SECRET_BYTES), 0
    name, engine = named_engine(with_password(token.url, token.password))
    try:
        with engine.begin() as connection:
            check_server(connection, name)
            _check_lab(connection, name, token)
            connection.execute(
                sql(f"SELECT {SETTLE}(:verifier)"),
                {"verifier": verifier(connection, role_of(token.lab, token.name), password)},
            )
            row = {"name": token.name, "protocol": protocol, "version": release, "role": role_of(token.lab, token.name)}
            connection.execute(insert(host), row)
            hosts = len(tuple(connection.scalars(_NAMES)))
            keep(password)
    except DatabaseError as error:
        if any(each in str(error.orig) for each in REFUSED):
            raise token.used_error() from error
        if not _logs_in(token.url, password):  # else the commit's answer was lost
            raise server_error(name, error) from error
    finally:
        engine.dispose()
    return hosts


def remove(url: str, name: str, by: OrderedBy, *, force: bool = False) -> Removed:
    """Remove a host, or an unused token, from the lab: its role can log in no more, and its connections end.

    Raises:
        UserError: there is no such host; without `force`: it runs and is not drained, or the lab would have no head.
        NotAllowedError: the role may make no roles.
        HostError: the database cannot be used.
    """

    def dismiss(connection: Connection, roles: LabRoles) -> tuple[str, bool]:
        roles.check()
        lab = lab_of(connection)
        roles.prepare(lab)
        if not force:
            _check_leaving(connection, name)
        known = exists().where(leaving) | exists().where(host_token.c.name == name)
        if not connection.execute(select(known)).scalar_one():
            hint = did_you_mean(name, connection.scalars(_NAMES), "farm host list")
            raise UserError(f"there is no host {name!r} in the lab", hint=hint)
        return lab, roles.dismiss(lab, name)

    def leave(connection: Connection, roles: LabRoles) -> int:
        ended = roles.drop(lab, name) if had_role else 0
        connection.execute(delete(host_token).where(host_token.c.name == name))
        connection.execute(update(host).where(leaving).values(removed_at=datetime.now(UTC)))
        _note(connection, by, "host.remove", name)
        return ended

    leaving = (host.c.name == name) & host.c.removed_at.is_(None)
    lab, had_role = _in_one_go(url, dismiss)
    ended = _in_one_go(url, leave)  # it can log in no more: a second removal finishes one that was cut off here
    return Removed(name, had_role, ended)


def with_password(url: str, password: str) -> str:
    """A database's address with a password."""
    return _shown(server_url(url).set(password=password))


def with_passfile(url: str, path: str) -> str:
    """A database's address with the file that has its password, for [store] url."""
    return _shown(server_url(url).update_query_dict({"passfile": path}))


def _shown(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _url_of(text: str, role: str) -> str:
    """The address for another host: with that host's role, and without the parts for this host only."""
    url = server_url(text)
    return _shown(url.set(username=role)._replace(password=None).difference_update_query(OF_THIS_HOST))


def _leads_here_from_elsewhere(url: URL) -> bool:
    hosts = server_hosts(url)
    return bool(hosts) and not any(each.startswith(("127.", "localhost")) or each == "::1" for each in hosts)


@contextmanager
def _operating(
    url: str, *, create: bool = False, protocols: Collection[int] | None = None
) -> Iterator[tuple[Connection, LabRoles]]:
    """One transaction over a lab's database, of this schema; a daemon that begins meanwhile waits.

    It gives the tables to the URL's role before it reads them.
    `create`: make the tables if there are none, or bring them up to date.

    Raises:
        HostError: it cannot be used, or has no tables of farm.
    """
    name, engine = named_engine(url)
    try:
        with engine.begin() as connection:
            check_server(connection, name)
            connection.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
            roles = LabRoles(connection)
            if roles.may_make_roles:
                roles.take_over()
            version = version_of(connection, name)
            if version is None and not create:
                raise database_error(f"there is no lab in {name}", hint="on its first host: farm lab init")
            if create:
                bring_up_to_date(connection, name, version, protocols=protocols)
            elif version is not None and version < SCHEMA_VERSION:
                raise database_error(f"{name} is of an earlier farm release", hint=UPGRADE)
            yield connection, roles
    except DatabaseError as error:
        if is_locked(error):
            raise
        raise server_error(name, error) from error
    finally:
        engine.dispose()


def _in_one_go(
    url: str,
    change: Callable[[Connection, LabRoles], T],
    *,
    create: bool = False,
    protocols: Collection[int] | None = None,
) -> T:
    for _ in range(TRIES):
        try:
            with _operating(url, create=create, protocols=protocols) as operating:
                return change(*operating)
        except DatabaseError:  # see `is_locked`
            pause()
    raise HostError(
        "the lab's daemons keep its tables locked; nothing was changed", Code.DATABASE_UNUSABLE, hint="try again"
    )


def _check_free(connection: Connection, name: str) -> None:
    taken = connection.execute(select(host.c.removed_at).where(host.c.name == name)).first()
    if taken is not None and taken.removed_at is not None:
        raise UserError(f"{name} is being removed: the head has not ended all that it held", hint="farm host list")
    if taken is not None:
        raise UserError(f"there is a host {name} in the lab", hint=f"another name, or: farm host remove {name}")
    if connection.execute(select(exists().where(device.c.host == ""))).scalar_one():
        raise UserError(
            "the host that this database had so far has no name yet",
            hint='[lab] host = "NAME" in its configuration, and start its daemon again; then make the token',
        )


def _check_leaving(connection: Connection, name: str) -> None:
    """Whether a host can be removed without harm to what runs there.

    Raises:
        UserError: it runs and is not drained, or the lab's heads log in with its role.
    """
    asked = {"name": name, "role": role_of(lab_of(connection), name), "heads": f"{HEAD_PROGRAM} % %"}
    row = connection.execute(_LEAVING, asked).first()
    why, first = [], []
    if row is not None and row.silent_s is not None and row.silent_s < NAMESAKE_S and not row.drained:
        why.append(f"it runs (its latest beat is {row.silent_s:.1f} s old)")
        first.append(f"farm host drain {name}, or there: systemctl stop farm")
    if row is not None and row.has_heads:
        why.append("no farm head of the lab runs but there")
        first.append("start a farm head at another host")
    if why:
        hint = f"first {'; and '.join(first)}; --force removes it as it is"
        raise UserError(f"host {name} stays in the lab: {', and '.join(why)}", hint=hint)


def _check_lab(connection: Connection, name: str, token: HostToken) -> None:
    """Whether the database is that of the token, and the token unused.

    Raises:
        UserError: it is another lab's, or of another release.
        NotAllowedError: the token was used, taken back or has expired.
    """
    if version_of(connection, name) != SCHEMA_VERSION:
        raise UserError(
            f"the lab's database has another schema than this farm ({SCHEMA_VERSION}); nothing was changed",
            Code.DATABASE_UNUSABLE,
            hint="install the lab's release here, then join",
        )
    if (found := _lab_id(connection)) != token.lab:
        raise token.other_lab_error(found)
    token.check_time(
        float(connection.execute(sql("SELECT extract(epoch FROM clock_timestamp())::float8")).scalar_one())
    )
    if connection.execute(delete(host_token).where(host_token.c.name == token.name)).rowcount != 1:
        raise token.used_error()


def _lab_id(connection: Connection) -> str:
    number = connection.execute(select(meta.c.value).where(meta.c.name == LAB)).scalar_one_or_none()
    return "" if number is None else f"{number:016x}"


def _logs_in(url: str, password: str) -> bool:
    engine = server_engine(with_password(url, password))
    try:
        with engine.connect():
            return True
    except DatabaseError:
        return False
    finally:
        engine.dispose()


def _note(connection: Connection, by: OrderedBy, kind: str, subject: str) -> None:
    record = values_of(AuditRecord(datetime.now(UTC), by.user, "operator", by.origin, kind, subject, "ok"))
    connection.execute(insert(audit), {name: value for name, value in record.items() if name != "seq"})
