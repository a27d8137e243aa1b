"""Leases: grants, fences, withdrawal, revocation, and what a device's changes do to its holder. No sockets."""

import asyncio
from dataclasses import replace

import pytest

from farm.common.errors import Code, Fault
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.devices.power.power import PowerError
from farm.head.allocator.model import AllocatorPolicy
from farm.head.config import UserConfig
from farm.head.model import LeasePolicy
from farm.model.device import Closed, Heat, Life, Service
from farm.model.requests import LeaseClass, LeaseRequest, LeaseSource, NoSuchLeaseError
from farm.model.sessions import NoSuchMatchKeyError, Peer, SessionEnd, SessionOutcome
from tests.support.errors import raises_code
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over, requests_of
from tests.support.tvm import FakeDevices

PEER = Peer("127.0.0.1", 1, "alice")


class Lab:
    def __init__(self, *phones, policy=None):
        self.devices = FakeDevices()
        for phone in phones:
            self.devices.add(phone, "android")
        self.events = EventLog()
        self.keeper = MemoryKeeper()
        self.leasing = leasing_over(self.devices, self.events, 5, self.keeper, policy)
        self.cuts = []

    def want(self, text="android", priority=1, device=""):
        request = LeaseRequest(Selector.parse(text), "alice", LeaseSource.JOB, priority, device=device)
        return asyncio.ensure_future(self.leasing.acquire(request))

    async def open(self, key):
        return await self.leasing.tvm.open(key, PEER, 1.0, self.cuts.append)

    def told(self):
        return [event.kind for event in self.events.since()]


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lease_has_a_fence_of_its_epoch_that_grows():
    lab = Lab("a", "b")
    first, second = await lab.want(), await lab.want()
    assert {first.device, second.device} == {"a", "b"}
    assert first.fence >> 32 == second.fence >> 32 == 5
    assert first.fence < second.fence
    lab.leasing.release(first.id)
    third = await lab.want()
    assert third.device == first.device
    assert third.fence > second.fence


async def test_the_holder_of_a_phone_that_gets_too_hot_is_told_once_and_keeps_it():
    lab = Lab("a")
    lease = await lab.want()
    hot = {each: Closed("skin 50.0 °C is above 48 °C for any lease", 60.0) for each in LeaseClass}
    for opens_in_s in (60.0, 50.0):
        lab.devices.become(
            "a",
            Life.READY,
            heat=Heat.COOLING,
            closed={each: replace(why, opens_in_s=opens_in_s) for each, why in hot.items()},
        )
    (told,) = [event for event in lab.events.since() if event.kind == "lease.hot"]
    assert (told.subject, told.data["device"]) == (lease.id, "a")
    assert told.data["reason"] == "skin 50.0 °C is above 48 °C for any lease"
    assert [holder.lease for holder in lab.leasing.active.holders()] == [lease]
    lab.devices.become("a", Life.READY, heat=Heat.OK, closed={})
    lab.devices.become("a", Life.READY, heat=Heat.COOLING, closed=hot)
    assert lab.told().count("lease.hot") == 2


async def test_a_dangerously_hot_phone_is_taken_from_its_holder_and_what_ran_there_is_killed():
    lab = Lab("a", "b")
    lease = await lab.want(device="a")
    leg = await lab.open(lab.leasing.new_match_key(lease.id, single_use=False))
    taken = lab.leasing.when_revoked(lease.id)
    said = "skin 70.0 °C is above 65 °C, where every lease ends"
    hot = {each: Closed("skin 70.0 °C is above 48 °C for any lease") for each in LeaseClass}
    lab.devices.become("a", Life.READY, heat=Heat.COOLING, closed=hot, too_hot=said)
    told = f"a is dangerously hot: {said}"
    why = await taken
    assert (why.code, why.fault, why.message) == ("too_hot", Fault.PHONE, told)
    assert lab.cuts == [told]
    leg.ended(SessionEnd(SessionOutcome.CUT, 0, 0, 1.0, told))
    assert [name for name, _ in lab.devices.broken] == ["a", "a"]
    assert lab.leasing.active.holders() == ()
    assert (await lab.want()).device == "b"


async def test_what_a_dangerously_hot_phone_computes_without_a_session_is_killed_too():
    lab = Lab("a")
    await lab.want()
    lab.devices.become("a", Life.READY, too_hot="battery 61.0 °C is above 60 °C, where every lease ends")
    assert lab.leasing.active.holders() == ()
    assert len(lab.devices.broken) == 1


async def test_stock_keys_are_for_the_class_that_operators_say():
    lab = Lab("a", policy=LeasePolicy(tvm_class={"android": LeaseClass.BENCH}))
    lab.devices.become("a", Life.READY, closed={LeaseClass.BENCH: Closed("it is warm")})
    waiting = asyncio.ensure_future(lab.leasing.tvm.request("Android", "alice", 1, PEER))
    await settle()
    (request,) = [each.request for each in requests_of(lab.leasing).waiting()]
    assert request.lease_class is LeaseClass.BENCH
    assert requests_of(lab.leasing).why([requests_of(lab.leasing).waiting()[0].id]).popitem()[1] == "a: it is warm"
    lab.devices.become("a", Life.READY, closed={})
    assert await waiting


async def test_release_serves_the_next_and_is_harmless_when_repeated():
    lab = Lab("a")
    lease = await lab.want()
    low, high = lab.want(priority=1), lab.want(priority=2)
    await settle()
    assert [each.request.priority for each in requests_of(lab.leasing).waiting()] == [2, 1]
    lab.leasing.release(lease.id)
    lab.leasing.release(lease.id)
    lab.leasing.release("lease-0-0")
    assert (await high).device == "a"
    assert not low.done()
    low.cancel()
    await settle()
    assert not requests_of(lab.leasing).waiting()


async def test_a_cancelled_request_leaves_no_trace_before_and_after_its_grant():
    lab = Lab()
    waiting = lab.want()
    await settle()
    waiting.cancel()
    await settle()
    assert not requests_of(lab.leasing).waiting()
    waiting = lab.want()
    await settle()
    lab.devices.add("a", "android")  # granted; the task has not run yet
    waiting.cancel()
    await settle()
    assert waiting.cancelled()
    assert not lab.leasing.active.holders()
    waiting = lab.want("b")
    await settle()
    waiting.cancel()
    lab.devices.add("b", "android")  # granted to a request that is being cancelled
    await settle()
    assert not lab.leasing.active.holders()


async def test_a_lost_device_is_revoked_and_not_handed_on():
    lab = Lab("a")
    lease = await lab.want()
    waiting = lab.want()
    await settle()
    lab.devices.become("a", Life.OFFLINE, "unplugged")
    await settle()
    assert not lab.leasing.active.holders()
    assert not waiting.done()
    assert lab.told() == ["lease.granted", "lease.revoked", "lease.released"]
    assert "unplugged" in list(lab.events.since())[1].data["reason"]
    with pytest.raises(NoSuchLeaseError):
        lab.leasing.new_match_key(lease.id, single_use=False)
    lab.devices.become("a", Life.READY)
    assert (await waiting).device == "a"


async def test_a_device_lost_in_the_moment_of_its_grant_leaves_the_request_waiting():
    lab = Lab()
    waiting = lab.want()
    await settle()
    lab.devices.add("a", "android")
    lab.devices.become("a", Life.GONE)
    await settle()
    assert not waiting.done()
    assert len(requests_of(lab.leasing).waiting()) == 1
    lab.devices.become("a", Life.READY)
    assert (await waiting).device == "a"


@pytest.mark.parametrize("change", [{"service": Service.DRAINING}, {"heat": Heat.COOLING}])
async def test_draining_and_cooling_leave_the_holder_alone_but_take_no_next(change):
    lab = Lab("a")
    lease = await lab.want()
    waiting = lab.want()
    await settle()
    lab.devices.change(replace(lab.devices.view("a"), **change))
    assert lab.leasing.active.holders()
    lab.leasing.release(lease.id)
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_a_stock_key_may_be_any_selector_and_becomes_the_keys_prefix():
    lab = Lab("a")
    key = await lab.leasing.tvm.request("name=a,android", "bob", 1, PEER)
    assert key.startswith("name=a,android:")
    (holder,) = lab.leasing.active.holders()
    assert (holder.lease.request.user, holder.lease.request.source) == ("bob", LeaseSource.TVM)
    with raises_code(Code.BAD_SELECTOR):
        await lab.leasing.tvm.request("=", "bob", 1, PEER)
    assert lab.leasing.tvm.serves("Android")
    assert not lab.leasing.tvm.serves("rasp3b")


@pytest.mark.parametrize("outcome", list(SessionOutcome))
async def test_the_end_of_its_session_ends_a_tvm_lease_and_the_next_gets_a_looked_after_phone(outcome):
    lab = Lab("a")
    lab.devices.recover = False
    leg = await lab.open(await lab.leasing.tvm.request("android", "bob", 1, PEER))
    waiting = lab.want()
    await settle()
    leg.opened()
    leg.ended(SessionEnd(outcome, 1, 2, 3.0, "because"))
    await settle()
    normal = outcome in (SessionOutcome.CLOSED, SessionOutcome.ABANDONED)
    assert waiting.done() is normal
    assert lab.devices.broken == ([] if normal else [("a", "because")])
    told = [kind for kind in lab.told() if kind != "session.cut"]
    assert told[:4] == ["lease.granted", "session.opened", "session.ended", "lease.released"]
    assert "lease.revoked" not in told
    lab.devices.become("a", Life.READY)
    assert (await waiting).device == "a"


async def test_revoking_cuts_the_session_and_waits_for_its_end():
    lab = Lab("a")
    leg = await lab.open(await lab.leasing.tvm.request("android", "bob", 1, PEER))
    revoking = asyncio.ensure_future(lab.leasing.revoke("a", "maintenance"))
    await settle()
    assert lab.cuts == ["maintenance"]
    assert not revoking.done()
    leg.ended(SessionEnd(SessionOutcome.CUT, detail="maintenance"))
    await revoking
    assert not lab.leasing.active.holders()
    with pytest.raises(NoSuchLeaseError):
        await lab.leasing.revoke("a", "again")


async def test_a_session_that_waits_for_its_mending_phone_is_not_cut_by_each_step_of_the_mending():
    lab = Lab("a")
    lease = await lab.want()
    key = lab.leasing.new_match_key(lease.id, single_use=False)
    lab.devices.become("a", Life.RECOVERING, "wedged")
    opening = asyncio.ensure_future(lab.open(key))
    await settle()
    for life in (Life.STARTING, Life.CHECKING):
        lab.devices.become("a", life)
    lab.devices.become("a", Life.READY)
    assert (await opening).device == "a"
    assert not lab.cuts


async def test_a_phone_that_is_sent_away_keeps_its_lease():
    lab = Lab("a")
    lease = await lab.want()
    with lab.leasing.phone_away(lease.id):
        for life in (Life.GONE, Life.IDENTIFYING, Life.READY):
            lab.devices.become("a", life)
    assert lab.leasing.active.holders()
    with lab.leasing.phone_away(lease.id):
        lab.devices.become("a", Life.GONE)
    assert not lab.leasing.active.holders()  # it did not come back
    lab.devices.become("a", Life.READY)
    lease = await lab.want()

    def send_away_in_vain():
        lab.devices.become("a", Life.GONE)
        raise PowerError("the port stays off")

    with pytest.raises(PowerError, match="stays off"), lab.leasing.phone_away(lease.id):
        send_away_in_vain()
    assert lab.leasing.active.holders()  # the holder's own error is the one that counts
    lab.leasing.release(lease.id)
    assert not lab.leasing.active.holders()
    with pytest.raises(NoSuchLeaseError), lab.leasing.phone_away(lease.id):
        pass


async def test_a_lease_revoked_while_its_session_waits_for_the_phone():
    lab = Lab("a", policy=LeasePolicy(recovery_s=0.01))
    lease = await lab.want()
    key = lab.leasing.new_match_key(lease.id, single_use=False)
    lab.devices.become("a", Life.RECOVERING)
    opening = asyncio.ensure_future(lab.leasing.tvm.open(key, PEER, 10.0, lambda reason: opening.cancel(reason)))
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not lab.leasing.active.holders()
    with pytest.raises(NoSuchMatchKeyError):
        await lab.open(key)


async def test_only_a_device_in_checking_can_be_checked():
    lab = Lab("a")
    for name in ("a", "nobody"):
        with raises_code(Code.NOT_CHECKING):
            lab.leasing.checking_key(name)
    lab.devices.become("a", Life.CHECKING)
    leg = await lab.open(lab.leasing.checking_key("a"))
    assert leg.device == "a"
    leg.ended(SessionEnd(SessionOutcome.PHONE_CLOSED))
    assert not lab.devices.broken  # whoever checks learns it from the check
    key = lab.leasing.checking_key("a")
    lab.devices.become("a", Life.READY)
    with pytest.raises(NoSuchMatchKeyError):
        await lab.open(key)


async def test_explain_and_summary():
    lab = Lab("a", "b")
    lab.devices.become("b", Life.CHECKING, "golden kernel")
    lease = await lab.want()
    waiting = [lab.want(), lab.want("a"), lab.want("mali")]
    await settle()
    explained = await lab.leasing.head.explain("android")
    assert len(explained.waiting) == 2
    reasons = {each.device: each.reason for each in explained.devices}
    assert reasons["a"].startswith(f"held by {lease.request.user} for 0 s")
    assert reasons["b"] == "checking: golden kernel"
    about_device = await lab.leasing.head.explain("a")
    assert [each.device for each in about_device.devices] == ["a"]
    assert len(about_device.waiting) == 2
    mali = await lab.leasing.head.explain("mali")
    assert not any(each.matches for each in mali.devices)
    with raises_code(Code.BAD_SELECTOR):
        await lab.leasing.head.explain("=")
    rows = {row.key: (row.free, row.pending) for row in lab.leasing.tvm.summary().keys}
    assert rows == {"android": (0, 1), "a": (0, 1), "b": (0, 0), "mali": (0, 1)}
    assert {(row.key, row.device) for row in lab.leasing.tvm.summary().servers} == {
        ("android", "a"), ("a", "a"), ("android", "b"), ("b", "b"),
    }  # fmt: skip
    for task in waiting:
        task.cancel()


WARM = Closed("skin 41.0 °C is above 38 °C for bench", 60.0)


async def test_a_phone_that_is_free_is_not_hidden_by_who_waits_for_it():
    lab = Lab("a", "b")
    await lab.want(device="a")
    lab.devices.become("b", Life.READY, closed={LeaseClass.BENCH: WARM})
    bench = LeaseRequest(Selector.parse("android"), "bob", LeaseSource.JOB, lease_class=LeaseClass.BENCH)
    waiting = lab.leasing.ask(bench, lambda _: None)
    explained = await lab.leasing.head.explain("android")
    assert [(each.device, each.reason) for each in explained.devices] == [("b", "free"), ("a", "held by alice for 0 s")]
    assert [(each.id, each.why) for each in explained.waiting] == [(waiting, "2 phones: 1 held, 1 skin")]
    assert (await lab.want()).device == "b"  # as it said


async def test_a_request_for_a_key_of_a_class_is_explained_as_of_that_class():
    lab = Lab("a", policy=LeasePolicy(tvm_class={"android": LeaseClass.BENCH}))
    lab.devices.become("a", Life.READY, closed={LeaseClass.BENCH: WARM})
    explained = [await lab.leasing.head.explain(subject) for subject in ("android", "name=a")]
    assert [each.reason for answer in explained for each in answer.devices] == [str(WARM), "free"]


async def test_whoever_waits_over_their_quota_is_told_so_once_and_by_name():
    lab = Lab("a", "b", policy=LeasePolicy(users={"alice": UserConfig(devices=1)}))
    await lab.want()
    waiting = [lab.want(), lab.want("a")]
    await settle()
    explained = await lab.leasing.head.explain("android")
    limit = "alice holds 1 device of at most 1"
    assert explained.limits == ()  # of another user's request
    assert [each.reason for each in explained.devices] == ["free", "held by alice for 0 s"]
    assert [each.why for each in explained.waiting] == [limit, limit]
    request = explained.waiting[0].id
    assert requests_of(lab.leasing).why((request,)) == {request: limit}
    for task in waiting:
        task.cancel()


async def test_phones_that_a_job_must_avoid_match_it_all_the_same():
    lab = Lab("a", "b")
    request = LeaseRequest(Selector.parse("android"), "alice", LeaseSource.JOB, avoid=frozenset({"a", "b"}))
    waiting = lab.leasing.ask(request, lambda _: None)
    why = "all 2 phones: it failed this job, or a sibling has it"
    assert requests_of(lab.leasing).why((waiting,)) == {waiting: why}


async def test_a_forgotten_device_is_explained_no_more():
    lab = Lab("a")
    view = lab.devices._views.pop("a")
    for listener in tuple(lab.devices._listeners):
        listener(replace(view, life=Life.GONE))
    assert (await lab.leasing.head.explain("android")).devices == ()
    assert not lab.leasing.tvm.serves("android")


async def test_closing_revokes_everything():
    lab = Lab("a", "b")
    await lab.want()
    lab.devices.become("b", Life.CHECKING)
    lab.leasing.checking_key("b")
    await lab.leasing.close()
    assert not lab.leasing.active.holders()
    assert lab.told()[-2:] == ["lease.revoked", "lease.released"]


async def test_a_worker_place_may_outlast_its_lease_and_is_asked_for():
    lab = Lab("a", "b", policy=LeasePolicy(allocator=AllocatorPolicy(workers=1, min_slice_s=0.0, held_counts_s=0.0)))
    tune = LeaseRequest(
        Selector.of_alias("android"), "alice", LeaseSource.JOB, 1, LeaseClass.TUNE, worker=True, job="t"
    )
    lease = await lab.leasing.acquire(tune)
    lab.leasing.keep_slot(lease.id)
    with pytest.raises(NoSuchLeaseError):
        lab.leasing.keep_slot("lease-0-0")
    lab.leasing.release(lease.id)
    assert not lab.leasing.slot_wanted(lease.id)
    bench = asyncio.ensure_future(lab.leasing.acquire(replace(tune, priority=2, lease_class=LeaseClass.BENCH, job="b")))
    await settle()
    assert not bench.done()
    assert lab.leasing.slot_wanted(lease.id)
    lab.leasing.free_slot(lease.id)
    lab.leasing.free_slot(lease.id)
    assert (await bench).request.job == "b"
    assert not lab.leasing.slot_wanted(lease.id)


async def test_why_a_pool_waits_leaves_out_its_own_phones():
    lab = Lab("a", "b", "c")
    pool = LeaseRequest(Selector.of_alias("android"), "alice", LeaseSource.JOB, job="t", only=frozenset("ab"))
    await lab.leasing.acquire(replace(pool, only=frozenset("a")))
    other = await lab.leasing.acquire(replace(pool, only=frozenset("b"), job="o", user="bob"))
    waits = lab.leasing.ask(pool, lambda _: None)
    assert requests_of(lab.leasing).why([waits])[waits].startswith("b: held by bob")
    alone = lab.leasing.ask(replace(pool, only=frozenset("a")), lambda _: None)
    assert requests_of(lab.leasing).why([alone])[alone] == "no other phone is identical"
    lab.leasing.release(other.id)
    await settle()
    assert requests_of(lab.leasing).why([waits])[waits] == ""
