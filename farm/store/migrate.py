"""Brings a database of an earlier farm up to this one's schema. Imports Alembic: only where there is work for it."""

from __future__ import annotations

from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, update

from farm.store.schema import SCHEMA_VERSION, meta

STEPS = Path(__file__).parent / "migrations"


def migrate(connection: Connection, version: int | None) -> None:
    """Take every step from `version` (None: an empty database) to SCHEMA_VERSION, in the caller's transaction.

    The version stands in the table `meta`, where start-up reads it without Alembic; Alembic keeps no table of its own.
    """
    steps = ScriptDirectory(str(STEPS)).iterate_revisions(
        str(SCHEMA_VERSION), "base" if version is None else str(version)
    )
    context = MigrationContext.configure(connection)
    for step in reversed(list(steps)):
        with Operations.context(context):
            step.module.upgrade()
    connection.execute(update(meta).where(meta.c.name == "schema_version").values(value=SCHEMA_VERSION))
