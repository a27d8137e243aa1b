"""Jobs have names, taken from their specs; an attempt's device has one too (SQLite must make that table again)."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "17"
down_revision = "16"


def upgrade() -> None:
    op.add_column("job", sa.Column("name", sa.String, nullable=False, server_default=""))
    connection = op.get_bind()
    for job, spec in connection.execute(sa.text("SELECT id, spec FROM job")).all():
        name = json.loads(spec).get("name", "")
        connection.execute(sa.text("UPDATE job SET name = :name WHERE id = :job"), {"name": name, "job": job})
    with op.batch_alter_table("attempt") as batch:
        batch.create_check_constraint("attempt_has_device", "device <> ''")
