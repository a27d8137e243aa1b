"""Several hosts: their joining and how they dial each other, whose leases they hold, artifacts, bundles for all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "12"
down_revision = "11"


def upgrade() -> None:
    """The new tables are empty: each host writes its rows when it starts."""
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
    with op.batch_alter_table("host") as batch:
        batch.alter_column("beat_at", existing_type=sa.Double(), nullable=True)  # one that was stopped has no beat
        batch.add_column(sa.Column("advertise", sa.Text(), nullable=False, server_default="{}"))
        for name in ("address", "certificate", "version", "role"):
            batch.add_column(sa.Column(name, word, nullable=False, server_default=""))
        batch.add_column(sa.Column("removed_at", sa.Double()))
    with op.batch_alter_table("lease") as batch:
        for name in ("holder_host", "match_sha256"):
            batch.add_column(sa.Column(name, word, nullable=False, server_default=""))
    op.create_table(
        "host_token",
        sa.Column("name", word, primary_key=True),
        sa.Column("role", word, nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("made_by", word, nullable=False),
    )
