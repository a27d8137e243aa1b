"""Rows about phones name the host whose adb lists them: "", the only host so far. Outcome `mended` is `repaired`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "10"
down_revision = "9"

KEYS = {
    "device": ["serial"],
    "quarantine": ["serial"],
    "proven": ["serial"],
    "recovery": ["id"],
    "rollout": ["abi", "platform"],
    "battery_day": ["serial", "day"],
}


def upgrade() -> None:
    """Put the host before the columns of the former key."""
    on_server = op.get_bind().dialect.name == "postgresql"
    word = sa.String(collation="C") if on_server else sa.String()
    for table, key in KEYS.items():
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("host", word, primary_key=True, nullable=False, server_default=""))
            if on_server:
                batch.drop_constraint(f"{table}_pkey", type_="primary")
            batch.create_primary_key(f"{table}_pkey", ["host", *key])
    op.execute("UPDATE recovery SET outcome = 'repaired' WHERE outcome = 'mended'")
    op.drop_index("recovery_of_serial", "recovery")
    op.create_index("recovery_of_serial", "recovery", ["host", "serial", "began_at"])
