"""Who took a phone out of service, and when."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Double, Integer, MetaData, String, Table, Text

from farm.store.migrations.remake import remake

revision = "6"
down_revision = "5"

metadata = MetaData()
Word = String().with_variant(String(collation="C"), "postgresql")
KEPT = "serial, name, hardware_serial, pool, adopted, service, address, labels"


def upgrade() -> None:
    """Orders have a name and a time."""
    remake(device, KEPT)


device = Table(
    "device",
    metadata,
    Column("serial", Word, primary_key=True),
    Column("name", Word, nullable=False, unique=True),
    Column("hardware_serial", Word, nullable=False, server_default=""),
    Column("pool", Word, nullable=False, server_default=""),
    Column("adopted", Integer, nullable=False),
    Column("service", Word, nullable=False, server_default="in"),
    Column("ordered_by", Word, nullable=False, server_default=""),
    Column("ordered_at", Double),
    Column("address", Word, nullable=False, server_default=""),
    Column("labels", Text, nullable=False, server_default="{}"),
    CheckConstraint("adopted IN (0, 1)", name="device_adopted"),
    CheckConstraint("service IN ('in', 'draining', 'maintenance')", name="device_service"),
    CheckConstraint("service <> 'in' OR ordered_at IS NULL", name="device_in_service_by_no_order"),
)
