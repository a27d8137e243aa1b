"""A leased adb between unmodified adb programs and a real server of the other release, two phones behind it."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from farm.adb.devices import usable
from farm.adb.lease_proxy.proxy import LeasedAdb
from farm.adb.lease_proxy.tunnels import MAX_TUNNELS
from farm.adb.tunnels import parse_reverses
from farm.common.errors import NotAllowedError
from farm.daemon.scheduling import LoopbackUsers
from tests.integration.adb.conftest import BINARIES
from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S

PHONES = {"mine": "oneplus-12", "theirs": "galaxy-a55"}


async def anybody(_):
    return ""


@dataclass
class Done:
    code: int
    out: str
    err: str


@dataclass
class Leased:
    """A leased adb, and an adb program that uses it."""

    adb: LeasedAdb
    program: str
    home: Path
    mine: str
    theirs: str
    server: dict[str, int] = field(default_factory=dict)  # the port of farm's own server on the phone

    @property
    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ADB_", "ANDROID_"))}
        return kept | {"HOME": str(self.home), "TMPDIR": str(self.home), "ANDROID_ADB_SERVER_PORT": str(self.adb.port)}

    @asynccontextmanager
    async def running(self, *words):
        process = await asyncio.create_subprocess_exec(
            self.program, *words, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def run(self, *words):
        async with self.running(*words) as process, asyncio.timeout(HANG_S):
            out, err = await process.communicate()
            return Done(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    async def good(self, *words):
        done = await self.run(*words)
        assert done.code == 0, (words, done)
        return done.out

    async def refused(self, *words, said):
        done = await self.run(*words)
        assert done.code != 0, (words, done)
        assert said in done.out + done.err, (words, done)


@pytest.fixture
async def leased(binary, client, lab, folder):
    """Programs of one release meet each other in the tests of whole farms."""
    program = next((other for other in BINARIES.values() if Path(other) != binary.path), str(binary.path))
    serials = {name: (await asyncio.to_thread(lab.phone, name)).serial for name in ("mine", "theirs")}
    server = {"port": 0}
    adb = LeasedAdb(client, serials["mine"], anybody, server_port=lambda: server["port"])
    await adb.open()
    home = folder / "user"
    home.mkdir()
    yield Leased(adb, program, home, serials["mine"], serials["theirs"], server)
    await adb.close()


async def test_one_phone_is_all_there_is(leased):
    assert (await leased.good("devices")).split("\n")[1:] == [f"{leased.mine}\tdevice", "", ""]
    assert leased.theirs not in await leased.good("devices", "-l")
    assert await leased.good("get-state") == "device\n"
    assert (await leased.good("get-serialno")).strip() == leased.mine
    assert await leased.good("shell", "echo hi; echo there >&2") == "hi\n"
    assert (await leased.run("shell", "exit 7")).code == 7
    for choice in (("-s", leased.mine), ("-e",), ("-d",)):
        assert await leased.good(*choice, "shell", "echo hi") == "hi\n"
    assert "shell_v2" in await leased.good("features")
    assert "shell_v2" in await leased.good("host-features")
    await leased.good("wait-for-device")
    listed = await leased.good("devices", "-l")
    number = listed.split("transport_id:")[1].split()[0]
    assert await leased.good("-t", number, "shell", "echo hi") == "hi\n"
    await leased.good("-t", number, "wait-for-device")


async def test_other_phones_are_not_there(leased, client):
    for words in (["shell", "true"], ["get-state"], ["forward", "tcp:0", "tcp:1"], ["install", "x.apk"]):
        await leased.refused("-s", leased.theirs, *words, said="not found")
    devices = await client.list_devices()
    other = next(device.transport_id for device in devices if device.serial == leased.theirs)
    await leased.refused("-t", str(other), "shell", "true", said="transport id")
    await leased.refused("-t", str(other), "get-state", said="transport id")


async def test_what_would_hurt_others_is_refused(leased, client):
    for words in (["connect", "127.0.0.1:9"], ["reconnect"], ["root"], ["reboot"], ["tcpip", "5555"]):
        await leased.refused(*words, said="not on a leased adb")
    killed = await leased.run("kill-server")
    assert (killed.code, killed.out) in ((0, ""), (1, "")), killed  # adb 29 does not look at the answer
    await leased.good("start-server")
    assert await leased.good("shell", "echo alive") == "alive\n"
    assert len(usable(await client.list_devices())) == 2


async def test_files(leased, folder):
    content = os.urandom(3_000_000)
    (folder / "there").write_bytes(content)
    await leased.good("push", str(folder / "there"), "/data/local/tmp/x")
    await leased.good("pull", "/data/local/tmp/x", str(folder / "back"))
    assert (folder / "back").read_bytes() == content
    assert len((await leased.good("exec-out", "head -c 2000000 /dev/zero")).encode()) == 2_000_000


async def test_a_stream_that_goes_on_is_cut_with_the_lease(leased):
    async with leased.running("shell", "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.05; done") as process:
        async with asyncio.timeout(HANG_S):
            for number in range(1, 6):
                assert await process.stdout.readline() == f"line {number}\n".encode()
            await leased.adb.close()
            await process.stdout.read()
            await process.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", leased.adb.port))


async def raw(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"%04x" % len(request) + request)
    return reader, writer


async def next_list(reader):
    async with asyncio.timeout(HANG_S):
        return await reader.readexactly(int(await reader.readexactly(4), 16))


@pytest.mark.parametrize("form", ["", "-l", "-proto-binary", "-proto-text"])
async def test_changes_of_the_one_phone_are_told(leased, lab, form, client):
    reader, writer = await raw(leased.adb.port, f"host:track-devices{form}".encode())
    status = await reader.readexactly(4)
    if "proto" in form and status == b"FAIL":
        assert "devicetracker_proto_format" not in await client._query("host:host-features")  # adb 29
        writer.close()
        return
    assert status == b"OKAY"
    first = await next_list(reader)
    assert leased.mine.encode() in first
    assert leased.theirs.encode() not in first
    await asyncio.to_thread(lab.unplug, "theirs")  # nobody's business
    await asyncio.to_thread(lab.unplug, "mine")
    while leased.mine.encode() in (told := await next_list(reader)):
        assert leased.theirs.encode() not in told
    assert told == b""
    await asyncio.to_thread(lab.plug, "mine")
    while leased.mine.encode() not in await next_list(reader):
        pass
    writer.close()
    await writer.wait_closed()


async def test_forwards_belong_to_the_lease(leased, client):
    await client.add_forward(leased.theirs, "tcp:0", "tcp:4000")
    before = await client.list_forwards()
    listen = 'import socket; socket.create_server(("127.0.0.1", 7100)).accept()[0].sendall(b"reached\\n")'
    async with leased.running("shell", f"echo reached | toybox nc -l -p 7100 || {sys.executable} -c '{listen}'"):
        port = (await leased.good("forward", "tcp:0", "tcp:7100")).strip()
        assert await leased.good("forward", "--list") == f"{leased.mine} tcp:{port} tcp:7100\n\n"
        async with asyncio.timeout(HANG_S):
            line = b""
            while line != b"reached\n":
                reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
                line = await reader.readline()
                writer.close()
    await leased.refused("forward", "--no-rebind", f"tcp:{port}", "tcp:1", said="cannot rebind")
    await leased.good("forward", f"tcp:{port}", "tcp:7101")
    assert await leased.good("forward", "--list") == f"{leased.mine} tcp:{port} tcp:7101\n\n"
    taken = before.split()[1]
    await leased.refused("forward", taken, "tcp:1", said="in use")
    await leased.refused("forward", "--remove", taken, said="not found")
    await leased.refused("forward", "tcp:5555", "tcp:1", said="5555")
    await leased.refused("forward", "localfilesystem:/tmp/x", "tcp:1", said="tcp:PORT")
    await leased.good("forward", "--remove-all")
    assert (await leased.good("forward", "--list")).strip() == ""
    assert await client.list_forwards() == before
    port = (await leased.good("forward", "tcp:0", "tcp:7100")).strip()
    await leased.adb.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))


async def test_a_forward_is_dead_while_farms_own_server_has_its_port(leased, caplog):
    """The server may take another port at its next start."""
    port = (await leased.good("forward", "tcp:0", "tcp:7102")).strip()
    leased.server["port"] = 7102
    with caplog.at_level("INFO"):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        assert await asyncio.wait_for(reader.read(), HANG_S) == b""
        writer.close()
    assert "tcp:7102 is farm's own RPC server now" in caplog.text


async def answering(handle):
    return await asyncio.start_server(handle, "127.0.0.1", 0)


async def test_a_reverse_that_is_dialled_can_be_removed(leased, client):
    """Without the placeholder the adb server aborts after 3 to 29 rounds."""

    async def greet(_, writer):
        writer.write(b"hello\n")
        writer.close()

    await client.add_reverse(leased.mine, "tcp:6200", "tcp:9")  # not the lease's
    async with await answering(greet) as server:
        port = server.sockets[0].getsockname()[1]
        hear = 'import socket, sys; sys.stdout.write(socket.create_connection(("127.0.0.1", 6100)).recv(9).decode())'
        dial = f"while true; do toybox nc 127.0.0.1 6100 </dev/null || {sys.executable} -c '{hear}'; done 2>/dev/null"
        async with leased.running("shell", dial) as dialler, asyncio.timeout(HANG_S):
            for _ in range(30):
                await leased.good("reverse", "tcp:6100", f"tcp:{port}")
                assert await dialler.stdout.readline() == b"hello\n"
                await leased.good("reverse", "--remove", "tcp:6100")
        await leased.good("reverse", "tcp:6100", f"tcp:{port}")
        await leased.good("reverse", "tcp:6100", f"tcp:{port}")  # again, as adb allows it
        await leased.refused("reverse", "--no-rebind", "tcp:6100", f"tcp:{port}", said="cannot rebind")
        await leased.refused("reverse", "--remove", "tcp:6200", said="not found")
        await leased.refused("reverse", "tcp:6101", "localfilesystem:/tmp/x", said="tcp:PORT")
        chosen = (await leased.good("reverse", "tcp:0", f"tcp:{port}")).strip()
        listed = await leased.good("reverse", "--list")
        assert f"tcp:{chosen} tcp:{port}" in listed
        assert "farm-" not in listed
        await leased.adb.close()
    left = parse_reverses(leased.mine, await client.list_reverses(leased.mine))
    assert [(each.listen, each.dial) for each in left] == [("tcp:6200", "tcp:9")]
    assert len(usable(await client.list_devices())) == 2


@needs_namespaces  # the host may have no nc
async def test_a_reverse_made_in_advance_opens_no_lease(leased, client):
    """For it the adb server dials, under our own uid, which every lease lets in."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    await leased.good("reverse", "tcp:6100", f"tcp:{port}")
    people = LoopbackUsers(client.address)

    async def admits(connection):
        try:
            return await people(connection)
        except NotAllowedError as error:
            return error.message

    other = LeasedAdb(client, leased.theirs, admits)
    await other.open(port)
    try:
        # Stdin stays open: whoever has closed by then is told nothing.
        ask = "cd /data/local/tmp; mkfifo in; exec 3<>in; printf 000chost:devices >&3; nc 127.0.0.1 6100 <&3"
        assert "another user's farm lease" in await leased.good("shell", ask)
        ours = Leased(other, leased.program, leased.home, leased.theirs, leased.mine)
        assert await ours.good("shell", "echo let in") == "let in\n"
    finally:
        await other.close()


async def test_a_lease_has_so_many_tunnels(leased):
    for _ in range(MAX_TUNNELS):
        await leased.good("forward", "tcp:0", "tcp:1")
    port = (await leased.good("forward", "--list")).split()[1]
    await leased.refused("forward", "tcp:0", "tcp:1", said=f"at most {MAX_TUNNELS}")
    await leased.refused("reverse", "tcp:6100", "tcp:9", said=f"at most {MAX_TUNNELS}")
    await leased.good("forward", port, "tcp:2")  # instead of the one there
    await leased.good("forward", "--remove", port)
    await leased.good("reverse", "tcp:6100", "tcp:9")


async def test_an_abrupt_client_leaves_nothing(leased):
    reader, writer = await raw(leased.adb.port, b"host:transport-any")
    assert await reader.readexactly(4) == b"OKAY"
    writer.transport.abort()
    for junk in (b"zzzz", b"0000", b"GET / HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", leased.adb.port)
        writer.write(junk)
        assert (await asyncio.wait_for(reader.read(), HANG_S)).startswith(b"FAIL")
        writer.close()
    assert await leased.good("shell", "echo alive") == "alive\n"
