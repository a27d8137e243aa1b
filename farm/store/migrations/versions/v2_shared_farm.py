"""The farm as something a team shares: jobs with attempts and results, leases, events, reservations, toolchains.

What the first release kept is small: it is held in memory while its tables are made anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from alembic import op
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
)
from sqlalchemy import text as sql

revision = "2"
down_revision = "1"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")
BEFORE = ("meta", "device", "alias", "job")
SERIAL = BigInteger().with_variant(Integer, "sqlite")

DIED = {
    "code": "interrupted", "fault": "farm", "exit": 1, "message": "the daemon died while it ran",
    "hint": "submit it again", "evidence": "",
}  # fmt: skip


def upgrade() -> None:
    """From the first release's tables, with what they hold."""
    connection = op.get_bind()
    kept = {name: connection.execute(sql("SELECT * FROM " + name)).mappings().all() for name in BEFORE}  # noqa: S608 (names of ours)
    for name in BEFORE:
        op.drop_table(name)
    metadata.create_all(connection)
    for table in (meta, device, alias):
        if kept[table.name]:
            connection.execute(insert(table), [dict(row) for row in kept[table.name]])
    connection.execute(insert(meta).values(name="serving", value=0))
    jobs = sorted(kept["job"], key=lambda row: str(row["submitted_at"]))
    numbers: dict[str, int] = {}
    for row in jobs:
        text = _selector_of(row)
        if text not in numbers:
            numbers[text] = len(numbers) + 1
            connection.execute(insert(selector).values(id=numbers[text], text=text))
        connection.execute(insert(job).values(_job_of(row, numbers[text])))
        if row["result"]:
            connection.execute(insert(result).values(job=row["id"], body=row["result"]))
    if connection.dialect.name == "postgresql" and numbers:  # numbers given by hand leave its counter behind
        connection.execute(sql("SELECT setval(pg_get_serial_sequence('selector', 'id'), max(id)) FROM selector"))


def _job_of(row: RowMapping, selector_number: int) -> dict[str, Any]:
    spec = json.loads(row["spec"])
    done = row["state"] == "done"
    return {
        "id": row["id"],
        "kind": row["kind"],
        "user": row["user"],
        "spec": json.dumps(_spec_of(row["kind"], spec)),
        "selector": selector_number,
        "submitted_at": _seconds(row["submitted_at"]),
        "state": "done" if done else "failed",
        "device": "",
        "avoid": "[]",
        "array": "",
        "priority": 1,
        "lease_class": "bench",
        "timeout_s": float(spec.get("timeout_s", 600.0)),
        "max_attempts": 1,
        "after": "[]",
        "attempts": 0,
        "uncounted": 0,
        "error": None if done else _error_of(row),
        "ended_at": _seconds(row["ended_at"] or row["submitted_at"]),
    }


def _spec_of(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A bench as it is submitted now: on a selector; no number of phones meant all."""
    now = {name: value for name, value in spec.items() if name != "selector"}
    return {**now, "kind": kind, "on": spec.get("selector", ""), "devices": spec.get("devices") or "all"}


def _error_of(row: RowMapping) -> str | None:
    """How it failed; None when the phones' own results say so."""
    result = json.loads(row["result"]) if row["result"] else {"error": DIED}
    return json.dumps(result["error"]) if "error" in result else None


def _selector_of(row: RowMapping) -> str:
    return str(json.loads(row["spec"]).get("selector", ""))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


meta = Table(
    "meta",
    metadata,
    Column("name", Word, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

device = Table(
    "device",
    metadata,
    Column("serial", Word, primary_key=True),
    Column("name", Word, nullable=False, unique=True),
    Column("hardware_serial", Word, nullable=False, server_default=""),
    Column("pool", Word, nullable=False, server_default=""),
    Column("adopted", Integer, nullable=False),
    Column("service", Word, nullable=False, server_default="in"),
    Column("address", Word, nullable=False, server_default=""),
    Column("labels", Text, nullable=False, server_default="{}"),
    CheckConstraint("adopted IN (0, 1)", name="device_adopted"),
    CheckConstraint("service IN ('in', 'draining', 'maintenance')", name="device_service"),
)

alias = Table(
    "alias",
    metadata,
    Column("alias", Word, primary_key=True),
    Column("selector", Word, nullable=False),
)

selector = Table(
    "selector",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("text", Word, nullable=False, unique=True),
)

submission = Table(
    "submission",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("user", Word, nullable=False),
    Column("key", Word, nullable=False),
    UniqueConstraint("user", "key", name="submission_once"),
)

job = Table(
    "job",
    metadata,
    Column("seq", SERIAL, primary_key=True),
    Column("id", Word, nullable=False, unique=True),
    Column("submission", ForeignKey("submission.id")),
    Column("kind", Word, nullable=False),
    Column("user", Word, nullable=False),
    Column("spec", Text, nullable=False),
    Column("selector", ForeignKey("selector.id"), nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("state", Word, nullable=False),
    Column("device", Word, nullable=False),
    Column("avoid", Text, nullable=False),
    Column("array", Word, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("lease_class", Word, nullable=False),
    Column("timeout_s", Double, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("deadline", Double),
    Column("after", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("uncounted", Integer, nullable=False),
    Column("not_before", Double),
    Column("error", Text),
    Column("ended_at", Double),
    CheckConstraint(
        "state IN ('held', 'blocked', 'queued', 'running', 'done', 'failed', 'cancelled')", name="job_state"
    ),
    CheckConstraint("lease_class IN ('interactive', 'bench', 'tune')", name="job_lease_class"),
    CheckConstraint("(state IN ('cancelled', 'done', 'failed')) = (ended_at IS NOT NULL)", name="job_ended_when_over"),
    CheckConstraint("uncounted BETWEEN 0 AND attempts", name="job_attempts_add_up"),
)
Index("job_live", job.c.seq, sqlite_where=sql("ended_at IS NULL"), postgresql_where=sql("ended_at IS NULL"))
Index("job_of_user", job.c.user, job.c.seq)
Index("job_of_state", job.c.state, job.c.seq)
Index("job_of_kind", job.c.kind, job.c.seq)
Index("job_of_array", job.c.array, job.c.seq, sqlite_where=sql("array <> ''"), postgresql_where=sql("\"array\" <> ''"))
Index("job_of_submission", job.c.submission)
Index("job_ended", job.c.ended_at)

result = Table(
    "result",
    metadata,
    Column("job", ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    Column("body", Text, nullable=False),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Word, primary_key=True),
    Column("device", Word, nullable=False),
    Column("user", Word, nullable=False),
    Column("door", Word, nullable=False),
    Column("job", Word, nullable=False),
    Column("lease_class", Word, nullable=False),
    Column("selector", ForeignKey("selector.id"), nullable=False),
    Column("key", Word, nullable=False),
    Column("fence", BigInteger, nullable=False, unique=True),
    Column("granted_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("ended_at", Double),
    Column("reason", Word, nullable=False),
    Column("held_s", Double, nullable=False),
    CheckConstraint("door IN ('tvm', 'job')", name="lease_door"),
    CheckConstraint("lease_class IN ('interactive', 'bench', 'tune')", name="lease_class"),
)
Index(
    "lease_open_device", lease.c.device, unique=True,
    sqlite_where=sql("ended_at IS NULL"), postgresql_where=sql("ended_at IS NULL"),
)  # fmt: skip
Index("lease_ended", lease.c.ended_at)

attempt = Table(
    "attempt",
    metadata,
    Column("id", Word, primary_key=True),
    Column("job", ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("device", Word, nullable=False),
    Column("lease", ForeignKey("lease.id"), nullable=False, index=True),
    Column("fence", BigInteger, nullable=False, unique=True),
    Column("state", Word, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("error", Text),
    Column("facts", Text, nullable=False),
    UniqueConstraint("job", "number", name="attempt_number_once"),
    CheckConstraint("number >= 1", name="attempt_from_one"),
    CheckConstraint(
        "state IN ('running', 'done', 'failed', 'cancelled', 'yielded', 'interrupted')", name="attempt_state"
    ),
    CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="attempt_ended_when_over"),
)
Index(
    "attempt_running_device", attempt.c.device, unique=True,
    sqlite_where=sql("ended_at IS NULL"), postgresql_where=sql("ended_at IS NULL"),
)  # fmt: skip
Index(
    "attempt_running_job", attempt.c.job, unique=True,
    sqlite_where=sql("ended_at IS NULL"), postgresql_where=sql("ended_at IS NULL"),
)  # fmt: skip

event = Table(
    "event",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", Word, nullable=False),
    Column("subject", Word, nullable=False),
    Column("data", Text, nullable=False),
)
Index("event_of_subject", event.c.subject, event.c.seq)

reservation = Table(
    "reservation",
    metadata,
    Column("id", Word, primary_key=True),
    Column("selector", ForeignKey("selector.id"), nullable=False),
    Column("user", Word, nullable=False),
    Column("starts_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("note", Word, nullable=False),
    CheckConstraint("ends_at > starts_at", name="reservation_lasts"),
)

toolchain = Table(
    "toolchain",
    metadata,
    Column("name", Word, primary_key=True),
    Column("python", Word, nullable=False),
    Column("bundle", Word, nullable=False),
    Column("tvm_version", Word, nullable=False),
)
