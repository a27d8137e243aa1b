"""Brings a database of an earlier release to this release's schema. Imports Alembic: only where there is work for it.

The schema of a release has a number, SCHEMA_VERSION, and a revision file of that name here. The first one stands for
the oldest tables that are known. To change a table: change farm.store.schema, count SCHEMA_VERSION up, and add
`v<number>_<subject>.py` with `revision`, `down_revision` and `upgrade()`, which alters a database of the preceding
revision. None imports the schema, which goes on changing. A new database is created from the schema directly and
passes no revision. There is no downgrade: before each migration the database is copied.
"""

from __future__ import annotations

from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, update

from farm.store.schema import SCHEMA_VERSION, meta

VERSION_LOCATIONS = [Path(__file__).parent]  # folders of revision files


def migrate(connection: Connection, version: int) -> None:
    """Apply every revision after `version` up to SCHEMA_VERSION, in the caller's transaction.

    The version stands in the table `meta`, where start-up reads it without Alembic; Alembic keeps no table of its own.
    """
    revisions = ScriptDirectory(str(VERSION_LOCATIONS[0]), version_locations=list(map(str, VERSION_LOCATIONS)))
    steps = list(revisions.iterate_revisions(str(SCHEMA_VERSION), str(version)))
    with Operations.context(MigrationContext.configure(connection)):
        for step in reversed(steps):
            step.module.upgrade()
    connection.execute(update(meta).where(meta.c.name == "schema_version").values(value=SCHEMA_VERSION))
