"""DeviceAdmin about devices that come at once: none is lost, and memory and store agree."""

import asyncio

import pytest

from farm.common.errors import FarmError, HostError, NoSuchDeviceError, PhoneError, UserError
from farm.common.events import EventLog
from farm.devices.registry import Aliases
from farm.model.device import Service
from farm.model.event_kinds import KINDS
from farm.store.devices import DeviceRecord
from tests.support.fake_phone import FakeClient


@pytest.fixture
async def fleet(quiet_fleet):
    """Of an adopted phone, one, and a stranger, two."""
    async with quiet_fleet(DeviceRecord("S1", "one", adopted=True), DeviceRecord("S2", "two")) as fleet:
        yield fleet


@pytest.fixture
def kept(store):
    """The record of a phone as it is stored."""
    return lambda name: next(record for record in store.devices.all() if record.name == name)


async def outcomes(*orders):
    return await asyncio.gather(*orders, return_exceptions=True)


def names(fleet):
    return [view.name for view in fleet.views()]


async def test_no_label_is_lost(fleet, kept):
    wanted = {f"l{number}": str(number) for number in range(5)}
    await asyncio.gather(*(fleet.admin.change("one", labels={key: value}) for key, value in wanted.items()))
    assert kept("one").labels == wanted
    assert wanted.items() <= dict(fleet.view("one").labels).items()


async def test_pool_and_service_at_once_are_both_kept_and_shown(fleet, kept):
    await asyncio.gather(fleet.admin.change("one", pool="desk"), fleet.admin.set_service("one", Service.MAINTENANCE))
    view, record = fleet.view("one"), kept("one")
    assert (view.pool, view.service.value) == (record.pool, record.service) == ("desk", "maintenance")


@pytest.mark.parametrize("first", ["rename", "alias"])
async def test_a_name_and_a_key_are_never_one_word(fleet, store, first):
    aliases = Aliases(fleet, store.aliases, {})
    orders = [fleet.admin.change("one", rename="word"), aliases.set("word", "pool=x")]
    results = await outcomes(*(orders if first == "rename" else orders[::-1]))
    assert [type(result) for result in results].count(UserError) == 1
    assert ("word" in names(fleet)) is ("word" not in store.aliases.all())


async def test_two_devices_do_not_get_one_name(fleet):
    results = await outcomes(fleet.admin.change("one", rename="same"), fleet.admin.change("two", rename="same"))
    assert isinstance(results[1], UserError)
    assert names(fleet) == ["same", "two"]


async def test_what_the_store_refuses_is_shown_no_more(fleet, disk):
    disk.full = True
    with pytest.raises(HostError):
        await fleet.admin.change("one", rename="other", pool="desk")
    assert (names(fleet), fleet.view("one").pool) == (["one", "two"], "")
    disk.full = False


async def test_an_order_about_a_device_that_is_being_forgotten(fleet, store):
    results = await outcomes(fleet.admin.forget("one"), fleet.admin.adopt("one"))
    assert isinstance(results[1], NoSuchDeviceError)
    assert [record.name for record in store.devices.all()] == names(fleet) == ["two"]


async def test_only_a_phone_that_can_be_reached_is_cleaned(fleet, store):
    with pytest.raises(PhoneError, match="one cannot be cleaned: it is gone"):
        await fleet.admin.forget("one", clean=True)
    cleaned, failed = await fleet.admin.forget_all()
    assert (cleaned, list(failed)) == ((), ["one"])
    assert fleet.view("one").adopted
    assert [record.adopted for record in store.devices.all()] == [True, False]
    await fleet.admin.forget("one")
    assert [record.name for record in store.devices.all()] == names(fleet) == ["two"]


async def test_a_network_phone_is_kept_connected_until_it_is_forgotten(quiet_fleet, store):
    async with quiet_fleet(DeviceRecord("S1", "one"), client=(client := FakeClient())) as fleet:
        serial = await fleet.admin.add_network("10.0.0.7")
        assert await fleet.admin.add_network("10.0.0.7:5555") == serial == "10.0.0.7:5555"
        assert [record.address for record in store.devices.all() if record.serial == serial] == [serial]
        assert fleet.watcher.network == {serial}
        await fleet.admin.forget(serial)
        assert (client.disconnected, fleet.watcher.network) == ([serial], set())
        assert [record.serial for record in store.devices.all()] == ["S1"]


async def test_who_adopts_gives_a_name_and_a_pool(fleet, kept):
    view = await fleet.admin.adopt("two", pool="Desk 1", rename="Left-One")
    assert (view.name, view.pool, view.adopted) == ("left-one", "desk-1", True)
    assert (kept("left-one").pool, kept("left-one").adopted) == ("desk-1", True)


async def test_who_took_a_device_out_of_service_is_said_until_it_is_back(fleet):
    said = []
    for service, by in ((Service.DRAINING, "ann"), (Service.DRAINING, "bob"), (Service.IN, "bob")):
        await fleet.admin.set_service("one", service, by)  # the second changes nothing
        said.append(fleet.admin.out_of_service_by("one")[:7])
    assert said == ["ann at ", "ann at ", ""]


async def test_an_order_is_told_with_who_gave_it(quiet_fleet):
    events = EventLog()
    async with quiet_fleet(DeviceRecord("S1", "one", adopted=True), events=events) as fleet:
        for service in (Service.MAINTENANCE, Service.MAINTENANCE, Service.IN):
            await fleet.admin.set_service("one", service, "anna")
    orders = [event for event in events.since() if event.kind == "device.service"]
    assert [event.subject for event in orders] == ["one", "one"]
    assert [event.data["reason"] for event in orders] == ["anna: in -> maintenance", "anna: maintenance -> in"]
    assert {*orders[0].data} == {*KINDS["device.service"].data}


@pytest.mark.parametrize("service", list(Service))
async def test_who_is_not_adopted_is_in_nobodys_service(fleet, service):
    with pytest.raises(UserError, match="two is not adopted") as caught:
        await fleet.admin.set_service("two", service)
    assert caught.value.hint == "farm device adopt two"


@pytest.mark.parametrize(
    "order", [lambda f: f.admin.change("one", pool="::"), lambda f: f.admin.adopt("two", pool="::")]
)
async def test_a_wrong_order_changes_nothing(fleet, store, order):
    before = store.devices.all()
    with pytest.raises(FarmError):
        await order(fleet)
    assert store.devices.all() == before


async def test_a_bundle_on_its_way_is_in_use(fleet):
    assert fleet.bundles_in_use() == {}
    for serial in ("S2", "S1"):
        fleet.agents[serial].installing = "c" * 64
    assert fleet.bundles_in_use() == {"c" * 64: ("one", "two")}


@pytest.mark.parametrize("turns", range(5))
async def test_an_order_whose_caller_leaves_is_kept_and_believed_or_neither(fleet, store, kept, turns):
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
    two = fleet.view("two")
    assert fleet.view("one").service.value == kept("one").service
    assert (two.adopted, two.pool) == (kept("two").adopted, kept("two").pool)
    assert {name: str(selector) for name, selector in aliases.selectors().items()} == store.aliases.all()


async def test_a_phone_is_wanted_while_a_request_waits_for_it_or_somebody_looks(fleet, monkeypatch):
    assert not fleet.watcher.wanted("S1")
    fleet.is_awaited = lambda name: name == "one"
    assert [fleet.watcher.wanted(serial) for serial in ("S1", "S2", "stranger")] == [True, False, False]
    fleet.note_view()
    assert fleet.watcher.wanted("S2")
    monkeypatch.setattr("farm.devices.fleet.VIEWED_S", 0.0)
    assert not fleet.watcher.wanted("S2")


async def test_an_address_that_is_none_is_the_problem_of_its_device_alone(quiet_fleet):
    bad = DeviceRecord("S0", "zero", adopted=True, address="nonsense\0")
    async with quiet_fleet(bad, DeviceRecord("S1", "one", adopted=True)) as fleet:
        await asyncio.sleep(0)
        assert sorted(names(fleet)) == ["one", "zero"]
        assert "is not a network phone's address" in fleet.view("zero").evidence
        assert fleet.view("one").reason != fleet.view("zero").reason
