"""What a job has behind it that ends while it waits for its next attempt: its kind may keep something of it."""

from __future__ import annotations

import logging

from farm.core.job import FINAL, Job
from farm.core.requests import Lease
from farm.jobs.executor import Executor, KeepingExecutor
from farm.jobs.planning import request_of
from farm.jobs.workbench import Workbench
from farm.store.jobs import JobTable

log = logging.getLogger(__name__)


async def keep_left(job: Job, executor: Executor | None, jobs: JobTable, bench: Workbench) -> None:
    """Before a job that does not run is written as ended; whatever happens here, it ends."""
    if job.state not in FINAL or job.attempts == 0 or not isinstance(executor, KeepingExecutor):
        return
    try:
        last = jobs.attempts(job.id)[-1]
        lease = Lease(last.lease, last.device, last.fence, request_of(job, frozenset()), granted_at=0.0)  # long over
        await executor.keep_left(bench.running(job, last, lease))
    except Exception:
        log.exception("what attempts of %s left could not be kept", job.id)
