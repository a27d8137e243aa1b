"""`farm store check`: everything the start leaves out, and how much there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy import text as sql
from sqlalchemy.exc import DatabaseError

from farm.store import schema
from farm.store.settings import read_reservations

MOST_FINDINGS = 20  # one damaged page can break thousands of rows

# What no single CHECK can say. Each counts the rows that break it.
_RULES: Mapping[str, str] = {
    "running jobs without a running attempt": (
        "SELECT count(*) FROM job WHERE state = 'running' "
        "AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.job = job.id AND attempt.ended_at IS NULL)"
    ),
    "running attempts whose lease has ended": (
        "SELECT count(*) FROM attempt JOIN lease ON lease.id = attempt.lease "
        "WHERE attempt.ended_at IS NULL AND attempt.pooled = 0 AND lease.ended_at IS NOT NULL"
    ),
    "running attempts of jobs that are not running": (
        "SELECT count(*) FROM attempt JOIN job ON job.id = attempt.job "
        "WHERE attempt.ended_at IS NULL AND job.state <> 'running'"
    ),
    "attempts under another lease's fence": (
        "SELECT count(*) FROM attempt JOIN lease ON lease.id = attempt.lease WHERE lease.fence <> attempt.fence"
    ),
}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found."""

    findings: tuple[str, ...]  # what is wrong, one line each; empty when all is well
    rows: Mapping[str, int]  # by table
    size_bytes: int
    oldest: datetime | None  # submission of the oldest job kept

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ok": not self.findings,
            "findings": list(self.findings),
            "rows": dict(self.rows),
            "size_bytes": self.size_bytes,
            "oldest": self.oldest.isoformat() if self.oldest else None,
        }


def check(engine: Engine) -> CheckReport:
    """Look at everything: minutes for a database of many GB. For a thread; readers and the writer go on meanwhile."""
    findings: list[str] = []
    rows: dict[str, int] = {}
    oldest = None
    size_bytes = 0
    with engine.connect() as connection:
        try:
            if connection.dialect.name == "sqlite":
                findings += _of_sqlite(connection)
            else:
                connection.execute(sql("SET LOCAL statement_timeout = 0"))  # whole tables are counted
            size_bytes = size_of(connection)
            for table in schema.metadata.sorted_tables:
                rows[table.name] = connection.execute(select(func.count()).select_from(table)).scalar_one()
            for rule, count in _RULES.items():
                if broken := connection.execute(sql(count)).scalar_one():
                    findings.append(f"{broken} {rule}")
            findings += read_reservations(connection)[1]
            first = select(schema.job.c.submitted_at).order_by(schema.job.c.seq).limit(1)
            oldest = connection.execute(first).scalar_one_or_none()
        except DatabaseError as error:
            findings.append(str(error.orig))
        except (ValueError, OverflowError) as error:
            findings.append(f"a value cannot be read: {error}")
    return CheckReport(tuple(findings[:MOST_FINDINGS]), rows, size_bytes, oldest)


def damage_of(engine: Engine, most_bytes: int) -> str:
    """What the pages of a SQLite database of up to that size have wrong, one line; "" for nothing, or when not asked.

    Seconds for a hundred MB. For a thread; readers and the writer go on meanwhile.
    """
    try:
        with engine.connect() as connection:
            if connection.dialect.name != "sqlite" or size_of(connection) > most_bytes:
                return ""
            said = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
    except DatabaseError as error:
        said = str(error.orig)
    return "" if said == "ok" else said


def size_of(connection: Connection) -> int:
    """Bytes in use, without pages that wait to be given back."""
    if connection.dialect.name != "sqlite":
        return int(connection.execute(sql("SELECT pg_database_size(current_database())")).scalar_one())
    pages, free, size = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _of_sqlite(connection: Connection) -> list[str]:
    said = connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_FINDINGS})").scalars().all()
    findings = [] if said == ["ok"] else [str(line) for line in said]
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(MOST_FINDINGS)
    return findings + [f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there" for row in broken]
