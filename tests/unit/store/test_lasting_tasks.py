"""A database that is silent, refuses or is slow ends no task of a daemon or a head: each continues afterwards."""

import asyncio
import itertools
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from sqlalchemy.exc import OperationalError

from farm.common import tasks
from farm.common.durations import BackOff
from farm.common.errors import HostError
from farm.common.systemd import Notifier
from farm.common.tasks import LastingTasks, end_tasks
from farm.config import load
from farm.control import second_copies
from farm.control.second_copies import SecondCopies
from farm.daemon import lab, persistence
from farm.daemon.problems import Problems
from farm.daemon.starting import Start
from farm.head import beats
from farm.head.host_watch import HostWatch
from farm.head.model import LeasePolicy
from farm.head.process import HeadProcess, HeadSettings, HeadTerm
from farm.head.write_queue import LeaseWriteQueue
from farm.jobs import logs
from farm.kinds import KINDS
from farm.lab import following
from farm.model.device import DeviceView, Life
from farm.store import bounded_connection, database, event_follower, event_history, mailbox, server_facts, writer
from farm.store.event_history import EventHistory
from farm.store.retention import Retention
from tests.support import postgres
from tests.support.waiting import until
from tests.unit.store.values import NOW, job

OF_PERSISTENCE = ("history", "logs", "database server", "events of the database")
OF_HEAD = ("letters of the head", "attempts of the daemon before", "membership of the lab")
TASKS = (*OF_PERSISTENCE, *OF_HEAD, "copies of artifacts", "changes of other hosts", "readings for other hosts")


@pytest.fixture
async def serving(numbers, proxy, tmp_path):
    """What a host of a lab keeps, over a database whose answers can be held up. All tasks are in a hurry."""
    numbers(database, ANSWER_LIMIT_S=0.1)
    numbers(bounded_connection, ANSWER_LIMIT_S=0.5)
    numbers(writer, PROBE_S=0.02)
    for module, name in (
        (server_facts, "LOOK_EVERY_S"), (event_history, "BATCH_DELAY_S"), (event_follower, "POLL_S"),
        (logs, "FIRST_AFTER_S"), (logs, "EVERY_S"), (mailbox, "POLL_S"), (following, "LOOK_EVERY_S"),
        (following, "WRITE_EVERY_S"), (beats, "BEAT_EVERY_S"), (second_copies, "COPY_EVERY_S"),
    ):  # fmt: skip
        numbers(module, **{name: 0.01})
    numbers(persistence, group_to_admit=lambda: None)
    flags = {
        "state_dir": str(tmp_path), "runtime_dir": str(tmp_path / "run"), "lab.host": "a",
        "lab.head": "apart", "store.url": f"{proxy.url}&connect_timeout=1",
    }  # fmt: skip
    config = load(None, environ={}, flags=flags)
    async with AsyncExitStack() as stack:
        yield await persistence.open_persistence(config, stack, Problems(config), Start(Notifier(), asyncio.Event()))
        proxy.passing.set()
        proxy.refusing, proxy.slow_s = False, 0.0


@pytest.fixture
def asked(monkeypatch):
    """Counts what was asked of the database: `done` and `failed`. `write`: the writer's, which counts nothing."""
    found = SimpleNamespace(done=0, failed=0, write=writer.Writer.write)

    def counted(function):
        async def call(*arguments, **options):
            try:
                answer = await function(*arguments, **options)
            except HostError:
                found.failed += 1
                raise
            found.done += 1
            return answer

        return call

    monkeypatch.setattr(database.Database, "in_thread", counted(database.Database.in_thread))
    monkeypatch.setattr(writer.Writer, "write", counted(writer.Writer.write))
    return found


async def letters_of_head(kept, stack):
    letters = lab.HeadLetters("a", kept, LeaseWriteQueue(kept.events))
    stack.push_async_callback(letters.stop)
    await letters.head.begin()

    async def finish_leftovers():
        while True:
            await kept.store.read(kept.store.jobs.get, "j1")

    letters.attempts = SimpleNamespace(finish_leftovers=finish_leftovers)
    return {**letters.tasks(), "membership of the lab": letters.head.removed}


async def begin_of(name, kept, stack):
    """The coroutine function of a task of the daemon."""
    store = kept.store
    if name in OF_PERSISTENCE:
        await store.jobs.add((job("j1"),))
        kept.logs.append("j1", 1)  # a log that stays
        return kept.tasks()[name]
    if name in OF_HEAD:
        return (await letters_of_head(kept, stack))[name]
    if name == "copies of artifacts":
        folder = SimpleNamespace(sizes=dict, on_change=None)
        return SecondCopies(folder, None, store.artifact_copies, "a", AsyncMock()).run
    if name == "readings for other hosts":
        changing = (
            [DeviceView("phone", "phone", Life.READY, temperature_c=number, read_at=NOW)]
            for number in itertools.count()
        )
        return partial(following.share_readings, partial(next, changing), partial(store.lab.save_readings, "a"))
    return partial(following.follow_other_hosts, {"accounts": partial(store.in_thread, store.accounts.all)})


@pytest.mark.parametrize("fault", ["silent", "refusing", "slow"])
@pytest.mark.parametrize("name", TASKS)
async def test_a_task_goes_on_after_a_fault_of_the_database(asked, serving, proxy, name, fault):
    assert set(serving.tasks()) == set(OF_PERSISTENCE)
    number, written = itertools.count(), asyncio.Event()

    async def change():
        while True:
            serving.events.publish("device.ready", f"phone-{next(number)}")
            with suppress(HostError):
                await asked.write(serving.store.database.writer, lambda _: None)
                written.set()
            await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        lasting = LastingTasks()
        running = lasting.start(name, await begin_of(name, serving, stack))
        stack.push_async_callback(end_tasks, running, lasting.start("changes", change))
        await written.wait()  # then all connections are there: one that is being made would outlive the fault
        await until(lambda since=asked.done: asked.done > since or running.done())
        match fault:
            case "silent":
                proxy.passing.clear()
            case "refusing":
                proxy.refusing = True
                postgres.run(proxy.real_url, postgres.END_OTHERS)
            case "slow":
                proxy.slow_s = 0.3
        if fault != "slow":  # then what is written is late, and what is read is given up
            await until(lambda: serving.store.problem)
        if name != "history":  # it asks nothing while the writer knows of an outage
            await until(lambda since=asked.done + asked.failed: asked.done + asked.failed > since or running.done())
        proxy.passing.set()
        proxy.refusing, proxy.slow_s = False, 0.0
        await until(lambda since=asked.done: asked.done > since + 2 or running.done())
        assert not running.done()


@pytest.mark.parametrize(
    ("part", "method"),
    [(Retention, "run"), (EventHistory, "run"), (HostWatch, "run"), (HeadTerm, "_read_mailbox")],
    ids=["retention", "history", "hosts", "mailbox"],
)
async def test_no_task_ends_the_term_of_a_head(numbers, monkeypatch, tables, part, method):
    numbers(tasks, BEGIN_AGAIN=BackOff(0.001, 0.001))
    failures, stop = [], asyncio.Event()

    async def fail(_):
        failures.append(part)
        raise OperationalError("SELECT 1", {}, Exception("a lock"))

    monkeypatch.setattr(part, method, fail)
    head = HeadProcess(tables.as_new(), HeadSettings(LeasePolicy(), 1.0, 1.0, 1.0), KINDS)
    running = asyncio.create_task(head.run(stop))
    await until(lambda: len(failures) > 3 or running.done())
    assert head.term is not None
    stop.set()
    await running


async def test_a_head_that_starts_waits_for_its_database(proxy):
    proxy.refusing, stop = True, asyncio.Event()
    head = HeadProcess(f"{proxy.url}&connect_timeout=1", HeadSettings(LeasePolicy(), 1.0, 1.0, 1.0), KINDS)
    running = asyncio.create_task(head.run(stop))
    await until(lambda: "waits for its database" in head.status or running.done())
    proxy.refusing = False
    await until(lambda: head.term is not None or running.done())
    stop.set()
    await running
