"""Which artifacts are needed: every SHA-256 in a job's spec or result counts, and every set of tuning records.

Old sets are forgotten, and others removed, by farm.store.record_sets.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Select, Text, select, type_coerce

from farm.store.database import Database
from farm.store.schema import job, record_set, result

_SHA256 = re.compile(r'"([0-9a-f]{64})"')
_ROWS_AT_ONCE = 1000


class ArtifactUse:
    """Reads over all jobs or results: for a thread, when something might be deleted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def live(self) -> frozenset[str]:
        """Named by jobs that have not ended, and kept records: hours of phones' work, and small."""
        with self._database.reading() as connection:
            records = frozenset(connection.execute(select(record_set.c.artifact)).scalars())
        return records | self._named(select(type_coerce(job.c.spec, Text)).where(job.c.ended_at.is_(None)))

    def results(self) -> frozenset[str]:
        """Named by the results that are kept."""
        return self._named(select(type_coerce(result.c.body, Text)))

    def _named(self, texts: Select[Any]) -> frozenset[str]:
        named: set[str] = set()
        with self._database.reading() as connection:
            for text in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(texts).scalars():
                named.update(_SHA256.findall(text))
        return frozenset(named)
