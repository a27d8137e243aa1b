"""What a ready phone goes through: a real adb server, real pushes, the real device scripts and RPC server.

One phone for all of them; those that need another one are in test_phones_of_their_own.py.
"""

import asyncio
import shutil

import pytest

from farm.common.errors import Code
from farm.devices.lifecycle import messages as m
from farm.model.device import Life
from tests.integration.devices.conftest import RPC_MAGIC, handshake, make_bundle
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

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


async def test_a_stopped_server_is_replaced_when_a_session_breaks(r):
    view = r.fleet.views()[0]
    pid = await r.server_pid(view.serial)
    r.phones.server_hang("one")
    r.fleet.report_broken_session(view.name, "no answer")
    await r.until(Life.READY)
    assert await r.server_pid(view.serial) != pid


async def test_a_rebooted_phone_comes_back_with_a_fresh_server(r):
    view = r.fleet.views()[0]
    mark = r.mark()
    await r.fleet.recovery.reboot(view.name, "ann")
    await r.until_view(lambda v: v.life is not Life.READY)
    await r.until(Life.READY)
    assert tail(r.heard(mark), UP) == UP
    assert r.actions(mark) == ["reboot", "repaired"]
    assert "device.pushing" not in [event.kind for event in r.events.since(mark)]


async def test_a_killed_adb_server_costs_no_rpc_server(r):
    view = r.fleet.views()[0]
    pid = await r.server_pid(view.serial)
    r.adb_server.stop()
    await r.until(Life.GONE)
    r.adb_server.start()
    r.phones.plug("one")
    await r.until(Life.READY)
    assert await r.server_pid(view.serial) == pid


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
