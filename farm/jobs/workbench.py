"""What an executor is given to work with: the spec, the phone's view, and ways to tell, log and remember things."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from farm.core.device import DeviceView, Life
from farm.core.device_news import Devices
from farm.core.events import EventLog
from farm.core.job import Attempt, Job
from farm.core.requests import Lease
from farm.jobs.executor import Running
from farm.jobs.ports import Leases
from farm.jobs.specs import spec_from_wire
from farm.store.jobs import JobTable

Keep = Callable[[Attempt, str, str, str], None]  # a log line: text, level, source


class Workbench:
    """Builds `Running` for attempts."""

    def __init__(self, *, jobs: JobTable, events: EventLog, keep_log: Keep, leases: Leases, devices: Devices) -> None:
        self._jobs = jobs
        self._events = events
        self._keep_log = keep_log
        self._leases = leases
        self._devices = devices

    def running(self, job: Job, attempt: Attempt, lease: Lease) -> Running:
        """What the executor of that attempt is told.

        Raises:
            BadSpecError: the job's spec is of another release and cannot be read.
        """
        return Running(
            job=job,
            spec=spec_from_wire(job.spec),
            attempt=attempt,
            lease=lease,
            view=self._view(lease.device),
            progress=partial(self._progress, attempt),
            log=partial(self._log, attempt),
            save_facts=partial(self._save_facts, attempt),
            yield_wanted=partial(self._leases.yield_wanted, lease.id),
        )

    def _view(self, device: str) -> DeviceView:
        # After a restart a person's lease goes on before its phone is listed again.
        unseen = DeviceView(device, "", Life.GONE)
        return next((view for view in self._devices.views() if view.name == device), unseen)

    def _progress(self, attempt: Attempt, step: str, /, **facts: Any) -> None:
        told = {**facts, "step": step, "device": attempt.device, "attempt": attempt.number}
        self._events.publish("job.progress", attempt.job, **told)

    def _log(self, attempt: Attempt, text: str, level: str = "info", *, source: str = "farm") -> None:
        self._keep_log(attempt, text, level, source)

    async def _save_facts(self, attempt: Attempt, facts: Mapping[str, Any]) -> None:
        await self._jobs.facts(attempt.id, attempt.fence, facts)
