"""Brings a database of an earlier release to this release's schema. Imports Alembic: only where there is work for it.

The schema of a release has a number, SCHEMA_VERSION. To change a table after the first release: change
farm.store.schema, count SCHEMA_VERSION up, and add `v<number>_<subject>.py` here with `revision`, `down_revision` and
`upgrade()`, which alters a database of the preceding schema. A revision does not import the schema, which continues
changing. A new database is created from the schema and passes no revision. There is no downgrade: before each migration
the database is copied.

A revision that lets daemons of the schema before it continue, reading and writing, says `keeps_daemons = True`. Without
it a lab's database is not migrated while another host or a head of the lab runs.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, update

from farm.common.errors import Code, HostError
from farm.store.schema import SCHEMA_VERSION, meta

VERSION_LOCATIONS = [Path(__file__).parent]  # folders of revision files


def migrate(connection: Connection, version: int) -> None:
    """Apply every revision after `version` up to SCHEMA_VERSION, in the caller's transaction.

    The version stands in the table `meta`, where start-up reads it without Alembic; Alembic keeps no table of its own.
    """
    steps = [_revision(number) for number in range(version + 1, SCHEMA_VERSION + 1)]
    with Operations.context(MigrationContext.configure(connection)):
        for step in steps:
            step.upgrade()
    connection.execute(update(meta).where(meta.c.name == "schema_version").values(value=SCHEMA_VERSION))


def keeps_daemons(version: int) -> bool:
    """Whether daemons of that schema can continue while the database is brought up from it to SCHEMA_VERSION."""
    steps = (_revision(number) for number in range(version + 1, SCHEMA_VERSION + 1))
    return all(getattr(step, "keeps_daemons", False) for step in steps)


def _revision(number: int) -> Any:
    """The module of a revision. Other files in its folder, such as an older farm left there, are not imported.

    Raises:
        HostError: there are several of that number, or none.
    """
    found = [path for folder in VERSION_LOCATIONS for path in folder.glob(f"v{number}_*.py")]
    if len(found) != 1:
        raise HostError(
            f"this farm has {len(found)} revisions of schema version {number}",
            Code.DATABASE_UNUSABLE,
            hint="files of another farm are between its own: install farm in a new environment",
            evidence=", ".join(map(str, found)),
        )
    spec = spec_from_file_location(f"{__name__}.{found[0].stem}", found[0])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
