"""Opening a database: is it one, is it sound, is it ours; then this start's number."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, insert, inspect, select, update

from farm.core.errors import HostError
from farm.store.schema import SCHEMA_VERSION, meta, metadata


class DatabaseUnusableError(HostError):
    """The database cannot be used."""

    code = "database"


def version_of(connection: Connection) -> int | None:
    """The schema's version in a database, None in an empty one."""
    if not inspect(connection).has_table(meta.name):
        return None
    found = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar_one_or_none()
    return None if found is None else int(found)


def begin_epoch(engine: Engine) -> int:
    """Create what is missing and count this start."""
    with engine.begin() as connection:
        if version_of(connection) is None:
            metadata.create_all(connection)
            connection.execute(
                insert(meta), [{"name": "schema_version", "value": SCHEMA_VERSION}, {"name": "epoch", "value": 0}]
            )
        connection.execute(update(meta).where(meta.c.name == "epoch").values(value=meta.c.value + 1))
        return int(connection.execute(select(meta.c.value).where(meta.c.name == "epoch")).scalar_one())


def check_file(connection: Connection, path: Path) -> None:
    """Whether a file is a sound database of this farm.

    Raises:
        DatabaseUnusableError: it is not.
    """
    problem = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if problem != "ok":
        raise unusable(path, str(problem))
    version = version_of(connection)
    if version is not None and version != SCHEMA_VERSION:
        raise DatabaseUnusableError(
            f"{path} has schema version {version}; this farm knows {SCHEMA_VERSION}",
            hint="start the farm release that wrote it, or move the file away to begin anew",
        )


def unusable(path: Path, evidence: str) -> DatabaseUnusableError:
    """The error for a damaged file."""
    return DatabaseUnusableError(
        f"the database {path} is damaged or is no database",
        hint=f"restore a backup of it, or begin anew: mv {path} {path}.damaged (adopted phones must be adopted again)",
        evidence=evidence,
    )
