"""Phones that are plugged in for the first time, given back, or lost together: each test has its own."""

import asyncio
import signal
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from farm.common.errors import FarmError, PhoneError, UserError
from farm.devices.agent_work import boot_id
from farm.devices.fleet import FleetConfig
from farm.devices.health.probe.thermal import ProbeConfig
from farm.devices.health.probe_round import probe, read_conditions
from farm.model.device import Life, Service
from farm.model.health import SensorGroup
from farm.simulation.control import running_lab
from farm.store.devices import DeviceRecord
from tests.integration.devices.conftest import ADOPT_ALL, handshake
from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S

QUICK_PROBES = FleetConfig(ADOPT_ALL, ProbeConfig(every_s=0.2), probe_timeout_s=1.0)
UNDYING = "echo 'echo \"failed processes do not die: 7(state D)\"' >/data/local/tmp/farm/bin/reap.sh"


async def test_a_cut_push_leaves_nothing_half_installed_and_goes_on(rig):
    async with rig(plugged=False) as r:
        r.phones.cut_push("one", r.shelf.bundle.size_bytes // 2)
        r.phones.plug("one")
        await r.until(Life.GONE)
        r.phones.plug("one")
        view = await r.until(Life.READY)
        assert await r.shell(view.serial, "ls -A /data/local/tmp/farm/bundles") == f"{r.shelf.bundle.hash}\n"


async def test_a_full_phone_says_what_is_needed_and_free_and_heals(rig):
    async with rig(plugged=False, data_bytes=96 << 20) as r:
        r.phones.full_disk("one", 1 << 20)
        r.phones.plug("one")
        view = await r.until(Life.RECOVERING)
        assert "MiB free" in view.reason  # without namespaces only the push itself finds out
        assert "are needed" in view.reason
        r.phones.free_disk("one")
        await r.until(Life.READY)


@needs_namespaces
async def test_a_whole_probe_of_a_phone(rig):
    async with rig(config=FleetConfig(ADOPT_ALL, probe=ProbeConfig(every_s=0.2))) as r:
        view = await r.until(Life.READY)
        health, _ = await probe(r.client, view.serial)
        # what this profile has not, or the shell may not read
        assert set(health.missing) <= {"supply", "kernel", "gpu"}
        assert health.boot_id
        assert health.uptime_s is not None
        assert health.memory_available_bytes
        assert health.data_free_bytes
        assert {SensorGroup.CPU, SensorGroup.BATTERY} <= {each.group for each in health.temperatures}
        assert max(cluster.max_khz or 0 for cluster in health.cpu) > 1_000_000
        pid = int(await r.server_pid(view.serial))
        assert [each.name for each in health.server if each.pid == pid] == ["tvm_rpc"]
        assert len(health.server) >= 2  # its supervisor beside it
        moment = await read_conditions(r.client, view.serial)
        assert moment["clock_hz"] == 1000 * max(cluster.max_khz or 0 for cluster in health.cpu)
        r.phones.battery("one", 9)
        shown = await r.until_view(lambda v: v.battery_percent == 9)
        assert shown.health is not None
        assert shown.health.boot_id == health.boot_id


async def test_an_unadopted_phone_gets_nothing_until_it_is_adopted(rig):
    async with rig(config=FleetConfig()) as r:
        view = await r.until(Life.NEW)
        assert not view.adopted
        assert view.aliases == ()
        assert await r.shell(view.serial, "ls -A /data/local/tmp") == ""
        with pytest.raises(UserError, match="is not adopted"):
            await r.fleet.recovery.reboot(view.name, "ann")
        with pytest.raises(UserError, match="cannot be a name"):
            await r.fleet.admin.adopt(view.name, rename="::")
        await r.fleet.admin.adopt(view.name, pool="Desk 1", rename="Left-One")
        ready = await r.until(Life.READY)
        assert (ready.name, ready.pool, ready.leasable) == ("left-one", "desk-1", True)
        assert r.store.devices.all()[0].name == "left-one"


async def test_a_remembered_phone_is_known_under_another_serial(rig):
    def remembered(hardware_serial):
        order = {"service": "draining", "ordered_by": "ann", "ordered_at": datetime(2026, 11, 2, 12, tzinfo=UTC)}
        return [DeviceRecord("emulator-1", "old-friend", hardware_serial, "desk", adopted=True, **order)]

    async with rig(remembered=remembered, plugged=False) as r:
        away = await r.until(Life.GONE)
        assert (away.name, away.serial, away.adopted) == ("old-friend", "emulator-1", True)
        r.phones.plug("one")
        view = await r.until(Life.READY)
        assert (view.name, view.pool, view.service) == ("old-friend", "desk", Service.DRAINING)
        assert r.fleet.admin.out_of_service_by(view.name) == "ann at 2026-11-02 12:00:00 UTC"
        assert view.serial == r.phones.phone("one").serial
        assert len(r.fleet.views()) == 1


async def test_a_network_phone_is_connected_kept_and_forgotten(rig, tmp_path):
    with running_lab(tmp_path / "lab", {"one": "oneplus-12"}) as wireless:
        await _network_phone(rig, wireless)


async def _network_phone(rig, wireless):
    async with rig(phones_at=wireless, plugged=False) as r:
        address = r.phones.phone("one").address
        serial = await r.fleet.admin.add_network(address)
        view = await r.until(Life.READY)
        assert view.serial == serial
        await r.client.disconnect(serial)
        await r.until(Life.GONE)
        await r.until(Life.READY)
        assert r.store.devices.all()[0].address == serial
        await r.fleet.admin.forget(view.name, clean=True)
        assert r.store.devices.all() == ()
        assert [device.serial for device in await r.client.list_devices()] == []


async def test_forget_clean_and_uninstall_leave_nothing(rig):
    async with rig({"one": "oneplus-12", "two": "galaxy-s9"}) as r:
        first = await r.until(Life.READY, count=2)
        await r.fleet.admin.forget(first.name, clean=True)
        left = r.fleet.view(first.name)
        assert (left.life, left.adopted) == (Life.NEW, False)
        second = next(view.name for view in r.fleet.views() if view.name != first.name)
        assert await r.fleet.admin.forget_all() == ((second,), {})
        for view in r.fleet.views():
            assert await r.shell(view.serial, "ls -A /data/local/tmp") == ""
            assert "tvm_rpc" not in await r.shell(view.serial, "ps -A -o ARGS")
        assert r.store.devices.all() == ()


async def test_a_phone_whose_files_somebody_removed_is_given_back_without_a_server(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        await r.shell(view.serial, "rm -rf /data/local/tmp/farm")
        with suppress(PhoneError):  # a loaded host: its supervisor has seen it by now
            _, close = await handshake(r.fleet, view.name)  # a session's own folder does not bring the others back
            close()
        await r.fleet.admin.forget(view.name, clean=True)
        async with asyncio.timeout(HANG_S):
            while "tvm_rpc" in await r.shell(view.serial, "ps -A -o ARGS"):
                pass
        assert await r.shell(view.serial, "ls -A /data/local/tmp") == ""


async def test_a_phone_that_could_not_be_cleaned_is_still_adopted_and_cleaned_later(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        r.phones.offline("one", "refuse")
        for _ in range(2):
            with pytest.raises(FarmError):
                await r.fleet.admin.forget(view.name, clean=True)
            assert r.fleet.view(view.name).adopted
            assert [record.adopted for record in r.store.devices.all()] == [True]
        cleaned, failed = await r.fleet.admin.forget_all()
        assert (cleaned, list(failed)) == ((), [view.name])
        r.phones.plug("one")
        view = await r.until(Life.READY)
        await r.fleet.admin.forget(view.name, clean=True)
        assert await r.shell(view.serial, "ls -A /data/local/tmp") == ""
        assert r.store.devices.all() == ()


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


async def test_a_phone_that_answers_nothing_is_reconnected(rig):
    async with rig(config=QUICK_PROBES) as r:
        view = await r.until(Life.READY)
        mark = r.mark()
        r.phones.offline("one", "silent")
        await r.until_view(lambda _: "reconnect" in r.actions(mark))
        assert "reboot" not in r.actions(mark)
        r.phones.plug("one")
        await r.until(Life.READY)
        assert r.fleet.view(view.name).leasable


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


async def test_a_session_that_breaks_before_the_killed_adb_server_is_missed_costs_no_action(rig, adb_server):
    async with rig({"one": "oneplus-12", "two": "galaxy-a55"}) as r:
        view = await r.until(Life.READY, count=2)
        mark = r.mark()
        adb_server.process.kill()
        adb_server.process.wait()  # the loop stands still meanwhile: the watcher has not seen it
        r.fleet.report_broken_session(view.name, "the phone's side ended")
        assert r.fleet.view(view.name).life is Life.RECOVERING
        await r.until(Life.GONE, count=2)
        adb_server.start()
        r.phones.plug("*")
        await r.until(Life.READY, count=2)
        assert r.actions(mark) == []
        assert not r.fleet.recovery.log.actions(view.serial)
