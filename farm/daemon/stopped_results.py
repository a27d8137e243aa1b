"""Series of results that came with a rhythm and stopped: a problem in `farm status`, an event and a metric."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from farm.common.durations import format_duration
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head.head import Head
from farm.model.device import DeviceView, Life, Service
from farm.model.job import MEASURING_KINDS
from farm.results.silence_rules import MAX_GAPS, rhythm
from farm.store.store import Store

LOOK_EVERY_S = 60.0
MAX_SHOWN = 20  # series in metrics and problems
MAX_JOBS = 200  # the newest, in which the reason is looked for
SeriesName = tuple[str, str]  # a model's name, a device


@dataclass(frozen=True, slots=True)
class StoppedSeries:
    """A series whose next result is late."""

    model: str
    device: str
    job: str  # the last one
    last_at_s: float
    period_s: float
    reason: str  # "" if farm knows none

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        rate = f"{self.model} on {self.device} had a result every {format_duration(self.period_s)}"
        return f"results stopped: {rate}, the last by {self.job}{why}"


@dataclass(slots=True)
class _Series:
    at_s: deque[float] = field(default_factory=lambda: deque(maxlen=2 * MAX_GAPS))
    job: str = ""
    excused_at_s: float = 0.0  # last time its phone was drained, reserved or away, seconds since 1970


class StoppedResults:
    """Follows the results of this host's phones, and reports series that stop.

    A series is a model's name on a phone: its file, epoch and build may change. While the phone is not in service or
    reserved, or farm is drained, no result is due; time until the end of that does not count.
    """

    def __init__(
        self,
        store: Store,
        events: EventLog,
        views: Callable[[], Sequence[DeviceView]],
        head: Head,
    ) -> None:
        self._store, self._events, self._views, self._head = store, events, views, head
        self._series: dict[SeriesName, _Series] = {}
        self._newest = 0  # measurement that was read
        self.stopped: Mapping[SeriesName, StoppedSeries] = {}

    async def run(self) -> None:
        """Look once a minute, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def problems(self) -> list[str]:
        """One line for each series that stopped."""
        return [str(each) for each in list(self.stopped.values())[:MAX_SHOWN]]

    def ages_s(self) -> Mapping[tuple[str, str, str], float]:
        """Since the last result of each series that stopped, by model, device and that result's job."""
        now_s = self._store.now().timestamp()
        shown = list(self.stopped.values())[:MAX_SHOWN]
        return {(each.model, each.device, each.job): now_s - each.last_at_s for each in shown}

    async def look(self) -> None:
        """Read new results, and report the series that stopped or have results again."""
        if self._store.problem:
            return
        measurements = self._store.measurements
        for seq, job, name, device, at in reversed(await measurements.in_thread(measurements.times, self._newest)):
            series = self._series.setdefault((name, device), _Series())
            series.at_s.append(at.timestamp())
            series.job, self._newest = job, max(seq, self._newest)
        now = self._store.now()
        reserved = [each for each in await self._head.reservations() if each.starts_at <= now < each.ends_at]
        selectors = [Selector.parse(each.selector) for each in reserved]
        views = {view.name: view for view in self._views() if view.adopted}
        found: dict[SeriesName, StoppedSeries] = {}
        for key, series in self._series.items():
            view = views.get(key[1])
            if (
                view is None
                or view.service is not Service.IN
                or self._head.drained
                or any(each.matches(view.labels, view.aliases) for each in selectors)
            ):
                series.excused_at_s = now.timestamp()
            elif (period_s := _late(series, now.timestamp())) is not None:
                known = self.stopped.get(key)
                reason = known.reason if known else await self._reason(key, series, view)
                found[key] = StoppedSeries(*key, series.job, series.at_s[-1], period_s, reason)
        self._report(found)

    def _report(self, found: Mapping[SeriesName, StoppedSeries]) -> None:
        for name in found.keys() - self.stopped.keys():
            each = found[name]
            self._events.publish(
                "results.stopped", each.model, device=each.device, job=each.job, reason=each.reason,
                period_s=round(each.period_s),
            )  # fmt: skip
        for name in self.stopped.keys() - found.keys():
            self._events.publish("results.resumed", name[0], device=name[1], job=self._series[name].job)
        self.stopped = found

    async def _reason(self, name: SeriesName, series: _Series, view: DeviceView) -> str:
        """Why no result came, as far as farm knows: the phone's state, or the newest job of that name."""
        if view.life is not Life.READY:
            return f"{view.name} is {view.life.value}" + (f", {view.reason}" if view.reason else "")
        since = datetime.fromtimestamp(series.at_s[-1], self._store.now().tzinfo)
        for kind in MEASURING_KINDS:
            for job in await self._store.jobs.in_thread(self._store.jobs.page, kind=kind, limit=MAX_JOBS):
                if job.submitted_at > since and job.spec.get("name") == name[0] and job.device in ("", name[1]):
                    why = f", {job.error.get('message')}" if job.error else ""
                    return f"{job.id} is {job.state.value}{why}"
        return "no job of that name was submitted since"


def _late(series: _Series, now_s: float) -> float | None:
    """The series' period if its next result is late; None: it is not."""
    found = rhythm(list(series.at_s))
    if found is None:
        return None
    excused_for_s = max(series.excused_at_s - series.at_s[-1], 0.0)
    late_at_s, over_at_s = found.late_at_s + excused_for_s, found.over_at_s + excused_for_s
    return found.period_s if late_at_s <= now_s < over_at_s else None
