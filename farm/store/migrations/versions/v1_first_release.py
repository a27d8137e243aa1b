"""Phones, aliases, and jobs as a log of what `farm bench` did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """From nothing."""
    op.create_table(
        "meta",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.Integer, nullable=False),
    )
    op.create_table(
        "device",
        sa.Column("serial", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("hardware_serial", sa.String, nullable=False, server_default=""),
        sa.Column("pool", sa.String, nullable=False, server_default=""),
        sa.Column("adopted", sa.Integer, sa.CheckConstraint("adopted IN (0, 1)"), nullable=False),
        sa.Column(
            "service",
            sa.String,
            sa.CheckConstraint("service IN ('in', 'draining', 'maintenance')"),
            nullable=False,
            server_default="in",
        ),
        sa.Column("address", sa.String, nullable=False, server_default=""),
        sa.Column("labels", sa.Text, nullable=False, server_default="{}"),
    )
    op.create_table(
        "alias",
        sa.Column("alias", sa.String, primary_key=True),
        sa.Column("selector", sa.String, nullable=False),
    )
    op.create_table(
        "job",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column(
            "state", sa.String, sa.CheckConstraint("state IN ('running', 'done', 'failed', 'lost')"), nullable=False
        ),
        sa.Column("submitted_at", sa.String, nullable=False),
        sa.Column("ended_at", sa.String),
        sa.Column("result", sa.Text),
        sa.CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="ended_when_over"),
    )
    op.execute("INSERT INTO meta (name, value) VALUES ('schema_version', 1), ('epoch', 0)")
