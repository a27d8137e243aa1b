"""Series of results that stop: which are reported, with what reason, and which never."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from farm.common.events import EventLog
from farm.daemon.stopped_results import StoppedResults
from farm.model.device import Life, Service
from farm.model.job import Job, JobState
from farm.store.leases import ReservationRecord
from tests.support.web_rows import view

START = datetime(2026, 11, 2, 2, 0, tzinfo=UTC)
NIGHTS = 14


class NightlyBench:
    """A store with a result each night, and the watch over it."""

    def __init__(self):
        self.now = START
        self.results = []
        self.jobs_ = []
        self.view = view()
        self.reserved, self.drained, self.events = [], "", []
        log = EventLog()
        log.subscribe(self.events.append)
        store = SimpleNamespace(problem="", measurements=self, jobs=self, now=lambda: self.now)
        self.watch = StoppedResults(store, log, self.views, self)

    async def in_thread(self, read, *args, **kwargs):
        return read(*args, **kwargs)

    def views(self):
        return [self.view] if self.view else []

    async def reservations(self):
        return self.reserved

    def times(self, after):
        return [each for each in reversed(self.results) if each[0] > after]

    def page(self, kind, limit):
        return [job for job in reversed(self.jobs_) if job.kind == kind][:limit]

    async def nights(self, count, *, results=True):
        for _ in range(count):
            if results:
                seq = len(self.results) + 1
                self.results.append((seq, f"bench-{seq}", "net", "pixel", self.now))
            for _ in range(4):
                self.now += timedelta(hours=6)
                await self.watch.look()

    @property
    def kinds(self):
        return [event.kind for event in self.events]


@pytest.fixture
async def farm():
    found = NightlyBench()
    await found.nights(NIGHTS)
    assert found.kinds == []
    return found


async def test_a_series_that_stops_is_reported_within_a_period_and_ends_with_the_next_result(farm):
    await farm.nights(1, results=False)
    (event,) = farm.events
    assert (event.kind, event.subject, event.data["device"], event.data["job"]) == (
        "results.stopped", "net", "pixel", "bench-14",
    )  # fmt: skip
    (problem,) = farm.watch.problems()
    assert problem.startswith("results stopped: net on pixel had a result every 1d, the last by bench-14: no job of ")
    assert farm.watch.ages_s() == {("net", "pixel", "bench-14"): 2 * 86400.0}
    await farm.nights(1)
    assert farm.kinds == ["results.stopped", "results.resumed"]
    assert farm.watch.problems() == []


async def test_the_reason_is_the_phones_state_or_the_newest_job(farm):
    job = Job("bench-15", "bench", "ci", {"name": "net"}, "android", farm.now, JobState.FAILED)
    farm.jobs_ = [replace(job, error={"message": "the model is gone"})]
    await farm.nights(1, results=False)
    assert farm.watch.problems()[0].endswith("bench-15 is failed, the model is gone")
    await farm.nights(1)
    farm.view = replace(farm.view, life=Life.QUARANTINED, reason="it is swollen")
    await farm.nights(2, results=False)
    assert farm.watch.problems()[0].endswith("pixel is quarantined, it is swollen")


@pytest.mark.parametrize("service", [Service.DRAINING, Service.MAINTENANCE])
async def test_a_phone_that_is_not_in_service_is_never_an_alert(farm, service):
    whole = farm.view
    farm.view = replace(whole, service=service)
    await farm.nights(5, results=False)
    farm.view = whole
    await farm.nights(1)
    assert farm.kinds == []


async def test_a_removed_or_reserved_phone_and_a_drained_farm_are_never_an_alert(farm):
    whole, farm.view = farm.view, None
    await farm.nights(3, results=False)
    farm.view = whole
    farm.reserved = [ReservationRecord("r", "device=pixel", "ann", START, farm.now + timedelta(days=3))]
    farm.view = replace(whole, labels={**whole.labels, "device": "pixel"})
    await farm.nights(3, results=False)
    farm.drained = "an operator"
    await farm.nights(3, results=False)
    farm.drained = ""
    await farm.nights(1)
    assert farm.kinds == []
