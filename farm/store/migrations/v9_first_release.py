"""The tables of the first release, as farm.store.schema creates them."""

from __future__ import annotations

from alembic import op

from farm.store.schema import metadata

revision = "9"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    metadata.create_all(op.get_bind())
