"""What a watcher of jobs is told, and how much of a long history is read for it."""

import asyncio
from contextlib import aclosing

import pytest

from farm.common import events as core_events
from farm.common.events import EventLog
from farm.control.verbs import job_views
from farm.control.verbs.job_views import JobStreams
from farm.jobs.logs import AttemptLogs
from farm.model.job import JobState
from farm.store.event_history import EventHistory
from farm.store.store import Store
from tests.support.waiting import HANG_S
from tests.unit.store.values import attempt, begin, ended, job, over

KEPT = 8  # events in memory


@pytest.fixture
def farm(tmp_path, monkeypatch):
    monkeypatch.setattr(core_events, "KEPT_EVENTS", KEPT)
    farm = Farm(tmp_path, monkeypatch)
    yield farm
    farm.store.close()


async def nothing_lives(_):
    return False


class Farm:
    """A store, its events of which few are in memory, and streams; `asked` are the reads of whole history."""

    def __init__(self, path, monkeypatch):
        self.store = Store.open(path / "farm.db")
        self.log = EventLog(self.store.epoch)
        self.history = EventHistory(self.log, self.store.events)
        self.logs = AttemptLogs(path / "logs")
        self.streams = JobStreams(self.store, self.history, self.logs.open, nothing_lives)
        self.asked = []
        since = self.store.events.since
        monkeypatch.setattr(self.store.events, "since", lambda *asked: self.asked.append(asked) or since(*asked))

    async def submit(self, name):
        with self.log.drafted(("job.submitted", name, {})) as drafts:
            await self.store.jobs.add((job(name),), events=drafts)

    async def begin(self, name, fence):
        begun = attempt(fence, name, device=f"d{fence}")
        await begin(self.store, begun)
        self.log.publish("lease.granted", begun.lease, job=name)
        self.log.publish("attempt.started", begun.id, job=name)
        return begun

    async def end(self, begun, state=JobState.DONE):
        becomes = ended(self.store.jobs.get(begun.job), state)
        told = (("attempt.ended", begun.id, {"job": begun.job}), (f"job.{state}", begun.job, {}))
        with self.log.drafted(*told) as drafts:
            assert await self.store.jobs.finish(over(begun), becomes, events=drafts)

    def much_else(self, events=3 * KEPT):
        for number in range(events):
            self.log.publish("device.ready", f"phone{number}")

    async def watch(self, *jobs, since=0):
        async with asyncio.timeout(HANG_S), aclosing(self.streams.events(jobs, since)) as told:
            return [event async for event in told]


WHOLE = ["job.submitted", "lease.granted", "attempt.started", "attempt.ended", "job.done"]


def kinds(events):
    return [event.kind for event in events]


async def test_of_jobs_that_ended_long_ago_nothing_else_is_read(farm):
    for fence, name in enumerate(("j1", "j2"), 1):
        await farm.submit(name)
        farm.much_else()
        await farm.end(await farm.begin(name, fence))
    farm.much_else()
    told = await farm.watch("j1")
    assert kinds(told) == WHOLE
    assert kinds(await farm.watch("j1", "j2")) == WHOLE * 2
    assert kinds(await farm.watch("j1", since=told[2].seq)) == WHOLE[3:]
    assert await farm.watch("j1", since=told[-1].seq) == []
    assert await farm.watch("nobody") == []
    assert farm.asked == []


@pytest.mark.parametrize("by_subject", [0, 5000])
async def test_a_job_is_watched_to_its_end_however_much_else_happens(farm, monkeypatch, by_subject):
    monkeypatch.setattr(job_views, "MAX_BY_SUBJECT", by_subject)
    for name in ("j1", "j2"):
        await farm.submit(name)
    first = await farm.begin("j1", 1)
    farm.much_else()
    watching = asyncio.create_task(farm.watch("j1", "j2"))
    await farm.end(first)
    farm.much_else()
    second = await farm.begin("j2", 2)
    farm.much_else()
    farm.log.publish("job.progress", "j2", step="run")
    await farm.end(second)
    told = await watching
    assert kinds([event for event in told if "j1" in (event.subject, event.data.get("job"))]) == WHOLE
    rest = [event for event in told if "j2" in (event.subject, event.data.get("job"))]
    assert kinds(rest) == [*WHOLE[:3], "job.progress", *WHOLE[3:]]
    assert [event.seq for event in told] == sorted({event.seq for event in told})


async def test_a_number_from_nowhere_waits_for_the_end_all_the_same(farm):
    await farm.submit("j1")
    watching = asyncio.create_task(farm.watch("j1", since=1 << 60))
    await farm.end(await farm.begin("j1", 1))
    assert kinds(await watching)[-1] == "job.done"


async def test_a_log_without_some_of_its_lines_ends_with_saying_so(farm, tmp_path):
    await farm.submit("j1")
    begun = await farm.begin("j1", 1)
    farm.logs.store(begun, "seen")
    log = tmp_path / "logs" / "j1" / "1.jsonl"
    log.rename(tmp_path / "kept")
    log.mkdir()
    farm.logs.store(begun, "gone")
    log.rmdir()
    (tmp_path / "kept").rename(log)
    await farm.end(begun)
    async with asyncio.timeout(HANG_S), aclosing(farm.streams.log("j1", None, 0, follow=True)) as pages:
        told = [line.text async for _, page in pages for line in page.lines]
    assert told == ["seen", "output is missing here: Is a directory; its end: farm job show j1"]
