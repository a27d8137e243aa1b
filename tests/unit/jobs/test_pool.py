"""A run's pool: what it decides, and what it does about phones that come and go."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, PhoneError, UserError
from farm.common.selector import Selector
from farm.devices.identity.naming_rules import PoolingTraits
from farm.head.planning import plan, preferring
from farm.jobs.pool import OTHERS_WAIT, decide, resting, why_fewer
from farm.kinds.tune import TuneSpec
from farm.model.device import Closed as Shut
from farm.model.device import Heat, Life, Service
from farm.model.identity import DeviceIdentity, Gpu, Soc
from farm.model.job import AttemptState, JobState
from farm.model.requests import LeaseClass, LeaseRequest, LeaseSource
from tests.support.errors import raises_code
from tests.support.waiting import until
from tests.unit.jobs.dispatching import running
from tests.unit.jobs.fakes import phone

LIKE = PoolingTraits("SM8650", "Adreno 750", "arm64-v8a", "{}", "b1")
OTHER = replace(LIKE, soc="SDM845")


def known(name, life=Life.READY, *, soc="SM8650", gpu="Adreno 750", bundle="b1", **facts):
    identity = DeviceIdentity(
        abi="arm64-v8a",
        soc=Soc(model=soc),
        gpu=Gpu(model=gpu),
        targets={"cpu": {"kind": "llvm"}},
    )
    return phone(name, life, identity=identity, bundle=bundle, **facts)


# --- decisions ---


def test_a_pool_begins_with_a_phone_that_has_its_like():
    views = [known("a"), known("b", soc="SDM845"), known("c", soc="SDM845"), known("d", Life.OFFLINE), phone("e")]
    request = LeaseRequest(Selector.parse("android"), "ann", LeaseSource.JOB)
    views = [replace(view, aliases=frozenset({"android"})) for view in views]
    assert preferring(request, views, 2).prefer == preferring(request, views, "all").prefer == {"b", "c"}
    assert preferring(request, views, 3).prefer == {"b", "c"}  # the most there are
    assert preferring(request, views, 1).prefer == {"a", "b", "c"}
    assert preferring(replace(request, avoid=frozenset("b")), views, 2).prefer == {"a", "c"}
    assert preferring(request, [], 2).prefer == frozenset()


names = st.sampled_from("abcde")
likes = st.sampled_from((LIKE, LIKE, OTHER))


@given(
    likes=st.dictionaries(names, likes),
    there=st.dictionaries(names, st.tuples(st.sampled_from(Life), st.sampled_from(Service), st.booleans())),
    held=st.dictionaries(st.integers(0, 5).map(str), names),
    devices=st.one_of(st.just("all"), st.integers(1, 6)),
    barred=st.sets(names, max_size=2),
)
def test_what_is_decided_is_never_too_much_or_wrong(likes, there, held, devices, barred):
    views = [
        replace(phone(name, life, service=service), adopted=adopted) for name, (life, service, adopted) in there.items()
    ]
    orders = decide(LIKE, likes, views, held, devices, barred)
    assert orders.only <= {name for name, like in likes.items() if like == LIKE} - barred
    assert all(there[name][2] for name in orders.only)
    assert {held[lease] for lease in orders.drop} <= {name for name, like in likes.items() if like != LIKE}
    kept = len(held) - len(orders.drop)
    assert orders.ask == max(0, orders.wanted - kept)
    assert len(orders.spare) == max(0, kept - orders.wanted)
    assert not {*orders.spare} & {*orders.drop}
    assert orders.wanted >= 1
    assert devices in ("all", orders.wanted)


@pytest.mark.parametrize(
    ("views", "devices", "wanted", "ask"),
    [
        ([known("a"), known("b", Life.RECOVERING), known("c", Life.QUARANTINED)], "all", 2, 1),
        ([known("a"), known("b"), known("c", service=Service.DRAINING)], "all", 2, 1),
        ([known("a"), phone("b", Life.GONE)], 2, 2, 1),  # a phone that is away is still one of them
    ],
)
def test_all_means_as_many_as_there_are(views, devices, wanted, ask):
    orders = decide(LIKE, dict.fromkeys("abc", LIKE), views, {"L1": "a"}, devices)
    assert (orders.wanted, orders.ask, orders.only) == (wanted, ask, {view.name for view in views})


def test_why_there_are_fewer_is_one_sentence():
    assert why_fewer(["", ""], 2, 2, "") == ""
    assert why_fewer([""], 1, 2, "b: held by bob") == "1 of 2 phones; b: held by bob"
    assert why_fewer(["", "b is checking"], 2, 2, "") == "1 of 2 phones; b is checking"
    assert why_fewer([], 0, 1, "") == "0 of 1 phones; the next phone is on its way"


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (known("a"), ""),
        (known("a", service=Service.DRAINING), ""),  # until its holder gives it back
        (known("a", Life.CHECKING), "a is checking"),
        (known("a", heat=Heat.COOLING), "a is cooling"),
        (known("a", heat=Heat.COOLING, closed={LeaseClass.TUNE: "41 °C, opens at 38 °C"}), "a: 41 °C, opens at 38 °C"),
    ],
)
def test_nothing_is_measured_on_a_phone_that_rests(view, said):
    assert resting(view) == said


# --- a run ---


def tuning(devices, **fields):
    return TuneSpec(on="android", model="a" * 64, name="m.onnx", trials=8, devices=devices, **fields)


@asynccontextmanager
async def pooled(path, *views, devices=2):
    async with running(path / "farm.db") as farm:
        for view in views:
            farm.devices.change(view)
        (job,) = (await farm.dispatcher.submit(tuning(devices), "alice")).ids
        run = await farm.started()
        assert run.pool.wanted == 1
        run.pool.search(on=True)
        yield farm, job, run.pool


async def test_only_a_search_has_use_for_more_than_one_phone(tmp_path):
    async with pooled(tmp_path, known("a"), known("b"), known("c"), devices=3) as (farm, _, pool):
        await has(pool, "a", "b", "c")
        farm.devices.change(known("a", Life.CHECKING))
        pool.search(on=False)
        await until(lambda: len(farm.store.leases.open()) == 1)
        [left] = pool.phones()
        assert left["device"] == "b"  # one that can be measured on now
        assert (pool.wanted, await pool.waits()) == (1, "")
        assert not farm.leases.waiting
        farm.devices.change(known("a"))
        pool.search(on=True)
        await has(pool, "a", "b", "c")


async def has(pool, *names):
    """Until the pool has just these phones."""
    await until(lambda: sorted(each["device"] for each in pool.phones()) == sorted(names))


def lease_on(pool, device):
    return next(each["lease"] for each in pool.phones() if each["device"] == device)


async def nothing_is_left(farm):
    await until(lambda: not (farm.leases.held or farm.leases.waiting or farm.leases.slots))
    assert farm.store.leases.open() == ()


async def test_one_job_has_the_phones_that_are_identical(tmp_path):
    async with pooled(tmp_path, known("a"), known("b"), known("x", soc="SDM845")) as (farm, job, pool):
        (first,) = farm.store.jobs.attempts(job)
        assert (first.pooled, first.device) == (True, "a")
        await has(pool, "a", "b")
        state = await pool.state()
        assert state == {**state, "wanted": 2, "waits": ""}
        assert "x" not in farm.leases.held
        assert farm.leases.slots == [first.lease]
        assert {lease.request.worker for lease in farm.leases.held.values()} == {True, False}
        await farm.ends(job, {"ok": True})
        await farm.until("job.done")
        await nothing_is_left(farm)


async def test_the_first_phone_may_go_and_another_job_may_have_it(tmp_path):
    async with pooled(tmp_path, known("a"), known("b")) as (farm, job, pool):
        await has(pool, "a", "b")
        lease = lease_on(pool, "a")
        other = await farm.one(on="android", user="bob")
        said = []
        pool._on_change = lambda step, _: said.append(step)
        pool.give_back(lease)
        assert (await farm.started()).job.id == other  # its attempt is written beside the pooled one's
        with raises_code(Code.NOT_IN_POOL):
            pool.check(lease)
        with raises_code(Code.NOT_IN_POOL):
            pool.give_back(lease)
        await has(pool, "b")
        assert said == [f"1 of 2 phones: b; a left: {OTHERS_WAIT}"]
        assert (await farm.waits(job)).startswith("1 of 2 phones; every phone is busy")
        await farm.ends(other, {"ok": True})
        await has(pool, "a", "b")
        assert len(farm.store.jobs.attempts(job)) == 1


async def test_a_phone_that_is_too_warm_for_tuning_leaves_with_that_reason(tmp_path):
    async with pooled(tmp_path, known("a"), known("b")) as (farm, _, pool):
        await has(pool, "a", "b")
        steps = []
        pool._on_change = lambda step, _: steps.append(step)
        farm.devices.change(known("a", closed={LeaseClass.TUNE: Shut("skin 44.0 °C is above 43 °C for tune", 60.0)}))
        await farm.one(on="android", user="bob")  # these leases know no gates: somebody else gets it
        pool.give_back(lease_on(pool, "a"))
        await farm.started()
        await has(pool, "b")
        departures = [step for step in steps if "left" in step]  # that both came may be reported late
        assert departures == ["1 of 2 phones: b; a left: given back: skin 44.0 °C is above 43 °C for tune, about 60 s"]


async def test_with_no_phone_left_it_waits_and_goes_on(tmp_path):
    async with pooled(tmp_path, known("a"), devices=1) as (farm, job, pool):
        await has(pool, "a")
        farm.devices.change(known("a", Life.GONE))
        farm.leases.take("a", PhoneError("gone"))
        await has(pool)
        await farm.until("job.progress")
        assert (await farm.waits(job)).startswith("0 of 1 phones")
        assert farm.job(job).state is JobState.RUNNING
        await until(lambda: pool.lost == {"a": "gone"})
        farm.devices.change(known("a"))
        farm.leases.look()
        await has(pool, "a")
        assert pool.lost == {}


async def test_a_phone_that_was_taken_on_purpose_is_not_asked_for_again(tmp_path):
    async with pooled(tmp_path, known("a"), known("b")) as (farm, _, pool):
        await has(pool, "a", "b")
        farm.leases.take("b", UserError("kicked"))
        await has(pool, "a")
        ((request, _),) = farm.leases.waiting.values()
        assert request.only == frozenset("a")
        assert request.lease_class is LeaseClass.TUNE
        farm.devices.change(known("c"))
        farm.leases.look()
        await has(pool, "a", "c")


async def test_a_phone_with_another_bundle_leaves(tmp_path):
    async with pooled(tmp_path, known("a"), known("b")) as (farm, _, pool):
        await has(pool, "a", "b")
        farm.devices.change(known("b", bundle="b2"))
        await has(pool, "a")
        assert "b" not in farm.leases.held or farm.leases.held["b"].id in farm.leases.released


async def test_all_grows_with_the_phones_that_appear(tmp_path):
    async with pooled(tmp_path, known("a"), devices="all") as (farm, _, pool):
        await has(pool, "a")
        assert pool.wanted == 1
        farm.devices.change(known("b"))
        await has(pool, "a", "b")
        assert pool.had == ("a", "b")


async def test_others_requests_are_told_phone_by_phone(tmp_path):
    async with pooled(tmp_path, known("a"), known("b")) as (farm, _, pool):
        await has(pool, "a", "b")
        farm.leases.yielding.add(lease_on(pool, "b"))
        farm.devices.change(known("a", service=Service.DRAINING))
        for wanted in (True, False):
            assert {each["device"]: each["yield_wanted"] for each in pool.phones()} == {"a": True, "b": wanted}
            farm.leases.yielding.clear()


@pytest.mark.parametrize("end", ["cancel", "stop", "bug"])
async def test_however_it_ends_nothing_is_left(tmp_path, end):
    async with pooled(tmp_path, known("a"), known("b"), devices=3) as (farm, job, pool):
        await has(pool, "a", "b")
        assert len(farm.leases.waiting) == 1
        match end:
            case "cancel":
                farm.dispatcher.cancel(job, UserError("no"))
                await farm.until("job.cancelled")
            case "stop":
                await farm.stop()
                farm.stop = lambda: asyncio.sleep(0)  # once is enough
                assert farm.store.jobs.attempts(job)[0].state is AttemptState.INTERRUPTED
                assert farm.job(job).state is JobState.QUEUED
            case "bug":
                await farm.ends(job, RuntimeError("oops"))
                await farm.until("job.queued")
        await nothing_is_left(farm)


async def test_a_killed_daemon_queues_it_again(tmp_path):
    async with pooled(tmp_path, known("a"), known("b")) as (farm, job, pool):
        await has(pool, "a", "b")
        farm.crash()
        async with running(tmp_path / "farm.db") as after:
            assert after.store.leases.open() == ()
            assert after.job(job).uncounted == 1
            for name in "ab":
                after.devices.change(known(name))
            after.leases.look()
            pool = (await after.started()).pool
            pool.search(on=True)
            await has(pool, "a", "b")
        farm.store = Mock()


# --- what a submit means ---


@pytest.mark.parametrize("devices", [1, 3, "all"])
def test_a_pooled_kind_is_one_job(devices):
    views = [known("a"), known("b")]
    planned = plan(tuning(devices), "alice", views, datetime.now(UTC), iter("ids"), must_match=False)
    (job,) = planned.jobs
    assert (job.array, job.device, job.lease_class) == ("", "", LeaseClass.TUNE)
    assert ("2 phones match android: the job begins with what there is and waits for more" in planned.warnings) == (
        devices == 3
    )


def test_all_of_none_is_refused():
    with pytest.raises(UserError, match="no phone matches"):
        plan(tuning("all"), "alice", [], datetime.now(UTC), iter("ids"), must_match=False)
    with raises_code(Code.BAD_SPEC):
        TuneSpec.from_wire({"on": "android", "model": "a" * 64, "name": "m", "trials": 8, "devices": 0})
