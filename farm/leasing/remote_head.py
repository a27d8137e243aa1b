"""The head of a host whose head is a process of its own: messages and orders go through the database's mailboxes.

Leases, sessions and attempts continue without head and database: the host's messages wait until they can be written. A
lease is held once its host has written that (`arm`), so a host never holds a lease that a head has ended meanwhile.
Questions about the host's own phones, leases and requests are answered without the head.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from farm import __version__
from farm.common.errors import HostError
from farm.common.events import Event
from farm.common.tasks import BackgroundTasks, end_tasks
from farm.head import beats, wire
from farm.head.dispatcher import AttemptRunner
from farm.head.job_store import started_event
from farm.head.messages import (
    AttemptEnded,
    DeviceChanged,
    DeviceForgotten,
    DialBack,
    HeadMessage,
    HostBegan,
    HostDrained,
    HostLeft,
    HostMessage,
    LeaseArmed,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseHeld,
    LeaseRefused,
    LeaseRestored,
    LeaseUnwanted,
    OrderAnswer,
    RequestAdded,
    RequestWithdrawn,
    RunAttempt,
    Salvage,
    Salvaged,
    SessionBroken,
    SlotFreed,
    SlotKept,
    SlotWanted,
    ToHead,
    ToHost,
    YieldWanted,
)
from farm.head.queue.model import StopAttempt
from farm.head.reports import asked_for, summarise
from farm.head.request_queue import REFUSED_PAUSE_S
from farm.head.write_queue import LeaseWrite, LeaseWriteQueue
from farm.leasing.head_orders import RemoteOrders
from farm.model.device import DeviceState
from farm.model.job import Job
from farm.model.requests import LeaseRequest
from farm.model.sessions import FleetSummary
from farm.store.leases import LeaseTable
from farm.store.mailbox import HostRemovedError, Letter, Mailbox

NOT_STORED = "its host cannot store that it has it"
STOP_LIMIT_S = 5.0  # for salvaging, of a host that stops

log = logging.getLogger(__name__)


class RemoteHead(RemoteOrders):
    """Call `begin` first, then leasing may report; from `start` on, call `take` at each wake-up."""

    def __init__(
        self,
        host: str,
        epoch: int,
        mailbox: Mailbox,
        table: LeaseTable,
        writes: LeaseWriteQueue,
        wake: Callable[[str], None],
        expect: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare.

        Args:
            host: this host's name.
            epoch: the number of this host's start.
            mailbox: of the database.
            table: its leases.
            writes: of the host's leases.
            wake: wakes another host: there are letters.
            expect: called when the head is about to answer.
            clock: monotonic seconds.
            wall: the time to be stored.
        """
        super().__init__(f"order-{host}-{epoch}", lambda order: mailbox.send(self._letter(order)), clock)
        self._host = host
        self._mailbox = mailbox
        self._table = table
        self._writes = writes
        self._wake = wake
        self._expect = expect
        self._wall = wall
        self._deliver: Callable[[HeadMessage], None]  # from `connect` on
        self._runner: AttemptRunner  # from `start` on
        self._tasks = BackgroundTasks()
        self._states: dict[str, DeviceState] = {}
        self._held: dict[str, str] = {}  # device -> lease
        self._requests: dict[str, LeaseRequest] = {}  # of this host, without a lease
        self._slots: dict[str, str] = {}  # lease whose worker slot is kept -> its device
        self._arming: dict[str, tuple[str, list[ToHost]]] = {}  # lease -> its device, later messages
        self._drained = ""
        self.dial_back: Callable[[str, str], None] = lambda _host, _token: None  # another host wants to be dialled
        self._beating: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Report to the head that this host begins again, without requests. From now on it beats.

        Raises:
            StoreWriteError: the database cannot be written now.
        """
        await self._mailbox.begin(self._letter(HostBegan()), wire.PROTOCOL, __version__)
        self._beating = asyncio.create_task(self._beat(), name="beats of this host")

    async def start(self, runner: AttemptRunner) -> None:
        """See `Head.start`: the head apart decides how jobs continue."""
        self._runner = runner

    async def removed(self) -> None:
        """Wait until this host belongs to the lab no more.

        Raises:
            HostRemovedError: it was removed.
        """
        assert self._beating is not None
        await asyncio.shield(self._beating)

    async def take(self, within_s: float = 0.0) -> None:
        """Take the letters of the head, as soon as some come within this time, and act upon them.

        Raises:
            HostError: the database is away.
        """
        for letter in await self._mailbox.take(self._host, within_s):
            message = wire.to_host(letter.body, self._clock())
            if message is None:
                continue
            try:
                self._receive(message)
            except Exception:  # the further letters are taken out of the mailbox already
                log.exception("%s cannot be acted upon", type(message).__name__)

    async def stop(self) -> None:
        """Wait until results are salvaged, then report to the head that this host stops; it beats no more."""
        await self._tasks.end(STOP_LIMIT_S)
        if self._beating is None:
            return
        await end_tasks(self._beating)
        with contextlib.suppress(HostError):  # the head will miss its beats
            await self._mailbox.leave(self._letter(HostLeft()))

    # --- the host's side ------------------------------------------------------------------------------------------

    def connect(self, receive: Callable[[HeadMessage], None]) -> None:
        """See `Head.connect`."""
        self._deliver = receive

    def letter(self, message: ToHead) -> Letter | None:
        """The letter that is stored with the change."""
        return self._letter(message)

    def report(self, message: HostMessage | AttemptEnded) -> None:
        """Write a message that is not stored with its change; in order for each device and each request."""
        match message:
            case DeviceChanged(state):
                self._states[state.name] = state
                self._post(state.name, lambda: self._mailbox.device_changed(state.name, self._letter(message)))
            case DeviceForgotten(device):
                self._states.pop(device, None)
                self._post(device, lambda: self._mailbox.device_forgotten(device, self._letter(message)))
            case RequestAdded(request_id, request):
                asked = RequestAdded(request_id, replace(request, holder_host=self._host))
                self._requests[request_id] = request
                self._post(request_id, lambda: self._mailbox.request_added(request_id, self._letter(asked)))
            case RequestWithdrawn(request_id):
                if self._requests.pop(request_id, None) is not None:
                    self._post(request_id, lambda: self._mailbox.request_withdrawn(request_id, self._letter(message)))
            case LeaseRestored(lease):
                self._held[lease.device] = lease.id
                self._send(lease.device, message)
            case LeaseArmed() | LeaseExtended() | AttemptEnded():
                pass  # committed
            case LeaseEnded(device):
                self._held.pop(device, None)  # its letter is stored with the end, before this
                self._expect()
            case SlotKept(device, lease_id):
                self._slots[lease_id] = device
                self._keep_slot(device, lease_id, message, kept=True)
            case SlotFreed(lease_id):
                if (of := self._slots.pop(lease_id, None)) is not None:
                    self._keep_slot(of, lease_id, message, kept=False)
            case _:
                self._send(message.device, message)

    def arm(self, message: LeaseGranted, armed: Callable[[], None]) -> None:
        """Write that the host holds the device under the lease, then hold it."""
        lease, claim = message.lease, message.claim
        begun = None if claim is None else (claim.attempt, claim.job.attempts)
        letter = self._letter(LeaseArmed(lease.device, lease.id, "" if claim is None else claim.attempt.id))
        holder, to_holder = lease.request.holder_host, None
        if holder not in ("", self._host):
            held = LeaseHeld(message.request_id, lease, self._host)
            to_holder = Letter(holder, wire.encode(held, self._clock()))
        self._arming[lease.id] = lease.device, []

        def refuse(why: str) -> None:
            refused = LeaseRefused(lease.device, lease.id, why)
            self._tasks.spawn(self._refuse_after_pause(refused), f"refusal of {lease.id}")

        def done(held: bool) -> None:
            _, behind = self._arming.pop(lease.id)
            if not held:  # the head has ended it and knows that, or its job is another than the head knows
                if claim is not None:
                    refuse(f"it was ended, or {claim.job.id} was changed meanwhile")
                return
            self._requests.pop(message.request_id, None)
            self._held[lease.device] = lease.id
            if to_holder is not None:
                self._wake(holder)
            armed()
            if claim is not None:
                self._runner.receive(RunAttempt(claim.job, claim.attempt, lease))
            for each in behind:
                self._receive(each)

        def not_stored() -> None:
            del self._arming[lease.id]
            refuse(NOT_STORED)

        def write(events: Sequence[Event]) -> Awaitable[bool]:
            return self._table.arm(
                lease.id, self._wall(), message.request_id, letter, to_holder, begun=begun, events=events
            )

        event = None if claim is None else started_event(claim.attempt)
        self._writes.add(lease.device, LeaseWrite(write, event, done, not_stored))

    def send_to_host(self, host: str, message: LeaseUnwanted | SessionBroken | DialBack) -> None:
        """By a letter to that host."""
        letter = Letter(host, wire.encode(message, self._clock()))
        subject = f"dial back of {host}" if isinstance(message, DialBack) else message.lease
        self._post(subject, lambda: self._mailbox.send_to_hosts((letter,)), wakes=host)

    def close(self, reason: str) -> None:  # noqa: ARG002
        """Withdraw the requests of this host; a lease that is armed now ends at the next start."""
        for request_id in tuple(self._requests):
            self.report(RequestWithdrawn(request_id))

    # --- orders and questions that this host answers ---------------------------------------------------------------

    async def drain(self, reason: str) -> None:
        """See `Head.drain`."""
        await self._mailbox.drain(reason, self._letter(HostDrained(reason)))
        self._drained = reason

    async def waits(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Attempts of this host answer here. Why other jobs wait is unknown while no head answers."""
        here = await self._runner.waits(job_ids)
        if not (elsewhere := tuple(job_id for job_id in job_ids if job_id not in here)):
            return here
        return {**await self._reasons("waits", job_ids=elsewhere), **here}

    @property
    def waiting_here(self) -> int:
        """See `Head.waiting_here`."""
        return len(self._requests)

    @property
    def drained(self) -> str:
        """See `Head.drained`."""
        return self._drained

    def serves(self, key: str) -> bool:
        """Whether a phone of this host answers to this normalised key."""
        return any(key in state.aliases for state in self._states.values())

    def summary(self) -> FleetSummary:
        """The tracker's rows of this host's phones and requests; a drained host has no phones, as for other hosts."""
        pending = Counter(asked_for(each) for each in self._requests.values())
        return summarise(() if self._drained else self._states.values(), self._held, pending)

    def awaits(self, device: str) -> bool:
        """Whether a waiting request of this host means this device."""
        state = self._states.get(device)
        return state is not None and any(
            each.device == device or (not each.device and each.selector.matches(state.labels, state.aliases))
            for each in self._requests.values()
        )

    # --- what happens ---------------------------------------------------------------------------------------------

    def _receive(self, message: ToHost) -> None:
        if (behind := self._behind(message)) is not None:
            behind.append(message)
            return
        match message:
            case StopAttempt():
                self._runner.receive(message)
            case Salvage(job):
                self._tasks.spawn(self._salvage(job), f"salvage {job.id}")
            case OrderAnswer():
                self._answered(message)
            case DialBack(host, token):
                self.dial_back(host, token)
            case LeaseHeld(request_id):
                self._requests.pop(request_id, None)
                self._deliver(message)
            case _:
                self._deliver(message)

    def _behind(self, message: ToHost) -> list[ToHost] | None:
        """The queue of messages about a lease that is being armed; None: this message is about no such lease."""
        match message:
            case LeaseUnwanted(lease) | SlotWanted(lease):
                arming = self._arming.get(lease)
            case YieldWanted(device):
                arming = next((each for each in self._arming.values() if each[0] == device), None)
            case _:
                arming = None
        return None if arming is None else arming[1]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(beats.BEAT_EVERY_S)
            try:
                await self._mailbox.beat(self._host, wire.PROTOCOL)
            except HostRemovedError:
                raise
            except HostError as error:  # the writer reports it
                log.debug("no beat: %s", error.message)
            except Exception:
                log.exception("no beat")

    async def _refuse_after_pause(self, refused: LeaseRefused) -> None:
        """Pause before the head grants again, so that a bug cannot spin."""
        await asyncio.sleep(REFUSED_PAUSE_S)
        self._send(refused.device, refused)

    async def _salvage(self, job: Job) -> None:
        await self._runner.salvage(job)
        self._send(f"attempt of {job.id}", Salvaged(job.id))

    def _keep_slot(self, device: str, lease_id: str, message: HostMessage, *, kept: bool) -> None:
        self._post(device, lambda: self._table.keep_slot(lease_id, kept=kept, letter=self._letter(message)))

    def _send(self, subject: str, message: ToHead) -> asyncio.Future[None]:
        return self._post(subject, lambda: self._mailbox.send(self._letter(message)))

    def _post(self, subject: str, write: Callable[[], Awaitable[object]], wakes: str = "") -> asyncio.Future[None]:
        """Write a letter after the earlier ones about its subject; `wakes`: the other host that is then to read it."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: object = None) -> None:
            if wakes:
                self._wake(wakes)
            if not over.done():
                over.set_result(None)

        self._writes.add(subject, LeaseWrite(lambda _: write(), None, done, done))
        return over

    def _letter(self, message: ToHead) -> Letter:
        return Letter(self._host, wire.encode(message, self._clock()))
