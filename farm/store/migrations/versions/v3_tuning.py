"""Tuning on pools of phones: attempts that outlive a phone, records that are kept, poison; what was measured."""

from __future__ import annotations

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
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy import text as sql

from farm.store.migrations.remake import remake

revision = "3"
down_revision = "2"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")
SERIAL = BigInteger().with_variant(Integer, "sqlite")
KEPT = "id, job, number, device, lease, fence, state, started_at, ended_at, error, facts"


def upgrade() -> None:
    """Attempts may have several phones; records, poison and measurements are kept."""
    remake(attempt, KEPT, {"pooled": "0"})
    # What the new tables refer to is there already; they are named here only.
    metadata.create_all(op.get_bind(), tables=[record_set, poison, measurement, nominal])


for name, key in (("job", "id"), ("lease", "id")):
    Table(name, metadata, Column(key, Word, primary_key=True))

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
    Column("pooled", Integer, nullable=False),
    UniqueConstraint("job", "number", name="attempt_number_once"),
    CheckConstraint("number >= 1", name="attempt_from_one"),
    CheckConstraint("pooled IN (0, 1)", name="attempt_pooled"),
    CheckConstraint(
        "state IN ('running', 'done', 'failed', 'cancelled', 'yielded', 'interrupted')", name="attempt_state"
    ),
    CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="attempt_ended_when_over"),
)
HAS_ITS_PHONE = sql("ended_at IS NULL AND pooled = 0")
Index(
    "attempt_running_device", attempt.c.device, unique=True,
    sqlite_where=HAS_ITS_PHONE, postgresql_where=HAS_ITS_PHONE,
)  # fmt: skip
Index(
    "attempt_running_job", attempt.c.job, unique=True,
    sqlite_where=sql("ended_at IS NULL"), postgresql_where=sql("ended_at IS NULL"),
)  # fmt: skip

record_set = Table(
    "record_set",
    metadata,
    Column("id", SERIAL, primary_key=True),
    Column("model", Word, nullable=False),
    Column("name", Word, nullable=False),
    Column("target_key", Word, nullable=False),
    Column("target", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("artifact", Word, nullable=False),
    Column("records", Integer, nullable=False),
    Column("best", Text, nullable=False),
    Column("job", Word, nullable=False),
    Column("at", Double, nullable=False),
    UniqueConstraint("model", "target_key", "version", name="record_set_version_once"),
    CheckConstraint("version >= 1", name="record_set_from_one"),
    CheckConstraint("records >= 0", name="record_set_counts"),
)
Index("record_set_of_name", record_set.c.name)

poison = Table(
    "poison",
    metadata,
    Column("artifact", Word, primary_key=True),
    Column("what", Word, nullable=False),
    Column("device", Word, nullable=False),
    Column("kills", Integer, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("user", Word, nullable=False),
    Column("job", Word, nullable=False),
    CheckConstraint("kills >= 1", name="poison_has_killed"),
)
Index("poison_last", poison.c.last_at)

measurement = Table(
    "measurement",
    metadata,
    Column("seq", SERIAL, primary_key=True),
    Column("job", Word, nullable=False, unique=True),
    Column("model", Word, nullable=False),
    Column("name", Word, nullable=False),
    Column("device", Word, nullable=False),
    Column("epoch", Word, nullable=False),
    Column("kernel", Word, nullable=False),
    Column("reference_s", Double),
    Column("nominal_s", Double),
    Column("at", Double, nullable=False),
    Column("summary", Text, nullable=False),
)
Index("measurement_of_model", measurement.c.model, measurement.c.seq)
Index("measurement_of_name", measurement.c.name, measurement.c.seq)
Index(
    "measurement_of_reference",
    measurement.c.device, measurement.c.epoch, measurement.c.kernel, measurement.c.seq,
)  # fmt: skip

nominal = Table(
    "nominal",
    metadata,
    Column("device", Word, primary_key=True),
    Column("epoch", Word, primary_key=True),
    Column("kernel", Word, primary_key=True),
    Column("reference_s", Double, nullable=False),
    Column("at", Double, nullable=False),
)
