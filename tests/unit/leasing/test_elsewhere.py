"""A client asks at one host for a phone of another: letters, keys, and what is looked up how often."""

import asyncio
import socket
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from farm.common.errors import HostUnreachableError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head import wire
from farm.head.host_rules import HostState
from farm.head.messages import LeaseArmed, LeaseGranted, LeaseHeld, LeaseUnwanted, RequestAdded, RequestWithdrawn
from farm.head.write_queue import LeaseWriteQueue, record_of
from farm.leasing import elsewhere
from farm.leasing.lab_view import HostView, LabPicture, LabView
from farm.leasing.leases import Leasing
from farm.leasing.remote_head import RemoteHead
from farm.leasing.sessions import digest
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.model.sessions import NoSuchMatchKeyError, Peer
from farm.store.mailbox import Letter
from tests.support.memory_post import MemoryPost
from tests.support.reads import ReadsHere
from tests.support.tvm import FakeDevices
from tests.support.waiting import until
from tests.unit.store.values import NOW

ANDROID = LeaseRequest(Selector.parse("android"), "ann", LeaseSource.TVM)
WHY = "host two cannot be reached: no route"
PEER = Peer("192.0.2.7", 40000, "ann")


class Host:
    def __init__(self, name, post, *phones):
        self.name, self.post, self.woken, self.dialled = name, post, [], []
        self.clock_s = 1000.0
        devices = FakeDevices()
        for phone in phones:
            devices.add(phone, "android")
        events = EventLog()
        writes = LeaseWriteQueue(events)
        self.head = RemoteHead(name, 1, post, post, writes, self.woken.append, clock=lambda: self.clock_s)
        self.leasing = Leasing(
            devices, events, ord(name[0]), post, head=self.head, writes=writes, clock=lambda: self.clock_s
        )

    def reach_others(self):
        async def dial(host, peer, limit_s):
            ours, theirs = socket.socketpair()
            self.dialled.append((host, peer, theirs))
            return ours

        self.leasing.elsewhere.connect(self.name, dial)


class Lab:
    """Host one has no phone; the test is the head."""

    def __init__(self):
        self.post = MemoryPost()
        self.one, self.two = Host("one", self.post), Host("two", self.post, "a")
        self.one.reach_others()
        self.granted = 0

    def to_head(self, kind):
        found = (wire.to_head(each.body, 0.0) for each in self.post.to_head)
        return [each for each in found if isinstance(each, kind)]

    async def asked(self):
        """A client asks at host one; its task and the request as the head gets it."""
        task = asyncio.create_task(self.one.leasing.tvm.request("android", "ann", 1, PEER))
        await until(lambda: self.to_head(RequestAdded))
        return task, self.to_head(RequestAdded)[0]

    async def grant(self, added):
        self.granted += 1
        lease = Lease(f"lease-{self.granted}", "a", self.granted, added.request, 0.0)
        granted = LeaseGranted(added.request_id, lease, NOW)
        await self.post.grant(replace(record_of(lease, NOW), host="two"), letter=Letter("two", {}))
        self.post.to_host.append(Letter("two", wire.encode(granted, 0.0)))
        await self.two.head.take()
        return lease

    async def armed(self):
        """A client has asked at host one, and host two has armed the lease: task, request and lease."""
        asking, added = await self.asked()
        lease = await self.grant(added)
        await until(lambda: self.to_head(LeaseArmed))
        return asking, added, lease

    async def key(self):
        """The key that a client has got at host one."""
        asking, _, _ = await self.armed()
        await self.one.head.take()
        return await asking


@pytest.fixture
async def lab():
    return Lab()


async def test_a_client_gets_a_key_that_only_its_hash_was_told_of(lab):
    asking, added, lease = await lab.armed()
    assert (added.request.holder_host, added.request.key) == ("one", "android")
    assert lab.two.woken[-1] == "one"
    await lab.one.head.take()
    key = await asking
    assert key.startswith("android:")
    assert added.request.match_sha256 == digest(key) == lab.post.rows[lease.id].match_sha256
    written = [*(str(each) for each in lab.post.to_head), *(str(each) for each in lab.post.rows.values())]
    assert not any(key in each for each in written)


@pytest.mark.parametrize(("advertised", "now"), [(False, WHY), (True, WHY), (False, "")])
async def test_a_phone_of_a_host_that_is_not_reached_is_given_back_with_the_reason(lab, advertised, now):
    """Else its client waits half a minute, and reads that there is no server of that key."""
    lab.one.leasing.tvm.lab = LabView()
    lab.one.leasing.tvm.lab.unreached = {"two": WHY}.get
    lab.one.leasing.tvm.lab.still_unreached = AsyncMock(return_value=now)
    advertise = {"0.0.0.0/0": "two:9190"} if advertised else {}
    two = HostView("two", NOW, 1, state=HostState.OK, silent_s=1.0, advertise=advertise)
    lab.one.leasing.tvm.lab.latest = LabPicture((two,))
    asking, _, lease = await lab.armed()
    await lab.one.head.take()
    if advertised or not now:  # its client dials that host itself, or the host has come back
        assert await asking
        return
    with pytest.raises(HostUnreachableError, match="no route"):
        await asking
    await lab.two.head.take()
    await until(lambda: lab.post.rows[lease.id].ended_at is not None)


async def test_its_session_leads_to_the_other_host_with_the_same_key(lab):
    key = await lab.key()
    upstream = await lab.one.leasing.tvm.open(key, PEER, 5.0, lambda _: None)
    assert (upstream.device, upstream.key, upstream.detach()) == ("a", "android", False)
    stream = await upstream.dial(5.0)
    assert stream.server_secret == key
    [(host, peer, theirs)] = lab.one.dialled
    assert (host, peer) == ("two", PEER)
    there = await lab.two.leasing.tvm.open(key, peer, 5.0, lambda _: None)
    assert there.device == "a"
    with pytest.raises(NoSuchMatchKeyError):  # it is for one session
        await lab.two.leasing.tvm.open(key, peer, 5.0, lambda _: None)
    stream.sock.close()
    theirs.close()


async def test_a_client_that_left_meanwhile_has_its_lease_given_back(lab):
    asking, _, lease = await lab.armed()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: lab.to_head(RequestWithdrawn))
    await lab.one.head.take()
    await until(lambda: lab.post.to_host)
    [letter] = lab.post.to_host
    unwanted = LeaseUnwanted(lease.id, "the requester left")
    assert (letter.host, wire.to_host(letter.body, 0.0)) == ("two", unwanted)
    assert lab.one.woken[-1] == "two"
    await lab.two.head.take()
    await until(lambda: lab.post.rows[lease.id].ended_at is not None)


async def test_a_lease_that_its_client_never_uses_ends_by_itself(lab):
    lab.two.leasing.active.use_policy(replace(lab.two.leasing.policy, unused_s=0.05))
    _, added = await lab.asked()
    lease = await lab.grant(added)
    await until(lambda: lab.post.rows[lease.id].ended_at is not None)
    assert lab.post.rows[lease.id].reason == "not used within 0.05 s"


async def test_a_letter_about_a_request_that_is_over_gives_the_lease_back(lab):
    asking, _, lease = await lab.armed()
    await lab.one.head.take()
    await asking
    lab.post.to_host.append(Letter("one", wire.encode(LeaseHeld("of-nobody", lease, "two"), 0.0)))
    await lab.one.head.take()
    await until(lambda: any(each.body["kind"] == "LeaseUnwanted" for each in lab.post.to_host))


async def test_the_key_of_a_persons_lease_can_be_looked_up_by_other_hosts(lab):
    lab.two.reach_others()
    request = replace(ANDROID, source=LeaseSource.JOB, job="j", personal=True)
    lease = await lab.grant(RequestAdded("of-a-job", request))
    await until(lambda: lab.to_head(LeaseArmed))
    key = lab.two.leasing.new_match_key(lease.id, single_use=False)
    await until(lambda: lab.post.rows[lease.id].match_sha256)
    assert lab.post.rows[lease.id].match_sha256 == digest(key)
    lab.two.leasing.new_match_key(lease.id, single_use=True)  # of a worker, which comes to this host
    assert lab.post.rows[lease.id].match_sha256 == digest(key)


async def test_a_client_of_a_network_that_the_phones_host_names_goes_there_directly(lab):
    key = await lab.key()
    tvm = lab.one.leasing.tvm
    assert tvm.direct_address(key, PEER) is None  # one host alone knows no lab
    tvm.lab = LabView("one")
    seen = HostView("two", None, 1, advertise={"192.0.2.0/24": "lab2:9190"}, state=HostState.OK)
    tvm.lab.latest = LabPicture((seen,))
    assert tvm.direct_address(key, PEER) == ("lab2", 9190)
    assert tvm.direct_address(key, Peer("127.0.0.1", 1)) is None
    assert tvm.direct_address("android:other", PEER) is None
    tvm.lab.latest = LabPicture((replace(seen, advertise={"nonsense": "lab2:9190"}),))
    assert tvm.direct_address(key, PEER) is None


class Table(ReadsHere):
    """Where keys are looked up."""

    def __init__(self, *records):
        self.records = {each.match_sha256: each for each in records}
        self.looked_up = 0

    def with_key(self, sha256):
        self.looked_up += 1
        return self.records.get(sha256)


class Keys(elsewhere.LeasesElsewhere):
    """At a host that reaches others; host two has one lease."""

    def __init__(self):
        record = record_of(Lease("lease-1", "a", 1, replace(ANDROID, match_sha256=digest("android:k")), 0.0), NOW)
        self.now_s = 1000.0
        super().__init__(Table(replace(record, host="two")), "session-1", lambda: self.now_s)
        self.connect("one", lambda *_: None)


@pytest.fixture
def keys():
    return Keys()


async def test_a_key_is_looked_up_once_and_a_wrong_one_not_again_for_a_while(keys):
    for _ in range(3):
        assert (await keys.find("android:k", PEER)).host == "two"
    assert keys._table.looked_up == 1
    assert [await keys.find("android:x", PEER) for _ in range(3)] == [None] * 3
    assert keys._table.looked_up == 2
    keys.now_s += elsewhere.UNKNOWN_S + 0.1
    await keys.find("android:x", PEER)
    assert keys._table.looked_up == 3


async def test_one_address_can_look_up_few_keys_and_keeps_no_other_from_it(keys):
    for number in range(3 * elsewhere.LOOK_UPS):
        await keys.find(f"android:{number}", PEER)
    assert keys._table.looked_up == elsewhere.LOOK_UPS
    assert await keys.find("android:k", PEER) is None
    assert await keys.find("android:k", Peer("192.0.2.8", 1)) is not None
    keys.now_s += elsewhere.WITHIN_S + 0.1
    assert await keys.find("android:k", PEER) is not None


async def test_what_is_known_is_bounded(keys, numbers):
    numbers(elsewhere, MAX_KNOWN=2, MAX_UNKNOWN=2)
    for number in range(4):
        request = replace(ANDROID, match_sha256=f"{number}")
        keys.add(Lease(f"l{number}", "a", number, request, 0.0), "two")
        await keys.find(f"android:{number}", PEER)
    assert [keys.has(f"l{number}") for number in range(4)] == [False, False, True, True]
    assert len(keys._unknown) == 2
    assert (keys.forget("l3"), keys.forget("l3")) == ("two", "")


async def test_with_one_host_nothing_is_looked_up():
    found = elsewhere.LeasesElsewhere(Table(), "session-1", lambda: 0.0)
    assert await found.find("android:k", PEER) is None
    assert found._table.looked_up == 0
