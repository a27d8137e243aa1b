"""Which host of a lab has which artifact in its folder.

A host writes only rows about itself. A database with one host has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, delete, exists, select

from farm.store.database import TableAccess, in_parts, put
from farm.store.schema import artifact_copy


@dataclass(frozen=True, slots=True)
class ArtifactCopy:
    """An artifact that a host has."""

    sha256: str
    host: str
    size_bytes: int
    at: datetime  # when the host got it


class ArtifactCopies(TableAccess):
    """Statements over copies of artifacts."""

    def of(self, sha256: str) -> tuple[ArtifactCopy, ...]:
        """Its copies, the latest first."""
        wanted = select(artifact_copy).where(artifact_copy.c.sha256 == sha256)
        return self._copies(wanted.order_by(artifact_copy.c.at.desc(), artifact_copy.c.host))

    def of_host(self, host: str) -> tuple[ArtifactCopy, ...]:
        """All copies of a host."""
        return self._copies(select(artifact_copy).where(artifact_copy.c.host == host))

    def alone(self, host: str, since: datetime) -> tuple[ArtifactCopy, ...]:
        """The copies that a host got at or after a time, of artifacts that no other host has."""
        others = artifact_copy.alias()
        elsewhere = exists().where(others.c.sha256 == artifact_copy.c.sha256, others.c.host != host)
        mine = select(artifact_copy).where(artifact_copy.c.host == host, artifact_copy.c.at >= since)
        return self._copies(mine.where(~elsewhere))

    async def change(self, host: str, sizes: Mapping[str, int | None]) -> None:
        """Write that a host has these artifacts now (size in bytes by SHA-256); None: it lost that one."""
        gone = [sha256 for sha256, size_bytes in sizes.items() if size_bytes is None]
        at = datetime.now(UTC)

        def change(connection: Connection) -> None:
            for some in in_parts(gone):
                mine = artifact_copy.c.host == host, artifact_copy.c.sha256.in_(some)
                connection.execute(delete(artifact_copy).where(*mine))
            for sha256, size_bytes in sizes.items():
                if size_bytes is not None:
                    row = {"sha256": sha256, "host": host, "size_bytes": size_bytes, "at": at}
                    put(connection, artifact_copy, row)

        await self._database.write(change)

    def _copies(self, wanted: Select[Any]) -> tuple[ArtifactCopy, ...]:
        return tuple(ArtifactCopy(**row) for row in self._database.rows(wanted))


def changes(rows: Collection[ArtifactCopy], files: Mapping[str, int]) -> dict[str, int | None]:
    """The changes after which a host's rows match its folder: sizes in bytes by SHA-256; None: delete the row."""
    known = {each.sha256: each.size_bytes for each in rows}
    wrong = {sha256: size_bytes for sha256, size_bytes in files.items() if known.get(sha256) != size_bytes}
    return {**dict.fromkeys(known.keys() - files.keys()), **wrong}
