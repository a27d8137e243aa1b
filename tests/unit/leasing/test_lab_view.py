"""What other hosts' phones are in a tracker's summary, and how old it may be."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.common.errors import HostError
from farm.common.selector import Selector
from farm.head import wire
from farm.head.messages import DeviceChanged, RequestAdded
from farm.head.reports import merged
from farm.leasing.lab_readings import decode_readings, encode_readings, with_readings
from farm.leasing.lab_view import LabView
from farm.model.device import DeviceState, DeviceView, Life
from farm.model.requests import LeaseRequest, LeaseSource
from farm.model.sessions import FleetSummary, KeyRow, ServerRow
from farm.store.lab_table import LabRows
from farm.store.mailbox import HostRecord, Letter
from tests.support.reads import ReadsHere
from tests.support.virtual_time import virtual_time
from tests.unit.store.values import lease

NOW = datetime(2026, 7, 1, tzinfo=UTC)


def device(host, name, life=Life.READY):
    state = DeviceState(name, name, life, adopted=True, aliases=("android", name))
    return Letter(host, wire.encode(DeviceChanged(state), 0.0))


def asked(host, key):
    request = LeaseRequest(Selector.parse(key), "ann", LeaseSource.TVM, key=key)
    return Letter(host, wire.encode(RequestAdded(f"request-{host}", request), 0.0))


class Table(ReadsHere):
    """Counts looks."""

    def __init__(self, **hosts):
        self.looks, self.away = 0, False
        beats = {
            name: None if silent_s is None else NOW - timedelta(seconds=silent_s) for name, silent_s in hosts.items()
        }
        self.rows = LabRows(
            NOW,
            tuple(HostRecord(name, beat_at, 1) for name, beat_at in beats.items()),
            (),
            (device("one", "a"), device("two", "b"), device("two", "c"), device("two", "d", Life.OFFLINE)),
            (lease(device="c", host="two"), lease(device="a", host="one")),
            letters=0,
            term=1,
            term_holds=True,
            requests=(asked("one", "android"), asked("two", "android"), asked("two", "rpi")),
        )

    def change(self, **rows):
        self.rows = replace(self.rows, **rows)

    def look(self):
        self.looks += 1
        if self.away:
            raise HostError("the database is away")
        return self.rows

    async def picture(self):
        """As host one sees it."""
        return await LabView("one", self).look()


async def test_the_summary_has_the_phones_and_requests_of_other_hosts():
    summary = (await Table(one=0, two=0).picture()).summary
    assert summary.keys == (KeyRow("android", 1, 1), KeyRow("b", 1, 0), KeyRow("c", 0, 0), KeyRow("rpi", 0, 1))
    assert ServerRow("android", "b") in summary.servers
    assert "a" not in {row.device for row in summary.servers}


@pytest.mark.parametrize(
    ("silent_s", "why"),
    [(3600, "its host two is lost since 2026-06-30 23:00:00 UTC"), (None, "its host two is stopped")],
)
async def test_phones_of_a_host_that_is_away_are_listed_and_are_no_servers(silent_s, why):
    picture = await Table(one=0, two=silent_s).picture()
    assert picture.summary.servers == ()
    listed = {(each.view.name, each.view.life, each.view.reason) for each in picture.phones}
    assert listed == {(name, Life.GONE, why) for name in "bcd"}
    assert picture.host("two").phones == 3


@pytest.mark.parametrize(("life", "of_two"), [(Life.READY, {"c", "d"}), (Life.GONE, {"b", "c", "d"})])
async def test_a_phone_that_moved_away_from_a_stopped_host_is_listed_once(life, of_two):
    table = Table(one=0, two=None, three=0)
    table.change(devices=(*table.rows.devices, device("three", "b", life)))
    picture = await table.picture()
    assert {each.view.name for each in picture.phones if each.host == "two"} == of_two
    assert picture.host_of("b") == ("three" if life is Life.READY else "")


async def test_a_picture_has_its_age_while_the_database_does_not_answer():
    table, clock = Table(one=0, two=1), iter((0.0, 10.0, 13.0, 73.0, 74.0))
    lab = LabView("one", table, lambda: next(clock))
    lab._shared = lab._look  # each look asks the database
    seen = await lab.look()
    table.away = True
    assert await lab.look() == seen  # no host has missed a beat since
    old = await lab.look()
    assert old == lab.latest
    assert old.old_s == 63.0
    seen_before = [(each.name, each.state, each.silent_s) for each in old.hosts]
    assert seen_before == [("one", "unknown", 63.0), ("two", "unknown", 64.0)]
    table.away = False
    assert await lab.look() == seen


READ = {"temperature_c": 31.5, "temperature_of": "skin", "battery_percent": 80, "read_at": "2026-07-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("readings", "shown"),
    [
        ({"two": {"b": READ}}, {"b": (31.5, "skin", 80, NOW), "c": (None, "", None, None)}),
        ({"two": {"b": {**READ, "humidity": 40}}}, {"b": (31.5, "skin", 80, NOW)}),  # a later release's
        ({"two": {"b": {**READ, "temperature_c": "warm"}}}, {"b": (None, "", None, None)}),
        ({"one": {"b": READ}, "three": {"b": READ}}, {"b": (None, "", None, None)}),
        ({"two": {"x": READ}}, {"b": (None, "", None, None)}),
    ],
)
async def test_phones_of_other_hosts_have_the_readings_that_their_host_wrote(readings, shown):
    table = Table(one=0, two=1)
    table.change(readings=readings)
    views = {each.view.name: each.view for each in (await table.picture()).phones}
    figures = ("temperature_c", "temperature_of", "battery_percent", "read_at")
    assert {name: tuple(getattr(views[name], each) for each in figures) for name in shown} == shown


def test_a_host_writes_the_readings_of_its_phones_that_were_probed():
    figures = {"temperature_c": 31.5, "temperature_of": "skin", "battery_percent": 80, "read_at": NOW}
    probed = DeviceView("a", "a", Life.READY, **figures)
    body = encode_readings([probed, DeviceView("b", "b", Life.NEW)])
    assert body == {"a": READ}
    assert with_readings(DeviceView("a", "a", Life.READY), decode_readings(body)["a"]) == probed


@pytest.mark.parametrize("odd", [{"temperature_c": float("nan")}, {"read_at": "2026-01-01T00:00:00"}], ids=str)
def test_readings_that_a_list_could_not_show_are_none(odd):
    assert decode_readings({"a": {**READ, **odd}}) == {}


async def test_those_who_ask_together_share_a_look_and_while_the_database_is_away_the_last_counts():
    table = Table(one=0, two=0)
    lab = LabView("one", table)
    first, second = await asyncio.gather(lab.look(), lab.look())
    assert first is second is lab.latest
    assert table.looks == 1
    table.away = True
    lab._shared._kept_until.clear()
    lab._shared._running.clear()
    assert await lab.look() is first


@pytest.mark.parametrize("others", [(), (FleetSummary((KeyRow("android", 1, 2), KeyRow("x", 0, 1))),)])
def test_summaries_are_added(others):
    own = FleetSummary((KeyRow("android", 1, 0),), (ServerRow("android", "a"),))
    found = merged((own, *others))
    assert found.servers == own.servers
    assert found.keys == ((KeyRow("android", 2, 2), KeyRow("x", 0, 1)) if others else own.keys)


@virtual_time
async def test_a_database_that_does_not_answer_holds_up_no_question():
    table, answers = Table(one=0.0, two=1.0), asyncio.Event()
    view = LabView("one", table)
    before = await view.look()

    async def silent(read, *arguments):
        await answers.wait()
        return read(*arguments)

    table.in_thread = silent
    assert await view.look() is before
    answers.set()
    while await view.look() is before:
        pass
    assert table.looks == 2


async def test_a_message_that_something_else_wrote_hides_no_phone():
    table = Table(one=0, two=1)
    table.change(
        devices=(Letter("two", {"kind": "DeviceChanged", "state": []}), Letter("two", {}), *table.rows.devices),
        requests=(Letter("two", {"request": "android"}), *table.rows.requests),
    )
    assert {each.view.name for each in (await table.picture()).phones} == {"b", "c", "d"}
