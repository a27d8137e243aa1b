"""A fleet over phones that adb lists: keys, libraries without a bundle, adoption, hubs, budgets."""

import pytest

from farm.adb.devices import AdbDevice, AdbState
from farm.common.events import EventLog
from farm.devices.fleet import FleetConfig
from farm.devices.identity.identity import READ_COMMAND
from farm.devices.identity.naming_rules import AdoptRule
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.recovery import RecoveryConfig
from farm.devices.power.power_rules import UsbConfig
from farm.devices.recovery_control import RecoveryLog
from farm.model.device import Life
from farm.model.health import DeviceFault
from farm.store.devices import DeviceRecord
from tests.support.fake_phone import FakeClient, for_ever
from tests.support.waiting import until
from tests.unit.devices.captures import answer
from tests.unit.devices.test_bundle_override import READY, B

ONE = DeviceRecord("S1", "one", adopted=True)
STUCK = (
    m.SessionBroke("cut"),
    m.PlainEvent.PHONE_AT_FAULT,
    lambda number: m.WorkFailed(number, "pid 7 survives SIGKILL", fault=DeviceFault.STUCK),
)


def lists(fleet, state, *serials):
    fleet.watcher.devices = [AdbDevice(serial, state) for serial in serials]
    fleet.devices_changed(fleet.watcher.devices)


async def test_a_phone_whose_keys_are_not_accepted_says_what_to_do(quiet_fleet):
    events = EventLog()
    async with quiet_fleet(ONE, events=events, client=FakeClient(for_ever)) as fleet:
        lists(fleet, AdbState.UNAUTHORIZED, "S1")
        view = fleet.view("one")
        assert (view.life, view.reason) == (Life.UNAUTHORIZED, "the farm's adb key is not accepted on its screen")
        (told,) = (event for event in events.since() if event.kind == "device.unauthorized")
        assert "accept 'Allow USB debugging'" in told.data["hint"]


async def test_a_phone_without_a_bundle_waits_for_one(quiet_fleet):
    phone, library = FakeClient({READ_COMMAND: answer("poco-f6-peridot"), "": for_ever}), []
    async with quiet_fleet(ONE, client=phone, bundles=library) as fleet:
        lists(fleet, AdbState.DEVICE, "S1")
        await until(lambda: fleet.view("one").life is Life.QUARANTINED)
        assert "no runtime bundle for arm64-v8a (android)" in fleet.view("one").reason
        library.append(B)
        await fleet.bundles_changed()
        await until(lambda: fleet.bundles_in_use() == {B.hash: ("one",)})
        assert fleet.view("one").life is Life.PROVISIONING


async def test_a_new_configuration_adopts_phones_that_wait(quiet_fleet):
    phone, new = FakeClient({READ_COMMAND: answer("poco-f6-peridot"), "": for_ever}), FleetConfig()
    async with quiet_fleet(DeviceRecord("S1", "one"), client=phone) as fleet:
        lists(fleet, AdbState.DEVICE, "S1")
        await until(lambda: fleet.view("one").life is Life.NEW)
        rules, recovery = [AdoptRule("android", pool="lab")], RecoveryConfig(away_s=60.0)
        fleet.use(rules, new.probe, new.health, new.battery, recovery)
        assert (fleet.view("one").pool, fleet.view("one").life) == ("lab", Life.PROVISIONING)
        assert fleet.recovery.away_limit_s("lab") == 60.0


async def test_a_hub_whose_phones_are_listed_and_silent_is_to_blame_until_one_answers(quiet_fleet):
    events, places = EventLog(), {"S1": "1-4.1", "S2": "1-4.2", "S3": "1-5.1"}
    records = [DeviceRecord(serial, serial.lower()) for serial in places]
    config, causes = FleetConfig(usb=UsbConfig(places)), []
    async with quiet_fleet(*records, events=events, config=config, client=FakeClient(for_ever)) as fleet:
        lists(fleet, AdbState.DEVICE, *places)
        for fleet.watcher.answers in (True, False, True):
            await fleet.find_external_cause(fleet.agents["S1"], 0.0)
            causes.append([fleet.agents[serial].external_cause for serial in places])
    silent = "its hub 1-4 went silent with 2 phones"
    assert causes == [["", "", ""], [silent, silent, ""], ["", "", ""]]
    hubs = [(event.kind, event.subject) for event in events.since() if event.kind.startswith("hub.")]
    assert hubs == [("hub.lost", "1-4"), ("hub.back", "1-4")]


@pytest.mark.parametrize("reboots", [0, 1])
async def test_a_stuck_phone_without_reboots_left_is_a_persons_business_and_stays_so(quiet_fleet, store, reboots):
    config = FleetConfig(recovery=RecoveryConfig(reboots_per_day=reboots))
    async with quiet_fleet(ONE, config=config, client=FakeClient(for_ever)) as fleet:
        lists(fleet, AdbState.DEVICE, "S1")
        agent = fleet.agents["S1"]
        agent._lifecycle.state = READY
        for event in STUCK:
            agent.on_event(event(agent.state.generation) if callable(event) else event)
        kept = agent.state.quarantine
        assert (kept is None, agent.state.progress.under_way is None) == (reboots > 0, reboots == 0)
        if kept is not None:
            assert "reboot: its 0 in 24 h are used up" in fleet.view("one").evidence
            lists(fleet, AdbState.DEVICE)
            assert fleet.view("one").reason == f"quarantined: {kept.cause}"
            await fleet.recovery.log.close()
            after = RecoveryLog(EventLog(), store.recoveries).remembered("S1", READY).quarantine
            assert (after.cause, after.evidence) == (kept.cause, kept.evidence)
