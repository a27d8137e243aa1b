"""The client, push, tunnels and tools against a virtual phone behind both real adb servers."""

import asyncio
import contextlib
import hashlib
import os

import pytest

from farm.adb import tools
from farm.adb.client import AdbClient
from farm.adb.devices import AdbState, usable
from farm.adb.errors import (
    AdbError,
    AdbFailed,
    AdbLinkLost,
    DeviceNotFound,
    DeviceOffline,
    DeviceUnauthorized,
)
from farm.adb.push import PushFile, push_tree
from farm.adb.watch_policy import BackOff, WatchPolicy
from farm.common.errors import Fault
from tests.integration.adb.conftest import no_phone, usable_serial
from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S
from tests.unit.adb.watching import watching

PHONE = "pixel"
PHONES = {PHONE: "oneplus-12"}
FOLDER = "/data/local/tmp/farm/b1"


def bundle(folder, sizes):
    files = []
    for name, size in sizes.items():
        content = os.urandom(size)
        local = folder / name
        local.write_bytes(content)
        mode = 0o755 if name == "tvm_rpc" else 0o644
        files.append(PushFile(local, f"{FOLDER}/{name}", mode, hashlib.sha256(content).hexdigest()))
    return files


async def listing(client, serial):
    result = await client.shell(
        serial, f"cd {FOLDER} 2>/dev/null && stat -c '%a %n' .[!.]* * 2>/dev/null", timeout_s=HANG_S
    )
    return sorted(result.text.splitlines())


async def test_shell(client, serial):
    result = await client.shell(serial, "echo out; echo err >&2; cat; exit 7", timeout_s=HANG_S)
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 7)
    big = await client.shell(serial, "head -c 3000000 /dev/zero", timeout_s=HANG_S)
    assert len(big.stdout) == 3_000_000


async def test_a_stream_that_goes_on(client, serial):
    async with await client.open_shell(serial, "echo one; read line; echo $line end; exit 5") as stream:
        lines = stream.lines()
        assert await asyncio.wait_for(anext(lines), HANG_S) == "one"
        await stream.close_stdin()
        assert [line async for line in lines] == ["end"]
        assert stream.exit_code == 5


async def test_a_pulled_cable_ends_a_stream_with_an_error(lab, client, serial):
    async with await client.open_shell(serial, "echo begun; sleep 60") as stream:
        assert await stream.read(timeout_s=HANG_S) == b"begun\n"
        await asyncio.to_thread(lab.unplug, PHONE)
        with pytest.raises(AdbLinkLost):
            await stream.read(timeout_s=HANG_S)
    with pytest.raises((DeviceNotFound, DeviceOffline)):
        await client.shell(serial, "true", timeout_s=HANG_S)


async def test_an_unauthorized_phone_waits_for_its_person(lab, client, serial):
    await asyncio.to_thread(lab.fault, PHONE, "unauthorized")
    async with watching(client, WatchPolicy()) as (watcher, seen):
        await seen.until(lambda: [device.state for device in watcher.devices or ()] == [AdbState.UNAUTHORIZED])
    with pytest.raises(DeviceUnauthorized, match=serial):
        await client.shell(serial, "true", timeout_s=HANG_S)
    await asyncio.to_thread(lab.wait, PHONE, "key_shown")
    await asyncio.to_thread(lab.accept, PHONE)
    await usable_serial(client)
    assert (await client.shell(serial, "true", timeout_s=HANG_S)).exit_code == 0


async def test_a_reboot(lab, client, serial):
    boot_id = await client.shell(serial, "echo $$; echo mark > /data/local/tmp/mark", timeout_s=HANG_S)
    assert boot_id.exit_code == 0
    gone = asyncio.create_task(no_phone(client))
    await client.reboot(serial)
    await gone
    assert await usable_serial(client) == serial
    assert (await client.shell(serial, "cat /data/local/tmp/mark", timeout_s=HANG_S)).text == "mark\n"


@needs_namespaces  # toybox' nc
async def test_a_tcp_stream_without_any_forward(client, serial):
    async with await client.open_shell(serial, "nc -s 127.0.0.1 -p 5000 -l sh -c 'echo hello; cat'"):
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(HANG_S):
            while True:
                try:
                    stream = await client.open_tcp(serial, 5000, timeout_s=HANG_S)
                    break
                except AdbFailed:
                    continue
        with contextlib.closing(stream):
            payload = os.urandom(1 << 20)
            got = bytearray()

            async def receive():
                while len(got) < len(b"hello\n") + len(payload):
                    got.extend(await loop.sock_recv(stream, 1 << 16))

            async with asyncio.timeout(HANG_S):
                await asyncio.gather(loop.sock_sendall(stream, payload), receive())
            assert bytes(got) == b"hello\n" + payload
    assert await client.list_forwards() == ""


async def test_push_verify_repeat(client, serial, tmp_path):
    files = bundle(tmp_path, {"tvm_rpc": 300_000, "libtvm runtime.so": 5_000_000, "empty": 0})
    report = await push_tree(client, serial, files)
    assert (report.pushed_files, report.pushed_bytes, report.skipped) == (3, 5_300_000, 0)
    assert await listing(client, serial) == ["644 empty", "644 libtvm runtime.so", "755 tvm_rpc"]
    again = await push_tree(client, serial, files)
    assert (again.pushed_files, again.pushed_bytes, again.skipped) == (0, 0, 3)
    await client.shell(serial, f"echo rot >> {FOLDER}/tvm_rpc; chmod 600 {FOLDER}/empty", timeout_s=HANG_S)
    third = await push_tree(client, serial, files)
    assert (third.pushed_files, third.skipped) == (1, 2)
    assert await listing(client, serial) == ["644 empty", "644 libtvm runtime.so", "755 tvm_rpc"]


async def test_an_interrupted_push_leaves_nothing_half_installed(lab, client, serial, tmp_path):
    files = bundle(tmp_path, {"tvm_rpc": 100_000, "libtvm.so": 8_000_000})
    await asyncio.to_thread(lab.cut_push, PHONE, 3_000_000)
    with pytest.raises(AdbError) as caught:
        await push_tree(client, serial, files)
    assert caught.value.fault is Fault.PHONE
    await no_phone(client)
    await asyncio.to_thread(lab.wait, PHONE, "unplugged")  # it hears of its cut later than adb does
    await asyncio.to_thread(lab.plug, PHONE)
    await usable_serial(client)
    assert not [line for line in await listing(client, serial) if "farm-part" not in line]
    assert (await push_tree(client, serial, files)).pushed_files == 2
    assert await listing(client, serial) == ["644 libtvm.so", "755 tvm_rpc"]


async def test_kill_server_is_survived_and_the_phone_is_back(shared, client, serial):
    policy = WatchPolicy(server=BackOff(0.01, 0.1))
    async with watching(client, policy, server=shared.server) as (watcher, seen):
        await seen.until(lambda: bool(usable(watcher.devices or ())))
        await AdbClient(client.address.spec).kill_server()
        await seen.until(lambda: () in seen.snapshots)
        await seen.until(lambda: bool(usable(watcher.devices or ())))
        assert seen.kinds == ["adb.lost", "adb.back"]
        assert (await client.shell(serial, "true", timeout_s=HANG_S)).exit_code == 0


def anywhere(_):
    """There is room."""


async def test_tools(client, serial, tmp_path):
    facts = await tools.facts(client, serial)
    assert (facts.serial, facts.state, facts.model) == (serial, "device", "PJD110")
    assert "shell_v2" in facts.features
    await client.shell(serial, "head -c 3000000 /dev/urandom > /data/local/tmp/log", timeout_s=HANG_S)
    local = tmp_path / "log"
    pulled = await tools.pull(client, serial, "/data/local/tmp/log", local, max_bytes=3_000_000, room=anywhere)
    assert pulled == 3_000_000
    theirs = (await client.shell(serial, "sha256sum < /data/local/tmp/log", timeout_s=HANG_S)).text.split()[0]
    assert hashlib.sha256((tmp_path / "log").read_bytes()).hexdigest() == theirs
    with pytest.raises(AdbError):
        await tools.pull(client, serial, "/data/local/tmp/none", tmp_path / "none", max_bytes=1, room=anywhere)
    assert os.listdir(tmp_path) == ["log"]  # noqa: PTH208 - a blocking pathlib call in async code is ASYNC240
    package = tmp_path / "a.apk"
    package.write_bytes(b"not a package")
    with pytest.raises(AdbError) as refused:
        await tools.install(client, serial, package)
    assert refused.value.evidence
    left = await client.shell(serial, "ls /data/local/tmp", timeout_s=HANG_S)
    assert "farm-install" not in left.text
    with pytest.raises(AdbFailed, match="gives no picture"):
        await tools.screenshot(client, serial, tmp_path / "screen.png")
    with pytest.raises(DeviceNotFound):
        await tools.facts(client, "nope")
