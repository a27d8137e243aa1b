"""A dispatcher over a real store, with leasing, phones and executors played by the test."""

import asyncio
import math
from contextlib import asynccontextmanager
from functools import partial

from farm.common.events import EventLog
from farm.common.tasks import BackgroundTasks
from farm.head.config import UserConfig
from farm.head.dispatcher import Dispatcher
from farm.head.job_store import undecided_ends
from farm.head.local import LocalHead
from farm.head.queue.model import Phase
from farm.jobs.attempt_run import AttemptContextFactory
from farm.jobs.attempts import Attempts
from farm.kinds import KINDS
from farm.kinds.run import RunSpec
from farm.store.store import Store
from tests.support.waiting import HANG_S, until
from tests.unit.jobs.fakes import FakeDevices, FakeExecutor, FakeLeases

AN_ANSWER = partial(RunSpec, model="0" * 64, name="a.onnx")  # any work that is done again after an interruption


class Farm:
    """One daemon's share of jobs; `again` is the next daemon over the same store."""

    def __init__(self, path, *names, quota=None, **options):
        self.path = path
        self.store = Store.open(path)
        self.events = EventLog(self.store.epoch)
        self.told = []
        self.events.subscribe(self.told.append)
        self.devices = FakeDevices(*names)
        self.leases = FakeLeases(self.store, self.devices, fence=self.store.epoch << 32)
        self.executor = FakeExecutor()
        self.log = []
        self.gate_gone_at = -math.inf
        self.tasks = BackgroundTasks()
        self.dispatcher = Dispatcher(
            store=self.store,
            events=self.events,
            requests=self.leases,
            tasks=self.tasks,
            kinds=KINDS,
            quota_of=lambda _: quota or UserConfig(),
            **options,
        )
        self.head = self.leases.head = LocalHead(self.leases, self.dispatcher, None)
        self.attempts = Attempts(
            store=self.store,
            events=self.events,
            leases=self.leases,
            executors={"run": self.executor, "shell": self.executor, "lease": self.executor, "tune": self.executor},
            contexts=AttemptContextFactory(
                kinds=KINDS,
                jobs=self.store.jobs,
                events=self.events,
                store_log=lambda attempt, text, level="info", source="farm": self.log.append(
                    (attempt, text, level, source)
                ),
                leases=self.leases,
                devices=self.devices,
                gate_gone_at=lambda: self.gate_gone_at,
            ),
            head=self.head,
            tasks=self.tasks,
            **options,
        )

    async def start(self):
        await self.attempts.recover()
        await self.attempts.finish_leftovers()
        await self.head.start(self.attempts)
        self.attempts.begin()
        await self.decided()

    async def stop(self):
        self.head.stop_jobs()
        await self.attempts.stop()

    async def submit(self, on="android", user="alice", *, key="", must_match=False, kind=AN_ANSWER, **fields):
        spec = kind(on=on, **fields)
        return await self.dispatcher.submit(spec, user, key=key, must_match=must_match)

    async def one(self, **fields):
        (job,) = (await self.submit(**fields)).ids
        return job

    async def tried(self, result, **fields):
        """A job whose first attempt ended so."""
        job_id = await self.one(**fields)
        await self.started()
        await self.ends(job_id, result)
        return self.job(job_id)

    async def waits(self, job_id):
        return (await self.head.waits([job_id]))[job_id]

    async def started(self):
        async with asyncio.timeout(HANG_S):
            return await self.executor.started.get()

    async def until(self, kind, subject=""):
        """The first event of that kind (and subject) not looked at yet."""
        async with asyncio.timeout(HANG_S):
            while True:
                for event in self.told:
                    if event.kind == kind and subject in ("", event.subject):
                        self.told.remove(event)
                        return event
                await asyncio.sleep(0.001)

    async def ends(self, job_id, result):
        self.executor.end(job_id, result)
        await self.until("attempt.ended")
        await self.decided()

    async def decided(self):
        """Wait until the head has decided what follows each end of an attempt."""
        queue, jobs = self.dispatcher._queue, self.store.jobs
        await until(lambda: not undecided_ends(jobs, jobs.live()))
        await until(lambda: Phase.SAVING not in {queue.phase(job.id) for job in queue.jobs()})

    def job(self, job_id):
        return self.store.jobs.get(job_id)

    def crash(self):
        """kill -9: nobody is told anything."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self.store.close()


@asynccontextmanager
async def running(path, *names, **options):
    farm = Farm(path, *names, **options)
    await farm.start()
    try:
        yield farm
    finally:
        await farm.stop()
        farm.store.close()


@asynccontextmanager
async def killed(path, *names):
    """A farm that is killed at the end of the block; what runs over its store afterwards is the next daemon."""
    farm = Farm(path, *names)
    await farm.start()
    yield farm
    farm.crash()
