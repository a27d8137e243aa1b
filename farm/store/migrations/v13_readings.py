"""Hosts write the readings of their phones for the lists of other hosts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "13"
down_revision = "12"


def upgrade() -> None:
    """The new table is empty: each host writes its row when it runs."""
    on_server = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "host_readings",
        sa.Column("host", sa.String(collation="C") if on_server else sa.String(), primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
