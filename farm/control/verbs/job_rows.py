"""Jobs and attempts as the job door's answers show them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from farm.control.verbs.job_steps import Step
from farm.core.job import Attempt, Job

SHOWN_NAME_CHARS = 80  # of a shell command or a note, in a row
ROW_EVIDENCE_CHARS = 200  # of an error in a list: `job.show` has all of it


def job_row(job: Job, on: str, waits: str, step: Step | None = None) -> dict[str, Any]:
    """A job in a list.

    Args:
        job: as the store has it.
        on: the phone of its latest attempt; "" when there is none.
        waits: why it does not run, one sentence; "" when it does or has ended.
        step: what it does just now; None when it does not run.
    """
    return {
        "id": job.id,
        "kind": job.kind,
        "name": _name(job),
        "user": job.user,
        "state": job.state,
        "selector": job.selector,
        "device": job.device,
        "on": on,
        "array": job.array,
        "priority": job.priority,
        "submitted_at": _at(job.submitted_at),
        "ended_at": _at(job.ended_at),
        "attempts": job.attempts,
        "error": _shortened(job.error),
        "waits": waits,
        "progress": None if step is None else step.row(),
    }


def attempt_row(attempt: Attempt, *, with_facts: bool) -> dict[str, Any]:
    """An attempt; its facts are for the job's owner and for operators."""
    row: dict[str, Any] = {
        "id": attempt.id,
        "number": attempt.number,
        "device": attempt.device,
        "fence": attempt.fence,
        "lease": attempt.lease,
        "state": attempt.state,
        "started_at": _at(attempt.started_at),
        "ended_at": _at(attempt.ended_at),
        "error": attempt.error,
    }
    if with_facts:
        row["facts"] = dict(attempt.facts)
    return row


def _name(job: Job) -> str:
    """What people call it: the model's file name, the command's or the note's beginning."""
    said = job.spec.get("name") or job.spec.get("command") or job.spec.get("note") or ""
    return str(said)[:SHOWN_NAME_CHARS]


def _shortened(error: Mapping[str, object] | None) -> dict[str, object] | None:
    if error is None:
        return None
    return {**error, "evidence": str(error.get("evidence", ""))[-ROW_EVIDENCE_CHARS:]}


def _at(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
