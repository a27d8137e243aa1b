"""Poison by who met it: one user's word decides for that user only."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Double, Index, Integer, MetaData, String, Table

from farm.store.migrations.remake import remake

revision = "8"
down_revision = "7"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")
KEPT = 'artifact, "user", what, device, kills, first_at, last_at, job'


def upgrade() -> None:
    """Its key is another one. What was known counts for all, as it did."""
    remake(poison, KEPT, {"seen": "kills"})


poison = Table(
    "poison",
    metadata,
    Column("artifact", Word, primary_key=True),
    Column("user", Word, primary_key=True),
    Column("what", Word, nullable=False),
    Column("device", Word, nullable=False),
    Column("kills", Integer, nullable=False),
    Column("seen", Integer, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("job", Word, nullable=False),
    CheckConstraint("kills >= 1", name="poison_has_killed"),
    CheckConstraint("seen BETWEEN 0 AND kills", name="poison_seen_is_of_kills"),
)
Index("poison_last", poison.c.last_at)
