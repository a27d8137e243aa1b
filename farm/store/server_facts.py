"""One look at a PostgreSQL server: the facts that `farm.store.server_rules` judges."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import text as sql

from farm.common.doctor_findings import FAIL, Diagnosis
from farm.common.errors import FarmError
from farm.store.database import Database
from farm.store.server_rules import CHECK, ServerFacts, findings_of, problems_in

TRIPS = 5  # the shortest counts: others were held up
LOOK_EVERY_S = 60.0  # two small selects
logger = logging.getLogger(__name__)

_NOW = sql("SELECT extract(epoch FROM clock_timestamp())::float8")
# Statistics count connections that a role without rank may not see in pg_stat_activity.
_FACTS = sql("""
WITH mine AS (
    SELECT count(*) FILTER (WHERE application_name = current_setting('application_name')) AS own,
        count(*) AS of_role
    FROM pg_stat_activity WHERE usename = session_user
), used AS (
    SELECT sum(numbackends) AS everywhere, sum(numbackends) FILTER (WHERE datname = current_database()) AS here
    FROM pg_stat_database
)
SELECT current_setting('server_version') AS version,
    current_setting('server_version_num')::int AS version_number,
    pg_encoding_to_char(d.encoding) AS encoding,
    pg_backend_pid() AS backend,
    pg_is_in_recovery() AS standby,
    current_setting('transaction_read_only') = 'on' AS read_only,
    current_setting('max_connections')::int AS max_connections,
    least(
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
            - coalesce(current_setting('reserved_connections', true)::int, 0) - (everywhere - own),
        CASE WHEN rolconnlimit >= 0 THEN rolconnlimit - (of_role - own) END,
        CASE WHEN datconnlimit >= 0 THEN datconnlimit - (here - own) END
    )::int AS free_connections,
    CASE WHEN current_setting('synchronous_standby_names') = '' THEN 0 ELSE
        (SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL OR sync_state IN ('sync', 'quorum'))
    END::int AS synchronous_standbys,
    rolname AS role,
    rolcreaterole OR rolsuper AS may_make_roles
FROM pg_database d, pg_roles r, mine, used WHERE d.datname = current_database() AND r.rolname = session_user
""")


def read_facts(connection: Connection) -> ServerFacts:
    """Look at the server of a connection. Blocking: a few round trips."""
    row = dict(connection.execute(_FACTS).mappings().one())
    round_trip_s, offset_s = min(_clock(connection) for _ in range(TRIPS))
    driver: Any = connection.connection.dbapi_connection
    return ServerFacts(
        **{name: value for name, value in row.items() if name != "backend"},
        # A pooler names its own process when a client connects.
        pooled=row["backend"] != driver.info.backend_pid,
        round_trip_s=round_trip_s,
        offset_s=offset_s,
    )


def _clock(connection: Connection) -> tuple[float, float]:
    """The length of a round trip, and the lead of the server's clock over this host's; seconds."""
    began_s, began = time.time(), time.monotonic()
    clock_s = float(connection.execute(_NOW).scalar_one())
    trip_s = time.monotonic() - began
    return trip_s, clock_s - (began_s + trip_s / 2)


class ServerWatch:
    """Looks at the server of a database that is served from, again and again."""

    def __init__(self, database: Database, notes: Sequence[Diagnosis], facts: ServerFacts) -> None:
        """`notes`: the start's findings, which stay true. `facts`: as of the start."""
        self._database = database
        self._notes = list(notes)
        self._problems = problems_in(self._notes)
        self._use(facts)

    def now(self) -> datetime:
        """The server's time, which continues with this host's monotonic clock."""
        return datetime.fromtimestamp(time.monotonic() + self._ahead_s, UTC)

    def _use(self, facts: ServerFacts) -> None:
        self.facts = facts  # as of the latest look
        self._ahead_s = time.time() + facts.offset_s - time.monotonic()

    def findings(self) -> list[Diagnosis]:
        """Every finding as of now. Blocking, as long as an answer may take."""
        try:
            with self._database.reading() as connection:
                facts = read_facts(connection)
                self._use(facts)
            return [*self._notes, *findings_of(facts)]
        except FarmError as error:
            return [*self._notes, Diagnosis(CHECK, FAIL, error.message, error.hint)]

    def problems(self) -> list[str]:
        """One line each for `farm status`, as of the latest look."""
        return self._problems

    async def run(self) -> None:
        """Look until cancelled; new problems are logged."""
        while True:
            found = problems_in(await self._database.in_thread(self.findings))
            for new in [each for each in found if each not in self._problems]:
                logger.warning("%s", new)
            self._problems = found
            await asyncio.sleep(LOOK_EVERY_S)
