"""Recovery: rungs that were taken, phones kept away, the bundle that last worked on each phone; batteries by day."""

from __future__ import annotations

from alembic import op
from sqlalchemy import CheckConstraint, Column, Double, Index, Integer, MetaData, String, Table

revision = "4"
down_revision = "3"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")


def upgrade() -> None:
    """Four tables more."""
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

battery_day = Table(
    "battery_day",
    metadata,
    Column("serial", Word, primary_key=True),
    Column("day", Word, primary_key=True),
    Column("percent_min", Integer),
    Column("percent_max", Integer),
    Column("celsius_max", Double),
    Column("cycles", Integer),
    Column("full_uah", Integer),
    Column("design_uah", Integer),
    Column("health", Word, nullable=False),
)
