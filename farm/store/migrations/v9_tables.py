"""Where migrations begin: no older database is opened, and a new one gets its tables from farm.store.schema."""

from __future__ import annotations

revision = "9"
down_revision = None


def upgrade() -> None:
    """Never called."""
