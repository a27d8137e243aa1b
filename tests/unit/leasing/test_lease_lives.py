"""Leases over restarts, extended, with traces, under quotas, and in a storm over the real store."""

import asyncio
import gc
import random
import time
from dataclasses import replace

import pytest

from farm.common.errors import HostError
from farm.head import reports
from farm.head.config import UserConfig
from farm.head.model import LeasePolicy
from farm.head.waiting_requests import PendingGrant
from farm.leasing.model import PhoneLostError
from farm.leasing.sessions import digest
from farm.model.device import Life
from farm.model.requests import NoSuchLeaseError
from farm.model.sessions import NoSuchMatchKeyError, Peer, SessionEnd, SessionOutcome
from tests.support.leasing_lab import ANDROID, PEER, Lab, settle
from tests.support.virtual_time import virtual_time
from tests.support.waiting import HANG_S, until

PERSONAL = replace(ANDROID, longest_s=60.0, traces=True, personal=True, job="j")


@pytest.fixture
async def lab():
    return Lab("a")


# --- restarts -------------------------------------------------------------------------------------------------------


async def test_a_personal_lease_goes_on_after_a_restart():
    before = Lab("a", "b")
    lease = await before.lease(PERSONAL)
    key = before.leasing.new_match_key(lease.id, single_use=False)
    other = await before.lease()
    await before.leasing.close()
    assert before.open_rows() == [(lease.device, lease.id)]
    assert "lease.revoked" in before.told()
    assert before.keeper.rows[other.id].reason == "the farm is stopping"

    after = Lab()
    after.keeper.rows = {lease.id: before.keeper.rows[lease.id]}
    after.leasing.restore(lease)
    after.leasing.adopt_match_key(lease.id, digest(key))
    (holder,) = after.holders()
    assert (holder.lease.id, holder.lease.fence) == (lease.id, lease.fence)
    assert 0 < (holder.expires_at - after.keeper.rows[lease.id].granted_at).total_seconds() <= 61
    after.ask()
    for life in (Life.NEW, Life.IDENTIFYING, Life.STARTING):
        after.devices.add(lease.device, "android", life=life)
    await settle()
    assert len(after.holders()) == 1
    after.devices.become(lease.device, Life.READY)
    assert after.got == []
    leg = await after.open(key)
    assert leg.device == lease.device
    after.devices.recover = False
    taken = after.leasing.when_revoked(lease.id)
    asyncio.get_running_loop().call_soon(leg.ended, SessionEnd(SessionOutcome.CUT))
    await asyncio.wait_for(after.leasing.revoke(lease.device, "kicked"), HANG_S)
    assert taken.done()
    assert after.devices.broken  # cleaned after a person, whatever ended it
    assert after.got == []
    after.devices.become(lease.device, Life.READY)
    await settle()
    assert after.got[0].device == lease.device


async def test_a_grant_is_forgotten_once_its_lease_is_held_though_no_garbage_is_collected(lab):
    def kept():
        return sum(isinstance(each, PendingGrant) for each in gc.get_objects())

    gc.collect()
    before = kept()
    gc.disable()  # as for the requests of jobs that a head has read at its start
    try:
        await lab.lease()
        assert kept() == before
    finally:
        gc.enable()


async def test_a_restored_lease_whose_phone_does_not_come_back_is_revoked(lab):
    lease = await lab.lease(PERSONAL)
    after = Lab(policy=LeasePolicy(recovery_s=0.02))
    after.devices.add("a", "android", life=Life.GONE)
    after.keeper.rows = dict(lab.keeper.rows)
    after.leasing.restore(lease)
    lost = await asyncio.wait_for(after.leasing.when_revoked(lease.id), HANG_S)
    assert isinstance(lost, PhoneLostError)
    await until(lambda: not after.open_rows())
    assert after.told() == ["lease.revoked", "lease.released"]


# --- extend, dirty, quotas ------------------------------------------------------------------------------------------


async def test_extending_is_kept_and_told(lab):
    lease = await lab.lease(PERSONAL)
    before = lab.leasing.expires_at(lease.id)
    expires_at = await lab.leasing.extend(lease.id, 600.0)
    assert (expires_at - before).total_seconds() > 500
    assert lab.keeper.rows[lease.id].expires_at == expires_at
    assert abs((lab.leasing.expires_at(lease.id) - expires_at).total_seconds()) < 1
    assert lab.told() == ["lease.granted", "lease.extended"]
    with lab.slow_store():  # it ends while it is extended
        extending = asyncio.ensure_future(lab.leasing.extend(lease.id, 600.0))
        await settle()
        lab.leasing.release(lease.id)
    for late in (extending, lab.leasing.extend(lease.id, 1.0)):
        with pytest.raises(NoSuchLeaseError):
            await late
    await until(lambda: not lab.open_rows())


@virtual_time
async def test_a_lease_is_not_extended_while_the_store_cannot_write():
    lab = Lab("a")
    lease = await lab.lease()
    before = lab.leasing.expires_at(lease.id)
    lab.keeper.full = True
    with pytest.raises(HostError, match=f"lease {lease.id} is not extended: the database does not answer"):
        await lab.leasing.extend(lease.id, 600.0)
    lab.keeper.full = False
    assert lab.leasing.expires_at(lease.id) == before
    assert await lab.leasing.extend(lease.id, 60.0)
    assert lab.told() == ["lease.granted", "lease.extended"]


@pytest.mark.parametrize(("request_", "dirty"), [(ANDROID, True), (PERSONAL, False)])
async def test_a_phone_with_traces_is_cleaned_before_the_next_user(lab, request_, dirty):
    lab.devices.recover = False
    lease = await lab.lease(request_)
    lab.ask()
    lab.leasing.release(lease.id, dirty=dirty)
    await settle()
    assert (lab.devices.broken, lab.got) == ([("a", "cleaning after alice's lease")], [])
    ledger, now_s = lab.requests.allocator._state.ledger, time.monotonic()
    used_s = ledger.usage_s("alice", now_s)
    assert ledger.usage_s("alice", now_s + 10.0) == pytest.approx(used_s + 10.0, rel=0.01)  # its user still pays
    lab.devices.become("a", Life.READY)
    await settle()
    assert len(lab.got) == 1


async def test_why_many_alike_wait_is_looked_at_once(lab, monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        reports, "obstacle_of", lambda allocator, request, now_s: looked_at.append(request) or str(len(looked_at))
    )
    await lab.lease()
    alike = [lab.ask(replace(ANDROID, job=f"j{number}")) for number in range(3)]
    other = lab.ask(replace(ANDROID, job="j4", avoid=frozenset({"b"})))
    expected = {**dict.fromkeys(alike, "1"), other: "2", "gone": ""}
    assert lab.requests.why([*alike, other, "gone"]) == expected
    assert len(looked_at) == 2


async def test_a_stock_client_asks_with_no_more_priority_than_it_may_and_a_login_may_be_one_of_its_host_only():
    lab = Lab(policy=LeasePolicy(quota=UserConfig(priority=3), users={"ci": UserConfig(priority=7)}))
    asked = []

    async def ask(user, priority, address="127.0.0.1"):
        asked.append(asyncio.ensure_future(lab.leasing.tvm.request("android", user, priority, Peer(address, 1, user))))
        await settle()

    for user, priority in (("bob", 99), ("ci", 99), ("bob", 2)):
        await ask(user, priority)
    assert [each.priority for each in lab.waiting()] == [7, 3, 2]
    assert lab.leasing.tvm.summary().keys[0].pending == 3
    lab.leasing.tvm.users_at = "lab3"
    await ask("eve", 1)
    await ask("10.0.0.9", 1, "10.0.0.9")  # an address is no login
    assert {each.user for each in lab.waiting()} == {"bob", "ci", "eve@lab3", "10.0.0.9"}
    for request in asked:
        request.cancel()
    await settle()
    assert lab.leasing.tvm.summary().keys == ()


async def test_the_key_of_a_lease_is_its_own_answer_until_the_lease_ends(lab):
    lease = await lab.lease(PERSONAL)
    key = lab.leasing.new_match_key(lease.id, single_use=False)
    assert await lab.leasing.tvm.request(key, "alice", 1, PEER) == key
    leg = await lab.open(key)
    waiting = asyncio.ensure_future(lab.leasing.tvm.request(key, "alice", 1, PEER))
    await settle()
    assert not waiting.done()
    lab.leasing.release(lease.id)
    leg.ended(SessionEnd(SessionOutcome.CUT))
    for late in (waiting, lab.leasing.tvm.request(key, "alice", 1, PEER)):
        with pytest.raises(NoSuchMatchKeyError):
            await late
    assert lab.waiting() == []


async def test_many_may_wait_and_none_of_them_is_a_task():
    lab = Lab()
    tasks = len(asyncio.all_tasks())
    requests = [lab.ask() for _ in range(10_000)]
    assert len(asyncio.all_tasks()) == tasks
    assert lab.leasing.tvm.summary().keys[0].pending == 10_000
    for request in requests:
        lab.leasing.withdraw(request)
    assert (lab.waiting(), lab.leasing.tvm.summary().keys) == ([], ())


# --- against the real store -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_in_a_storm_the_store_never_has_two_holders_of_a_phone_and_every_lease_ends(store, seed):
    dice = random.Random(seed)
    lab = Lab("a", "b", "c", table=store.leases, policy=LeasePolicy(recovery_s=0.01))
    got, asked, steps = lab.got, [], 0
    while steps < 400 or lab.told().count("lease.granted") <= 10:  # a disk may be slow
        steps += 1
        match dice.randrange(6):
            case 0 | 1:
                asked.append(lab.ask())
            case 2 if asked:
                lab.leasing.withdraw(asked.pop(dice.randrange(len(asked))))
            case 3 if got:
                lab.leasing.release(got.pop(dice.randrange(len(got))).id)
            case 4:
                life = dice.choice([Life.OFFLINE, Life.RECOVERING, Life.READY, Life.READY])
                lab.devices.become(dice.choice("abc"), life)
            case _:
                await asyncio.sleep(dice.choice([0, 0, 0.001]))
    await lab.leasing.close()
    assert store.leases.open() == ()
    told, holder = lab.events.since(), {}
    for event in told:
        device = event.data.get("device")
        if event.kind == "lease.granted":
            assert device not in holder
            holder[device] = event.subject
        elif event.kind == "lease.released":
            assert holder.pop(device) == event.subject
    assert holder == {}
    assert {lease.id for lease in got} <= {event.subject for event in told if event.kind == "lease.granted"}
