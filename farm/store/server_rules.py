"""Requirements of a PostgreSQL server, and causes of failed connections. Pure: facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farm.common.doctor_findings import FAIL, OK, WARN, Diagnosis

CONNECTIONS = 6  # of one daemon: the writer, four readers, and the term or, with the head apart, LISTEN
HEAD_CONNECTIONS = 8  # of one `farm head`: those of a daemon, LISTEN, and the look for the term
MIN_VERSION = 140_000  # PostgreSQL 14, as server_version_num
MAX_SKEW_S = 5.0  # between this host's clock and the server's: times in the store are this host's
SLOW_S = 0.02  # round trip; a grant waits for about five
CHECK = "database"
STANDBY, ROLE = "database standby", "database role"
DOCTOR_ONLY = (STANDBY, ROLE)  # advice that neither the log nor `farm status` has
GUIDE = "docs/many-hosts.md"
POOLER = "a connection pooler (pgbouncer?) answers: farm needs connections of its own"
NO_POOLER = "name PostgreSQL's own host and port in [store] url (often port 5432)"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One look at a server through one connection."""

    version: str
    version_number: int  # server_version_num
    encoding: str  # of the database
    pooled: bool  # the connection ends at a pooler
    standby: bool  # the server follows a primary
    read_only: bool  # it refuses writes, whatever it is
    free_connections: int  # for this process, with those it has
    max_connections: int
    synchronous_standbys: int
    role: str  # that this process logs in with
    may_make_roles: bool  # that role
    round_trip_s: float
    offset_s: float  # the server's clock less this host's


def findings_of(facts: ServerFacts) -> Iterator[Diagnosis]:
    """Every finding; with one that is FAIL a database cannot be used."""
    failed = list(_refused(facts))
    yield from failed
    if not failed:
        yield Diagnosis(CHECK, OK, f"PostgreSQL {facts.version}, writable, UTF8")
    yield from _doubtful(facts)


def problems_in(findings: Sequence[Diagnosis]) -> list[str]:
    """One line for each finding that `farm status` shows."""
    return [
        f"{each.detail} ({each.fix})" for each in findings if each.verdict is not OK and each.check not in DOCTOR_ONLY
    ]


def _refused(facts: ServerFacts) -> Iterator[Diagnosis]:
    if facts.version_number < MIN_VERSION:
        least = MIN_VERSION // 10_000
        fix = f"upgrade the server to PostgreSQL {least} or later (pg_upgrade)"
        yield Diagnosis(CHECK, FAIL, f"the server is PostgreSQL {facts.version}; farm needs {least} or later", fix)
    if facts.pooled:
        yield Diagnosis(CHECK, FAIL, POOLER, NO_POOLER)
    if facts.encoding != "UTF8":
        fix = "createdb --encoding=UTF8 --template=template0 NAME, and name that one in [store] url"
        yield Diagnosis(CHECK, FAIL, f"the database's encoding is {facts.encoding}; farm needs UTF8", fix)
    if facts.standby:
        fix = "name the primary, or all hosts: postgresql://USER@HOST1,HOST2/DATABASE finds the one that is writable"
        yield Diagnosis(CHECK, FAIL, "the server is a hot standby, which is read-only", fix)
    elif facts.read_only:
        fix = "ALTER DATABASE ... SET default_transaction_read_only = off; is it read-only on purpose?"
        yield Diagnosis(CHECK, FAIL, "the server is read-only", fix)


def _doubtful(facts: ServerFacts) -> Iterator[Diagnosis]:
    check, count = "database connections", f"{facts.free_connections} free for farm, of {facts.max_connections}"
    if facts.free_connections < CONNECTIONS:
        fix = _MORE_CONNECTIONS
        yield Diagnosis(check, WARN, f"too few connections to the database: {count}; a daemon takes {CONNECTIONS}", fix)
    else:
        yield Diagnosis(check, OK, f"{count}; a daemon takes {CONNECTIONS}")
    check, trip = "database round trip", f"{facts.round_trip_s * 1000:.1f} ms"
    if facts.round_trip_s > SLOW_S:
        fix = "a server nearer to this host, or less load there"
        yield Diagnosis(check, WARN, f"the database is far away or slow: a round trip takes {trip}", fix)
    else:
        yield Diagnosis(check, OK, trip)
    check, offset = "database clock", f"{abs(facts.offset_s):.1f} s"
    if abs(facts.offset_s) > MAX_SKEW_S:
        way = "ahead of" if facts.offset_s > 0 else "behind"
        detail = f"the database server's clock is {offset} {way} this host's"
        yield Diagnosis(check, WARN, detail, "set both by a time server: timedatectl set-ntp true on each")
    else:
        yield Diagnosis(check, OK, f"{offset} from this host's")
    if facts.may_make_roles:
        detail = f"{facts.role} may make roles: whoever takes over this host takes over the database server"
        fix = "in a lab, here: farm lab init --url URL_OF_THE_ADMINISTRATOR, which gives this host a role of its own"
        yield Diagnosis(ROLE, WARN, detail, fix)
    if facts.synchronous_standbys:
        yield Diagnosis(STANDBY, OK, f"{facts.synchronous_standbys} synchronous")
    else:
        detail = "no synchronous standby: a failover may lose the last commits"
        yield Diagnosis(STANDBY, WARN, detail, f"synchronous_standby_names ({GUIDE})")


# Words of libpq and of a server's answer to a connection, which has no SQLSTATE in the driver -> reason, hint. Only the
# message depends on them: a server that speaks another language gives the general reason, with its words as evidence.
_MORE_CONNECTIONS = "raise max_connections (or the role's or database's CONNECTION LIMIT), or end idle clients"
_PASSWORD = "[store] url, or ~/.pgpass of farm's user"  # noqa: S105 (where it stands)
UPGRADE = "after an upgrade, and for a lab of an earlier release: farm lab init --url URL_OF_THE_ADMINISTRATOR"
JOIN = "farm host token NAME, on a host of the lab; here, once [store] url and [lab] host are gone: farm host join"
REMOVED = f"if it was removed, stop its daemon; to join again: {JOIN}"
_MISTAKES = (  # they stay until somebody changes a setting, here or there
    # A host's own role (farm.store.host_token_policy): of one that is gone a server says that its password is wrong.
    ('failed for user "farm_[0-9a-f]{8}_|role "farm_[0-9a-f]{8}_.*" does not exist',
     "this host was removed from the lab, or the password in its state folder is wrong", REMOVED),
    ("password authentication failed", "the password is wrong", _PASSWORD),
    ("no password supplied", "the server wants a password", _PASSWORD),
    ("Peer authentication failed", "the server expects farm's user to have the role's name",
     "a role of that name, or connect to 127.0.0.1 with a password"),
    ("does not support SSL", "TLS is refused: the server has none", "ssl = on in postgresql.conf, or another sslmode"),
    ("certificate", "TLS is refused: the server's certificate is not trusted", "sslrootcert=FILE in the URL"),
    # A server that crashes ends its connections in the middle: "SSL error: unexpected eof while reading".
    ("SSL error(?!: unexpected eof)", "TLS is refused", "sslmode and sslrootcert in the URL; its log has more"),
    ("no pg_hba.conf entry", "the server does not admit this host and role, or not without TLS",
     "a line in pg_hba.conf, or sslmode=require in the URL"),
    ("unsupported startup parameter", POOLER, NO_POOLER),
    ("is not permitted to log in", "this host was removed from the lab, or never was part of it", REMOVED),
    ('role ".*" does not exist', "the server has no such role", "sudo -u postgres createuser --pwprompt NAME"),
    ('database ".*" does not exist', "there is no such database",
     "sudo -u postgres createdb --owner=ROLE --encoding=UTF8 --template=template0 NAME"),
)  # fmt: skip
_OUTAGES = (  # they pass
    ("too many (connections|clients)", "the server has no connection left", _MORE_CONNECTIONS),
    ("connection slots are reserved", "the server has no connection left", _MORE_CONNECTIONS),
    ("session is read-only", "none of the servers is writable", "is there a primary? farm continues once there is"),
    ("could not translate host name|failed to resolve host", "the server's name is not known",
     "is it spelled right, and does DNS answer?"),
)  # fmt: skip


def connect_fault(words: str) -> tuple[str, str] | None:
    """Reason and hint for the server's message to a failed connection; None: it says nothing more."""
    return next(((reason, hint) for known, reason, hint in (*_MISTAKES, *_OUTAGES) if re.search(known, words)), None)


def is_mistake(words: str) -> bool:
    """Whether a connection with that message to it fails until somebody changes a setting."""
    return any(re.search(known, words) for known, _, _ in _MISTAKES)
