"""Events of jobs as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from farm.common.durations import format_duration
from farm.kinds import KINDS

if TYPE_CHECKING:
    from farm.client import Event, JobInfo

FEW_JOBS = 10  # of more, steps are left out and only counts of ended jobs are shown
ENDED_LINES = 10  # so many lines with such a count


class EventLines:
    """Words for events: job, phone, and event."""

    def __init__(self, jobs: Iterable[JobInfo], *, ends: bool = False) -> None:
        """`ends`: a line for the end of each job, however many they are."""
        rows = tuple(jobs)
        self._devices = {job.id: job.device or job.on for job in rows}
        pinned = {job.device for job in rows if job.device}
        self._pooled = {job.id for job in rows if KINDS.pooled(job.kind)}  # no one phone's
        self._by_device = len(rows) == 1 or len(pinned) == len(rows)  # then the phone's name identifies the job
        self._many = len(rows) > FEW_JOBS and not ends
        self._ends = ends
        self._ended = self._failed = 0
        self._last_ends: dict[str, str] = {}  # how each job's latest attempt ended
        self._steps: dict[str, str] = {}  # each job's latest step: its repetitions have no line

    def name(self, job: str) -> str:
        """A job's name: its phone's where that identifies it."""
        if job in self._pooled:
            return job
        device = self._devices.get(job, "")
        return device or job if self._by_device else f"{job} {device}".rstrip()

    def line(self, event: Event) -> str:
        """A line for people; empty for events that need none."""
        data: Mapping[str, Any] = event.data
        job = str(data.get("job") or event.subject)
        if data.get("device"):
            self._devices[job] = str(data["device"])
        match event.kind:
            case "job.progress" if not self._many:
                return self._step(job, str(data.get("step", "")))
            case "attempt.started" if not self._many:
                self._steps.pop(job, None)
                return f"{self.name(job)}: started"
            case "attempt.ended" if data.get("state") not in ("done", "cancelled"):
                self._last_ends[job] = f"{self.name(job)}: {data.get('state')}{_because(data)}"
                return self._last_ends[job]
            case "job.queued" | "job.held" | "job.resumed":
                return f"{self.name(job)}: {event.kind.removeprefix('job.')}{_because(data)}"
            case "job.done" | "job.failed" | "job.cancelled":
                return self._end(job, event.kind.removeprefix("job."), _because(data))
            case "job.waits":
                return f"{self.name(job)} waits: {str(data.get('reason')).removeprefix(f'{self.name(job)}: ')}"
            case "lease.expiring":
                return f"{self.name(job)}: the lease ends in {format_duration(data['left_s'])}, unless it is extended"
            case "lease.hot":
                return f"{self.name(job)}: its phone is too hot: {data.get('reason')}"
            case _:
                return ""

    def _step(self, job: str, step: str) -> str:
        if self._steps.get(job) == step:
            return ""
        self._steps[job] = step
        return f"{self.name(job)}: {step}"

    def _end(self, job: str, state: str, because: str) -> str:
        self._ended += 1
        self._failed += state != "done"
        if self._ends or state == "cancelled":
            line = f"{self.name(job)}: {state}{because}"
            return "" if line == self._last_ends.get(job) else line  # the end of its last attempt was its own
        whole = len(self._devices)
        if not self._many or self._ended * ENDED_LINES // whole == (self._ended - 1) * ENDED_LINES // whole:
            return ""
        return f"{self._ended} of {whole} jobs have ended" + (f", {self._failed} not well" if self._failed else "")


def _because(data: Mapping[str, Any]) -> str:
    error = data.get("error")
    reason = error.get("message") if isinstance(error, Mapping) else data.get("reason")
    return f": {reason}" if reason else ""
