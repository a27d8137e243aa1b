"""Whether a farm's event log tells of a farm that lost nothing and doubled nothing.

    python tests/acceptance/chaos/check_log.py farm.db          a SQLite database: its events, then its tables
    python tests/acceptance/chaos/check_log.py events.jsonl     one event a line: {seq, at, kind, subject, data}

Shares no code with farm: what it knows of it is docs/protocol.md. Prints each broken rule and exits with 1. The log
must be one of a farm at rest: nothing waits, nothing runs.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RULES: Mapping[str, str] = {
    "sequence": "events are numbered upwards",
    "unknown": "an event speaks of a job, attempt or lease that has begun",
    "job-ends-once": "every job is submitted once and ends exactly once",
    "after-the-end": "nothing happens to a job after its end",
    "attempt-number": "attempts of a job are numbered 1, 2, 3 ..., one at a time",
    "attempt-ends-once": "every attempt ends exactly once",
    "attempt-under-lease": "an attempt starts under an open lease of its own job, with its device and fence",
    "stale-result": "a result counts only while its lease is open, with that lease's fence; of a kind that has several "
    "phones at once, under the daemon that began the attempt",
    "one-phone": "while its attempt runs a job is granted no other phone, unless its kind has several at once",
    "result-twice": "a job that is done has exactly one attempt that succeeded, others have none",
    "fence-grows": "every grant's fence is higher than those before it on the same phone, and no other has it",
    "phone-twice": "no phone is leased twice at any moment",
    "lease-ends-once": "every lease ends exactly once",
    "tables": "the database's tables say the same as its events",
    "results": "a job that is done has one result, and nobody has one without an attempt that came to its end",
}
POOLED = frozenset({"tune"})  # kinds whose attempts gain and lose phones while they run
NO_RESULT = frozenset({"lease"})  # kinds of which nothing is kept but that they are done
ENDS = {"job.done": "done", "job.failed": "failed", "job.cancelled": "cancelled"}


@dataclass(frozen=True)
class Event:
    """One line of the log."""

    seq: int
    kind: str
    subject: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """A broken rule, and where."""

    rule: str
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text} (event {self.seq})"


@dataclass
class Attempt:
    """An attempt as the log tells it."""

    job: str
    lease: str
    device: str
    fence: int
    daemon: int  # which start of it
    state: str = ""  # how it ended


@dataclass
class Job:
    """A job as the log tells it."""

    kind: str = ""
    state: str = ""  # how it ended
    attempts: list[str] = field(default_factory=list)


@dataclass
class Lease:
    """A lease as the log tells it."""

    device: str
    fence: int
    job: str
    over: bool = False


class Replay:
    """Plays a log and collects what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.jobs: dict[str, Job] = {}
        self.attempts: dict[str, Attempt] = {}
        self.leases: dict[str, Lease] = {}
        self.kinds: Counter[str] = Counter()
        self._on: dict[str, str] = {}  # device -> its open lease
        self._fences: dict[int, str] = {}  # whose it is
        self._latest: dict[str, int] = {}  # device -> its latest lease's fence
        self._seq = -1
        self._daemon = 0  # starts so far

    def play(self, events: Iterable[Event]) -> None:
        """Take the whole log, then look at what is still open."""
        for event in events:
            self._one(event)
        for name, job in self.jobs.items():
            if not job.state:
                self._wrong("job-ends-once", f"job {name} has not ended")
            done = [each for each in job.attempts if self.attempts[each].state == "done"]
            if len(done) != (job.state == "done"):
                self._wrong(
                    "result-twice", f"job {name} is {job.state or 'not over'}; these attempts succeeded: {done}"
                )
        for name, attempt in self.attempts.items():
            if not attempt.state:
                self._wrong("attempt-ends-once", f"attempt {name} has not ended")
        for name, lease in self.leases.items():
            if not lease.over:
                self._wrong("lease-ends-once", f"lease {name} of {lease.device} has not ended")

    def _one(self, event: Event) -> None:
        if event.seq <= self._seq:
            self._wrong("sequence", f"event {event.seq} comes after {self._seq}", event.seq)
        self._seq = event.seq
        self.kinds[event.kind] += 1
        if event.kind == "daemon.started":
            self._daemon += 1
        elif event.kind == "job.submitted":
            self._submitted(event)
        elif event.kind.startswith("job."):
            self._job(event)
        elif event.kind == "attempt.started":
            self._started(event)
        elif event.kind == "attempt.ended":
            self._ended(event)
        elif event.kind == "lease.granted":
            self._granted(event)
        elif event.kind.startswith("lease."):
            self._lease(event)

    def _submitted(self, event: Event) -> None:
        if event.subject in self.jobs:
            self._wrong("job-ends-once", f"job {event.subject} is submitted a second time")
            return
        self.jobs[event.subject] = Job(str(event.data.get("kind") or ""))

    def _job(self, event: Event) -> None:
        job = self.jobs.get(event.subject)
        if job is None:
            self._wrong("unknown", f"{event.kind} of job {event.subject}, which was never submitted")
            return
        end = ENDS.get(event.kind)
        if job.state and end:
            self._wrong("job-ends-once", f"job {event.subject} was {job.state} and is {end} now")
        elif job.state:
            self._wrong("after-the-end", f"{event.kind} of job {event.subject}, which was {job.state}")
        job.state = job.state or end or ""

    def _started(self, event: Event) -> None:
        name, data = event.subject, event.data
        facts = (str(data["job"]), str(data["lease"]), str(data["device"]), int(data["fence"]))
        attempt = Attempt(*facts, daemon=self._daemon)
        job = self.jobs.get(attempt.job)
        if job is None:
            self._wrong("unknown", f"attempt {name} of job {attempt.job}, which was never submitted")
            return
        if name in self.attempts:
            self._wrong("attempt-number", f"attempt {name} starts a second time")
            return
        if job.state:
            self._wrong("after-the-end", f"attempt {name} starts although its job was {job.state}")
        open_one = [each for each in job.attempts if not self.attempts[each].state]
        if open_one:
            self._wrong("attempt-number", f"attempt {name} starts while {open_one[0]} runs")
        if name != f"{attempt.job}.{len(job.attempts) + 1}":
            self._wrong("attempt-number", f"attempt {name} is number {len(job.attempts) + 1} of its job")
        lease = self.leases.get(attempt.lease)
        if lease is None or lease.over:
            self._wrong("attempt-under-lease", f"attempt {name} starts under lease {attempt.lease}, which is not open")
        elif (lease.device, lease.fence, lease.job) != (attempt.device, attempt.fence, attempt.job):
            self._wrong("attempt-under-lease", f"attempt {name} ({attempt}) is not what its lease is for: {lease}")
        job.attempts.append(name)
        self.attempts[name] = attempt

    def _ended(self, event: Event) -> None:
        attempt = self.attempts.get(event.subject)
        if attempt is None:
            self._wrong("unknown", f"attempt {event.subject} ends without having started")
            return
        state = str(event.data["state"])
        if attempt.state:
            self._wrong("attempt-ends-once", f"attempt {event.subject} was {attempt.state} and is {state} now")
            return
        attempt.state = state
        lease = self.leases.get(attempt.lease)
        if int(event.data["fence"]) != attempt.fence:
            self._wrong("stale-result", f"attempt {event.subject} has fence {attempt.fence}, ends with {event.data}")
        elif state == "done" and self._pooled(attempt.job):
            if attempt.daemon != self._daemon:
                self._wrong("stale-result", f"attempt {event.subject} succeeds under another daemon than it began")
        elif state == "done" and (lease is None or lease.over):
            self._wrong("stale-result", f"attempt {event.subject} succeeds after its lease {attempt.lease} has ended")

    def _granted(self, event: Event) -> None:
        name, data = event.subject, event.data
        lease = Lease(str(data["device"]), int(data["fence"]), str(data.get("job") or ""))
        if name in self.leases:
            self._wrong("lease-ends-once", f"lease {name} is granted a second time")
            return
        # Grants of several phones at once may be committed in another order than they were decided in.
        if lease.fence <= self._latest.get(lease.device, -1):
            self._wrong(
                "fence-grows", f"{lease.device} had fence {self._latest[lease.device]}; {name} has {lease.fence}"
            )
        if lease.fence in self._fences:
            self._wrong("fence-grows", f"{name} and {self._fences[lease.fence]} both have fence {lease.fence}")
        self._latest[lease.device] = lease.fence
        self._fences[lease.fence] = name
        holder = self._on.get(lease.device)
        if holder is not None:
            self._wrong("phone-twice", f"lease {name} of {lease.device} is granted while {holder} holds it")
        job = self.jobs.get(lease.job)
        if job is not None and job.state:
            self._wrong("after-the-end", f"lease {name} is granted to job {lease.job}, which was {job.state}")
        runs = job is not None and any(not self.attempts[each].state for each in job.attempts)
        if runs and not self._pooled(lease.job):
            self._wrong("one-phone", f"lease {name} is granted to job {lease.job}, whose attempt runs already")
        self._on[lease.device] = name
        self.leases[name] = lease

    def _lease(self, event: Event) -> None:
        lease = self.leases.get(event.subject)
        if lease is None:
            self._wrong("unknown", f"{event.kind} of lease {event.subject}, which was never granted")
        elif lease.over:
            self._wrong("lease-ends-once", f"{event.kind} of lease {event.subject}, which has ended")
        elif event.kind == "lease.released":
            lease.over = True
            if self._on.get(lease.device) == event.subject:
                del self._on[lease.device]

    def _pooled(self, job: str) -> bool:
        return job in self.jobs and self.jobs[job].kind in POOLED

    def _wrong(self, rule: str, text: str, seq: int = 0) -> None:
        assert rule in RULES, rule
        self.problems.append(Problem(rule, seq or self._seq, text))


def read_dump(path: Path) -> Iterator[Event]:
    """The events in a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                row = json.loads(line)
                yield Event(int(row["seq"]), row["kind"], row["subject"], row["data"])


def read_database(connection: sqlite3.Connection) -> Iterator[Event]:
    """The events in a farm's database."""
    for seq, kind, subject, data in connection.execute("SELECT seq, kind, subject, data FROM event ORDER BY seq"):
        yield Event(int(seq), kind, subject, json.loads(data))


def compare_tables(connection: sqlite3.Connection, replay: Replay) -> Iterator[Problem]:
    """Where the tables of a database say something else than its events."""

    def differ(what: str, told: Mapping[str, object], kept: Mapping[str, object]) -> Iterator[Problem]:
        for name in sorted(told.keys() | kept.keys()):
            if told.get(name) != kept.get(name):
                yield Problem(
                    "tables", 0, f"{what} {name}: events say {told.get(name)}, the table says {kept.get(name)}"
                )

    yield from differ(
        "job", {name: job.state for name, job in replay.jobs.items()},
        dict(connection.execute("SELECT id, state FROM job")),
    )  # fmt: skip
    yield from differ(
        "attempt", {name: (each.state, each.device, each.fence) for name, each in replay.attempts.items()},
        {row[0]: row[1:] for row in connection.execute("SELECT id, state, device, fence FROM attempt")},
    )  # fmt: skip
    yield from differ(
        "lease", {name: (each.device, each.fence, each.over) for name, each in replay.leases.items()},
        {
            row[0]: (row[1], row[2], row[3] is not None)
            for row in connection.execute("SELECT id, device, fence, ended_at FROM lease")
        },
    )  # fmt: skip


def compare_results(connection: sqlite3.Connection, replay: Replay) -> Iterator[Problem]:
    """Results kept twice, for nothing, or not at all."""
    kept = Counter(job for (job,) in connection.execute("SELECT job FROM result"))
    for name, count in kept.items():
        job = replay.jobs.get(name)
        ends = [replay.attempts[each].state for each in job.attempts] if job is not None else []
        if count > 1:
            yield Problem("results", 0, f"job {name} has {count} results")
        if job is None or not job.state or not {"done", "failed"} & set(ends[-1:]):
            yield Problem("results", 0, f"job {name} has a result, but is {job}, its attempts ended {ends}")
    for name, job in replay.jobs.items():
        if job.state == "done" and name not in kept and job.kind not in NO_RESULT:
            yield Problem("results", 0, f"job {name} is done and has no result")


def check(path: Path) -> tuple[Replay, list[Problem]]:
    """Play a log; returns what it told, and every broken rule."""
    replay = Replay()
    with path.open("rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    if not is_database:
        replay.play(read_dump(path))
        return replay, replay.problems
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        replay.play(read_database(connection))
        return replay, [
            *replay.problems, *compare_tables(connection, replay), *compare_results(connection, replay)
        ]  # fmt: skip
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    """Check one file."""
    if len(arguments) != 1:
        print(__doc__)
        return 2
    replay, problems = check(Path(arguments[0]))
    for problem in problems:
        print(problem)
    states = Counter(job.state or "not ended" for job in replay.jobs.values())
    ends = Counter(each.state or "running" for each in replay.attempts.values())
    print(f"jobs: {dict(states)}; attempts: {dict(ends)}; leases: {len(replay.leases)}; problems: {len(problems)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
