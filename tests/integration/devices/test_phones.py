"""The fleet over virtual phones: a real adb server, real pushes, the real device scripts and RPC server."""

import asyncio
from datetime import UTC, datetime

import pytest

from farm.common.errors import Code, NoSuchDeviceError, PhoneError, UserError
from farm.common.selector import Selector
from farm.devices.fleet import FleetConfig
from farm.devices.health.probe.thermal import ProbeConfig
from farm.model.device import Life, Service
from farm.simulation.control import running_lab
from farm.store.devices import DeviceRecord
from tests.integration.devices.conftest import ADOPT_ALL, RPC_MAGIC, handshake
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S

UP = ["device.identifying", "device.provisioning", "device.starting", "device.checking", "device.ready"]


def tail(kinds, expected):
    return kinds[-len(expected) :]


async def test_a_plugged_phone_becomes_ready_and_can_be_dialled(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        of_phone = [kind for kind in r.heard() if not kind.startswith("bundle.")]  # the library is read meanwhile
        assert tail(of_phone, UP) == UP
        assert view.leasable
        assert view.pool == "lab"
        assert {"android", view.name} <= set(view.aliases)
        assert view.bundle == r.shelf.bundle.hash
        code, close = await handshake(r.fleet, view.name)
        assert code == RPC_MAGIC
        close()
        assert (await r.until_view(lambda v: v.temperature_c is not None)).name == view.name


async def test_a_replugged_phone_keeps_its_server_and_gets_no_byte(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        pid = await r.server_pid(view.serial)
        mark = r.mark()
        r.phones.unplug("one")
        await r.until(Life.GONE)
        with raises_code(Code.NO_SERVER):
            await r.fleet.dial(view.name, 1.0)
        r.phones.plug("one")
        again = await r.until(Life.READY)
        assert again.name == view.name
        assert await r.server_pid(view.serial) == pid
        assert "device.pushing" not in [event.kind for event in r.events.since(mark)]


async def test_an_orphaned_session_is_killed_when_its_server_is_taken_over(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        _, close = await handshake(r.fleet, view.name)
        try:
            while not (sessions := await r.sessions(view.serial)):
                pass  # the server answers before it forks the session
            r.phones.ignore_sigterm("one")
            r.phones.unplug("one")
            await r.until(Life.GONE)
            r.phones.plug("one")
            await r.until(Life.READY)
            assert not await r.sessions(view.serial) & sessions
        finally:
            close()


async def test_a_crashed_server_is_replaced(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        pid, mark = await r.server_pid(view.serial), r.mark()
        assert r.phones.server_crash("one") >= 1
        await r.until_view(lambda v: v.life is not Life.READY)
        view = await r.until(Life.READY)
        assert r.heard(mark) == ["device.starting", "device.checking", "device.ready"]
        assert r.actions(mark) == ["restart-server", "repaired"]
        assert await r.server_pid(view.serial) != pid


async def test_a_broken_session_leaves_ready_at_once_and_its_process_goes(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        pid = await r.server_pid(view.serial)
        sock, secret = await r.fleet.dial(view.name, 5.0)
        with sock:
            key = f"client:{secret}".encode()
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, RPC_MAGIC.to_bytes(4, "little") + len(key).to_bytes(4, "little") + key)
            await loop.sock_recv(sock, 4)
            r.fleet.report_broken_session(view.name, "cut: longer than 10 s")
            gone = r.fleet.view(view.name)
            assert (gone.life, gone.reason, gone.leasable) == (Life.RECOVERING, "cut: longer than 10 s", False)
            await r.until(Life.READY)
            async with asyncio.timeout(HANG_S):
                while await loop.sock_recv(sock, 4096):
                    pass  # the server's key, then the end: its process is dead
        assert await r.server_pid(view.serial) == pid


async def test_a_stopped_server_is_replaced_when_a_session_breaks(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        pid = await r.server_pid(view.serial)
        r.phones.server_hang("one")
        r.fleet.report_broken_session(view.name, "no answer")
        await r.until(Life.READY)
        assert await r.server_pid(view.serial) != pid


async def test_a_rebooted_phone_comes_back_with_a_fresh_server(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        mark = r.mark()
        await r.fleet.recovery.reboot(view.name, "ann")
        await r.until_view(lambda v: v.life is not Life.READY)
        await r.until(Life.READY)
        assert tail(r.heard(mark), UP) == UP
        assert r.actions(mark) == ["reboot", "repaired"]
        assert "device.pushing" not in [event.kind for event in r.events.since(mark)]


async def test_a_killed_adb_server_costs_no_rpc_server(rig, adb_server):
    async with rig() as r:
        view = await r.until(Life.READY)
        pid = await r.server_pid(view.serial)
        adb_server.stop()
        await r.until(Life.GONE)
        adb_server.start()
        r.phones.plug("one")
        await r.until(Life.READY)
        assert await r.server_pid(view.serial) == pid


async def test_a_phone_that_answers_nothing_though_adb_lists_it_is_not_handed_out(rig):
    async with rig(config=FleetConfig(ADOPT_ALL, ProbeConfig(every_s=0.2), probe_timeout_s=1.0)) as r:
        await r.until(Life.READY)
        r.phones.offline("one", "silent")
        view = await r.until_view(lambda v: v.life is not Life.READY)
        assert view.reason == "it answers no command, though adb lists it"
        r.phones.plug("one")
        await r.until(Life.READY)


async def test_an_unadopted_phone_gets_nothing_until_it_is_adopted(rig):
    async with rig(rules=()) as r:
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


async def test_an_unauthorized_phone_says_what_to_do(rig):
    async with rig(plugged=False) as r:
        r.phones.fault("one", "unauthorized")
        r.phones.plug("one")
        view = await r.until(Life.UNAUTHORIZED)
        assert "adb key" in view.reason
        said = [event for event in r.events.since() if event.kind == "device.unauthorized"][-1]
        assert "accept" in str(said.data["hint"])
        await asyncio.to_thread(r.phones.wait, "one", "key_shown")
        r.phones.accept("one")
        await r.until(Life.READY)


async def test_wrong_numbers_are_never_handed_out(rig):
    async with rig(plugged=False) as r:
        r.checker.verdicts = [(False, "off by 3")] * 3
        ready = []
        r.fleet.subscribe(lambda view: ready.append(view.name) if view.life is Life.READY else None)
        r.phones.plug("one")
        view = await r.until(Life.QUARANTINED)
        assert (view.reason, ready, len(r.checker.checked)) == ("off by 3", [], 3)
        await r.fleet.admin.set_service(view.name, Service.IN)
        await r.until(Life.READY)


async def test_a_check_that_cannot_run_is_tried_again(rig):
    async with rig(plugged=False) as r:
        r.checker.verdicts = [PhoneError("no session"), RuntimeError("a bug")]
        r.phones.plug("one")
        await r.until(Life.READY)
        assert len(r.checker.checked) == 3


async def test_a_bug_over_one_phone_quarantines_it_and_no_other(rig, caplog):
    async with rig({"one": "oneplus-12", "two": "galaxy-s9"}) as r:
        first = await r.until(Life.READY, count=2)

        def fails(view):
            if view.name == first.name and view.life is Life.GONE:
                raise RuntimeError("nobody thought of this")

        r.fleet.subscribe(fails)
        r.phones.unplug("*")
        view = await r.until(Life.QUARANTINED)
        assert view.name == first.name
        assert "nobody thought of this" in view.reason
        assert "unlisted :" in caplog.text
        await r.until(Life.GONE)
        r.phones.plug("two" if view.serial == r.phones.phone("one").serial else "one")
        await r.until(Life.READY)


async def test_names_pools_labels_and_aliases_change_what_it_answers_to(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        changed = await r.fleet.admin.change(view.name, rename="Bench-1", pool="Cold Room", labels={"rack": "A 3"})
        assert (changed.name, changed.pool, changed.labels["rack"]) == ("bench-1", "cold-room", "a-3")
        assert "bench-1" in changed.aliases
        r.fleet.set_aliases({"fast": Selector.parse("rack=a-3")})
        assert "fast" in r.fleet.view("bench-1").aliases
        drained = await r.fleet.admin.set_service("bench-1", Service.DRAINING, "ann")
        assert not drained.leasable
        ordered = r.fleet.admin.out_of_service_by("bench-1")
        await r.fleet.admin.set_service("bench-1", Service.DRAINING, "bob")  # which changes nothing
        assert (ordered[:7], r.fleet.admin.out_of_service_by("bench-1")) == ("ann at ", ordered)
        await r.fleet.admin.set_service("bench-1", Service.IN, "bob")
        assert r.fleet.admin.out_of_service_by("bench-1") == ""
        with pytest.raises(NoSuchDeviceError) as caught:
            r.fleet.view("bench-2")
        assert "bench-1" in caught.value.hint


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


async def test_the_fleet_remembers_its_phones(rig):
    async with rig() as r:
        name = (await r.until(Life.READY)).name
        await r.fleet.admin.change(name, rename="kept")
        record = r.store.devices.all()[0]
    assert (record.name, record.adopted, bool(record.hardware_serial)) == ("kept", True, True)
