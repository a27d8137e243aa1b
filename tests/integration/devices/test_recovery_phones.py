"""Recovery actions on virtual phones behind a real adb server: what is done, in which order, with what outcome."""

import asyncio
import signal
from dataclasses import replace

import pytest

from farm.common.events import EventLog
from farm.devices.agent_work import boot_id
from farm.devices.fleet import FleetConfig
from farm.devices.health.probe.thermal import ProbeConfig
from farm.devices.lifecycle.recovery import RecoveryConfig
from farm.devices.power.power_rules import UsbConfig
from farm.devices.recovery_control import RecoveryLog
from farm.model.device import Life
from tests.integration.devices.conftest import ADOPT_ALL

BIN = "/data/local/tmp/farm/bin"
UNDYING = f"echo 'echo \"failed processes do not die: 7(state D) (stuck in a driver)\"' >{BIN}/reap.sh"


async def test_a_process_that_survives_sigkill_costs_a_reboot_and_the_phone_is_back(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        boot = await boot_id(r.client, view.serial)
        mark = r.mark()
        await r.shell(view.serial, UNDYING)
        r.fleet.report_broken_session(view.name, "cut: longer than 10 s")
        assert r.fleet.view(view.name).life is Life.RECOVERING
        await r.until(Life.READY)
        assert r.actions(mark) == ["reap", "failed", "reboot", "repaired"]
        assert await boot_id(r.client, view.serial) not in ("", boot)


async def test_without_reboots_left_such_a_phone_is_a_persons_business_and_stays_so(rig):
    config = FleetConfig(ADOPT_ALL, recovery=RecoveryConfig(reboots_per_day=0))
    async with rig(config=config) as r:
        view = await r.until(Life.READY)
        await r.shell(view.serial, UNDYING)
        r.fleet.report_broken_session(view.name, "cut: longer than 10 s")
        kept = await r.until(Life.QUARANTINED)
        assert "reboot: its 0 in 24 h are used up" in kept.evidence
        r.phones.unplug("one")
        gone = await r.until(Life.GONE)
        assert gone.reason.startswith("quarantined: ")
        r.phones.plug("one")
        again = await r.until(Life.QUARANTINED)
        assert again.reason == kept.reason
        # What the next daemon would know.
        remembered = RecoveryLog(EventLog(), r.store.recoveries).remembered(
            view.serial, r.fleet.recovery.state(view.name)
        )
        assert remembered.quarantine is not None
        assert replace(remembered.quarantine, at=None) == r.fleet.recovery.state(view.name).quarantine


async def test_a_phone_that_answers_nothing_is_reconnected(rig):
    config = FleetConfig(ADOPT_ALL, ProbeConfig(every_s=0.2), probe_timeout_s=1.0)
    async with rig(config=config) as r:
        view = await r.until(Life.READY)
        mark = r.mark()
        r.phones.offline("one", "silent")
        await r.until_view(lambda _: "reconnect" in r.actions(mark))
        assert "reboot" not in r.actions(mark)
        r.phones.plug("one")
        await r.until(Life.READY)
        assert r.fleet.view(view.name).leasable


QUICK_PROBES = FleetConfig(ADOPT_ALL, ProbeConfig(every_s=0.2), probe_timeout_s=1.0)


async def test_an_adb_server_that_hangs_costs_no_phone_an_action(rig, adb_server):
    async with rig({"one": "oneplus-12", "two": "galaxy-a55"}, config=QUICK_PROBES) as r:
        await r.until(Life.READY, count=2)
        mark = r.mark()
        adb_server.process.send_signal(signal.SIGSTOP)
        try:
            away = await r.until_view(lambda view: view.life is Life.RECOVERING)
            assert "adb server" in away.reason
            await r.until_view(lambda view: view.life is not Life.READY, count=2)
        finally:
            adb_server.process.send_signal(signal.SIGCONT)
        await r.until(Life.READY, count=2)
        assert r.actions(mark) == []


async def test_a_hub_whose_phones_are_listed_but_silent_costs_none_of_them_an_action(rig, lab):
    phones = {"one": "oneplus-12", "two": "galaxy-a55", "three": "galaxy-s9"}
    control = await asyncio.to_thread(lab, phones, plugged=False)
    serials = {name: control.phone(name).serial for name in phones}
    places = dict(zip(serials.values(), ("1-4.1", "1-4.2", "1-5.1"), strict=True))
    config = replace(QUICK_PROBES, usb=UsbConfig(places))
    async with rig(config=config, phones_at=control) as r:
        await r.until(Life.READY, count=3)
        mark = r.mark()
        for name in ("one", "two"):
            control.offline(name, "silent")
        blamed = "its hub 1-4 went silent with 2 phones"
        await r.until_view(lambda view: view.life is not Life.READY and blamed in view.reason, count=2)
        assert r.fleet.usb_faults.problems()
        for name in ("one", "two"):
            control.plug(name)
        await r.until(Life.READY, count=3)
        assert r.actions(mark) == []
        assert [kind for kind in r.heard(mark) if kind.startswith("hub.")] == ["hub.lost", "hub.back"]


@pytest.mark.parametrize("phones", [{"one": "oneplus-12"}, {"one": "oneplus-12", "two": "galaxy-a55"}])
async def test_a_session_that_breaks_before_the_killed_adb_server_is_missed_costs_no_action(rig, adb_server, phones):
    async with rig(phones) as r:
        view = await r.until(Life.READY, count=len(phones))
        mark = r.mark()
        adb_server.process.kill()
        adb_server.process.wait()  # the loop stands still meanwhile: the watcher has not seen it
        r.fleet.report_broken_session(view.name, "the phone's side ended")
        assert r.fleet.view(view.name).life is Life.RECOVERING
        await r.until(Life.GONE, count=len(phones))
        adb_server.start()
        r.phones.plug("*")
        await r.until(Life.READY, count=len(phones))
        assert r.actions(mark) == []
        assert not r.fleet.recovery.log.actions(view.serial)
