"""A head in a process of its own: it waits for the end of the present term, takes the next, and decides.

Of several such processes one has the term. Each transaction of the head holds it, so a process that was stopped and
continues later writes nothing. The database has all knowledge of a head: one that loses the term drops its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

from farm.common.errors import HostError
from farm.common.events import Event, EventLog
from farm.common.systemd import Notifier, ProgressCheck, Watchdog
from farm.common.tasks import BackgroundTasks, Begin, LastingTasks, at_most, end_tasks
from farm.head import wire
from farm.head.host_watch import HostWatch
from farm.head.hosts import Hosts, WithheldFor
from farm.head.local import LocalHead, read_clock
from farm.head.messages import (
    AttemptEnded,
    DeviceChanged,
    HostBegan,
    HostDrained,
    HostLeft,
    LeaseEnded,
    LeaseRestored,
    Order,
    Salvaged,
    SlotFreed,
    ToHead,
)
from farm.head.model import LeasePolicy
from farm.head.orders import perform
from farm.head.reservations import ClockWatch
from farm.head.takeover import Takeover
from farm.head.write_queue import LeaseWriteQueue
from farm.model.device import Life
from farm.model.sessions import STOPPING
from farm.model.specs import Kinds
from farm.store.event_history import EventHistory
from farm.store.mailbox import NOTHING, Letter, WakeUps
from farm.store.retention import Retention
from farm.store.server_opening import LOOK_AGAIN_S, DatabaseAwayError, Standby, StoreRole, TermHeldError
from farm.store.store import Store

TRY_AGAIN_S = 1.0  # after an error of the database
POLL_EVERY_S = 0.003  # the mailbox, while letters come
IDLE_POLL_EVERY_S = 0.03  # an idle head takes 1 to 2 % of a core
BUSY_S = 1.0  # letters come, this long after the latest
POLL_FOR_S = 0.25  # in one call, in a thread: the end of a term waits for it
END_LIMIT_S = 5.0  # for writes of a head that stops
WAITING = "waits for the term of the head before it"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The configuration of a head."""

    policy: LeasePolicy  # the limits of users
    keep_days: float  # see `Retention`, as the next two
    max_mb: float
    audit_days: float


class HeadProcess:
    """One `farm head`."""

    def __init__(self, url: str, settings: HeadSettings, kinds: Kinds, notifier: Notifier | None = None) -> None:
        """Prepare.

        Args:
            url: of the lab's database.
            settings: those that hold until `use`.
            kinds: of jobs.
            notifier: of the service manager.
        """
        self._url = url
        self._settings = settings
        self._kinds = kinds
        self._notifier = notifier or Notifier()
        self._retention: Retention | None = None  # of `term`
        self.status = WAITING  # one line for `systemctl status`
        self.checks: list[ProgressCheck] = []  # of the head that decides
        self.term: HeadTerm | None = None  # the one in which it decides; None: it waits
        self.on_event: Callable[[Event], None] = lambda _: None  # for events of its terms
        self.on_term: Callable[[Store], Awaitable[None]] | None = None  # before it decides: `use` may be called

    def use(self, settings: HeadSettings) -> None:
        """Decide by these settings from now on; leases and jobs continue as they are."""
        self._settings = settings
        if self.term is not None and self._retention is not None:
            self.term.head.use(settings.policy)
            self._retention.use(settings.keep_days, settings.max_mb, settings.audit_days)

    async def run(self, stop: asyncio.Event) -> None:
        """Wait, decide, wait again, until `stop`.

        Raises:
            HostError: the database is there at the start, and cannot be used.
        """
        with contextlib.closing(Standby(self._url)) as standby:
            with contextlib.suppress(DatabaseAwayError):  # it is waited for
                if await asyncio.to_thread(standby.rest_s) > 0:
                    log.info("this head %s", WAITING)
            self._notifier.ready(self.status)
            watchdog = asyncio.create_task(Watchdog(self._notifier, self.checks, lambda: self.status).run())
            while (store := await self._elected(standby, stop)) is not None:
                try:
                    await self._decide(store, stop)
                except HostError as error:
                    log.warning("this head decides no more: %s", error.message)
                finally:
                    self.checks.clear()
                    self.status, self.term = WAITING, None
                    await asyncio.to_thread(store.close)
            watchdog.cancel()
        self._notifier.stopping()

    async def _elected(self, standby: Standby, stop: asyncio.Event) -> Store | None:
        """The database, with a new term; None: `stop` came first."""
        problem = ""
        while not stop.is_set():
            try:
                wait_s = await asyncio.to_thread(standby.rest_s)
                problem, self.status = "", WAITING
                if wait_s <= 0:
                    return await asyncio.to_thread(
                        Store.open, self._url, role=StoreRole.HEAD, protocols=wire.UNDERSTOOD
                    )
            except TermHeldError:
                wait_s = LOOK_AGAIN_S
            except HostError as error:
                if error.message != problem:
                    log.warning("%s", error.message)
                problem, wait_s = error.message, TRY_AGAIN_S
                self.status = f"waits for its database: {problem}"
            async with at_most(min(max(wait_s, 0.0), LOOK_AGAIN_S)):
                await stop.wait()
        return None

    async def _decide(self, store: Store, stop: asyncio.Event) -> None:
        """Be the head until `stop`, or until the term is lost (HostError)."""
        async with AsyncExitStack() as stack:
            if self.on_term is not None:
                await self.on_term(store)
            term = HeadTerm(store, self._kinds, stack)
            term.events.subscribe(self.on_event)
            settings = self._settings
            await term.take_over(settings.policy)
            self._retention = Retention(
                store.database, keep_days=settings.keep_days, max_mb=settings.max_mb, audit_days=settings.audit_days
            )
            self.term = term
            if settings is not self._settings:  # reloaded meanwhile
                self.use(self._settings)
            log.info("this head decides, in term %d", store.epoch)
            self.status = f"decides, in term {store.epoch}"
            self.checks += term.checks()
            assert store.term is not None
            # All that may end the term; the tasks continue, whatever the database does.
            ends = [
                asyncio.create_task(each) for each in (stop.wait(), store.term.lost(), store.database.writer.lost())
            ]
            lasting, tasks = LastingTasks(), {"retention": self._retention.run, **term.tasks()}
            running = [lasting.start(name, begin) for name, begin in tasks.items()]
            try:
                done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await end_tasks(*ends, *running)


class HeadTerm:
    """The parts of a head during one term, with its letters to and from hosts."""

    def __init__(self, store: Store, kinds: Kinds, stack: AsyncExitStack) -> None:
        """Prepare; `stack` ends it. Call it on the event loop."""
        self.store = store
        self._kinds = kinds
        self._stack = stack
        self.events = EventLog(store.epoch, store.now)
        self._history = EventHistory(self.events, store.events)
        stack.push_async_callback(self._history.close)
        self._wake_ups = WakeUps(store.database)
        stack.push_async_callback(self._wake_ups.close)
        self._hosts = Hosts(store, self._wake_ups.wake, time.monotonic)
        stack.push_async_callback(self._hosts.flush)
        self.events.host_of = lambda data: self._hosts.host_of(str(data.get("device", "")))
        self._tasks = BackgroundTasks()
        self.head: LocalHead  # from `take_over` on
        self._watch: HostWatch

    async def take_over(self, policy: LeasePolicy) -> None:
        """Read the state of the lab, and begin to decide.

        Raises:
            HostError: the database is away, or another head has taken over.
        """
        stack, writes, tasks = self._stack, LeaseWriteQueue(self.events), self._tasks
        stack.push_async_callback(writes.flush)
        head = self.head = await LocalHead.open(self.store, self.events, writes, policy, self._kinds, tasks)
        head.requests.connect(self._hosts.receive, self._hosts.letter, self._hosts.grant_undone)
        self._hosts.decide = head.requests.receive
        clock = partial(read_clock, self.store)
        self._watch = HostWatch(self.store, self.events, self._kinds, head, self._hosts, clock)
        stack.push_async_callback(tasks.end, END_LIMIT_S)
        stack.callback(head.stop_jobs)
        stack.callback(head.close, STOPPING)  # first: a phone of a job that is withdrawn goes to none of the others
        for hear in (writes.store_problem, self._hosts.store_problem, self._read_again):
            self.store.on_problem(hear)
        await Takeover(self.store, self.events, self._kinds, head, self._hosts, clock).run()

    def checks(self) -> tuple[ProgressCheck, ...]:
        """The components that must make progress."""
        return self.head.checks()

    def tasks(self) -> dict[str, Begin]:
        """The tasks that run as long as it decides, by name."""
        assert self.store.server is not None
        clock = ClockWatch(self.events, self.head.clock_jumped, wall=self.store.now)  # the server's clock is set
        return {
            "mailbox": self._read_mailbox, "history": self._history.run, "hosts": self._watch.run,
            "database server": self.store.server.run, "clock": clock.run,
        }  # fmt: skip

    async def _read_mailbox(self) -> None:
        """Act upon what hosts write, forever."""
        busy_until_s = 0.0
        while True:
            every_s = POLL_EVERY_S if time.monotonic() < busy_until_s else IDLE_POLL_EVERY_S
            try:
                letters = await self.store.mailbox.take_all(POLL_FOR_S, every_s)
            except HostError:  # the writer reports it; a lost term ends all of this
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            for letter in letters:
                self._read(letter)
            if letters:
                busy_until_s = time.monotonic() + BUSY_S

    def _read(self, letter: Letter) -> None:
        """Act upon one letter; an error is logged, and the next letter is read."""
        message = wire.to_head(letter.body, time.monotonic())
        if message is None:
            return
        try:
            self._receive(letter.host, message)
        except Exception:
            log.exception("%s of %s cannot be acted upon", type(message).__name__, letter.host)

    def _receive(self, host: str, message: ToHead) -> None:
        match message:
            case AttemptEnded(attempt):
                self._hosts.attempt_is_over(attempt)
                self.head.report(message)
            case Salvaged(job_id):
                self._hosts.salvaged(job_id)
            case HostBegan():
                self._watch.began(host)
                self._hosts.stopped.discard(host)
                self._drop_host_state(host, "began again")
            case HostLeft():
                self._hosts.stopped.add(host)
                self._drop_host_state(host, "was stopped")
            case HostDrained(reason):
                self._hosts.withhold(host, WithheldFor.DRAIN, reason)
            case Order():
                self._tasks.spawn(self._carry_out(host, message), f"order {message.method} of {host}")
            case LeaseRestored(lease) if lease.device in self.head.requests.allocator.held:
                pass  # it was never given back
            case LeaseEnded(_, lease_id):
                self._hosts.take(host, message)
                self._watch.lease_ended(host, lease_id)
            case _:
                self._hosts.take(host, message)

    def _read_again(self, _: bool) -> None:
        """The database was away: a standby in its place may give numbers of transactions that the head has seen."""
        self.store.mailbox.seen = NOTHING

    async def _carry_out(self, host: str, order: Order) -> None:
        self._hosts.send(host, await perform(self.head, self._kinds, order))

    def _drop_host_state(self, host: str, did: str) -> None:
        """End the host's requests, unarmed leases and phones; its armed leases continue. `did`: "was stopped"."""
        self._watch.silence(host, f"{host} {did}")
        self._hosts.end_lent_to(host, f"nothing runs at {host} any more")
        for lease_id in self._hosts.slots_of(host):
            self._hosts.take(host, SlotFreed(lease_id))
        for device in self._hosts.devices_of(host):
            if (state := self.head.requests.allocator.devices.get(device)) is not None:
                gone = replace(state, life=Life.GONE, reason=f"its host {host} {did}")
                self._hosts.take(host, DeviceChanged(gone))
