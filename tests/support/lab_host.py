"""A host of a lab by its letters alone: it arms what it is granted, and ends jobs' attempts at once or when told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from datetime import UTC, datetime

from farm.common.errors import HostError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head import beats, wire
from farm.head import messages as m
from farm.head.job_store import started_event
from farm.head.queue.model import StopAttempt
from farm.head.queue.retry import succeeded
from farm.model.device import DeviceState, Life
from farm.model.identity import DeviceIdentity
from farm.model.job import Attempt, AttemptState, Job
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.store.mailbox import Letter, WakeUpListener
from farm.store.server_opening import StoreRole
from farm.store.store import Store


class LabHost:
    """One host with these devices. `begin` it; it acts upon letters until `close`."""

    def __init__(self, url: str, name: str, *devices: str, store: Store | None = None) -> None:
        """`store`: shared with other hosts and closed by its owner; None: its own."""
        self.name = name
        self._owns_store = store is None
        self.store = store or Store.open(url, name, role=StoreRole.HOST)
        self.devices = devices
        self.events = EventLog(self.store.epoch)
        self.held: dict[str, Lease] = {}  # by device
        self.armed: list[Lease] = []  # every lease, in order
        self.ran: list[str] = []  # attempts
        self.beat_s = beats.BEAT_EVERY_S
        self.protocol = wire.PROTOCOL
        self.beaten = self.beaten_in_vain = 0
        self.reaches = asyncio.Event()  # the database; while it is not set, the host is cut off
        self.reaches.set()
        self.busy = False  # attempts end when they are told
        self.too_late: list[str] = []  # attempts that had been ended when they ended
        self.answers: asyncio.Queue[m.OrderAnswer] = asyncio.Queue()
        self._asked = 0
        self._granted: dict[str, asyncio.Future[Lease]] = {}
        self._attempts: dict[str, tuple[Job, Attempt, Lease]] = {}  # by job
        self._over: dict[str, asyncio.Event] = {}  # by job
        self._stopped: dict[str, StopAttempt] = {}  # by job; other attempts succeed
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, *, reads: bool = True) -> None:
        self.listener = WakeUpListener(self.store.database, self.name)
        await self.store.mailbox.begin(self.letter(m.HostBegan()), self.protocol)
        for name in self.devices:
            await self.report(name)
        self._spawn(self._beat())
        if reads:
            self.read_letters()

    def read_letters(self) -> None:
        self._spawn(self._run())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.listener.close()
        if self._owns_store:
            await asyncio.to_thread(self.store.close)

    def letter(self, message: m.ToHead) -> Letter:
        return Letter(self.name, wire.encode(message, time.monotonic()))

    async def report(self, name: str, life: Life = Life.READY, identity: DeviceIdentity | None = None) -> None:
        state = DeviceState(
            name, name, life, adopted=True, identity=identity, labels={"soc": "sm8550"}, aliases=(name,)
        )
        await self.store.mailbox.device_changed(name, self.letter(m.DeviceChanged(state)))

    async def ask(self, selector: str = "soc=sm8550") -> asyncio.Future[Lease]:
        """Ask for a device; the answer is the armed lease."""
        self._asked += 1
        request_id = f"request-{self.store.epoch}-{self._asked}"
        granted = self._granted[request_id] = asyncio.get_running_loop().create_future()
        added = m.RequestAdded(request_id, LeaseRequest(Selector.parse(selector), "ann", LeaseSource.TVM))
        await self.store.mailbox.request_added(request_id, self.letter(added))
        return granted

    async def drain(self, reason: str) -> None:
        await self.store.mailbox.drain(reason, self.letter(m.HostDrained(reason)))

    async def give_back(self, lease: Lease) -> None:
        if self.held.pop(lease.device, None) is None:  # its head did not want it any more
            return
        ended = self.letter(m.LeaseEnded(lease.device, lease.id))
        now = datetime.now(UTC)
        assert await self.store.leases.end(lease.id, ended_at=now, reason="given back", held_s=0.0, letter=ended)
        self.listener.expect()

    def end_attempts(self) -> None:
        for over in self._over.values():
            over.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.beat_s)
            await self.reaches.wait()
            try:
                await self.store.mailbox.beat(self.name, self.protocol)
                self.beaten += 1
            except HostError:
                self.beaten_in_vain += 1

    async def _run(self) -> None:
        within_s = 0.0
        while True:
            await self.reaches.wait()
            with contextlib.suppress(HostError):
                await self._read(within_s)
            within_s = await self.listener.wait()

    async def _read(self, within_s: float) -> None:
        for letter in await self.store.mailbox.take(self.name, within_s):
            await self._receive(wire.to_host(letter.body, time.monotonic()))

    async def _receive(self, message: m.ToHost | None) -> None:
        match message:
            case m.LeaseGranted():
                await self._arm(message)
            case m.LeaseUnwanted(lease_id):
                for lease in [each for each in self.held.values() if each.id == lease_id]:
                    await self.give_back(lease)
            case StopAttempt(job_id) if job_id in self._over:
                self._stopped[job_id] = message
                self._over[job_id].set()
            case m.OrderAnswer():
                self.answers.put_nowait(message)

    def run(self, job: Job, attempt: Attempt, lease: Lease) -> None:
        """Run an attempt until it is told to end, or end it at once."""
        self.ran.append(attempt.id)
        self._attempts[job.id] = job, attempt, lease
        over = self._over[job.id] = asyncio.Event()
        self._stopped.pop(job.id, None)
        if not self.busy:
            over.set()
        self._spawn(self._end(job.id))

    async def _arm(self, message: m.LeaseGranted) -> None:
        lease, claim = message.lease, message.claim
        if lease.device in self.held:
            refused = self.letter(m.LeaseRefused(lease.device, lease.id, "it is held"))
            await self.store.mailbox.send(refused)
            return
        armed = self.letter(m.LeaseArmed(lease.device, lease.id, claim.attempt.id if claim else ""))
        begun = (claim.attempt, claim.job.attempts) if claim else None
        with self.events.drafted(*((started_event(claim.attempt),) if claim else ())) as drafts:
            held = await self.store.leases.arm(
                lease.id, datetime.now(UTC), message.request_id, armed, begun=begun, events=drafts
            )
        if not held:
            return
        self.held[lease.device] = lease
        self.armed.append(lease)
        if (asked := self._granted.pop(message.request_id, None)) is not None:
            asked.set_result(lease)
        if claim is not None:
            self.run(claim.job, claim.attempt, lease)

    async def _end(self, job_id: str) -> None:
        job, attempt, lease = self._attempts.pop(job_id)
        await self._over[job_id].wait()
        await self.reaches.wait()
        now, result = datetime.now(UTC), {"done": self.name}
        ended, done = replace(attempt, state=AttemptState.DONE, ended_at=now), succeeded(job, now)
        if (stop := self._stopped.pop(job_id, None)) is not None:
            ended, done, result = replace(ended, state=stop.state, error=stop.error), None, None
        letter = self.letter(m.AttemptEnded(ended))
        if not await self.store.jobs.finish(ended, done, result=result, letter=letter):
            self.too_late.append(attempt.id)
        await self.give_back(lease)

    def _spawn(self, work) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()
