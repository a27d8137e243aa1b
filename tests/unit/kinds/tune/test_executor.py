"""What a tune attempt's worker may ask for, and how long it may search."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest

from farm.common.errors import Code, HostError, PhoneError, ProtocolError, UserError
from farm.devices.quiesce_policy import Level, QuiesceConfig, QuiesceResult
from farm.jobs.attempt import YieldedError, answer_worker
from farm.kinds.tune import TuneSpec
from farm.kinds.tune.executor import SALVAGE, SALVAGE_S, PoolHost, TuneExecutor, ends_job, search_s, with_lost
from farm.model.device import Life
from farm.model.requests import LeaseClass, NoSuchLeaseError
from farm.store.artifacts import MAX_BEST_BYTES, MAX_TARGET_BYTES
from tests.support.errors import raises_code
from tests.support.quiet import AS_THEY_ARE
from tests.support.reads import ReadsHere
from tests.unit.jobs.fakes import phone

A, B = "a" * 64, "b" * 64


@pytest.fixture
def keeper():
    """Kept sets of records, as what was said of each."""
    return SimpleNamespace(save=AsyncMock(return_value=3))


@pytest.fixture
def artifacts():
    """Only artifact A is here."""

    async def ensure(sha256):
        if sha256 != A:
            raise UserError(f"there is no artifact {sha256}")

    return SimpleNamespace(ensure=ensure)


class Pool:
    had = ("pixel",)

    def __init__(self):
        self.given = []

    def check(self, lease):
        if lease not in ("L1", "L2"):
            raise PhoneError(code=Code.NOT_IN_POOL)
        return "pixel"

    def give_back(self, lease):
        self.check(lease)
        self.given.append(lease)

    async def state(self):
        return {"phones": [{"lease": "L1"}], "wanted": 2, "waits": "w"}

    def search(self, *, on):
        self.searches = on

    def end_wanted(self):
        return True


class Keys:
    aborted = ()
    broken = ()  # leases whose session the phone's side ended

    async def ended_by_phone(self, lease):
        return lease in self.broken

    def new_match_key(self, lease, *, single_use):
        assert single_use
        if lease == "L2":
            raise NoSuchLeaseError
        return f"key of {lease}"

    def abort(self, lease, reason):
        self.aborted = lease, reason


class Ledger(ReadsHere):
    def __init__(self):
        self.told = []

    def refused(self, artifacts, user):
        assert user == "ann"
        return frozenset()

    async def report(self, artifact, device, what, kills, *, user, job, seen):
        assert not seen  # a worker's word is its user's
        self.told.append((artifact, device, kills))


@pytest.fixture
def host(keeper, artifacts):
    running = SimpleNamespace(
        job=SimpleNamespace(id="j1", user="ann"), lease=SimpleNamespace(id="L0", device="pixel"),
        spec=SimpleNamespace(lease_class=LeaseClass.TUNE),
    )  # fmt: skip
    fleet = SimpleNamespace(
        quiesce=AS_THEY_ARE, views=lambda: (phone("pixel", Life.READY),), subscribe=lambda _: lambda: None
    )
    parts = SimpleNamespace(
        leasing=Keys(), fleet=fleet, gate=lambda: ("host", 1), poison=Ledger(), record_sets=keeper, artifacts=artifacts
    )
    return PoolHost(running, parts, Pool())


async def test_a_session_is_opened_on_a_phone_of_the_pool(host):
    assert (await host.open_session("L1")).key == "key of L1"
    for gone in ("L0", "L2", ""):  # L2 is taken away in this very moment
        with raises_code(Code.NOT_IN_POOL):
            await host.open_session(gone)
    await host.abort_session("L1", "stuck")
    assert host.parts.leasing.aborted == ("L1", "stuck")


async def test_each_phone_of_the_pool_is_quiet_where_that_is_configured_and_left_to_be_cleaned(host):
    quiesce = SimpleNamespace(
        config=QuiesceConfig(tune=Level.GENTLE), begin=AsyncMock(return_value=QuiesceResult(Level.GENTLE))
    )
    host.parts.fleet.quiesce, changed = quiesce, Mock(return_value=True)
    host.parts.leasing.changed_phone, host.parts.leasing.borrowed = changed, {}
    for _ in range(2):
        await host.open_session("L1")
    (begun,) = quiesce.begin.call_args_list
    assert begun.args[:3] == ("pixel", Level.GENTLE, "L1")
    changed.assert_called_once_with("L1", changed=True)


async def test_the_pool_is_told_and_takes_orders(host):
    assert await answer_worker("pool", {}, host) == {"phones": [{"lease": "L1"}], "wanted": 2, "waits": "w"}
    assert await answer_worker("pool.give_back", {"lease": "L1"}, host) == {}
    assert host.pool.given == ["L1"]
    with raises_code(Code.NOT_IN_POOL):
        await answer_worker("pool.give_back", {"lease": "L9"}, host)
    assert host.yield_wanted()
    for on in (True, False):
        assert await answer_worker("pool.search", {"on": on}, host) == {}
        assert host.pool.searches is on


async def test_a_worker_tells_of_what_it_asked_about_only_and_of_two_kills_at_most(host):
    async def tell(artifact, kills=1, device="pixel"):
        fields = {"artifact": artifact, "device": device, "what": "SIGSEGV", "kills": kills}
        return await answer_worker("poison.report", fields, host)

    with pytest.raises(ProtocolError, match="asked about"):
        await tell(A)
    await answer_worker("poison.check", {"artifacts": [A, B]}, host)
    with pytest.raises(ProtocolError, match="no phone of this attempt"):
        await tell(A, device="somebody's")
    for wrong in (3, True, 100):
        with pytest.raises(ProtocolError):
            await tell(A, wrong)
    assert await tell(A) == await tell(A) == {}
    with pytest.raises(ProtocolError, match="at most 2"):
        await tell(A)
    await tell(B, 2)
    assert host.parts.poison.told == [(A, "pixel", 1), (A, "pixel", 1), (B, "pixel", 2)]


@pytest.mark.parametrize("guilty", [True, False])
async def test_what_died_is_blamed_when_the_phone_stayed(host, guilty):
    host.parts.leasing.broken = ("L0",) * guilty
    await answer_worker("poison.check", {"artifacts": [A]}, host)
    assert await answer_worker("poison.suspect", {"artifact": A, "what": "it died"}, host) == {"killed": guilty}
    assert host.parts.poison.told == [(A, "pixel", 1)] * guilty


async def test_no_session_of_others_is_cut(host):
    await host.abort_session("L7", "mine now")
    assert host.parts.leasing.aborted == ()


RECORDS = {"model": B, "name": "net", "target": {"kind": "llvm"}, "artifact": A, "records": 4, "best": {"x": 1}}


async def test_records_are_kept_as_the_jobs(host, keeper):
    assert await answer_worker("records.keep", RECORDS, host) == {"version": 3}
    keeper.save.assert_called_once_with(**RECORDS, user="ann", job="j1")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"records": "4"}, "records must be a whole number"),
        ({"records": -1}, "records must be 0 or more"),
        ({"records": True}, "records must be a whole number"),
        ({"best": []}, "best must be a table"),
        ({"best": {"x": "y" * MAX_BEST_BYTES}}, "best of each task has .* at most 1,048,576 are kept"),
        ({"best": {"x": float("nan")}}, "best of each task is no JSON"),
        ({"target": None}, "neither a TVM tag"),
        ({"target": {}}, "neither a TVM tag"),
        ({"target": {"mattr": ["+x" * MAX_TARGET_BYTES]}}, "target has"),
        ({"model": 1}, "model must be a text"),
        ({"model": "k"}, "model must be a SHA-256"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "n" * 256}, "name must have at most 255 characters"),
        ({"artifact": None}, "artifact must be a text"),
        ({"artifact": "../../etc/passwd"}, "artifact must be a SHA-256"),
        ({"artifact": B}, "there is no artifact"),  # it is not in the store
    ],
)
async def test_what_are_no_records_is_refused(host, keeper, wrong, said):
    with pytest.raises((ProtocolError, UserError), match=said):
        await answer_worker("records.keep", RECORDS | wrong, host)
    assert not host.versions
    keeper.save.assert_not_called()


class Work:
    """Runs the worker that keeps what is left, and no other."""

    def cache(self, running):
        return "/cache/default"

    def target(self, running, text):
        raise UserError("no such target")

    async def run(self, running, worker, payload, host, *, limit_s):
        self.ran = worker, payload, limit_s
        await answer_worker("records.keep", RECORDS, host)
        raise HostError("it died")


SALVAGED = (SALVAGE, {"job": "j1", "name": "net", "cache": "/cache/default", "prior": A}, SALVAGE_S)


@pytest.fixture
def tuning():
    said = []
    job = SimpleNamespace(id="j1", user="ann", attempts=1, uncounted=0, max_attempts=3)
    spec = TuneSpec(model=B, name="net", on="android", prior=A)
    return SimpleNamespace(job=job, spec=spec, pool=Pool(), said=said, log=lambda *line: said.append(line))


@pytest.fixture
def executor(keeper, artifacts):
    nominals = AsyncMock(return_value={})
    return TuneExecutor(
        SimpleNamespace(work=Work(), record_sets=keeper, artifacts=artifacts, nominals=nominals, lab=None)
    )


async def test_what_a_job_measured_that_ends_waiting_is_kept_by_a_worker_without_a_phone(executor, keeper, tuning):
    await executor.salvage(tuning)
    assert executor.parts.work.ran == SALVAGED
    keeper.save.assert_called_once_with(**RECORDS, user="ann", job="j1")
    assert tuning.said == [("what was measured could not be kept: it died", "warning")]


async def test_what_a_job_measured_whose_next_attempt_cannot_begin_is_kept(executor, tuning):
    tuning.view = SimpleNamespace()
    with pytest.raises(UserError, match="no such target"):
        await executor.run(tuning)
    assert executor.parts.work.ran == SALVAGED


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("no.such", {}),
        ("pool.give_back", {}),
        ("pool.search", {}),
        ("pool.search", {"on": 2}),
        ("records.part", {"artifact": A}),
        ("records.part", {"artifact": "a", "first": True}),
        ("records.part", {"artifact": A, "first": 1}),
        ("poison.check", {"artifacts": "abc"}),
        ("poison.check", {"artifacts": [1]}),
        ("poison.report", {"artifact": "a", "device": "d", "what": "w", "kills": 0}),
        ("poison.report", {"artifact": "a", "device": "d"}),
    ],
)
async def test_what_no_worker_says_is_refused(host, verb, fields):
    with pytest.raises(ProtocolError):
        await answer_worker(verb, fields, host)


@pytest.mark.parametrize(("timeout_s", "expected_s"), [(86400.0, 86280.0), (480.0, 360.0), (60.0, 45.0)])
def test_some_of_the_time_is_for_the_end(timeout_s, expected_s):
    assert search_s(timeout_s) == expected_s


@pytest.mark.parametrize(
    ("error", "attempts", "over", "ends"),
    [
        (asyncio.CancelledError(), 0, True, True),
        (asyncio.CancelledError(), 0, False, False),  # the daemon stops: the next one continues
        (YieldedError("others wait"), 9, True, False),
        (UserError("no such target"), 0, False, True),
        (HostError("the worker died"), 0, False, False),
        (HostError("the worker died"), 2, False, True),  # the third try of three
    ],
)
def test_records_are_kept_when_no_attempt_goes_on_from_them(error, attempts, over, ends):
    job = SimpleNamespace(attempts=attempts, uncounted=0, max_attempts=3)
    assert ends_job(SimpleNamespace(job=job, stopped_for_good=lambda: over), error) is ends


def test_a_report_names_the_phones_that_were_lost():
    row = {"device": "a", "trials": 4, "factor": 1.0, "left_out": ""}
    lost = {"a": "gone", "b": "its host two is lost"}
    assert with_lost([row], {}) == [{**row, "lost": ""}]
    assert with_lost([row], lost) == [
        {**row, "lost": "gone"},
        {"device": "b", "trials": 0, "factor": None, "left_out": "", "lost": "its host two is lost"},
    ]
