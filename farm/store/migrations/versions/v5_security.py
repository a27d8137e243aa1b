"""Accounts of people from elsewhere, and the audit log."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Index, Integer, MetaData, String, Table

revision = "5"
down_revision = "4"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")


def upgrade() -> None:
    """Two tables more."""
    metadata.create_all(op.get_bind())


account = Table(
    "account",
    metadata,
    Column("name", Word, primary_key=True),
    Column("role", Word, nullable=False),
    Column("curve_key", Word, unique=True),
    Column("token_sha256", Word, unique=True),
    Column("made_at", Double, nullable=False),
    Column("made_by", Word, nullable=False),
    Column("used_at", Double),
    Column("revoked_at", Double),
    CheckConstraint("role IN ('viewer', 'user', 'operator')", name="account_role"),
    CheckConstraint(
        "revoked_at IS NULL OR (curve_key IS NULL AND token_sha256 IS NULL)", name="account_revoked_has_no_secret"
    ),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", Double, nullable=False),
    Column("user", Word, nullable=False),
    Column("role", Word, nullable=False),
    Column("origin", Word, nullable=False),
    Column("kind", Word, nullable=False),
    Column("subject", Word, nullable=False),
    Column("outcome", Word, nullable=False),
)
Index("audit_of_user", audit.c.user, audit.c.seq)
Index("audit_of_kind", audit.c.kind, audit.c.seq)
Index("audit_at", audit.c.at)
