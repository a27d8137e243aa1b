"""Judges a lab after a storm, by its tables, by the answers to clients, and by the phones' own logs.

It shares no code with farm. `python -m benchmarks.lab_judge DSN FOLDER` prints `{"counts": {...}, "wrong": {...}}`, in
which each rule that was broken has its cases. FOLDER has

    clients.jsonl     a line for each answer that a client got: {"job": ID, "token": TEXT} when it was submitted,
                      {"job": ID, "state": STATE} when it was told its state
    phones/NAME.log   the phone's own log, in order: TOKEN SESSION WORD; a job's line on the phone writes
                      `begin`, several `on`, and `end`; SESSION is another one each time that it is run

A clock of the lab may be wrong, so the judge compares no times of two machines: of two sessions, the earlier one stands
first in the phone's log and has the lower fence.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

FINAL = ("done", "failed", "cancelled")
RULES = {  # each query finds the rows that break it
    "a device has two open leases": (
        "SELECT device FROM lease WHERE ended_at IS NULL GROUP BY device HAVING count(*) > 1"
    ),
    "a lease was ended twice": (
        "SELECT subject FROM event WHERE kind = 'lease.released' GROUP BY subject HAVING count(*) > 1"
    ),
    "an attempt was ended twice": (
        "SELECT subject FROM event WHERE kind = 'attempt.ended' GROUP BY subject HAVING count(*) > 1"
    ),
    "an attempt has not ended": "SELECT id FROM attempt WHERE ended_at IS NULL",
    "an attempt ended without an event": (
        "SELECT id FROM attempt WHERE ended_at IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM event WHERE kind = 'attempt.ended' AND subject = attempt.id)"
    ),
    "a job was ended twice": (
        "SELECT subject FROM event WHERE kind IN ('job.done', 'job.failed', 'job.cancelled') "
        "GROUP BY subject HAVING count(*) > 1"
    ),
    "a job has two good attempts": (
        "SELECT job FROM attempt WHERE state = 'done' GROUP BY job HAVING count(*) > 1"
    ),
    "a done job has no result": (
        "SELECT id FROM job WHERE state = 'done' AND NOT EXISTS (SELECT 1 FROM result WHERE result.job = job.id)"
    ),
    "a job's attempts are not numbered from 1": (
        "SELECT job FROM attempt GROUP BY job HAVING max(number) <> count(*)"
    ),
    "a fence was given twice": "SELECT fence FROM lease GROUP BY fence HAVING count(*) > 1",
    "an attempt has another fence than its lease": (
        "SELECT attempt.id FROM attempt JOIN lease ON lease.id = attempt.lease WHERE lease.fence <> attempt.fence"
    ),
    "an attempt ran under a lease that was never armed": (
        "SELECT attempt.id FROM attempt JOIN lease ON lease.id = attempt.lease WHERE lease.armed_at IS NULL"
    ),
}  # fmt: skip


class Line(NamedTuple):
    """A line of a phone's log."""

    token: str
    session: str
    word: str


class Ran(NamedTuple):
    """One run of a job's line on a phone."""

    token: str
    session: str
    ended: bool


def judge(dsn: str, folder: Path) -> dict[str, Any]:
    """Every rule that was broken, with its cases."""
    wrong: defaultdict[str, list[Any]] = defaultdict(list)
    told = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    tokens = {each["job"]: each["token"] for each in told if "token" in each}
    with psycopg.connect(dsn) as connection:
        for rule, query in RULES.items():
            wrong[rule] += [row[0] for row in connection.execute(query)]
        jobs: dict[str, str] = dict(connection.execute("SELECT id, state FROM job").fetchall())
        results: dict[str, str] = dict(connection.execute("SELECT job, body::text FROM result").fetchall())
        attempts = connection.execute("SELECT job, device, fence, state FROM attempt").fetchall()
    for job, token in tokens.items():
        if job not in jobs:
            wrong["a job is lost"].append(job)
        elif jobs[job] not in FINAL:
            wrong["a job has not ended"].append(job)
        elif jobs[job] == "done" and token not in results.get(job, ""):
            wrong["a job has another job's result"].append(job)
    for each in told:
        if each.get("state") in FINAL and jobs.get(each["job"]) != each["state"]:
            wrong["a client was told another end"].append(each)
    job_of = {token: job for job, token in tokens.items()}
    sessions = 0
    for log in sorted((folder / "phones").glob("*.log")):
        ran, overlaps = _read(log)
        sessions += len(ran)
        wrong["two sessions overlap on a phone"] += [f"{log.stem}: {each}" for each in overlaps]
        for rule, case in _compare(log.stem, ran, job_of, attempts):
            wrong[rule].append(f"{log.stem}: {case}")
    counts = {"jobs": len(tokens), "attempts": len(attempts), "sessions": sessions}
    return {"counts": counts, "wrong": {rule: cases for rule, cases in wrong.items() if cases}}


def _read(log: Path) -> tuple[list[Ran], list[str]]:
    """The runs in a phone's log by their first line, and the sessions whose lines are not together."""
    blocks: list[Ran] = []
    seen: set[str] = set()
    overlaps = []
    for text in log.read_text().splitlines():
        line = Line(*text.split(" "))
        if blocks and blocks[-1].session == line.session:
            blocks[-1] = blocks[-1]._replace(ended=line.word == "end")
            continue
        if line.session in seen:
            overlaps.append(line.session)
        seen.add(line.session)
        blocks.append(Ran(line.token, line.session, line.word == "end"))
    return blocks, overlaps


def _compare(
    phone: str, ran: Sequence[Ran], job_of: dict[str, str], attempts: Sequence[tuple[str, str, int, str]]
) -> Iterator[tuple[str, str]]:
    """The contradictions between a phone's log and its attempts."""
    here: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for job, device, fence, state in attempts:
        if device == phone:
            here[job].append((fence, state))
    runs: defaultdict[str, list[Ran]] = defaultdict(list)
    highest = 0
    for each in ran:
        job = job_of.get(each.token, "")
        runs[job].append(each)
        if len(here[job]) == 1:
            ((fence, _),) = here[job]
            if fence < highest:
                yield "fences do not grow on a phone", f"{job} under {fence} after {highest}"
            highest = max(highest, fence)
    for job, those in runs.items():
        if len(those) > len(here[job]):
            yield "a job ran more often than it was tried", f"{job}: {len(those)} runs, {len(here[job])} attempts"
    for job, those_tried in here.items():
        if any(state == "done" for _, state in those_tried) and not any(each.ended for each in runs[job]):
            yield "a done job did not run to its end", job


if __name__ == "__main__":
    print(json.dumps(judge(sys.argv[1], Path(sys.argv[2]))))
