"""What the head knows of its hosts: whose phone a name is, and which leases they may still arm."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from farm.common.selector import Selector
from farm.head import messages as m
from farm.head import wire
from farm.head.hosts import WOKEN_AFTER_S, Hosts, WithheldFor
from farm.model.device import DeviceState, Life
from farm.model.identity import DeviceIdentity
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.store.mailbox import NOTHING
from tests.support.memory_post import MemoryPost
from tests.support.waiting import until
from tests.unit.store.values import NOW, attempt, job

SAME = DeviceIdentity(hardware_serial="R3CN30ABCDE", vendor="acme", model="one", abi="arm64-v8a")


def phone(name, life=Life.READY, **fields):
    return m.DeviceChanged(DeviceState(name, name, life, adopted=True, **fields))


@pytest.fixture
def post():
    return MemoryPost()


@pytest.fixture
def woken():
    return []


@pytest.fixture
def hosts(post, woken):
    return Hosts(SimpleNamespace(mailbox=post), woken.append, lambda: 0.0)


def granted(lease_id, holder_host=""):
    request = LeaseRequest(Selector(), "ann", LeaseSource.JOB, job="j", holder_host=holder_host)
    claim = m.AttemptClaim(job("j"), attempt(of="j", device="a"))
    return m.LeaseGranted("r", Lease(lease_id, "a", 1, request, 0.0), NOW, claim)


def test_a_name_is_disputed_while_both_hosts_have_such_a_phone(hosts, post, caplog):
    caplog.set_level(logging.WARNING)
    hosts.note("one", phone("a"))
    for moved in (phone("a", Life.GONE), m.DeviceForgotten("a")):
        assert hosts.owned_by_other_host("two", moved)
    assert caplog.records == []
    for _ in range(2):
        assert hosts.owned_by_other_host("two", phone("a"))
    (warning,) = caplog.records
    assert "host two has a phone named a, and so has host one" in warning.getMessage()
    hosts.note("one", phone("a", Life.GONE))
    assert post.seen == NOTHING  # the other row is read again
    assert not hosts.owned_by_other_host("two", phone("a"))
    hosts.note("one", phone("b", identity=SAME))
    assert hosts.owned_by_other_host("three", phone("b", identity=SAME))
    assert "it is the same phone, and one hands it out until it is gone there" in caplog.text


def test_a_phone_that_its_host_does_not_use_is_not_handed_out_and_stands_in_no_ones_way(hosts):
    (unused,) = hosts.note("two", phone("b", Life.RECOVERING, identity=SAME, withheld="host one has the same phone"))
    assert unused.state.withheld == "host one has the same phone"
    (used,) = hosts.note("one", phone("a", identity=SAME))
    assert used.state.withheld == ""
    hosts.note("one", phone("a", Life.GONE, identity=SAME))
    (taken_up,) = hosts.note("two", phone("b", identity=SAME))
    assert taken_up.state.leasable


def test_what_is_read_again_is_new_only_once(hosts):
    hosts.decide = (heard := []).append
    wanted = m.RequestAdded("r", LeaseRequest(Selector(), "ann", LeaseSource.TVM))
    for _ in range(2):
        hosts.take("one", phone("a"))
        hosts.take("one", wanted)
    assert [type(each) for each in heard] == [m.DeviceChanged, m.RequestAdded]
    hosts.take("one", phone("a", Life.OFFLINE))
    assert heard[-1].state.life is Life.OFFLINE
    hosts.withhold("two", WithheldFor.LOSS, "it is lost")
    hosts.take("two", wanted)
    hosts.withhold("two", WithheldFor.LOSS, "")
    hosts.take("two", wanted)
    assert len(heard) == 4


def test_phones_of_a_stopped_host_are_gone_until_it_begins_again(hosts):
    hosts.decide = (heard := []).append
    hosts.stopped.add("one")
    hosts.take("one", phone("a"))
    hosts.stopped.discard("one")
    hosts.take("one", phone("a"))
    assert [each.state.life for each in heard] == [Life.GONE, Life.READY]


@pytest.mark.parametrize("finds_it", [True, False])
async def test_a_host_that_has_ended_a_lease_is_woken_only_if_it_does_not_find_the_next_grant(hosts, woken, finds_it):
    hosts.note("one", phone("a"))
    for lease in ("first", "next"):
        hosts.letter(granted(lease))
        hosts.receive(granted(lease))
        assert woken == ["one"]
        if lease == "first":
            hosts.note("one", m.LeaseEnded("a", "first"))
    if finds_it:
        hosts.note("one", m.LeaseArmed("a", "next", "j.1"))
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(WOKEN_AFTER_S, later.set_result, None)  # behind the one of the grant
    await later
    assert woken == (["one"] if finds_it else ["one", "one"])


@pytest.mark.parametrize("undone", [True, False])
async def test_a_grant_that_was_undone_is_forgotten(hosts, post, undone):
    hosts.note("one", phone("a"))
    hosts.letter(granted("L1", holder_host="two"))
    if undone:
        hosts.grant_undone("L1")
    hosts.note("one", m.LeaseArmed("a", "L1", "j.1"))
    assert hosts.runs_at("j") == ("" if undone else "one")
    hosts.receive(m.YieldWanted("a"))
    await until(lambda: post.to_host)
    (letter,) = post.to_host
    assert (letter.host, wire.to_host(letter.body, 0.0)) == ("one" if undone else "two", m.YieldWanted("a"))
