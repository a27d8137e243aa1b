"""The chaos test's judge finds each thing that may not be, and nothing in a log where all is well."""

import json
import sqlite3
from contextlib import closing

import pytest

from tests.acceptance.chaos.check_log import RULES, TOLD, broken

(
    UNKNOWN, JOB, AFTER, NUMBER, ATTEMPT, UNDER, OLD_FENCE, STALE, ONE_PHONE, ONE_RESULT, FENCE, PHONE, LEASE, TABLES,
    RESULTS,
) = RULES  # fmt: skip
TABLES_OF_FARM = """
CREATE TABLE event (seq BIGINT, kind VARCHAR, subject VARCHAR, data VARCHAR);
CREATE TABLE job (id VARCHAR, state VARCHAR);
CREATE TABLE attempt (id VARCHAR, job VARCHAR, number INTEGER, state VARCHAR, device VARCHAR, fence BIGINT);
CREATE TABLE lease (id VARCHAR, device VARCHAR, fence BIGINT, ended_at FLOAT);
CREATE TABLE result (job VARCHAR);
"""
GOOD = """\
daemon.started farm
job.submitted a
job.submitted b
job.submitted c
lease.granted L1 device=p1 fence=11 job=a
attempt.started a.1 job=a device=p1 lease=L1 fence=11
lease.granted L2 device=p2 fence=12 job=b
attempt.started b.1 job=b device=p2 lease=L2 fence=12
attempt.ended a.1 state=failed fence=11
job.queued a
lease.released L1 device=p1 fence=11
daemon.started farm
lease.released L2 device=p2 fence=12
attempt.ended b.1 state=interrupted fence=12
job.queued b
lease.granted L3 device=p1 fence=21 job=b
attempt.started b.2 job=b device=p1 lease=L3 fence=21
lease.granted L4 device=p2 fence=22
attempt.ended b.2 state=done fence=21
job.done b
lease.released L3 device=p1 fence=21
lease.granted L5 device=p1 fence=23 job=a
attempt.started a.2 job=a device=p1 lease=L5 fence=23
attempt.ended a.2 state=done fence=23
job.done a
lease.extended L4
lease.released L4 device=p2 fence=22
lease.released L5 device=p1 fence=23
job.cancelled c
"""


# An attempt that gains a phone, loses its first one, and succeeds.
POOLED = """\
daemon.started farm
job.submitted t kind=tune
lease.granted L1 device=p1 fence=11 job=t
attempt.started t.1 job=t device=p1 lease=L1 fence=11
lease.granted L2 device=p2 fence=12 job=t
lease.released L1 device=p1 fence=11
DAEMON
attempt.ended t.1 state=done fence=11
job.done t
lease.released L2 device=p2 fence=12
"""


# Tables that say what these events say.
KEPT = """
INSERT INTO job SELECT subject, coalesce((SELECT substr(kind, 5) FROM event AS e WHERE e.subject = event.subject
    AND kind IN ('job.done', 'job.failed', 'job.cancelled')), 'queued') FROM event WHERE kind = 'job.submitted';
INSERT INTO attempt SELECT subject, data ->> 'job', substr(subject, 3), (SELECT data ->> 'state' FROM event AS e
    WHERE e.subject = event.subject AND kind = 'attempt.ended'), data ->> 'device', data ->> 'fence' FROM event
    WHERE kind = 'attempt.started';
INSERT INTO lease SELECT subject, data ->> 'device', data ->> 'fence', (SELECT seq FROM event AS e
    WHERE e.subject = event.subject AND kind = 'lease.released') FROM event WHERE kind = 'lease.granted';
INSERT INTO result SELECT id FROM job WHERE state = 'done';
"""


def found(log, spoil=""):
    """The broken rules of a farm with this log; `spoil` changes its tables."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(TABLES_OF_FARM)
        for seq, line in enumerate(log.splitlines(), 1):
            kind, subject, *facts = line.split()
            data = dict(fact.split("=") for fact in facts)
            data |= {"fence": int(data["fence"])} if "fence" in data else {}
            database.execute("INSERT INTO event VALUES (?, ?, ?, ?)", (seq, kind, subject, json.dumps(data)))
        database.executescript(KEPT + spoil + ";" + TOLD)
        return {each.partition(": it is not so that ")[2] for each in broken(database)}


def without(line):
    return changed(line + "\n", "")


def changed(line, into):
    assert line in GOOD
    return GOOD.replace(line, into, 1)


def after(line, *more):
    return changed(line, "\n".join((line, *more)))


def test_nothing_is_wrong_with_a_good_log():
    assert found(GOOD) == set()
    assert found(POOLED.replace("DAEMON", "daemon.stopped farm")) == set()


@pytest.mark.parametrize(
    ("rule", "log"),
    {
        "submitted twice": (JOB, after("job.submitted c", "job.submitted c")),
        "never ends": (JOB, without("job.cancelled c")),
        "ends twice": (JOB, after("job.done b", "job.done b")),
        "ends in two ways": (JOB, after("job.done b", "job.failed b")),
        "queued after its end": (AFTER, after("job.done b", "job.queued b")),
        "a lease for a job that is over": (
            AFTER,
            GOOD + "lease.granted L9 device=p1 fence=90 job=c\nlease.released L9 fence=90\n",
        ),
        "an attempt after the end": (
            AFTER,
            after(
                "job.done a",
                "attempt.started a.3 job=a device=p1 lease=L5 fence=23",
                "attempt.ended a.3 state=failed fence=23",
            ),
        ),
        "a number left out": (NUMBER, GOOD.replace("a.2", "a.3")),
        "two attempts at a time": (
            NUMBER,
            without("attempt.ended a.1 state=failed fence=11").replace(
                "job.done a", "job.done a\nattempt.ended a.1 state=failed fence=11"
            ),
        ),
        "the same attempt twice": (
            NUMBER,
            after(
                "attempt.ended b.1 state=interrupted fence=12", "attempt.started b.1 job=b device=p2 lease=L2 fence=12"
            ),
        ),
        "an attempt ends twice": (
            ATTEMPT,
            after("attempt.ended a.1 state=failed fence=11", "attempt.ended a.1 state=failed fence=11"),
        ),
        "an attempt never ends": (ATTEMPT, without("attempt.ended b.1 state=interrupted fence=12")),
        "an attempt under a lease that is over": (
            UNDER,
            without("lease.released L3 device=p1 fence=21").replace(
                "attempt.started b.2", "lease.released L3 device=p1 fence=21\nattempt.started b.2"
            ),
        ),
        "an attempt under another job's lease": (UNDER, changed("fence=21 job=b", "fence=21 job=c")),
        "an attempt on another phone": (UNDER, changed("b.2 job=b device=p1", "b.2 job=b device=p3")),
        "an attempt with another fence": (
            UNDER,
            changed("a.2 job=a device=p1 lease=L5 fence=23", "a.2 job=a device=p1 lease=L5 fence=22"),
        ),
        "a result after the lease": (
            STALE,
            without("lease.released L3 device=p1 fence=21").replace(
                "attempt.ended b.2", "lease.released L3 device=p1 fence=21\nattempt.ended b.2"
            ),
        ),
        "a result with an old fence": (
            OLD_FENCE,
            changed("attempt.ended a.2 state=done fence=23", "attempt.ended a.2 state=done fence=11"),
        ),
        "a result of several phones under another daemon": (
            STALE,
            POOLED.replace("DAEMON", "daemon.started f"),
        ),
        "a second phone for one attempt": (
            ONE_PHONE,
            POOLED.replace("kind=tune", "kind=bench").replace("DAEMON", "x y"),
        ),
        "two results": (ONE_RESULT, changed("a.1 state=failed", "a.1 state=done")),
        "no result": (ONE_RESULT, changed("a.2 state=done", "a.2 state=failed")),
        "a result of a failed job": (ONE_RESULT, changed("job.done a", "job.failed a")),
        "a fence given twice": (FENCE, GOOD.replace("fence=22", "fence=21")),
        "an old fence": (FENCE, GOOD.replace("fence=23", "fence=13")),
        "a phone leased twice": (PHONE, changed("L4 device=p2 fence=22", "L4 device=p1 fence=22")),
        "a phone leased twice over a restart": (PHONE, without("lease.released L2 device=p2 fence=12")),
        "a lease never ends": (LEASE, without("lease.released L4 device=p2 fence=22")),
        "a lease ends twice": (LEASE, GOOD + "lease.released L4\n"),
        "a lease granted twice": (LEASE, GOOD + "lease.granted L4 device=p2 fence=99\n"),
        "a lease extended after its end": (LEASE, GOOD + "lease.extended L1\n"),
        "a job nobody submitted": (UNKNOWN, GOOD + "job.done x\n"),
        "an attempt of a job nobody submitted": (
            UNKNOWN,
            GOOD + "attempt.started x.1 job=x device=p1 lease=L5 fence=23\n",
        ),
        "an attempt that did not start": (UNKNOWN, GOOD + "attempt.ended x.1 state=failed fence=1\n"),
        "a lease nobody was granted": (UNKNOWN, GOOD + "lease.released L99\n"),
    }.values(),
)
def test_what_may_not_be_is_found(rule, log):
    assert rule in found(log)


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        (TABLES, "UPDATE job SET state = 'running' WHERE id = 'a'"),
        (TABLES, "DELETE FROM job WHERE id = 'c'"),
        (TABLES, "INSERT INTO job VALUES ('d', 'done')"),
        (TABLES, "UPDATE attempt SET state = 'failed' WHERE id = 'a.2'"),
        (TABLES, "UPDATE lease SET ended_at = NULL WHERE id = 'L5'"),
        (RESULTS, "DELETE FROM result WHERE job = 'a'"),
        (RESULTS, "INSERT INTO result VALUES ('c')"),
        (RESULTS, "INSERT INTO result VALUES ('d')"),
    ],
)
def test_tables_that_may_not_be_are_found(rule, spoil):
    assert rule in found(GOOD, spoil)


def test_every_rule_has_a_log_that_breaks_it():
    tests = (test_what_may_not_be_is_found, test_tables_that_may_not_be_are_found)
    assert {case[0] for test in tests for mark in test.pytestmark for case in mark.args[1]} == set(RULES)
