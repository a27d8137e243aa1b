"""Several hosts: which host has which artifact, and the bundles that one host has added for all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "12"
down_revision = "11"


def upgrade() -> None:
    """No host has told yet what it has: each does when it starts."""
    on_server = op.get_bind().dialect.name == "postgresql"
    word = sa.String(collation="C") if on_server else sa.String()
    op.create_table(
        "artifact_copy",
        sa.Column("sha256", word, primary_key=True),
        sa.Column("host", word, primary_key=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
    )
    op.create_index("artifact_copy_of_host", "artifact_copy", ["host"])
    op.create_table(
        "shared_bundle",
        sa.Column("name", word, primary_key=True),
        sa.Column("bundle", word, nullable=False),
        sa.Column("abi", word, nullable=False),
        sa.Column("platform", word, nullable=False),
        sa.Column("artifact", word, nullable=False),
        sa.Column("host", word, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
    )
    with op.batch_alter_table("host") as batch:  # one that was stopped has no beat
        batch.alter_column("beat_at", existing_type=sa.Double(), nullable=True)
