"""Who keeps a set of tuning records."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
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

revision = "7"
down_revision = "6"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")
SERIAL = BigInteger().with_variant(Integer, "sqlite")
KEPT = "id, model, name, target_key, target, version, artifact, records, best, job, at"
OWNER = "COALESCE((SELECT job.\"user\" FROM job WHERE job.id = before.job), '')"


def upgrade() -> None:
    """Sets have owners: who submitted the job that kept them."""
    remake(record_set, KEPT, {'"user"': OWNER})
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":  # numbers given by hand leave its counter behind
        counter = "pg_get_serial_sequence('record_set', 'id')"
        connection.execute(sql(f"SELECT setval({counter}, max(id)) FROM record_set HAVING max(id) IS NOT NULL"))  # noqa: S608 (names of ours)


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
    Column("user", Word, nullable=False),
    Column("job", Word, nullable=False),
    Column("at", Double, nullable=False),
    UniqueConstraint("model", "target_key", "version", name="record_set_version_once"),
    CheckConstraint("version >= 1", name="record_set_from_one"),
    CheckConstraint("records >= 0", name="record_set_counts"),
)
Index("record_set_of_name", record_set.c.name)
