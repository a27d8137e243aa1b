"""DeviceAdmin about devices that come at once: none is lost, and memory and store agree."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from farm.adb.client import AdbClient
from farm.adb.watch_policy import network_address
from farm.bundle.rollout_rules import RolloutConfig
from farm.common.errors import FarmError, HostError, NoSuchDeviceError, UserError
from farm.common.events import EventLog
from farm.devices.fleet import Fleet, FleetConfig
from farm.devices.registry import Aliases
from farm.devices.rollouts import Rollouts
from farm.model.device import Service
from farm.model.event_kinds import KINDS
from farm.store.devices import DeviceRecord
from farm.store.store import Store

REMEMBERED = (DeviceRecord("S1", "one", adopted=True), DeviceRecord("S2", "two"))


class Silence:
    """An adb server without phones."""

    server_lost = False
    failure = ""

    async def run(self):
        await asyncio.Event().wait()

    async def snapshots(self):
        yield ()
        await asyncio.Event().wait()

    def add_network(self, address):
        return network_address(address)

    def remove_network(self, address):
        pass


class Unused:
    def for_abi(self, abi, platform=None):
        raise AssertionError("no phone is there")

    async def check(self, device, bundle):
        raise AssertionError("no phone is there")


@asynccontextmanager
async def fleet_on(folder, events=None):
    store = Store.open(folder / "farm.db")
    for record in REMEMBERED:
        await store.devices.save(record)
    unused = Unused()
    fleet = Fleet(
        AdbClient("tcp:5038"),
        Silence(),
        Rollouts(unused.for_abi, tuple, store.rollouts, EventLog(), RolloutConfig()),
        unused,
        store.devices,
        events or EventLog(),
        FleetConfig(),
        recoveries=store.recoveries,
        batteries=store.batteries,
    )
    loaded = asyncio.Event()
    fleet.subscribe(lambda _: loaded.set())  # run() loads every record in one go
    running = asyncio.create_task(fleet.run())
    await loaded.wait()
    try:
        yield fleet, store
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        store.close()


def kept(store, serial="S1"):
    return next(record for record in store.devices.all() if record.serial == serial)


async def outcomes(*orders):
    return list(await asyncio.gather(*orders, return_exceptions=True))


async def test_no_label_is_lost(tmp_path):
    async with fleet_on(tmp_path) as (fleet, store):
        wanted = {f"l{number}": str(number) for number in range(5)}
        await asyncio.gather(*(fleet.admin.change("one", labels={key: value}) for key, value in wanted.items()))
        assert kept(store).labels == wanted
        assert wanted.items() <= dict(fleet.view("one").labels).items()


async def test_pool_and_service_at_once_are_both_kept_and_shown(tmp_path):
    async with fleet_on(tmp_path) as (fleet, store):
        await asyncio.gather(
            fleet.admin.change("one", pool="desk"), fleet.admin.set_service("one", Service.MAINTENANCE)
        )
        view, record = fleet.view("one"), kept(store)
        assert (view.pool, view.service.value) == (record.pool, record.service) == ("desk", "maintenance")


@pytest.mark.parametrize("first", ["rename", "alias"])
async def test_a_name_and_a_key_are_never_one_word(tmp_path, first):
    async with fleet_on(tmp_path) as (fleet, store):
        aliases = Aliases(fleet, store.aliases, {})
        orders = [fleet.admin.change("one", rename="word"), aliases.set("word", "pool=x")]
        results = await outcomes(*(orders if first == "rename" else orders[::-1]))
        assert [type(result) for result in results].count(UserError) == 1
        assert (kept(store).name == "word") is ("word" not in store.aliases.all())


async def test_two_devices_do_not_get_one_name(tmp_path):
    async with fleet_on(tmp_path) as (fleet, _):
        results = await outcomes(fleet.admin.change("one", rename="same"), fleet.admin.change("two", rename="same"))
        assert isinstance(results[1], UserError)
        assert [view.name for view in fleet.views()] == ["same", "two"]


async def test_what_the_store_refuses_is_shown_no_more(tmp_path, monkeypatch):
    async with fleet_on(tmp_path) as (fleet, store):

        async def full(_):
            raise HostError("disk full")

        monkeypatch.setattr(store.devices, "save", full)
        with pytest.raises(HostError):
            await fleet.admin.change("one", rename="other", pool="desk")
        assert (fleet.view("one").name, fleet.view("one").pool) == ("one", "")
        assert [view.name for view in fleet.views()] == ["one", "two"]


async def test_an_order_about_a_device_that_is_being_forgotten(tmp_path):
    async with fleet_on(tmp_path) as (fleet, store):
        results = await outcomes(fleet.admin.forget("one"), fleet.admin.adopt("one"))
        assert isinstance(results[1], NoSuchDeviceError)
        assert [record.name for record in store.devices.all()] == ["two"]
        assert [view.name for view in fleet.views()] == ["two"]


async def test_an_order_is_told_with_who_gave_it(tmp_path):
    events = EventLog()
    async with fleet_on(tmp_path, events) as (fleet, _):
        for service in (Service.MAINTENANCE, Service.MAINTENANCE, Service.IN):
            await fleet.admin.set_service("one", service, "anna")
    orders = [event for event in events.since() if event.kind == "device.service"]
    assert [event.subject for event in orders] == ["one", "one"]
    assert [event.data["reason"] for event in orders] == ["anna: in -> maintenance", "anna: maintenance -> in"]
    assert {*orders[0].data} == {*KINDS["device.service"].data}


@pytest.mark.parametrize("service", list(Service))
async def test_who_is_not_adopted_is_in_nobodys_service(tmp_path, service):
    async with fleet_on(tmp_path) as (fleet, _):
        with pytest.raises(UserError, match="two is not adopted") as caught:
            await fleet.admin.set_service("two", service)
        assert caught.value.hint == "farm device adopt two"


Order = Callable[[Fleet], Awaitable[Any]]


@pytest.mark.parametrize(
    "order", [lambda f: f.admin.change("one", pool="::"), lambda f: f.admin.adopt("two", pool="::")]
)
async def test_a_wrong_order_changes_nothing(tmp_path, order):
    async with fleet_on(tmp_path) as (fleet, store):
        before = store.devices.all()
        with pytest.raises(FarmError):
            await order(fleet)
        assert store.devices.all() == before


async def test_a_bundle_on_its_way_is_in_use(tmp_path):
    async with fleet_on(tmp_path) as (fleet, _):
        assert fleet.bundles_in_use() == {}
        for serial in ("S2", "S1"):
            fleet.agents[serial].installing = "c" * 64
        assert fleet.bundles_in_use() == {"c" * 64: ("one", "two")}


@pytest.mark.parametrize("turns", range(5))
async def test_an_order_whose_caller_leaves_is_kept_and_believed_or_neither(tmp_path, turns):
    async with fleet_on(tmp_path) as (fleet, store):
        aliases = Aliases(fleet, store.aliases, {})
        await aliases.set("old", "pool=x")
        orders = (
            fleet.admin.set_service("one", Service.MAINTENANCE), fleet.admin.adopt("two", pool="desk"),
            aliases.set("new", "pool=y"), aliases.remove("old"),
        )  # fmt: skip
        callers = [asyncio.ensure_future(order) for order in orders]
        for _ in range(turns):
            await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        records = {record.name: record for record in store.devices.all()}
        assert fleet.view("one").service.value == records["one"].service
        two = fleet.view("two")
        assert (two.adopted, two.pool) == (records["two"].adopted, records["two"].pool)
        assert {name: str(selector) for name, selector in aliases.selectors().items()} == store.aliases.all()


async def test_a_phone_is_wanted_while_a_request_waits_for_it_or_somebody_looks(tmp_path, monkeypatch):
    async with fleet_on(tmp_path) as (fleet, _):
        assert not fleet.watcher.wanted("S1")
        fleet.is_awaited = lambda name: name == "one"
        assert [fleet.watcher.wanted(serial) for serial in ("S1", "S2", "stranger")] == [True, False, False]
        fleet.note_view()
        assert fleet.watcher.wanted("S2")
        monkeypatch.setattr("farm.devices.fleet.VIEWED_S", 0.0)
        assert not fleet.watcher.wanted("S2")


async def test_an_address_that_is_none_is_the_problem_of_its_device_alone(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    await store.devices.save(DeviceRecord("S0", "zero", adopted=True, address="nonsense\0"))
    store.close()
    async with fleet_on(tmp_path) as (fleet, _):
        await asyncio.sleep(0)
        assert {view.name for view in fleet.views()} == {"zero", "one", "two"}
        assert "is not a network phone's address" in fleet.view("zero").evidence
        assert fleet.view("one").reason != fleet.view("zero").reason
