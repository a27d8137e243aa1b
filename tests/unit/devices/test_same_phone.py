"""Phones that state a serial number: when a record follows it, and when it proves nothing."""

from contextlib import asynccontextmanager
from functools import partial

import pytest

from farm.adb.devices import AdbDevice, AdbState
from farm.common.errors import UserError
from farm.devices import fleet
from farm.devices.fleet import FleetConfig
from farm.devices.identity.naming_rules import AdoptRule, is_distinct
from farm.devices.lifecycle import messages as m
from farm.devices.power.power_rules import UsbConfig
from farm.head.allocator.explain import needs_operator
from farm.model.identity import DeviceIdentity
from farm.store.devices import DeviceRecord
from tests.support.fake_phone import FakeClient
from tests.support.waiting import until

PIXEL = DeviceIdentity(hardware_serial="9A231FFAZ0", vendor="Google", model="Pixel 7", abi="arm64-v8a")
NOTE = DeviceIdentity(hardware_serial="9A231FFAZ0", vendor="Xiaomi", model="Redmi Note 9", abi="arm64-v8a")
ANYTHING = (AdoptRule("android", pool="desk"),)


@pytest.fixture
def phones(quiet_fleet, tmp_path):
    """`async with phones(rules)`: a fleet that knows the serial OLD; its phones say what a test says."""
    return partial(bench, quiet_fleet, tmp_path)


class Bench:
    def __init__(self, fleet):
        self.fleet, self.view, self.agents = fleet, fleet.view, fleet.agents

    def lists(self, *serials, **places):
        """Adb lists these; `places`: their USB paths."""
        listed = (AdbDevice(each, AdbState.DEVICE, devpath=places.get(each, "")) for each in (*serials, *places))
        self.fleet.watcher.devices = tuple(listed)
        self.fleet.devices_changed(self.fleet.watcher.devices)

    def says(self, serial, identity, **boots):
        """It is identified; returns its view. `boots`: what this link, and those beside it, say of their boot."""
        agent = self.agents[serial]
        adopted = self.fleet.identified(agent, identity, boots)
        agent.on_event(m.Identified(agent.state.generation, adopted, other_link=agent.other_link))
        return self.view(serial)

    def meets(self, **identities):
        """Adb lists these, and all say what they are; returns the view of the last."""
        self.lists(*identities)
        return [self.says(serial, identity) for serial, identity in identities.items()][-1]


@asynccontextmanager
async def bench(quiet_fleet, folder, rules=(), number="9A231FFAZ0", places=None, client=None):
    config = FleetConfig(rules=rules, usb=UsbConfig(places or {}, str(folder)))
    record = DeviceRecord("OLD", "victim", number, pool="secret", adopted=True)
    async with quiet_fleet(record, config=config, client=client) as made:
        yield Bench(made)


async def test_a_phone_at_another_port_is_itself(phones):
    async with phones() as b:
        b.meets(OLD=PIXEL)
        view = b.meets(NEW=PIXEL)
        assert (view.name, view.pool, view.adopted) == ("victim", "secret", True)


@pytest.mark.parametrize("rules", [(), ANYTHING])
async def test_another_model_with_the_same_number_is_another_phone(phones, rules):
    async with phones(rules) as b:
        b.meets(OLD=PIXEL)
        view = b.meets(NEW=NOTE)
        assert (view.adopted, view.pool) == (bool(rules), "desk" if rules else "")
        assert view.name != "victim"


async def test_nobody_adopts_what_only_states_a_number_that_is_remembered(phones):
    async with phones() as b:  # since the start nobody has seen what the victim is
        assert not b.meets(NEW=PIXEL).adopted


@pytest.mark.parametrize("number", ["0123456789ABCDEF", "00000000", "unknown"])
async def test_a_default_number_is_nobodys(phones, number):
    assert not is_distinct(number)
    clone = DeviceIdentity(hardware_serial=number, vendor="Rockchip", model="rk3566", abi="arm64-v8a")
    async with phones(number=number) as b:
        b.meets(OLD=clone)
        assert not b.meets(NEW=clone).adopted


async def test_a_number_that_two_had_at_once_is_nobodys(phones):
    async with phones() as b:
        assert not b.meets(OLD=PIXEL, NEW=PIXEL).adopted
        assert not b.meets(THIRD=PIXEL).adopted


@pytest.mark.parametrize("rules", [(), ANYTHING])
async def test_the_record_goes_home_and_the_quarantine_stays_with_both(phones, rules):
    async with phones(rules) as b:
        b.meets(OLD=PIXEL)
        b.agents["OLD"].on_event(m.QuarantineOrdered("battery bulges"))
        assert b.meets(NEW=PIXEL).name == "victim"
        b.lists("NEW", "OLD")
        home = b.says("OLD", PIXEL)
        assert (home.name, home.pool, home.life) == ("victim", "secret", "quarantined")
        other = b.view("NEW")
        assert (other.adopted, other.name == "victim") == (bool(rules), False)
        assert other.life == ("quarantined" if rules else "new")


async def test_a_second_way_to_a_phone_in_quarantine_is_closed_too(phones):
    async with phones(ANYTHING) as b:
        b.lists("OLD", "NEW")
        b.says("OLD", PIXEL)
        b.agents["OLD"].on_event(m.QuarantineOrdered("battery bulges"))
        assert b.says("NEW", PIXEL).life == "quarantined"


async def test_a_phone_cannot_claim_anothers_port(phones):
    async with phones(places={"9A231FFAZ0": "1-4.2", "OLD": "1-4.2"}) as b:
        b.meets(OLD=PIXEL, NEW=PIXEL)
        place = b.agents["OLD"].place
        assert (place is not None and place.path, b.agents["NEW"].place) == ("1-4.2", None)


TWIN = DeviceIdentity(hardware_serial="77B10FFAX9", vendor="Google", model="Pixel 7", abi="arm64-v8a")


@pytest.mark.parametrize("order", [("OLD", "TWIN"), ("TWIN", "OLD")])
async def test_two_phones_that_trade_serials_stay_who_they_are(phones, order):
    async with phones(ANYTHING) as b:
        b.meets(OLD=PIXEL, TWIN=TWIN)
        twin = b.view("TWIN").name
        b.agents["OLD"].on_event(m.QuarantineOrdered("battery bulges"))
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


async def test_the_phone_whose_serial_was_taken_may_come_later(phones):
    async with phones(ANYTHING) as b:
        twin = b.meets(OLD=PIXEL, TWIN=TWIN).name
        b.lists()
        assert b.meets(OLD=TWIN).name == twin
        away = b.view("victim")
        assert (away.serial, away.life, away.identity) == ("TWIN", "gone", PIXEL)
        b.lists("OLD", "TWIN")
        assert b.says("TWIN", PIXEL).name == "victim"


async def test_a_phone_that_is_there_loses_nothing_to_one_that_states_its_number(phones):
    async with phones(ANYTHING) as b:
        twin = b.meets(OLD=PIXEL, TWIN=TWIN).name
        b.lists("TWIN")
        b.lists("OLD", "TWIN")
        assert b.says("OLD", TWIN).name == "victim"
        assert b.view("TWIN").name == twin


async def use(bench, *serials):
    """They are identified in that order, twice, all in one boot; returns which of them farm uses, by serial."""
    for serial in (*serials, *serials):
        bench.says(serial, PIXEL, **dict.fromkeys(serials, "boot"))
    return {serial: bench.view(serial).name for serial in serials if bench.view(serial).adopted}


@pytest.mark.parametrize("rules", [(), ANYTHING])
@pytest.mark.parametrize("order", [("OLD", "10.0.0.7:5555"), ("10.0.0.7:5555", "OLD")])
async def test_two_links_in_one_boot_are_one_phone(phones, rules, order):
    async with phones(rules) as b:
        b.lists("10.0.0.7:5555", OLD="1-4.2")
        assert await use(b, *order) == {"OLD": "victim"}
        second = b.view("10.0.0.7:5555")
        assert "victim" in second.reason
        assert second.withheld == second.reason
        assert needs_operator(second) == ""
        with pytest.raises(UserError):
            await b.fleet.admin.adopt("10.0.0.7:5555")


async def test_two_links_of_a_stranger_are_one_phone_to_a_rule(phones):
    async with phones(ANYTHING) as b:
        b.lists("10.0.0.7:5555", NEW="1-4.2")
        for serial in ("10.0.0.7:5555", "NEW"):
            b.says(serial, TWIN, **{serial: "boot"})
        assert [view.adopted for view in map(b.view, ("10.0.0.7:5555", "NEW"))] == [True, False]


@pytest.mark.parametrize("boots", [("one", "another"), ("", ""), ("btime 7", "btime 7")])
async def test_two_phones_with_one_number_are_two(phones, boots):
    async with phones(ANYTHING) as b:
        b.lists(OLD="1-4.2", NEW="1-4.3")
        for serial, boot in zip(("OLD", "NEW"), boots, strict=True):
            b.says(serial, PIXEL, **{serial: boot})
        assert [(view.adopted, view.name) for view in map(b.view, ("OLD", "NEW"))] == [
            (True, "victim"), (True, "pixel-7"),
        ]  # fmt: skip


async def test_the_other_link_is_used_when_the_first_is_gone_and_the_first_when_it_is_back(phones, monkeypatch):
    monkeypatch.setattr(fleet, "LINK_MISSED_S", 0.0)
    async with phones(ANYTHING) as b:
        b.lists("10.0.0.7:5555", OLD="1-4.2")
        await use(b, "OLD", "10.0.0.7:5555")
        b.lists("10.0.0.7:5555")
        await until(lambda: b.view("10.0.0.7:5555").life != "new")
        assert await use(b, "10.0.0.7:5555") == {"10.0.0.7:5555": "victim"}
        b.lists("10.0.0.7:5555", OLD="1-4.2")
        b.fleet._gates.holds = {"victim"}.__contains__
        assert await use(b, "OLD", "10.0.0.7:5555") == {"10.0.0.7:5555": "victim"}
        b.fleet._gates.holds = set().__contains__
        b.lists("10.0.0.7:5555")
        b.lists("10.0.0.7:5555", OLD="1-4.2")
        assert await use(b, "OLD", "10.0.0.7:5555") == {"OLD": "victim"}


@pytest.mark.parametrize("order", [("usb:1-4.2", "usb:1-4.3"), ("usb:1-4.3", "usb:1-4.2")])
async def test_a_phone_whose_serial_another_gets_keeps_its_record_at_its_port(phones, order):
    async with phones(ANYTHING) as b:
        b.lists(OLD="1-4.2")
        b.says("OLD", PIXEL)
        b.lists(**{"usb:1-4.2": "1-4.2", "usb:1-4.3": "1-4.3"})
        for serial in order:
            b.says(serial, PIXEL)
        assert [b.view(each).name for each in ("usb:1-4.2", "usb:1-4.3")] == ["victim", "pixel-7"]


async def test_links_that_are_not_identified_yet_are_asked_for_their_boot(phones):
    async with phones(ANYTHING, client=FakeClient("boot\n")) as b:
        b.meets(OLD=PIXEL)
        b.lists()
        b.lists("OLD", "NEW")
        assert await b.fleet.boots_beside(b.agents["NEW"], PIXEL) == {"OLD": "boot"}
