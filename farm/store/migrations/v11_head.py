"""A head in a process of its own: its mailboxes, the states of hosts, and which leases their hosts hold."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "11"
down_revision = "10"


def upgrade() -> None:
    """Every lease so far was armed in the moment of its grant."""
    on_server = op.get_bind().dialect.name == "postgresql"
    word = sa.String(collation="C") if on_server else sa.String()
    serial = sa.BigInteger() if on_server else sa.Integer()
    with op.batch_alter_table("lease") as batch:
        batch.add_column(sa.Column("host", word, nullable=False, server_default=""))
        batch.add_column(sa.Column("armed_at", sa.Double()))
        batch.add_column(sa.Column("slot", sa.Integer(), nullable=False, server_default="0"))
        batch.create_check_constraint("lease_slot", "slot IN (0, 1)")
    op.execute("UPDATE lease SET armed_at = granted_at")
    kept = sa.text("slot = 1")
    op.create_index("lease_slot_kept", "lease", ["fence"], sqlite_where=kept, postgresql_where=kept)
    op.create_table(
        "device_state",
        sa.Column("host", word, primary_key=True, server_default=""),
        sa.Column("name", word, primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "host",
        sa.Column("name", word, primary_key=True),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("drained", word, nullable=False, server_default=""),
    )
    op.create_table(
        "request",
        sa.Column("seq", serial, primary_key=True),
        sa.Column("id", word, nullable=False, unique=True),
        sa.Column("host", word, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    for name in ("to_head", "to_host"):
        op.create_table(
            name,
            sa.Column("id", serial, primary_key=True),
            sa.Column("host", word, nullable=False, index=name == "to_host"),
            sa.Column("body", sa.Text(), nullable=False),
        )
