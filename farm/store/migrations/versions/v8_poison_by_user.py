"""Poison by who met it: one user's word decides for that user only."""

from __future__ import annotations

from alembic import op
from sqlalchemy import CheckConstraint, Column, Double, Index, Integer, MetaData, String, Table
from sqlalchemy import text as sql

revision = "8"
down_revision = "7"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")
KEPT = 'artifact, "user", what, device, kills, first_at, last_at, job'


def upgrade() -> None:
    """The table is made anew: its key is another one. What was known counts for all, as it did."""
    connection = op.get_bind()
    connection.execute(sql(f"CREATE TEMPORARY TABLE before AS SELECT {KEPT} FROM poison"))  # noqa: S608 (names of ours)
    op.drop_table("poison")
    metadata.create_all(connection)
    connection.execute(sql(f"INSERT INTO poison ({KEPT}, seen) SELECT {KEPT}, kills FROM before"))  # noqa: S608 (names of ours)
    connection.execute(sql("DROP TABLE before"))


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
