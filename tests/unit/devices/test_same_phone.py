"""Phones that state a serial number: when a record follows it, and when it proves nothing."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from farm.adb.client import AdbClient
from farm.adb.devices import AdbDevice, AdbState
from farm.bundle.rollout_rules import RolloutConfig
from farm.common.events import EventLog
from farm.devices.fleet import Fleet, FleetConfig
from farm.devices.identity.naming_rules import AdoptRule, is_distinct
from farm.devices.lifecycle import messages as m
from farm.devices.power.power_rules import UsbConfig
from farm.devices.rollouts import Rollouts
from farm.model.identity import DeviceIdentity
from farm.store.devices import DeviceRecord
from farm.store.store import Store
from tests.unit.devices.test_admin import Silence, Unused

PIXEL = DeviceIdentity(hardware_serial="9A231FFAZ0", vendor="Google", model="Pixel 7", abi="arm64-v8a")
NOTE = DeviceIdentity(hardware_serial="9A231FFAZ0", vendor="Xiaomi", model="Redmi Note 9", abi="arm64-v8a")
ANYTHING = (AdoptRule("android", pool="desk"),)


class Bench:
    """A fleet whose phones say of themselves what a test says."""

    def __init__(self, fleet):
        self.fleet = fleet

    def lists(self, *serials):
        self.fleet.devices_changed(tuple(AdbDevice(each, AdbState.DEVICE) for each in serials))

    def agent(self, serial):
        return self.fleet.agents[serial]

    def says(self, serial, identity):
        agent = self.agent(serial)
        adopted = self.fleet.identified(agent, identity)
        agent.on_event(m.Identified(agent.state.generation, adopted))
        return self.view(serial)

    def view(self, serial):
        return self.fleet.view(serial)


@asynccontextmanager
async def bench(folder, rules=(), number="9A231FFAZ0", places=None):
    store = Store.open(folder / "farm.db")
    await store.devices.save(DeviceRecord("OLD", "victim", number, pool="secret", adopted=True))
    unused = Unused()
    config = FleetConfig(rules=rules, usb=UsbConfig(places or {}, str(folder)))
    fleet = Fleet(
        AdbClient("tcp:5038"),
        Silence(),
        Rollouts(unused.for_abi, tuple, store.rollouts, EventLog(), RolloutConfig()),
        unused,
        store.devices,
        EventLog(),
        config,
        recoveries=store.recoveries,
        batteries=store.batteries,
    )
    fleet.add("OLD")
    try:
        yield Bench(fleet)
    finally:
        await asyncio.sleep(0)  # what was begun is begun
        await asyncio.sleep(0)
        for agent in tuple(fleet.agents.values()):
            await agent.close()
        await fleet._tasks.end(0.0)
        await fleet.registry.close()
        await fleet.recovery.log.close()
        store.close()


async def test_a_phone_at_another_port_is_itself(tmp_path):
    async with bench(tmp_path) as b:
        b.lists("OLD")
        b.says("OLD", PIXEL)
        b.lists("NEW")
        view = b.says("NEW", PIXEL)
        assert (view.name, view.pool, view.adopted) == ("victim", "secret", True)


@pytest.mark.parametrize("rules", [(), ANYTHING])
async def test_another_model_with_the_same_number_is_another_phone(tmp_path, rules):
    async with bench(tmp_path, rules) as b:
        b.lists("OLD")
        b.says("OLD", PIXEL)
        b.lists("NEW")
        view = b.says("NEW", NOTE)
        assert (view.adopted, view.pool) == (bool(rules), "desk" if rules else "")
        assert view.name != "victim"


async def test_nobody_adopts_what_only_states_a_number_that_is_remembered(tmp_path):
    async with bench(tmp_path) as b:  # since the start nobody has seen what the victim is
        b.lists("NEW")
        assert not b.says("NEW", PIXEL).adopted


@pytest.mark.parametrize("number", ["0123456789ABCDEF", "00000000", "unknown"])
async def test_a_default_number_is_nobodys(tmp_path, number):
    assert not is_distinct(number)
    clone = DeviceIdentity(hardware_serial=number, vendor="Rockchip", model="rk3566", abi="arm64-v8a")
    async with bench(tmp_path, number=number) as b:
        b.lists("OLD")
        b.says("OLD", clone)
        b.lists("NEW")
        assert not b.says("NEW", clone).adopted


async def test_a_number_that_two_had_at_once_is_nobodys(tmp_path):
    async with bench(tmp_path) as b:
        b.lists("OLD", "NEW")
        b.says("OLD", PIXEL)
        assert not b.says("NEW", PIXEL).adopted
        b.lists("THIRD")
        assert not b.says("THIRD", PIXEL).adopted


@pytest.mark.parametrize("rules", [(), ANYTHING])
async def test_the_record_goes_home_and_the_quarantine_stays_with_both(tmp_path, rules):
    async with bench(tmp_path, rules) as b:
        b.lists("OLD")
        b.says("OLD", PIXEL)
        b.agent("OLD").on_event(m.QuarantineOrdered("battery bulges"))
        b.lists("NEW")
        assert b.says("NEW", PIXEL).name == "victim"
        b.lists("NEW", "OLD")
        home = b.says("OLD", PIXEL)
        assert (home.name, home.pool, home.life) == ("victim", "secret", "quarantined")
        other = b.view("NEW")
        assert (other.adopted, other.name == "victim") == (bool(rules), False)
        assert other.life == ("quarantined" if rules else "new")


async def test_a_second_way_to_a_phone_in_quarantine_is_closed_too(tmp_path):
    async with bench(tmp_path, ANYTHING) as b:
        b.lists("OLD", "NEW")
        b.says("OLD", PIXEL)
        b.agent("OLD").on_event(m.QuarantineOrdered("battery bulges"))
        assert b.says("NEW", PIXEL).life == "quarantined"


async def test_a_phone_cannot_claim_anothers_port(tmp_path):
    async with bench(tmp_path, places={"9A231FFAZ0": "1-4.2", "OLD": "1-4.2"}) as b:
        b.lists("OLD", "NEW")
        b.says("OLD", PIXEL)
        b.says("NEW", PIXEL)
        place = b.agent("OLD").place
        assert (place is not None and place.path, b.agent("NEW").place) == ("1-4.2", None)


TWIN = DeviceIdentity(hardware_serial="77B10FFAX9", vendor="Google", model="Pixel 7", abi="arm64-v8a")


@pytest.mark.parametrize("order", [("OLD", "TWIN"), ("TWIN", "OLD")])
async def test_two_phones_that_trade_serials_stay_who_they_are(tmp_path, order):
    async with bench(tmp_path, ANYTHING) as b:
        b.lists("OLD", "TWIN")
        b.says("OLD", PIXEL)
        b.says("TWIN", TWIN)
        twin = b.view("TWIN").name
        b.agent("OLD").on_event(m.QuarantineOrdered("battery bulges"))
        b.lists()
        b.lists("OLD", "TWIN")
        for serial in order:
            b.says(serial, {"OLD": TWIN, "TWIN": PIXEL}[serial])
        sick, well = b.view("victim"), b.view(twin)
        assert (sick.serial, sick.pool, sick.life) == ("TWIN", "secret", "quarantined")
        assert (well.serial, well.pool) == ("OLD", "desk")
        assert well.life != "quarantined"
        await b.fleet.registry.close()
        kept = {record.serial: (record.name, record.hardware_serial) for record in b.fleet.registry._table.all()}
        assert kept == {"OLD": (twin, "77B10FFAX9"), "TWIN": ("victim", "9A231FFAZ0")}


async def test_the_phone_whose_serial_was_taken_may_come_later(tmp_path):
    async with bench(tmp_path, ANYTHING) as b:
        b.lists("OLD", "TWIN")
        b.says("OLD", PIXEL)
        twin = b.says("TWIN", TWIN).name
        b.lists()
        b.lists("OLD")
        assert b.says("OLD", TWIN).name == twin
        away = b.view("victim")
        assert (away.serial, away.life, away.identity) == ("TWIN", "gone", PIXEL)
        b.lists("OLD", "TWIN")
        assert b.says("TWIN", PIXEL).name == "victim"


async def test_a_phone_that_is_there_loses_nothing_to_one_that_states_its_number(tmp_path):
    async with bench(tmp_path, ANYTHING) as b:
        b.lists("OLD", "TWIN")
        b.says("OLD", PIXEL)
        twin = b.says("TWIN", TWIN).name
        b.lists("TWIN")
        b.lists("OLD", "TWIN")
        assert b.says("OLD", TWIN).name == "victim"
        assert b.view("TWIN").name == twin
