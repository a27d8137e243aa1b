"""The chaos test's judge finds each thing that may not be, and nothing in a log where all is well."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.chaos import check_log
from tests.acceptance.chaos.check_log import RULES, Event, Replay

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


def events_of(text):
    for seq, line in enumerate(text.splitlines(), 1):
        kind, subject, *facts = line.split()
        data = dict(fact.split("=") for fact in facts)
        yield Event(seq, kind, subject, {key: int(value) if key == "fence" else value for key, value in data.items()})


def broken(events):
    replay = Replay()
    replay.play(events)
    return {problem.rule for problem in replay.problems}


def without(line):
    assert line in GOOD
    return GOOD.replace(line + "\n", "", 1)


def changed(line, into):
    assert line in GOOD
    return GOOD.replace(line, into, 1)


def after(line, *more):
    return changed(line, "\n".join((line, *more)))


def test_nothing_is_wrong_with_a_good_log():
    assert broken(events_of(GOOD)) == set()
    assert broken(events_of(POOLED.replace("DAEMON", "daemon.stopped farm"))) == set()


@pytest.mark.parametrize(
    ("rule", "log"),
    {
        "submitted twice": ("job-ends-once", after("job.submitted c", "job.submitted c")),
        "never ends": ("job-ends-once", without("job.cancelled c")),
        "ends twice": ("job-ends-once", after("job.done b", "job.done b")),
        "ends in two ways": ("job-ends-once", after("job.done b", "job.failed b")),
        "queued after its end": ("after-the-end", after("job.done b", "job.queued b")),
        "a lease for a job that is over": (
            "after-the-end",
            GOOD + "lease.granted L9 device=p1 fence=90 job=c\nlease.released L9 fence=90\n",
        ),
        "an attempt after the end": (
            "after-the-end",
            after(
                "job.done a",
                "attempt.started a.3 job=a device=p1 lease=L5 fence=23",
                "attempt.ended a.3 state=failed fence=23",
            ),
        ),
        "a number left out": ("attempt-number", GOOD.replace("a.2", "a.3")),
        "two attempts at a time": (
            "attempt-number",
            without("attempt.ended a.1 state=failed fence=11").replace(
                "job.done a", "job.done a\nattempt.ended a.1 state=failed fence=11"
            ),
        ),
        "the same attempt twice": (
            "attempt-number",
            after(
                "attempt.ended b.1 state=interrupted fence=12", "attempt.started b.1 job=b device=p2 lease=L2 fence=12"
            ),
        ),
        "an attempt ends twice": (
            "attempt-ends-once",
            after("attempt.ended a.1 state=failed fence=11", "attempt.ended a.1 state=failed fence=11"),
        ),
        "an attempt never ends": ("attempt-ends-once", without("attempt.ended b.1 state=interrupted fence=12")),
        "an attempt under a lease that is over": (
            "attempt-under-lease",
            without("lease.released L3 device=p1 fence=21").replace(
                "attempt.started b.2", "lease.released L3 device=p1 fence=21\nattempt.started b.2"
            ),
        ),
        "an attempt under another job's lease": ("attempt-under-lease", changed("fence=21 job=b", "fence=21 job=c")),
        "an attempt on another phone": ("attempt-under-lease", changed("b.2 job=b device=p1", "b.2 job=b device=p3")),
        "an attempt with another fence": (
            "attempt-under-lease",
            changed("a.2 job=a device=p1 lease=L5 fence=23", "a.2 job=a device=p1 lease=L5 fence=22"),
        ),
        "a result after the lease": (
            "stale-result",
            without("lease.released L3 device=p1 fence=21").replace(
                "attempt.ended b.2", "lease.released L3 device=p1 fence=21\nattempt.ended b.2"
            ),
        ),
        "a result with an old fence": (
            "stale-result",
            changed("attempt.ended a.2 state=done fence=23", "attempt.ended a.2 state=done fence=11"),
        ),
        "a result of several phones under another daemon": (
            "stale-result",
            POOLED.replace("DAEMON", "daemon.started f"),
        ),
        "a second phone for one attempt": (
            "one-phone",
            POOLED.replace("kind=tune", "kind=bench").replace("DAEMON", "x y"),
        ),
        "two results": ("result-twice", changed("a.1 state=failed", "a.1 state=done")),
        "no result": ("result-twice", changed("a.2 state=done", "a.2 state=failed")),
        "a result of a failed job": ("result-twice", changed("job.done a", "job.failed a")),
        "a fence given twice": ("fence-grows", GOOD.replace("fence=22", "fence=21")),
        "an old fence": ("fence-grows", GOOD.replace("fence=23", "fence=13")),
        "a phone leased twice": ("phone-twice", changed("L4 device=p2 fence=22", "L4 device=p1 fence=22")),
        "a phone leased twice over a restart": ("phone-twice", without("lease.released L2 device=p2 fence=12")),
        "a lease never ends": ("lease-ends-once", without("lease.released L4 device=p2 fence=22")),
        "a lease ends twice": ("lease-ends-once", GOOD + "lease.released L4\n"),
        "a lease granted twice": ("lease-ends-once", GOOD + "lease.granted L4 device=p2 fence=99\n"),
        "a lease extended after its end": ("lease-ends-once", GOOD + "lease.extended L1\n"),
        "a job nobody submitted": ("unknown", GOOD + "job.done x\n"),
        "an attempt of a job nobody submitted": (
            "unknown",
            GOOD + "attempt.started x.1 job=x device=p1 lease=L5 fence=23\n",
        ),
        "an attempt that did not start": ("unknown", GOOD + "attempt.ended x.1 state=failed fence=1\n"),
        "a lease nobody was granted": ("unknown", GOOD + "lease.released L99\n"),
    }.values(),
)
def test_what_may_not_be_is_found(rule, log):
    assert rule in broken(events_of(log))


def test_a_log_that_goes_back_is_found():
    events = list(events_of(GOOD))
    assert broken([*events, events[0]]) == {"sequence"}


def test_every_rule_has_a_log_that_breaks_it():
    marks = test_what_may_not_be_is_found.pytestmark
    tried = {case[0] for mark in marks for case in mark.args[1]}
    assert tried | {"sequence", "tables", "results"} == set(RULES)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "farm.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE event (seq INTEGER, kind TEXT, subject TEXT, data TEXT)")
    connection.execute("CREATE TABLE job (id TEXT, state TEXT)")
    connection.execute("CREATE TABLE attempt (id TEXT, state TEXT, device TEXT, fence INTEGER)")
    connection.execute("CREATE TABLE result (job TEXT, body TEXT)")
    connection.execute("CREATE TABLE lease (id TEXT, device TEXT, fence INTEGER, ended_at TEXT)")
    for event in events_of(GOOD):
        connection.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?)", (event.seq, event.kind, event.subject, json.dumps(event.data))
        )
    jobs = [("a", "done"), ("b", "done"), ("c", "cancelled")]
    attempts = [
        ("a.1", "failed", "p1", 11),
        ("b.1", "interrupted", "p2", 12),
        ("b.2", "done", "p1", 21),
        ("a.2", "done", "p1", 23),
    ]
    leases = [("L1", "p1", 11), ("L2", "p2", 12), ("L3", "p1", 21), ("L4", "p2", 22), ("L5", "p1", 23)]
    connection.executemany("INSERT INTO job VALUES (?, ?)", jobs)
    connection.executemany("INSERT INTO result VALUES (?, '{}')", [("a",), ("b",)])
    connection.executemany("INSERT INTO attempt VALUES (?, ?, ?, ?)", attempts)
    connection.executemany("INSERT INTO lease VALUES (?, ?, ?, 'then')", leases)
    connection.commit()
    yield path, connection
    connection.close()


def test_tables_that_agree_are_right(database):
    assert check_log.check(database[0])[1] == []


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE job SET state = 'running' WHERE id = 'a'", "DELETE FROM job WHERE id = 'c'",
        "INSERT INTO job VALUES ('d', 'done')", "UPDATE attempt SET state = 'running' WHERE id = 'a.2'",
        "UPDATE lease SET ended_at = NULL WHERE id = 'L5'",
    ],
)  # fmt: skip
def test_tables_that_differ_are_found(database, spoil):
    path, connection = database
    connection.execute(spoil)
    connection.commit()
    assert {problem.rule for problem in check_log.check(path)[1]} == {"tables"}


@pytest.mark.parametrize(
    "spoil",
    [
        "DELETE FROM result WHERE job = 'a'", "INSERT INTO result VALUES ('a', '{}')",
        "INSERT INTO result VALUES ('c', '{}')", "INSERT INTO result VALUES ('d', '{}')",
    ],
)  # fmt: skip
def test_results_that_may_not_be_are_found(database, spoil):
    path, connection = database
    connection.execute(spoil)
    connection.commit()
    assert {problem.rule for problem in check_log.check(path)[1]} == {"results"}


@pytest.mark.parametrize(("kind", "rules"), [("lease", set()), ("shell", {"results"})])
def test_a_lease_may_be_done_without_a_result(database, kind, rules):
    path, connection = database
    connection.execute("DELETE FROM result WHERE job = 'a'")
    connection.execute(
        "UPDATE event SET data = ? WHERE kind = 'job.submitted' AND subject = 'a'", (json.dumps({"kind": kind}),)
    )
    connection.commit()
    assert {problem.rule for problem in check_log.check(path)[1]} == rules


@pytest.mark.parametrize(("log", "code"), [(GOOD, 0), (without("job.cancelled c"), 1)])
def test_it_runs_by_itself_on_a_dump(tmp_path, log, code):
    dump = tmp_path / "events.jsonl"
    rows = [{"seq": e.seq, "kind": e.kind, "subject": e.subject, "data": e.data} for e in events_of(log)]
    dump.write_text("".join(json.dumps(row) + "\n" for row in rows))
    program = Path(check_log.__file__)
    done = subprocess.run([sys.executable, "-I", program, dump], capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert "jobs: {'done': 2" in done.stdout
