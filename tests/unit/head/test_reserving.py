"""Reservations, clock jumps and use: people's times against the farm's clock."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Double, literal, update

from farm.common.errors import Code, UserError
from farm.head.allocator.model import AllocatorPolicy
from farm.head.reports import UsageGrouping, summed
from farm.head.reservations import ClockWatch, ReservationRegistry
from farm.model.device import Life
from farm.model.requests import LeaseClass, LeaseSource
from farm.store.leases import LeaseTable, UsageRow
from farm.store.maintenance import check
from farm.store.schema import reservation, selector
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.leasing_lab import Clocks, Lab
from tests.support.local_head import store_problem
from tests.support.waiting import until

HOUR = timedelta(hours=1)


class Reserving(Lab):
    """One phone, a store with reservations, and clocks."""

    def __init__(self, store, clocks):
        super().__init__("a", clocks=clocks)
        self.store, self.clocks = store, clocks
        self.registry = self.new_registry()
        self.watch = ClockWatch(self.events, self.jumped, clocks.monotonic, clocks.wall)

    def new_registry(self):
        clocks = self.clocks
        reserve = self.requests.reserve
        return ReservationRegistry(self.store.reservations, self.events, reserve, clocks.monotonic, clocks.wall)

    def jumped(self):
        self.registry.publish()
        self.leasing.clock_jumped()

    def jumps(self):
        return [event.data["seconds"] for event in self.events.since() if event.kind == "clock.jumped"]


@pytest.fixture
async def lab(store):
    lab = Reserving(store, Clocks())
    yield lab
    await lab.leasing.close()


async def test_a_reserved_phone_is_for_its_user_until_the_window_is_over(lab):
    now = lab.clocks.at
    record = await lab.registry.add("android", "ci", now, now + HOUR, "nightly")
    alice = lab.want()
    lease = await lab.want(user="ci", longest_s=60)
    (reason,) = (await lab.leasing.head.explain("android")).devices
    assert "reserved" in reason.evidence
    (reason,) = (await lab.leasing.head.explain("android", "ci")).devices
    assert "reserved" not in reason.evidence
    lab.leasing.release(lease.id)
    assert [each.id for each in lab.registry.all()] == [record.id]
    lab.clocks.pass_(3601)
    assert lab.registry.all() == ()
    assert not alice.done()
    store_problem(lab.leasing, failing=False)  # any event: the allocator sees that the window is over
    assert (await alice).request.user == "alice"


async def test_the_allocator_looks_again_by_itself_when_a_window_ends(store):
    lab, now = Lab("a"), datetime.now(UTC)
    registry = ReservationRegistry(store.reservations, lab.events, lab.requests.reserve)
    await registry.add("android", "ci", now, now + timedelta(seconds=0.3))
    await lab.want(longest_s=1.0)
    assert datetime.now(UTC) >= now + timedelta(seconds=0.3)
    await lab.leasing.close()


async def test_reservations_survive_a_restart_and_can_be_taken_back(lab):
    now = lab.clocks.at
    record = await lab.registry.add("android", "ci", now + HOUR, now + 2 * HOUR)
    again = lab.new_registry()
    assert again.all() == (record,)
    with raises_code(Code.NO_SUCH_RESERVATION):
        await again.remove("")
    await again.remove(record.id[:-1])
    assert lab.new_registry().all() == ()
    with raises_code(Code.NO_SUCH_RESERVATION):
        await again.remove(record.id)
    assert [event.kind for event in lab.events.since()] == ["reservation.added", "reservation.removed"]


async def test_what_is_no_reservation_is_refused(lab):
    now = lab.clocks.at
    west, east = timezone(-14 * HOUR), timezone(14 * HOUR)
    for selector_, user, *window in (
        ("android", "", now, now + HOUR),
        ("android", "ci", now, now),
        ("android", "ci", now - 2 * HOUR, now - HOUR),
        ("android", "ci", now, now + HOUR, "x" * 201),
        ("android", "ci", now, datetime(9999, 12, 31, 23, 59, tzinfo=west)),  # the year 10000 in UTC
        ("android", "ci", datetime(1, 1, 1, tzinfo=east), now + HOUR),
        ("android", "ci", now, now + timedelta(days=367)),
        ("=", "ci", now, now + HOUR),
    ):
        with pytest.raises(UserError) as caught:
            await lab.registry.add(selector_, user, *window)
        assert (caught.value.code == Code.BAD_SELECTOR) is (selector_ == "=")
        assert ("366 days" in caught.value.message) is (window[1] - window[0] > timedelta(days=366))
    assert lab.registry.all() == ()


async def test_a_reservation_that_cannot_be_read_costs_no_other_and_no_start(lab, caplog):
    now = lab.clocks.at
    kept = await lab.registry.add("android", "ci", now, now + HOUR)
    late = await lab.registry.add("android", "late", now, now + HOUR)
    odd = await lab.registry.add("soc=sm8750", "odd", now, now + HOUR)

    def damage(connection):
        connection.execute(update(reservation).where(reservation.c.id == late.id).values(ends_at=literal(1e12, Double)))
        connection.execute(update(selector).where(selector.c.text == odd.selector).values(text="="))

    await lab.store.database.writer.write(damage)
    assert lab.new_registry().all() == (kept,)
    findings = check(lab.store.database.engine).findings
    for record in (late, odd):
        assert f"reservation {record.id} cannot be read" in caplog.text
        assert any(record.id in finding for finding in findings)


@pytest.mark.parametrize("jump_s", [-86400, 86400])
async def test_a_clock_that_is_set_moves_windows_and_nothing_else(lab, jump_s):
    now = lab.clocks.at
    lease = await lab.lease(longest_s=600.0)
    await lab.registry.add("android", "ci", now + timedelta(hours=30), now + timedelta(hours=31))
    lab.clocks.at += timedelta(seconds=jump_s)
    lab.watch.check()
    assert lab.jumps() == [jump_s]
    (holder,) = lab.holders()
    assert (holder.lease.id, holder.held_s) == (lease.id, 0)
    assert holder.expires_at == lab.clocks.at + timedelta(seconds=600)
    await until(lambda: lab.keeper.rows[lease.id].expires_at == holder.expires_at)  # what a restart goes by
    lab.leasing.release(lease.id)
    await until(lambda: not lab.keeper.open())
    row = lab.keeper.rows[lease.id]
    assert (row.held_s, row.ended_at) == (0, row.granted_at)
    for _ in range(100):  # slewing is no jump
        lab.clocks.pass_(1.0)
        lab.clocks.at += timedelta(milliseconds=0.5)
        lab.watch.check()
    assert lab.jumps() == [jump_s]
    lab.clocks.pass_(30 * 3600 - jump_s - 40)  # to the window's start and a minute beyond
    lab.want(user="bob", longest_s=60)
    await until(lab.waiting)
    assert "reserved" in lab.why_first()


def row(user, held_s, device="a", source=LeaseSource.TVM, cleaned_s=0.0):
    return UsageRow(user, device, source, LeaseClass.INTERACTIVE, 1, held_s, cleaned_s)


def test_old_use_counts_less(store, monkeypatch):
    now = datetime(2026, 5, 1, tzinfo=UTC)
    used = {"fresh": (0.1, 100.0), "older": (6.5, 100.0), "ancient": (24 * 30, 1e9)}  # hours ago, seconds

    def usage(_, since, until):
        return [
            row(user, seconds)
            for user, (hours, seconds) in used.items()
            if since <= now - timedelta(hours=hours) < until
        ]

    monkeypatch.setattr(LeaseTable, "usage", usage)
    decayed = store.leases.decayed_use(now, half_life_s=6 * 3600.0)
    assert set(decayed) == {"fresh", "older"}
    assert 80 < decayed["fresh"] <= 100
    assert 40 < decayed["older"] < 60


def test_use_is_summed_by_what_is_asked():
    rows = [
        row("alice", 10.0),
        row("alice", 5.0, "b", LeaseSource.JOB, cleaned_s=2.0),
        row("bob", 60.0, "b", LeaseSource.JOB),
    ]
    by_user = summed(rows, {"alice": 2, "carol": 1}, UsageGrouping.USER)
    assert [(each.name, each.held_s, each.cleaned_s, each.leases, each.jobs) for each in by_user] == [
        ("bob", 60.0, 0, 1, 0), ("alice", 15.0, 2.0, 2, 2), ("carol", 0, 0, 0, 1),
    ]  # fmt: skip
    assert [each.name for each in summed(rows, {}, UsageGrouping.DEVICE)] == ["b", "a"]
    by_source = summed(rows, {}, UsageGrouping.SOURCE)
    assert [(each.name, each.held_s) for each in by_source] == [("job", 65.0), ("tvm", 10.0)]


async def test_jobs_are_counted_once_however_many_phones_they_had(store):
    lab = Lab(*"abc", table=store.leases)
    for job in ("one", "one", ""):
        await lab.lease(job=job)
    now = datetime.now(UTC)
    window = (now - HOUR, now + timedelta(seconds=1))
    assert store.leases.jobs(*window, "user") == {"alice": 1}
    assert sum(store.leases.jobs(*window, "device").values()) == 2
    (everything,) = summed(store.leases.usage(*window), store.leases.jobs(*window, "user"), UsageGrouping.USER)
    assert (everything.leases, everything.jobs) == (3, 1)
    assert 0 < everything.held_s < 10
    await lab.leasing.close()


async def test_cleaning_after_a_lease_is_kept_and_counted_over_a_restart(store, tmp_path):
    lab = Lab("a", table=store.leases, clocks=(clocks := Clocks()))
    begun = clocks.at
    for held_s, cleaned_s in ((10.0, 3.0), (20.0, 0.0), (30.0, 1000.0)):
        lease = await lab.lease()
        clocks.pass_(held_s)
        if cleaned_s:
            lab.devices.become("a", Life.RECOVERING)
        lab.leasing.release(lease.id)
        clocks.pass_(cleaned_s)
        lab.devices.become("a", Life.CHECKING)  # of a phone that was ready, its own trouble
        lab.devices.become("a", Life.READY)
    await lab.leasing.close()
    store.close()
    again = Store.open(tmp_path / "farm.db")
    (used,) = again.leases.usage(begun, clocks.at)
    assert (used.held_s, used.cleaned_s) == (60.0, 3.0 + AllocatorPolicy().cleaning_counts_s)
    (earlier,) = again.leases.usage(begun, begun + timedelta(seconds=32))  # the second lease continues
    assert (earlier.held_s, earlier.cleaned_s) == (10.0 + 19.0, 3.0)
    decayed = again.leases.decayed_use(clocks.at, half_life_s=1e9)
    assert decayed["alice"] == pytest.approx(183.0, rel=0.2)
    again.close()
