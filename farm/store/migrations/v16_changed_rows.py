"""By which transaction a host's rows were written."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "16"
down_revision = "15"


def upgrade() -> None:
    """Add the column `changed`, with an index where the head looks for it."""
    for table in ("device_state", "request", "to_head"):
        op.add_column(table, sa.Column("changed", sa.BigInteger, nullable=False, server_default="1"))
    for table in ("device_state", "request"):
        op.create_index(f"{table}_changed", table, ["changed"])
