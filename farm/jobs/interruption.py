"""How an attempt ends that the daemon's own end breaks off."""

from __future__ import annotations

from collections.abc import Mapping

from farm.core.error_wire import error_to_wire
from farm.core.errors import HostError
from farm.core.job import AttemptState, Job
from farm.jobs.specs import KINDS


def broken_off(job: Job, error: type[HostError]) -> tuple[AttemptState, Mapping[str, object]]:
    """Interrupted, which counts as no try; or failed, where what it has done already must not be done twice unasked."""
    kind = KINDS.get(job.kind)
    if kind is None or not kind.once or job.max_attempts > 1:
        return AttemptState.INTERRUPTED, error_to_wire(error())
    hint = f"part of it may be done: farm logs {job.id}; with --max-attempts 2 it would have been run again"
    return AttemptState.FAILED, error_to_wire(error(hint=hint))
