"""The lab's configuration: a table of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from farm.store.columns import UtcTime, Word

revision = "15"
down_revision = "14"
keeps_daemons = True


def upgrade() -> None:
    """Add the table `lab_config`."""
    op.create_table(
        "lab_config",
        sa.Column("name", Word, primary_key=True),
        sa.Column("text", Word, nullable=False),
        sa.Column("by", Word, nullable=False),
        sa.Column("at", UtcTime, nullable=False),
    )
