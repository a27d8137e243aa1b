"""Leases: grants, fences, withdrawal, revocation, and what a device's changes do to its holder. No sockets."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from farm.common.errors import Code, Fault
from farm.control.callers import Caller, Role
from farm.control.verbs.fleet import device_row
from farm.control.verbs.lease import LeaseVerbs
from farm.devices.power.power import PowerError
from farm.head.allocator.model import AllocatorPolicy
from farm.head.config import UserConfig
from farm.head.model import LeasePolicy
from farm.leasing.lab_view import LabPicture
from farm.model.device import Closed, DeviceView, Heat, Life, Service
from farm.model.requests import LeaseClass, LeaseSource, NoSuchLeaseError
from farm.model.sessions import NoSuchMatchKeyError, SessionEnd, SessionOutcome
from tests.support.errors import raises_code
from tests.support.leasing_lab import ANDROID, PEER, Clocks, Lab, settle
from tests.unit.store import values


@pytest.fixture
async def lab():
    return Lab("a")


@pytest.fixture
async def pair():
    return Lab("a", "b")


def request(lab, key, user="alice"):
    """What a stock client gets for a key."""
    return lab.leasing.tvm.request(key, user, 1, PEER)


async def test_a_lease_has_a_fence_of_its_epoch_that_grows(pair):
    first, second = await pair.lease(), await pair.lease()
    assert {first.device, second.device} == {"a", "b"}
    assert first.fence >> 32 == second.fence >> 32 == 5
    pair.leasing.release(first.id)
    third = await pair.lease()
    assert third.device == first.device
    assert first.fence < second.fence < third.fence


async def test_the_holder_of_a_phone_that_gets_too_hot_is_told_once_and_keeps_it(lab):
    lease = await lab.lease()
    said = "skin 50.0 °C is above 48 °C for any lease"

    def becomes(heat, opens_in_s=None):
        shut = {each: Closed(said, opens_in_s) for each in LeaseClass} if heat is Heat.COOLING else {}
        lab.devices.become("a", Life.READY, heat=heat, closed=shut)

    becomes(Heat.COOLING, 60.0)
    becomes(Heat.COOLING, 50.0)
    (told,) = [event for event in lab.events.since() if event.kind == "lease.hot"]
    assert (told.subject, told.data["device"], told.data["reason"]) == (lease.id, "a", said)
    assert [holder.lease for holder in lab.holders()] == [lease]
    becomes(Heat.OK)
    becomes(Heat.COOLING)
    assert lab.told().count("lease.hot") == 2


@pytest.mark.parametrize("session", [True, False])
async def test_a_dangerously_hot_phone_is_taken_from_its_holder_and_what_ran_there_is_killed(pair, session):
    lease = await pair.lease(device="a")
    leg = await pair.open(pair.leasing.new_match_key(lease.id, single_use=False)) if session else None
    taken = pair.leasing.when_revoked(lease.id)
    said = "skin 70.0 °C is above 65 °C, where every lease ends"
    hot = {each: Closed("skin 70.0 °C is above 48 °C for any lease") for each in LeaseClass}
    pair.devices.become("a", Life.READY, heat=Heat.COOLING, closed=hot, too_hot=said)
    why, told = await taken, f"a is dangerously hot: {said}"
    assert (why.code, why.fault, why.message) == ("too_hot", Fault.PHONE, told)
    if session:
        assert pair.cuts == [told]
        leg.ended(SessionEnd(SessionOutcome.CUT, 0, 0, 1.0, told))
    assert [name for name, _ in pair.devices.broken] == ["a"] * (1 + session)
    assert pair.holders() == ()
    assert (await pair.lease()).device == "b"


async def test_stock_keys_are_for_the_class_that_operators_say_and_are_explained_as_of_that():
    lab = Lab("a", policy=LeasePolicy(tvm_class={"android": LeaseClass.BENCH}))
    lab.devices.become("a", Life.READY, closed={LeaseClass.BENCH: Closed("it is warm")})
    waiting = asyncio.ensure_future(request(lab, "Android"))
    await settle()
    assert [each.lease_class for each in lab.waiting()] == [LeaseClass.BENCH]
    assert lab.why_first() == "a: it is warm"
    explained = [await lab.leasing.head.explain(subject) for subject in ("android", "name=a")]
    assert [each.reason for answer in explained for each in answer.devices] == ["it is warm", "free"]
    lab.devices.become("a", Life.READY, closed={})
    assert await waiting


async def test_release_serves_the_next_and_is_harmless_when_repeated(lab):
    lease = await lab.lease()
    low, high = lab.want(priority=1), lab.want(priority=2)
    await settle()
    assert [each.priority for each in lab.waiting()] == [2, 1]
    for name in (lease.id, lease.id, "lease-0-0"):
        lab.leasing.release(name)
    assert (await high).device == "a"
    assert not low.done()
    low.cancel()
    await settle()
    assert not lab.waiting()


async def test_a_cancelled_request_leaves_no_trace_before_and_after_its_grant():
    lab = Lab()
    for text, moment in (("android", "before"), ("android", "granted; the task has not run"), ("b", "meanwhile")):
        waiting = lab.want(text)
        await settle()
        if moment.startswith("granted"):
            lab.devices.add("a", "android")
        waiting.cancel()
        if moment == "meanwhile":
            lab.devices.add("b", "android")
        await settle()
        assert waiting.cancelled()
        assert (lab.waiting(), lab.holders()) == ([], ())


async def test_a_lost_device_is_revoked_and_not_handed_on(lab):
    lease = await lab.lease()
    waiting = lab.want()
    await settle()
    lab.devices.become("a", Life.OFFLINE, "unplugged")
    await settle()
    assert not lab.holders()
    assert not waiting.done()
    assert lab.told() == ["lease.granted", "lease.revoked", "lease.released"]
    assert "unplugged" in list(lab.events.since())[1].data["reason"]
    with pytest.raises(NoSuchLeaseError):
        lab.leasing.new_match_key(lease.id, single_use=False)
    lab.devices.become("a", Life.READY)
    assert (await waiting).device == "a"


@pytest.mark.parametrize("change", [{"service": Service.DRAINING}, {"heat": Heat.COOLING}])
async def test_draining_and_cooling_leave_the_holder_alone_but_take_no_next(lab, change):
    lease = await lab.lease()
    waiting = lab.want()
    await settle()
    lab.devices.change(replace(lab.devices.view("a"), **change))
    assert lab.holders()
    lab.leasing.release(lease.id)
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_a_stock_key_may_be_any_selector_and_becomes_the_keys_prefix(lab):
    key = await request(lab, "name=a,android", "bob")
    assert key.startswith("name=a,android:")
    (holder,) = lab.holders()
    assert (holder.lease.request.user, holder.lease.request.source) == ("bob", LeaseSource.TVM)
    with raises_code(Code.BAD_SELECTOR):
        await request(lab, "=", "bob")
    assert lab.leasing.tvm.serves("Android")
    assert not lab.leasing.tvm.serves("rasp3b")


async def test_a_client_that_waits_for_a_key_of_no_phone_is_told_in_the_log_but_not_a_flood(lab, caplog):
    waiting = [asyncio.ensure_future(request(lab, key)) for key in ("android", "gpu=x", "rasp3b", "rasp4b")]
    await settle()
    assert [each.args[-1] for each in caplog.records if each.levelname == "WARNING"] == ["rasp3b"]
    for each in waiting:
        each.cancel()


@pytest.mark.parametrize("outcome", list(SessionOutcome))
async def test_the_end_of_its_session_ends_a_tvm_lease_and_the_next_gets_a_looked_after_phone(lab, outcome):
    lab.devices.recover = False
    leg = await lab.open(await request(lab, "android", "bob"))
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


async def test_revoking_cuts_the_session_and_waits_for_its_end(lab):
    leg = await lab.open(await request(lab, "android", "bob"))
    revoking = asyncio.ensure_future(lab.leasing.revoke("a", "maintenance"))
    await settle()
    assert lab.cuts == ["maintenance"]
    assert not revoking.done()
    leg.ended(SessionEnd(SessionOutcome.CUT, detail="maintenance"))
    await revoking
    assert not lab.holders()
    with pytest.raises(NoSuchLeaseError):
        await lab.leasing.revoke("a", "again")


async def test_a_session_that_waits_for_its_mending_phone_is_not_cut_by_each_step_of_the_mending(lab):
    lease = await lab.lease()
    key = lab.leasing.new_match_key(lease.id, single_use=False)
    lab.devices.become("a", Life.RECOVERING, "wedged")
    opening = asyncio.ensure_future(lab.open(key))
    await settle()
    for life in (Life.STARTING, Life.CHECKING, Life.READY):
        lab.devices.become("a", life)
    assert (await opening).device == "a"
    assert not lab.cuts


async def test_a_phone_that_is_sent_away_keeps_its_lease(lab):
    lease = await lab.lease()
    with lab.leasing.phone_away(lease.id):
        for life in (Life.GONE, Life.IDENTIFYING, Life.READY):
            lab.devices.become("a", life)
    assert lab.holders()
    with lab.leasing.phone_away(lease.id):
        lab.devices.become("a", Life.GONE)
    assert not lab.holders()  # it did not come back
    lab.devices.become("a", Life.READY)
    lease = await lab.lease()

    def send_away_in_vain():
        lab.devices.become("a", Life.GONE)
        raise PowerError("the port stays off")

    with pytest.raises(PowerError, match="stays off"), lab.leasing.phone_away(lease.id):
        send_away_in_vain()
    assert lab.holders()  # the holder's own error is the one that counts
    lab.leasing.release(lease.id)
    assert not lab.holders()
    with pytest.raises(NoSuchLeaseError), lab.leasing.phone_away(lease.id):
        pass


async def test_a_lease_revoked_while_its_session_waits_for_the_phone():
    lab = Lab("a", policy=LeasePolicy(recovery_s=0.01))
    lease = await lab.lease()
    key = lab.leasing.new_match_key(lease.id, single_use=False)
    lab.devices.become("a", Life.RECOVERING)
    opening = asyncio.ensure_future(lab.leasing.tvm.open(key, PEER, 10.0, lambda reason: opening.cancel(reason)))
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not lab.holders()
    with pytest.raises(NoSuchMatchKeyError):
        await lab.open(key)


async def test_only_a_device_in_checking_can_be_checked(lab):
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


async def test_explain_and_summary(pair):
    pair.devices.become("b", Life.CHECKING, "golden kernel")
    await pair.lease()
    waiting = [pair.want(), pair.want("a"), pair.want("mali")]
    await settle()
    head, tvm = pair.leasing.head, pair.leasing.tvm
    explained = await head.explain("android")
    reasons = {each.device: each.reason for each in explained.devices}
    assert (len(explained.waiting), reasons["b"]) == (2, "checking: golden kernel")
    assert reasons["a"].startswith("held by alice for 0 s")
    about_device = await head.explain("a")
    assert ([each.device for each in about_device.devices], len(about_device.waiting)) == (["a"], 2)
    assert not any(each.matches for each in (await head.explain("mali")).devices)
    with raises_code(Code.BAD_SELECTOR):
        await head.explain("=")
    rows = {row.key: (row.free, row.pending) for row in tvm.summary().keys}
    assert rows == {"android": (0, 1), "a": (0, 1), "b": (0, 0), "mali": (0, 1)}
    assert {(row.key, row.device) for row in tvm.summary().servers} == {
        ("android", "a"), ("a", "a"), ("android", "b"), ("b", "b"),
    }  # fmt: skip
    for task in waiting:
        task.cancel()


async def test_a_phone_that_is_free_is_not_hidden_by_who_waits_for_it(pair):
    await pair.lease(device="a")
    warm = Closed("skin 41.0 °C is above 38 °C for bench", 60.0)
    pair.devices.become("b", Life.READY, closed={LeaseClass.BENCH: warm})
    waiting = pair.ask(replace(ANDROID, user="bob", lease_class=LeaseClass.BENCH))
    explained = await pair.leasing.head.explain("android")
    assert [(each.device, each.reason) for each in explained.devices] == [("b", "free"), ("a", "held by alice for 0 s")]
    assert [(each.id, each.why) for each in explained.waiting] == [(waiting, "2 phones: 1 held, 1 skin")]
    assert (await pair.lease()).device == "b"  # as it said


async def test_whoever_waits_over_their_quota_is_told_so_once_and_by_name():
    lab = Lab("a", "b", policy=LeasePolicy(users={"alice": UserConfig(devices=1)}))
    await lab.lease()
    waiting = [lab.want(), lab.want("a")]
    await settle()
    explained = await lab.leasing.head.explain("android")
    limit = "alice holds 1 device of at most 1"
    assert explained.limits == ()  # of nobody's request
    assert [(await lab.leasing.head.explain(each, "alice")).limits for each in ("android", "a")] == [(limit,)] * 2
    assert [each.reason for each in explained.devices] == ["free", "held by alice for 0 s"]
    assert [each.why for each in explained.waiting] == [limit, limit]
    assert lab.why(explained.waiting[0].id) == limit
    for task in waiting:
        task.cancel()


async def test_a_key_is_explained_as_of_a_request_of_who_asks():
    users = {"ann": UserConfig(priority=0), "bob": UserConfig(devices=1)}
    lab = Lab("a", policy=LeasePolicy(users=users), clocks=Clocks())
    await lab.lease(user="bob")
    waiting = lab.want(user="carol")
    await settle()
    unused = dict.fromkeys(("records", "lab", "adb_key", "explain_job", "notes_of", "heat_note"))
    verbs = LeaseVerbs(lab.devices, lab.leasing, None, lab.events, head=lab.leasing.head, **unused)
    for user, role, line, said in (
        ("ann", Role.USER, 1, "  behind 1 of higher priority"),
        ("bob", Role.USER, 0, "bob holds 1 device of at most 1"),
        ("carol", Role.USER, 1, "  behind 1 of the same user, older"),
        ("eve", Role.VIEWER, 0, "eve is viewer and gets no phone: an operator gives the role user"),
    ):
        call = SimpleNamespace(caller=Caller(user, role, "a test"))
        assert (await verbs.explain(call, "key", "android"))["lines"][line] == said
    waiting.cancel()


async def test_leases_and_readings_of_other_hosts_have_ages_by_the_clock_of_the_lab():
    clocks = Clocks()  # not this host's
    lab = Lab("a", clocks=clocks)
    record = values.lease(1, "far", granted_at=clocks.at - timedelta(seconds=90), host="two")
    picture = LabPicture(leases=(record,))
    unused = dict.fromkeys(("adb_key", "explain_job", "heat_note"))
    verbs = LeaseVerbs(
        lab.devices, lab.leasing, None, lab.events, head=lab.leasing.head, notes_of=None, **unused,
        records=SimpleNamespace(in_thread=AsyncMock(return_value={})),
        lab=SimpleNamespace(own="one", look=AsyncMock(return_value=picture)),
    )  # fmt: skip
    answer = await verbs.leases()
    assert answer["now"] == clocks.at.isoformat()
    assert [(each["host"], each["held_s"]) for each in answer["leases"]] == [("two", 90.0)]
    read = DeviceView("far", "S2", Life.READY, read_at=clocks.at - timedelta(hours=2))
    assert device_row(read, "", lab.leasing.wall())["read_age_s"] == 7200.0


async def test_phones_that_a_job_must_avoid_match_it_all_the_same(pair):
    waiting = pair.ask(replace(ANDROID, avoid=frozenset("ab")))
    assert pair.why(waiting) == "all 2 phones: it failed this job, or a sibling has it"


async def test_a_forgotten_device_is_explained_no_more(lab):
    view = lab.devices._views.pop("a")
    for listener in tuple(lab.devices._listeners):
        listener(replace(view, life=Life.GONE))
    assert (await lab.leasing.head.explain("android")).devices == ()
    assert not lab.leasing.tvm.serves("android")


async def test_a_worker_place_may_outlast_its_lease_and_is_asked_for():
    lab = Lab("a", "b", policy=LeasePolicy(allocator=AllocatorPolicy(workers=1, min_slice_s=0.0, held_counts_s=0.0)))
    lease = await lab.lease(lease_class=LeaseClass.TUNE, worker=True, job="t")
    lab.leasing.keep_slot(lease.id)
    with pytest.raises(NoSuchLeaseError):
        lab.leasing.keep_slot("lease-0-0")
    lab.leasing.release(lease.id)
    assert not lab.leasing.slot_wanted(lease.id)
    bench = lab.want(priority=2, lease_class=LeaseClass.BENCH, worker=True, job="b")
    await settle()
    assert not bench.done()
    assert lab.leasing.slot_wanted(lease.id)
    lab.leasing.free_slot(lease.id)
    lab.leasing.free_slot(lease.id)
    assert (await bench).request.job == "b"
    assert not lab.leasing.slot_wanted(lease.id)


async def test_why_a_pool_waits_leaves_out_its_own_phones():
    lab, pool = Lab("a", "b", "c"), replace(ANDROID, job="t", only=frozenset("ab"))
    await lab.lease(pool, only=frozenset("a"))
    other = await lab.lease(pool, only=frozenset("b"), job="o", user="bob")
    waits, alone = lab.ask(pool), lab.ask(replace(pool, only=frozenset("a")))
    assert lab.why(waits).startswith("b: held by bob")
    assert lab.why(alone) == "no other phone is identical"
    lab.leasing.release(other.id)
    await settle()
    assert lab.why(waits) == ""
