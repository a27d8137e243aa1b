"""Whether a farm's event log tells of a farm that lost nothing and doubled nothing.

`python -m tests.acceptance.chaos.check_log farm.db` prints each case of a broken rule and exits with 1. It shares no
code with farm: what it knows of it is docs/protocol.md. The farm must be at rest: nothing waits, nothing runs.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

# What the events say; a tune job gains and loses phones while its attempt runs.
TOLD = """
CREATE TEMP TABLE submitted AS SELECT subject AS job, data ->> 'kind' AS kind FROM event WHERE kind = 'job.submitted';
CREATE TEMP TABLE over AS SELECT seq, subject AS job, substr(kind, 5) AS state FROM event
    WHERE kind IN ('job.done', 'job.failed', 'job.cancelled');
CREATE TEMP TABLE granted AS SELECT seq, subject AS lease, data ->> 'device' AS device, data ->> 'fence' AS fence,
    coalesce(data ->> 'job', '') AS job FROM event WHERE kind = 'lease.granted';
CREATE TEMP TABLE released AS SELECT seq, subject AS lease FROM event WHERE kind = 'lease.released';
CREATE TEMP TABLE started AS SELECT seq, subject AS attempt, data ->> 'job' AS job, data ->> 'lease' AS lease,
    data ->> 'device' AS device, data ->> 'fence' AS fence FROM event WHERE kind = 'attempt.started';
CREATE TEMP TABLE ended AS SELECT seq, subject AS attempt, data ->> 'state' AS state, data ->> 'fence' AS fence
    FROM event WHERE kind = 'attempt.ended';
"""
RULES = {  # each query finds the cases that break it
    "an event speaks of a job, attempt or lease that has begun": """
        SELECT subject FROM event WHERE kind LIKE 'job.%' AND subject NOT IN (SELECT job FROM submitted)
        UNION SELECT attempt FROM started WHERE job NOT IN (SELECT job FROM submitted)
        UNION SELECT attempt FROM ended WHERE attempt NOT IN (SELECT attempt FROM started)
        UNION SELECT subject FROM event WHERE kind LIKE 'lease.%' AND subject NOT IN (SELECT lease FROM granted)""",
    "every job is submitted once and ends exactly once": """
        SELECT job FROM submitted LEFT JOIN over USING (job) GROUP BY job HAVING count(*) <> 1 OR count(seq) <> 1""",
    "nothing happens to a job after its end": """
        SELECT job FROM over JOIN event ON subject = job AND event.seq > over.seq WHERE kind LIKE 'job.%'
        UNION SELECT job FROM over JOIN granted USING (job) WHERE granted.seq > over.seq
        UNION SELECT job FROM over JOIN started USING (job) WHERE started.seq > over.seq""",
    "attempts of a job are numbered 1, 2, 3 ..., one at a time": """
        SELECT attempt FROM (SELECT *, row_number() OVER (PARTITION BY job ORDER BY seq) AS number FROM started)
        WHERE attempt <> job || '.' || number
        UNION SELECT later.attempt FROM started AS earlier JOIN started AS later USING (job)
        WHERE earlier.seq < later.seq
        AND NOT EXISTS (SELECT 1 FROM ended WHERE attempt = earlier.attempt AND seq < later.seq)""",
    "every attempt ends exactly once": """
        SELECT attempt FROM started LEFT JOIN ended USING (attempt) GROUP BY attempt HAVING count(ended.seq) <> 1""",
    "an attempt starts under an open lease of its own job, with its device and fence": """
        SELECT attempt FROM started WHERE NOT EXISTS (SELECT 1 FROM granted WHERE granted.seq < started.seq AND
        (granted.lease, granted.job, granted.device, granted.fence)
        = (started.lease, started.job, started.device, started.fence))
        OR EXISTS (SELECT 1 FROM released WHERE released.lease = started.lease AND released.seq < started.seq)""",
    "an attempt ends with the fence of its lease": """
        SELECT attempt FROM started JOIN ended USING (attempt) WHERE started.fence <> ended.fence""",
    "a result counts only while its lease is open, of a tune job only under the daemon that began the attempt": """
        SELECT attempt FROM started JOIN ended USING (attempt) JOIN submitted USING (job) WHERE state = 'done' AND CASE
        WHEN kind = 'tune' THEN EXISTS (
            SELECT 1 FROM event WHERE kind = 'daemon.started' AND seq BETWEEN started.seq AND ended.seq)
        ELSE EXISTS (SELECT 1 FROM released WHERE released.lease = started.lease AND seq < ended.seq) END""",
    "while its attempt runs a job is granted no other phone, unless it is a tune job": """
        SELECT granted.lease FROM granted JOIN submitted USING (job) JOIN started USING (job)
        WHERE kind IS NOT 'tune' AND started.seq < granted.seq
        AND NOT EXISTS (SELECT 1 FROM ended WHERE attempt = started.attempt AND seq < granted.seq)""",
    "a job that is done has exactly one attempt that succeeded, others have none": """
        SELECT job FROM submitted WHERE EXISTS (SELECT 1 FROM over WHERE over.job = submitted.job AND state = 'done')
        <> (SELECT count(*) FROM started JOIN ended USING (attempt) WHERE job = submitted.job AND state = 'done')""",
    "every grant's fence is higher than those before it on the same phone, and no other has it": """
        SELECT later.lease FROM granted AS earlier JOIN granted AS later ON earlier.seq < later.seq
        AND (earlier.fence = later.fence OR earlier.device = later.device AND earlier.fence > later.fence)""",
    "no phone is leased twice at any moment": """
        SELECT later.lease FROM granted AS earlier JOIN granted AS later USING (device) WHERE earlier.seq < later.seq
        AND NOT EXISTS (SELECT 1 FROM released WHERE lease = earlier.lease AND seq < later.seq)""",
    "every lease is granted once and ends exactly once, and nothing happens to it afterwards": """
        SELECT lease FROM granted LEFT JOIN released USING (lease) GROUP BY lease
        HAVING count(*) <> 1 OR count(released.seq) <> 1
        UNION SELECT subject FROM event JOIN released ON lease = subject AND event.seq > released.seq
        WHERE kind LIKE 'lease.%'""",
    "the tables say the same as the events": """
        WITH kept AS (
            SELECT id, state, '' AS device, 0 AS fence FROM job UNION ALL SELECT id, state, device, fence FROM attempt
            UNION ALL SELECT id, iif(ended_at IS NULL, '', 'over'), device, fence FROM lease),
        told AS (
            SELECT job AS id, state, '' AS device, 0 AS fence FROM submitted LEFT JOIN over USING (job)
            UNION ALL SELECT attempt, state, device, started.fence FROM started LEFT JOIN ended USING (attempt)
            UNION ALL SELECT lease, iif(released.seq IS NULL, '', 'over'), device, fence
            FROM granted LEFT JOIN released USING (lease))
        SELECT id FROM (SELECT * FROM kept EXCEPT SELECT * FROM told)
        UNION SELECT id FROM (SELECT * FROM told EXCEPT SELECT * FROM kept)""",
    "a job that is done has a result, and none is kept without an attempt that came to its end": """
        SELECT job FROM over WHERE state = 'done' AND job NOT IN (SELECT job FROM result)
        UNION SELECT job FROM result WHERE coalesce((SELECT state FROM attempt WHERE attempt.job = result.job
        ORDER BY number DESC LIMIT 1), '') NOT IN ('done', 'failed')""",
}


def broken(database: sqlite3.Connection) -> Iterator[str]:
    """Each case of each broken rule, after `TOLD` was executed."""
    for rule, query in RULES.items():
        for (case,) in database.execute(query):
            yield f"{case}: it is not so that {rule}"


def opened(path: Path) -> sqlite3.Connection:
    """A farm's database with the tables of `TOLD`."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    database.executescript(TOLD)
    return database


if __name__ == "__main__":
    with closing(opened(Path(sys.argv[1]))) as farm:
        sys.exit("\n".join(broken(farm)) or 0)
