"""Farm's files on virtual phones: brought, repaired, kept from their holders' hands, and taken away again."""

import asyncio
import shutil
from contextlib import suppress

import pytest

from farm.common.errors import FarmError, NoSuchDeviceError, PhoneError
from farm.devices.lifecycle import messages as m
from farm.model.device import Life
from tests.integration.devices.conftest import Shelf, handshake, make_bundle
from tests.support.waiting import HANG_S


async def test_a_cut_push_leaves_nothing_half_installed_and_goes_on(rig, bundle):
    async with rig(plugged=False) as r:
        r.phones.cut_push("one", bundle.size_bytes // 2)
        r.phones.plug("one")
        await r.until(Life.GONE)
        r.phones.plug("one")
        view = await r.until(Life.READY)
        assert await r.shell(view.serial, "ls -A /data/local/tmp/farm/bundles") == f"{bundle.hash}\n"


async def test_a_full_phone_says_what_is_needed_and_free_and_heals(rig):
    async with rig(plugged=False, data_bytes=96 << 20) as r:
        r.phones.full_disk("one", 1 << 20)
        r.phones.plug("one")
        view = await r.until(Life.RECOVERING)
        assert "MiB free" in view.reason  # without namespaces only the push itself finds out
        assert "are needed" in view.reason
        r.phones.free_disk("one")
        await r.until(Life.READY)


async def test_no_bundle_quarantines_until_there_is_one(rig, bundle):
    async with rig(shelf=Shelf(None)) as r:
        view = await r.until(Life.QUARANTINED)
        assert "no runtime bundle for x86_64" in view.reason
        r.shelf.bundle = bundle
        await r.fleet.bundles_changed()
        await r.until(Life.READY)
        assert r.fleet.bundles_in_use() == {bundle.hash: (view.name,)}


async def test_another_bundle_replaces_the_old_one(rig, runtime_folder, tmp_path):
    async with rig() as r:
        view = await r.until(Life.READY)
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


async def test_a_damaged_bundle_is_repaired(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        folder = f"/data/local/tmp/farm/bundles/{view.bundle}"
        await r.shell(view.serial, f"rm {folder}/libtvm_ffi.so")
        r.phones.unplug("one")
        await r.until(Life.GONE)
        r.phones.plug("one")
        await r.until(Life.READY)
        assert "libtvm_ffi.so" in await r.shell(view.serial, f"ls {folder}")


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


async def test_changes_of_a_holder_to_farms_files_are_undone(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        everything = (
            f"cd /data/local/tmp/farm; sha256sum bin/*.sh bundles/{view.bundle}/*; ls -A bin bundles/{view.bundle}"
        )
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


async def test_what_a_session_changed_of_farms_own_files_is_found_by_the_next_check(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        library = f"/data/local/tmp/farm/bundles/{view.bundle}/libtvm_ffi.so"
        before = await r.shell(view.serial, f"sha256sum {library}")
        await r.shell(view.serial, f"printf x >>{library}")
        mark = r.mark()
        r.fleet.find(view.name).on_event(m.PlainEvent.PROVISIONING_DUE)
        await r.until(Life.READY)
        assert await r.shell(view.serial, f"sha256sum {library}") == before
        assert [event.data for event in r.events.since(mark) if event.kind == "device.repaired"] == [{"files": 1}]


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


@pytest.mark.parametrize("clean", [True, False])
async def test_a_phone_whose_files_somebody_removed_is_given_back_without_a_server(rig, clean):
    async with rig() as r:
        view = await r.until(Life.READY)
        await r.shell(view.serial, "rm -rf /data/local/tmp/farm")
        with suppress(PhoneError):  # a loaded host: its supervisor has seen it by now
            _, close = await handshake(r.fleet, view.name)  # a session's own folder does not bring the others back
            close()
        await r.fleet.admin.forget(view.name, clean=clean)
        async with asyncio.timeout(HANG_S):
            while "tvm_rpc" in await r.shell(view.serial, "ps -A -o ARGS"):
                pass
        assert await r.shell(view.serial, "ls -A /data/local/tmp") == ""


async def test_forget_needs_a_reachable_phone_only_to_clean_it(rig):
    async with rig() as r:
        view = await r.until(Life.READY)
        r.phones.unplug("one")
        await r.until(Life.GONE)
        with pytest.raises(PhoneError, match="cannot be cleaned"):
            await r.fleet.admin.forget(view.name, clean=True)
        assert r.fleet.view(view.name).adopted
        await r.fleet.admin.forget(view.name)
        assert r.fleet.views() == ()
        with pytest.raises(NoSuchDeviceError):
            r.fleet.view(view.name)


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
