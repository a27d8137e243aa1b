"""A job at one host has a phone of another: its key, others that wait for it, its loss, what is told of it."""

import asyncio

import pytest

from farm.common.selector import Selector
from farm.head import messages as m
from farm.head import wire
from farm.leasing.model import PhoneLostError
from farm.leasing.sessions import digest
from farm.model.requests import LeaseClass, LeaseRequest, LeaseSource, NoSuchLeaseError
from farm.store.mailbox import Letter
from tests.support.waiting import until
from tests.unit.leasing.test_elsewhere import PEER, Lab

TUNE = LeaseRequest(Selector.parse("android"), "ann", LeaseSource.JOB, lease_class=LeaseClass.TUNE, job="tune-1")


@pytest.fixture
async def lab():
    return Lab()


@pytest.fixture
async def lease(lab):
    """Of host two's phone for a job of host one."""
    got = []
    lab.one.leasing.ask_anywhere(TUNE, got.append)
    await until(lambda: lab.to_head(m.RequestAdded))
    lease = await lab.grant(lab.to_head(m.RequestAdded)[0])
    await until(lambda: lab.to_head(m.LeaseArmed))
    await lab.one.head.take()
    assert [each.id for each in got] == [lease.id]
    return lease


async def tell_one(lab, message):
    lab.post.to_host.append(Letter("one", wire.encode(message, 0.0)))
    await lab.one.head.take()


def told(lab, host):
    return [wire.to_host(each.body, 0.0) for each in lab.post.to_host if each.host == host]


async def test_its_sessions_have_one_key_that_opens_the_phone_again_and_again(lab, lease):
    key = lab.one.leasing.new_match_key(lease.id, single_use=True)
    assert (key.partition(":")[0], digest(key)) == ("tune-1", lease.request.match_sha256)
    assert lab.one.leasing.new_match_key(lease.id, single_use=True) == key
    for _ in range(2):
        there = await lab.two.leasing.tvm.open(key, PEER, 5.0, lambda _: None)
        assert there.device == "a"
        lab.two.leasing.active.leases[lease.id].session = None


async def test_others_that_wait_for_it_are_heard_of_where_the_job_is(lab, lease):
    assert not lab.one.leasing.yield_wanted(lease.id)
    await tell_one(lab, m.YieldWanted("a"))
    assert lab.one.leasing.yield_wanted(lease.id)


async def test_a_phone_that_its_host_loses_is_lost_to_the_job(lab, lease):
    revoked = lab.one.leasing.when_revoked(lease.id)
    await tell_one(lab, m.LeaseLost(lease.id, "its cable was pulled"))
    with pytest.raises(PhoneLostError, match="a of host two was lost: its cable was pulled"):
        raise await revoked
    with pytest.raises(NoSuchLeaseError):
        lab.one.leasing.when_revoked(lease.id)
    await tell_one(lab, m.LeaseLost(lease.id, "again"))


async def test_why_it_ended_is_written_for_the_job_of_the_other_host(lab, lease):
    lab.two.leasing.release(lease.id, "its cable was pulled")
    await until(lambda: lab.to_head(m.LeaseEnded))
    assert lab.to_head(m.LeaseEnded) == [m.LeaseEnded("a", lease.id, "its cable was pulled")]


async def test_what_the_job_says_of_it_reaches_its_host(lab, lease):
    lab.one.leasing.abort(lease.id, "it hangs")
    lab.one.leasing.release(lease.id, "the job is done")
    await until(lambda: len(told(lab, "two")) == 2)
    assert told(lab, "two") == [m.SessionBroken(lease.id, "it hangs"), m.LeaseUnwanted(lease.id, "the job is done")]
    await lab.two.head.take()
    assert lab.two.leasing._devices.broken == [("a", "it hangs")]
    await until(lambda: lab.post.rows[lease.id].ended_at is not None)


async def test_a_pool_that_does_not_wait_any_more_leaves_no_key_behind(lab):
    request = lab.one.leasing.ask_anywhere(TUNE, lambda _: None)
    lab.one.leasing.withdraw(request)
    await until(lambda: lab.to_head(m.RequestWithdrawn))
    await asyncio.sleep(0)
    assert lab.one.leasing.borrowed._keys == {}
