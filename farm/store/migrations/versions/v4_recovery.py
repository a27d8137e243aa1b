"""Recovery: rungs that were taken, phones kept away from users, the bundle that last worked on each phone."""

from __future__ import annotations

from alembic import op
from sqlalchemy import CheckConstraint, Column, Double, Index, MetaData, String, Table

revision = "4"
down_revision = "3"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")


def upgrade() -> None:
    """Three tables more."""
    metadata.create_all(op.get_bind())


recovery = Table(
    "recovery",
    metadata,
    Column("id", Word, primary_key=True),
    Column("serial", Word, nullable=False),
    Column("device", Word, nullable=False),
    Column("rung", Word, nullable=False),
    Column("ailment", Word, nullable=False),
    Column("cause", Word, nullable=False),
    Column("began_at", Double, nullable=False),
    Column("took_s", Double),
    Column("outcome", Word),
    Column("detail", Word, nullable=False, server_default=""),
    CheckConstraint("(took_s IS NULL) = (outcome IS NULL)", name="recovery_ended_whole"),
)
Index("recovery_of_serial", recovery.c.serial, recovery.c.began_at)
Index("recovery_began", recovery.c.began_at)

quarantine = Table(
    "quarantine",
    metadata,
    Column("serial", Word, primary_key=True),
    Column("reason", Word, nullable=False),
    Column("hint", Word, nullable=False),
    Column("ailment", Word, nullable=False),
    Column("rule", Word, nullable=False),
    Column("evidence", Word, nullable=False),
    Column("at", Double, nullable=False),
    CheckConstraint("rule IN ('person', 'bundles', 'well')", name="quarantine_rule"),
)

proven = Table(
    "proven",
    metadata,
    Column("serial", Word, primary_key=True),
    Column("bundle", Word, nullable=False),
)
