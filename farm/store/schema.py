"""Tables of the farm's database.

The database is the last guard: CHECK constraints and unique indexes say what may never be. Times are ISO 8601 text in
UTC; JSON columns hold what docs/interfaces.md describes.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 1

metadata = MetaData()

# schema_version, epoch (grows with every start of the daemon; the upper part of every fence).
meta = Table(
    "meta",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", Integer, nullable=False),
)

# Phones the farm was told about or has adopted; a phone that was only ever listed by adb has no row.
device = Table(
    "device",
    metadata,
    Column("serial", String, primary_key=True),  # as adb lists it
    Column("name", String, nullable=False, unique=True),
    Column("hardware_serial", String, nullable=False, server_default=""),
    Column("pool", String, nullable=False, server_default=""),
    Column("adopted", Integer, CheckConstraint("adopted IN (0, 1)"), nullable=False),
    Column(
        "service", String, CheckConstraint("service IN ('in', 'draining', 'maintenance')"), nullable=False,
        server_default="in",
    ),
    Column("address", String, nullable=False, server_default=""),  # HOST:PORT of a network phone
    Column("labels", Text, nullable=False, server_default="{}"),  # JSON object of labels set by hand
)  # fmt: skip

alias = Table(
    "alias",
    metadata,
    Column("alias", String, primary_key=True),
    Column("selector", String, nullable=False),
)

job = Table(
    "job",
    metadata,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("user", String, nullable=False),
    Column("spec", Text, nullable=False),  # JSON
    Column("state", String, CheckConstraint("state IN ('running', 'done', 'failed', 'lost')"), nullable=False),
    Column("submitted_at", String, nullable=False),
    Column("ended_at", String),
    Column("result", Text),  # JSON
    CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="ended_when_over"),
)
