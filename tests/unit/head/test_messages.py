"""The head by its messages alone: what it sends for what a host sends it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from farm.common.errors import Code, FarmError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head import messages as m
from farm.head.allocator.model import AllocatorPolicy
from farm.head.model import LeasePolicy
from farm.head.request_queue import RequestQueue
from farm.head.write_queue import LeaseWriteQueue
from farm.model.device import Closed, DeviceView, Life
from farm.model.requests import LeaseClass, LeaseRequest, LeaseSource
from farm.store.mailbox import Letter
from tests.support.keeping import MemoryKeeper
from tests.support.leasing_lab import RealClocks
from tests.support.virtual_time import virtual_time
from tests.support.waiting import HANG_S, until

ANY = LeaseRequest(Selector(), "alice", LeaseSource.JOB)
TUNE = LeaseRequest(Selector(), "alice", LeaseSource.JOB, lease_class=LeaseClass.TUNE, worker=True)


class Head:
    """A head whose host is the test."""

    def __init__(self, *devices, **policy):
        self.sent = asyncio.Queue()
        self.keeper = MemoryKeeper()
        policy, writes = LeasePolicy(allocator=AllocatorPolicy(**policy)), LeaseWriteQueue(EventLog())
        self.requests = RequestQueue(writes, self.keeper, 7, policy, RealClocks.monotonic, RealClocks.wall)
        self.requests.connect(self.sent.put_nowait)
        self.receive = self.requests.receive
        for name in devices:
            self.receive(m.DeviceChanged(ready(name)))

    async def next(self):
        async with asyncio.timeout(HANG_S):
            return await self.sent.get()

    async def granted(self, request_id, request=ANY, *, armed=False):
        self.receive(m.RequestAdded(request_id, request))
        message = await self.next()
        assert (type(message), message.request_id) == (m.LeaseGranted, request_id)
        if armed:
            self.receive(m.LeaseArmed(message.lease.device, message.lease.id))
        return message.lease


def ready(name, **fields):
    return DeviceView(name, name, Life.READY, adopted=True, **fields)


async def test_a_grant_is_stored_before_it_is_sent_and_held_once_it_is_armed():
    head = Head("a")
    head.keeper.gate.clear()
    head.receive(m.RequestAdded("1", ANY))
    await asyncio.sleep(0)
    assert head.sent.empty()
    head.keeper.gate.set()
    lease = (await head.next()).lease
    assert [row.id for row in head.keeper.open()] == [lease.id]
    head.receive(m.LeaseArmed("a", lease.id))
    head.receive(m.RequestAdded("2", ANY))
    assert [each.id for each in head.requests.waiting()] == ["2"]
    head.receive(m.LeaseEnded("a", lease.id))
    head.keeper.rows.clear()  # the host stores the ends of its leases
    second = (await head.next()).lease
    assert second.fence > lease.fence


async def test_a_refused_lease_ends_and_its_request_waits_on():
    head = Head("a")
    lease = await head.granted("1")
    head.receive(m.LeaseRefused("a", lease.id, "a is held"))
    again = await head.next()
    assert again.request_id == "1"
    assert again.lease.fence > lease.fence
    assert head.keeper.rows[lease.id].reason == "a is held"


async def test_an_answer_about_another_lease_changes_nothing():
    head = Head("a")
    lease = await head.granted("1")
    head.receive(m.LeaseArmed("a", "of another head"))
    head.receive(m.LeaseRefused("b", lease.id, "it is no phone of this host"))
    head.receive(m.LeaseArmed("a", lease.id))
    head.receive(m.LeaseArmed("a", lease.id))
    assert [row.id for row in head.keeper.open()] == [lease.id]
    assert head.sent.empty()


async def test_a_request_that_was_withdrawn_gets_nothing():
    head = Head()
    head.receive(m.RequestAdded("1", ANY))
    head.receive(m.RequestWithdrawn("1"))
    head.receive(m.RequestWithdrawn("1"))
    head.receive(m.RequestAdded("2", ANY))
    head.receive(m.DeviceChanged(ready("a")))
    assert (await head.next()).request_id == "2"


@pytest.mark.parametrize("armed", [True, False])
async def test_the_host_learns_that_a_tuning_should_yield_though_it_was_asked_before_the_lease_was_armed(armed):
    head = Head("a")
    hot = {LeaseClass.TUNE: Closed("it is warm")}
    if armed:
        await head.granted("1", TUNE, armed=True)
        head.receive(m.DeviceChanged(ready("a", closed=hot)))
        assert await head.next() == m.YieldWanted("a")
        return
    head.keeper.gate.clear()
    head.receive(m.RequestAdded("1", TUNE))
    head.receive(m.DeviceChanged(ready("a", closed=hot)))
    assert await head.next() == m.YieldWanted("a")  # the host has no lease there yet: it is sent again
    head.keeper.gate.set()
    lease = (await head.next()).lease
    head.receive(m.LeaseArmed("a", lease.id))
    assert await head.next() == m.YieldWanted("a")


async def test_the_keeper_of_a_worker_slot_learns_that_others_lack_it():
    head = Head("a", "b", workers=1, min_slice_s=0.0)
    lease = await head.granted("1", TUNE, armed=True)
    head.receive(m.SlotKept(lease.device, lease.id))
    head.receive(m.LeaseEnded(lease.device, lease.id))
    head.receive(m.RequestAdded("2", LeaseRequest(Selector(), "bob", LeaseSource.JOB, priority=9, worker=True)))
    assert await head.next() == m.SlotWanted(lease.id)


@virtual_time
@pytest.mark.parametrize("how", ["dropped", "refused by the store", "refused by the host", "dropped and refused"])
async def test_each_grant_that_is_never_armed_is_reported_once(how):
    head, granted, undone = Head("a"), [], []

    def letter(message):
        granted.append(message.lease.id)
        return Letter("one", {})

    head.requests.connect(head.sent.put_nowait, letter, undone.append)
    if how in ("refused by the store", "dropped and refused"):
        head.keeper.refuses["a"] = FarmError("of a bug", Code.STORE_CONFLICT)
    head.keeper.gate.clear()
    head.receive(m.RequestAdded("1", ANY))
    if how == "dropped and refused":
        await until(lambda: head.keeper.tries)  # it is being written
    if how.startswith("dropped"):
        head.receive(m.RequestWithdrawn("1"))
    head.keeper.gate.set()
    if how == "refused by the host":
        lease = (await head.next()).lease
        assert undone == []
        head.receive(m.LeaseRefused("a", lease.id, "a is held"))
    await until(lambda: undone)
    head.requests.close("the end")
    assert undone == [*dict.fromkeys(granted)][: len(undone)]


@pytest.mark.parametrize("lost", [True, False])
async def test_a_grant_that_is_undone_on_its_way_to_the_host_is_given_back_by_the_host(lost):
    head = Head("a")
    lease = await head.granted("1")
    if lost:
        head.receive(m.DeviceChanged(replace(ready("a"), life=Life.OFFLINE)))
        head.receive(m.DeviceChanged(ready("a")))
    else:
        head.receive(m.RequestWithdrawn("1"))
        head.receive(m.RequestAdded("2", ANY))
    head.receive(m.LeaseArmed("a", lease.id))
    unwanted = await head.next()
    assert (type(unwanted), unwanted.lease) == (m.LeaseUnwanted, lease.id)
    await asyncio.sleep(0)
    assert head.sent.empty()  # the host still holds it
    await head.keeper.end(lease.id, ended_at=datetime.now(UTC), reason=unwanted.reason, held_s=0.0)
    head.receive(m.LeaseEnded("a", lease.id))
    assert (await head.next()).request_id == ("1" if lost else "2")
