"""A host whose head is apart: what it writes when, what it asks, and what it does while no head answers."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta

import pytest

from farm.common.errors import Code, FarmError, ProtocolError, UserError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head import messages as m
from farm.head import orders, wire
from farm.head.head import Head
from farm.head.model import Explanation, JobExplanation, WaitingPage, WaitingRequest
from farm.head.planning import Submission
from farm.head.queue.model import JobRunsError
from farm.head.write_queue import LeaseWriteQueue, record_of
from farm.kinds import KINDS
from farm.kinds.shell import ShellSpec
from farm.leasing import remote_head
from farm.leasing.leases import Leasing
from farm.leasing.remote_head import RemoteHead
from farm.model.device import Life
from farm.model.job import Attempt
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.store.leases import ReservationRecord
from farm.store.mailbox import Letter
from farm.store.writer import StoreWriteError
from tests.support.errors import raises_code
from tests.support.leasing_lab import settle
from tests.support.memory_post import MemoryPost
from tests.support.tvm import FakeDevices
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until
from tests.unit.store.values import job

NOW = datetime(2026, 7, 1, tzinfo=UTC)
ANDROID = LeaseRequest(Selector.parse("android"), "alice", LeaseSource.TVM)


class Runner:
    def __init__(self):
        self.got = []
        self.receive = self.got.append

    async def salvage(self, job):
        self.got.append(job)

    async def waits(self, job_ids):
        return {each: "1 of 2 phones" for each in job_ids if each == "pooled"}


class Lab:
    """A host with one phone; the test is its head."""

    def __init__(self):
        self.post, self.devices, self.runner = MemoryPost(), FakeDevices(), Runner()
        self.expected = asyncio.Event()  # an answer of the head
        self.devices.add("a", "android")
        events = EventLog()
        writes = LeaseWriteQueue(events)
        self.head = RemoteHead("one", 1, self.post, self.post, writes, lambda host: None, self.expected.set)
        self.leasing = Leasing(self.devices, events, 1, self.post, head=self.head, writes=writes)
        self.got = []

    def ask(self):
        return self.leasing.ask(ANDROID, self.got.append)

    async def told(self, kind):
        """The first message of that kind that the head has not taken."""
        found = []

        def look():
            for letter in self.post.to_head:
                message = wire.to_head(letter.body, time.monotonic())
                if isinstance(message, kind):
                    self.post.to_head.remove(letter)
                    found.append(message)
                    return True
            return False

        await until(look)
        return found[0]

    async def tell(self, *messages):
        self.post.to_host += [Letter("one", wire.encode(each, time.monotonic())) for each in messages]
        await self.head.take()

    async def grant(self, number, request_id="of a job", *, claimed=False):
        lease = Lease(f"L{number}", "a", number, ANDROID, time.monotonic())
        await self.post.grant(record_of(lease, NOW))
        attempt = Attempt("j.1", "j", 1, "a", lease.id, number, started_at=NOW)
        return m.LeaseGranted(request_id, lease, NOW, m.AttemptClaim(job("j"), attempt) if claimed else None)


@pytest.fixture
async def lab():
    return await begun_lab()


async def begun_lab():
    lab = Lab()
    await lab.head.start(lab.runner)
    return lab


async def test_a_lease_is_held_once_that_is_written(lab):
    request = lab.ask()
    assert (await lab.told(m.RequestAdded)).request_id == request
    granted = await lab.grant(1, request)
    lab.post.gate.clear()
    await lab.tell(granted)
    await settle()
    assert not lab.leasing.holds("a")
    lab.post.gate.set()
    await until(lambda: lab.got)
    assert lab.leasing.lease_of("a") == "L1"
    assert await lab.told(m.LeaseArmed) == m.LeaseArmed("a", "L1")
    assert lab.post.requests == {}
    assert not lab.expected.is_set()
    lab.leasing.release("L1")
    assert await lab.told(m.LeaseEnded) == m.LeaseEnded("a", "L1")
    await lab.expected.wait()


async def test_a_lease_that_the_head_has_ended_was_never_held(lab):
    granted = await lab.grant(1)
    await lab.post.end("L1", ended_at=NOW, reason="a new head", held_s=0.0)
    await lab.tell(granted, await lab.grant(2))
    await until(lambda: lab.leasing.lease_of("a") == "L2")
    assert lab.post.armed == {"L2"}


async def test_a_lease_of_a_phone_that_is_held_or_away_is_refused(lab):
    lab.leasing.restore(Lease("L0", "a", 1, ANDROID, time.monotonic()))
    await lab.tell(await lab.grant(2))
    assert (await lab.told(m.LeaseRefused)).lease == "L2"
    assert lab.leasing.lease_of("a") == "L0"
    await lab.post.end("L2", ended_at=NOW, reason="it is held", held_s=0.0)
    lab.devices.become("a", Life.OFFLINE)
    await lab.tell(await lab.grant(3, claimed=True))
    assert (await lab.told(m.LeaseRefused)).reason == "a is offline"
    assert lab.post.armed == set()


async def test_what_comes_about_a_lease_while_it_is_being_armed_comes_after_it(lab):
    granted = await lab.grant(1)
    lab.post.gate.clear()
    await lab.tell(granted, m.LeaseUnwanted("L1", "nobody wants it"))
    lab.post.gate.set()
    assert (await lab.told(m.LeaseEnded)).lease == "L1"
    assert not lab.leasing.holds("a")


async def test_an_attempt_that_was_claimed_with_its_lease_runs_at_once(lab):
    granted = await lab.grant(1, claimed=True)
    await until(lambda: lab.post.to_head)  # about the phone
    lab.post.gate.clear()
    await lab.tell(granted)
    assert lab.runner.got == []
    lab.post.gate.set()
    await until(lambda: lab.runner.got)
    assert lab.runner.got == [m.RunAttempt(granted.claim.job, granted.claim.attempt, lab.runner.got[0].lease)]
    assert lab.leasing.lease_of("a") == "L1"
    assert await lab.told(m.LeaseArmed) == m.LeaseArmed("a", "L1", "j.1")


@virtual_time
async def test_a_lease_is_refused_if_its_job_was_changed_meanwhile():
    lab = await begun_lab()
    lab.post.not_queued.add("j")
    await lab.tell(await lab.grant(1, claimed=True))
    refused = await lab.told(m.LeaseRefused)
    assert (refused.lease, refused.reason) == ("L1", "it was ended, or j was changed meanwhile")
    assert not lab.leasing.holds("a")
    assert lab.runner.got == []


@pytest.mark.parametrize("claimed", [True, False])
async def test_a_lease_that_the_store_refuses_is_given_back_before_the_host_stops(lab, claimed):
    await lab.head.begin()
    granted = await lab.grant(1, claimed=claimed)
    lab.post.refuses["one"] = FarmError("of a bug", Code.STORE_CONFLICT)
    await lab.tell(granted)
    await until(lambda: lab.head._tasks._tasks)
    lab.post.refuses.clear()
    await lab.head.stop()
    refused = await lab.told(m.LeaseRefused)
    assert (refused.lease, refused.reason) == ("L1", remote_head.NOT_STORED)
    assert not lab.leasing.holds("a")


async def test_leases_end_while_the_database_is_away_and_that_is_written_later(lab):
    await lab.tell(await lab.grant(1))
    await until(lambda: lab.leasing.holds("a"))
    lab.post.gate.clear()
    lab.devices.become("a", Life.GONE)
    assert not lab.leasing.holds("a")
    assert lab.post.held() == {"a": "L1"}
    lab.post.gate.set()
    assert await lab.told(m.LeaseEnded) == m.LeaseEnded("a", "L1")


async def test_a_host_that_begins_or_stops_says_so(lab):
    await lab.head.begin()
    assert await lab.told(m.HostBegan) == m.HostBegan()
    await lab.head.stop()
    assert await lab.told(m.HostLeft) == m.HostLeft()


async def test_what_attempts_have_left_is_kept_when_the_head_says_so(lab):
    await lab.tell(m.Salvage(job("j")))
    assert (await lab.told(m.Salvaged)).job == "j"
    assert [each.id for each in lab.runner.got] == ["j"]
    await lab.head.stop()


@virtual_time
async def test_without_a_head_orders_have_one_error_and_questions_an_answer():
    lab = await begun_lab()
    with raises_code(Code.HEAD_AWAY):
        await lab.head.cancel(["j"], UserError("enough"))
    with raises_code(Code.HEAD_AWAY):
        await lab.head.settle(["j"], 10.0)
    assert await lab.head.waits(["pooled"]) == {"pooled": "1 of 2 phones"}
    waits = await lab.head.waits(["pooled", "j"])
    assert "has not answered" in waits["j"]
    assert "has not answered" in (await lab.head.why(["r"]))["r"]
    assert lab.head.serves("android")
    assert not lab.head.serves("mali")
    lab.ask()
    assert lab.head.awaits("a")
    [key] = [each for each in lab.head.summary().keys if each.key == "android"]
    assert (key.free, key.pending) == (1, 1)


@virtual_time
async def test_orders_and_questions_name_the_database_when_it_is_the_cause(monkeypatch):
    lab = await begun_lab()
    refusal = StoreWriteError("the database cannot be written: gone; nothing of this change was kept")
    refusal.reason = "gone"

    async def refuses(*_):
        raise refusal

    monkeypatch.setattr(lab.post, "send", refuses)
    with raises_code(Code.STORE_READ_FAILED, match="^the database cannot be read: gone$"):
        await lab.head.waiting(1)
    with pytest.raises(StoreWriteError, match="cannot be written"):
        await lab.head.cancel(["j"], UserError("enough"))

    commit = asyncio.Event()

    async def ends_with_its_commit(*_):  # as a write that has begun, also when it is cancelled
        while not commit.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await commit.wait()

    monkeypatch.setattr(lab.post, "send", ends_with_its_commit)
    with raises_code(Code.DATABASE_UNUSABLE, match="the lab's database has not answered"):
        await lab.head.waiting(1)
    commit.set()


class Asked(Head):
    """A head that notes what it is asked, and answers so."""

    def __init__(self, answer):
        self.answer = answer
        self.fields = None


def _noting(name):
    async def method(self, **fields):
        self.fields = name, fields
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    return method


for _name in orders.METHODS:
    setattr(Asked, _name, _noting(_name))
Asked.__abstractmethods__ = frozenset()

RESERVED = ReservationRecord("ab", "android", "ci", NOW, NOW + timedelta(hours=1), "nightly")
WAITING = WaitingRequest("r1", ANDROID, 2.5, "a is held")
EXPLAINED = Explanation("android", (WAITING,), (), 10.0, 3, ("quota",))
SPEC = ShellSpec(on="android", command="id")


@pytest.mark.parametrize(
    ("method", "fields", "answer"),
    [
        ("submit", {"spec": SPEC, "user": "ann", "key": "k", "must_match": True}, Submission((job("j"),), "", ("w",))),
        ("check", {"spec": SPEC, "user": "alice", "besides": 2}, 5),
        ("hold", {"job_ids": ("j", "k")}, ("j",)),
        ("settle", {"job_ids": ("j",), "limit_s": 1.0}, True),
        ("reserve", {"selector": "android", "user": "ci", "starts_at": NOW, "ends_at": NOW, "note": ""}, RESERVED),
        ("is_live", {"job_id": "j"}, False),
        ("why", {"request_ids": ("r",)}, {"r": "a is held"}),
        ("explain", {"subject": "android", "user": "ann"}, EXPLAINED),
        ("explain_job", {"job_id": "j"}, JobExplanation("", EXPLAINED)),
        ("waiting", {"limit": 3}, WaitingPage((WAITING,), 4)),
        ("reservations", {}, (RESERVED,)),
    ],
)
async def test_orders_and_their_answers_cross_the_wire_whole(method, fields, answer):
    head = Asked(answer)
    sent = m.Order("o", method, orders.to_wire(method, fields))
    order = wire.to_head(wire.encode(sent, 0.0), 0.0)
    told = wire.to_host(wire.encode(await orders.perform(head, KINDS, order), 0.0), 0.0)
    assert told.error is None
    name, got = head.fields
    assert (name, {each: _plain(value) for each, value in got.items()}) == (
        method, {each: _plain(value) for each, value in fields.items()}
    )  # fmt: skip
    assert _plain(orders.answer_from_wire(method, told.value)) == _plain(answer)
    with pytest.raises(ProtocolError, match=f"the head's answer to {method} cannot be read: ") as caught:
        orders.answer_from_wire(method, object())
    assert "\n" not in caught.value.message


def _plain(value):
    return tuple(value) if isinstance(value, list) else value


async def test_an_order_that_fails_or_is_not_known_has_its_error():
    refused = Asked(JobRunsError("j runs"))
    answer = await orders.perform(refused, KINDS, m.Order("o", "hold", {"job_ids": ["j"]}))
    assert answer.error["code"] == JobRunsError.code
    for wrong in (
        m.Order("o", "close", {"reason": ""}),
        m.Order("o", "hold", {"jobs": []}),
        m.Order("o", "hold", {"job_ids": 3}),
    ):
        assert (await orders.perform(refused, KINDS, wrong)).error is not None
        assert refused.fields == ("hold", {"job_ids": ["j"]})


async def test_a_drain_needs_no_answer_of_a_head(lab):
    await lab.head.drain("ann drains it")
    assert (lab.head.drained, lab.post.drained) == ("ann drains it", {"one": "ann drains it"})
    assert await lab.told(m.HostDrained) == m.HostDrained("ann drains it")
    assert lab.head.summary().keys == ()
    await lab.head.drain("")
    assert {key.free for key in lab.head.summary().keys} == {1}


async def test_the_error_of_an_order_reaches_its_caller(lab):
    asking = asyncio.ensure_future(lab.head.cancel(["j"], UserError("enough", Code.JOB_CANCELLED)))
    order = await lab.told(m.Order)
    head = Asked(JobRunsError("j runs"))
    await lab.tell(await orders.perform(head, KINDS, order))
    with pytest.raises(JobRunsError, match="j runs"):
        await asking
    name, fields = head.fields
    assert (name, fields["error"].code, fields["error"].message) == ("cancel", Code.JOB_CANCELLED, "enough")
