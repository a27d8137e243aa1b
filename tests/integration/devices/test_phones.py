"""What phones go through: a real adb server, real pushes, the real device scripts and RPC server."""

import asyncio
import shutil
import signal
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from farm.bundle.model import CheckResult
from farm.common.errors import Code, FarmError, PhoneError, UserError
from farm.devices.fleet import FleetConfig
from farm.devices.health.probe.thermal import ProbeConfig
from farm.devices.health.probe_round import probe, read_conditions
from farm.devices.lifecycle import messages as m
from farm.model.device import Life, Service
from farm.model.health import SensorGroup
from farm.store.devices import DeviceRecord
from tests.integration.devices.conftest import ADOPT_ALL, RPC_MAGIC, handshake, make_bundle
from tests.support.errors import raises_code
from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK_PROBES = FleetConfig(ADOPT_ALL, ProbeConfig(every_s=0.2), probe_timeout_s=1.0)
UP = ["device.identifying", "device.provisioning", "device.starting", "device.checking", "device.ready"]


def tail(kinds, expected):
    return kinds[-len(expected) :]


async def test_a_plugged_phone_becomes_ready_and_can_be_dialled(r):
    view = r.fleet.views()[0]
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


async def test_a_replugged_phone_keeps_its_server_and_gets_no_byte(r):
    view = r.fleet.views()[0]
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


async def test_an_orphaned_session_is_killed_when_its_server_is_taken_over(r):
    view = r.fleet.views()[0]
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


async def test_a_crashed_server_is_replaced(r):
    view = r.fleet.views()[0]
    pid, mark = await r.server_pid(view.serial), r.mark()
    assert r.phones.server_crash("one") >= 1
    await r.until_view(lambda v: v.life is not Life.READY)
    view = await r.until(Life.READY)
    assert r.heard(mark) == ["device.starting", "device.checking", "device.ready"]
    assert r.actions(mark) == ["restart-server", "repaired"]
    assert await r.server_pid(view.serial) != pid


async def test_a_broken_session_leaves_ready_at_once_and_its_process_goes(r):
    view = r.fleet.views()[0]
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


async def test_a_rebooted_phone_comes_back_with_a_fresh_server(r):
    view = r.fleet.views()[0]
    mark = r.mark()
    await r.fleet.recovery.reboot(view.name, "ann")
    await r.until_view(lambda v: v.life is not Life.READY)
    await r.until(Life.READY)
    assert tail(r.heard(mark), UP) == UP
    assert r.actions(mark) == ["reboot", "repaired"]
    assert "device.pushing" not in [event.kind for event in r.events.since(mark)]


# What a holder with a shell does who wants to decide every later number, and to see every later model.
TAMPER = """
cd /data/local/tmp/farm/bundles/*/ && touch -r tvm_rpc mark && mv tvm_rpc .real
printf '#!/bin/sh\\necho ran >>/data/local/tmp/farm/bundles/pwned\\nexec ${0%/*}/.real "$@"\\n' >tvm_rpc
chmod 755 tvm_rpc && touch -r mark tvm_rpc && rm mark && echo planted >libOpenCL.so
printf x >>libtvm_ffi.so
rm libgcc_s.so.1 2>/dev/null; mkdir ../../elsewhere; cp ../../bin/reap.sh ../../elsewhere
ln -sf ../elsewhere/reap.sh ../../bin/reap.sh
sed -i 's/^clean() {/clean() { echo cleaned killed=0 removed=0 left=0; exit;/' ../../bin/lease.sh
echo mine >/data/local/tmp/mine; echo mine >../mine
rm -rf ../../lease
"""


async def test_changes_of_a_holder_to_farms_files_are_undone(r):
    view = r.fleet.views()[0]
    everything = f"cd /data/local/tmp/farm; sha256sum bin/*.sh bundles/{view.bundle}/*; ls -A bin bundles/{view.bundle}"
    before, pid = await r.shell(view.serial, everything), await r.server_pid(view.serial)
    secret = await r.shell(view.serial, "grep secret /data/local/tmp/farm/run/state")
    await r.fleet.note_before_lease(view.name)
    await r.shell(view.serial, TAMPER)
    assert await r.shell(view.serial, everything) != before
    mark = r.mark()
    r.fleet.clean_and_check(view.name, "mallory's lease ended")
    await r.until(Life.READY)
    assert await r.shell(view.serial, everything) == before
    assert (
        await r.shell(
            view.serial,
            "cd /data/local/tmp/farm && ls -d elsewhere bundles/mine bundles/pwned 2>/dev/null; find . -type l",
        )
        == ""
    )
    repaired = [event.data["files"] for event in r.events.since(mark) if event.kind == "device.repaired"]
    assert repaired == [2, 3]  # lease.sh, reap.sh; tvm_rpc, libtvm_ffi.so, libgcc_s.so.1
    # And whoever knows the secret of the server that they had knows nothing.
    assert await r.server_pid(view.serial) != pid
    assert await r.shell(view.serial, "grep secret /data/local/tmp/farm/run/state") != secret


async def test_what_a_session_changed_of_farms_own_files_is_found_by_the_next_check(r):
    view = r.fleet.views()[0]
    library = f"/data/local/tmp/farm/bundles/{view.bundle}/libtvm_ffi.so"
    before = await r.shell(view.serial, f"sha256sum {library}")
    await r.shell(view.serial, f"printf x >>{library}")
    mark = r.mark()
    r.fleet.find(view.name).on_event(m.PlainEvent.PROVISIONING_DUE)
    await r.until(Life.READY)
    assert await r.shell(view.serial, f"sha256sum {library}") == before
    assert [event.data for event in r.events.since(mark) if event.kind == "device.repaired"] == [{"files": 1}]


async def test_another_bundle_replaces_the_old_one(r, runtime_folder, tmp_path):
    view = r.fleet.views()[0]
    other = tmp_path / "other"
    shutil.copytree(runtime_folder, other)
    (other / "notes.txt").write_text("the next one\n")
    r.shelf.bundle = make_bundle(other)
    r.phones.unplug("one")
    await r.until(Life.GONE)
    r.phones.plug("one")
    await r.until_view(lambda v: v.life is Life.READY and v.bundle == r.shelf.bundle.hash)
    # The old one goes beside everything else, once the new one is ready.
    folder = "/data/local/tmp/farm/bundles"
    gone = f"while [ -e {folder}/{view.bundle} ]; do sleep 0.01; done; ls -A {folder}"
    assert await r.shell(view.serial, gone) == f"{r.shelf.bundle.hash}\n"


async def test_a_check_that_cannot_run_is_tried_again_and_wrong_numbers_are_never_handed_out(r):
    name, ready = r.fleet.views()[0].name, []
    r.checker.verdicts = [PhoneError("no session"), RuntimeError("a bug")]
    r.fleet.clean_and_check(name, "the test")
    await r.until(Life.READY)
    assert r.checker.verdicts == []
    r.checker.verdicts = [CheckResult(False, "off by 3")] * 3
    stop = r.fleet.subscribe(lambda view: ready.append(view.name) if view.life is Life.READY else None)
    r.fleet.clean_and_check(name, "the test")
    view = await r.until(Life.QUARANTINED)
    stop()
    assert (view.reason, ready, r.checker.verdicts) == ("off by 3", [], [])
    await r.fleet.admin.set_service(name, Service.IN)


async def test_a_bug_over_a_phone_quarantines_it(r, caplog):
    def fails(view):
        if view.life is Life.GONE:
            raise RuntimeError("nobody thought of this")

    stop = r.fleet.subscribe(fails)
    r.phones.unplug("one")
    view = await r.until(Life.QUARANTINED)
    stop()
    assert "nobody thought of this" in view.reason
    assert "unlisted :" in caplog.text
    await r.fleet.admin.set_service(view.name, Service.IN)


# -- phones of a test's own ------------------------------------------------------------------------------------------


async def test_a_full_phone_says_what_is_needed_and_free_and_heals(rig):
    async with rig(plugged=False, data_bytes=96 << 20) as r:
        r.phones.full_disk("one", 1 << 20)
        r.phones.plug("one")
        view = await r.until(Life.RECOVERING)
        assert "MiB free" in view.reason  # without namespaces only the push itself finds out
        assert "are needed" in view.reason
        r.phones.free_disk("one")
        await r.until(Life.READY)


async def test_an_unadopted_phone_gets_nothing_until_it_is_adopted(rig):
    async with rig(config=FleetConfig()) as r:
        view = await r.until(Life.NEW)
        assert (view.adopted, view.aliases) == (False, ())
        assert await r.shell(view.serial, "ls -A /data/local/tmp") == ""
        with pytest.raises(UserError, match="is not adopted"):
            await r.fleet.recovery.reboot(view.name, "ann")
        await r.fleet.admin.adopt(view.name, pool="Desk 1", rename="Left-One")
        ready = await r.until(Life.READY)
        assert (ready.name, ready.pool, ready.leasable) == ("left-one", "desk-1", True)
        assert r.store.devices.all()[0].name == "left-one"


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
        assert shown.health.boot_id == health.boot_id


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
