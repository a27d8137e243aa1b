import asyncio
import contextlib
import errno
import os
import socket
import struct

import pytest

from farm.adb import client as client_module
from farm.adb.client import AdbClient
from farm.adb.connection import ServerAddress
from farm.adb.devices import AdbState
from farm.adb.errors import AdbLinkLost, AdbServerUnreachable, AdbTimeout, DeviceNotFound
from farm.adb.shell import MAX_LINE_CHARACTERS
from farm.common.errors import Code, ProtocolError, UserError
from farm.devices.server import rpc_server
from farm.devices.server.rpc_server import RpcServer
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S
from tests.unit.adb.fake_server import okay, says


@pytest.mark.parametrize(
    ("spec", "written", "options"),
    [
        ("tcp:5037", "tcp:localhost:5037", ""),
        ("tcp:5038", "tcp:localhost:5038", "-P 5038 "),
        ("tcp:127.0.0.1:5038", "tcp:localhost:5038", "-P 5038 "),
        ("tcp:localhost:5038", "tcp:localhost:5038", "-P 5038 "),
        ("tcp:10.0.0.2:5037", "tcp:10.0.0.2:5037", "-H 10.0.0.2 -P 5037 "),
        ("localfilesystem:/run/adb.sock", "localfilesystem:/run/adb.sock", "-L localfilesystem:/run/adb.sock "),
        ("localabstract:farm", "localabstract:farm", "-L localabstract:farm "),
    ],
)
def test_a_person_reaches_the_phone_at_the_server_of_a_socket_spec(spec, written, options):
    assert ServerAddress.parse(spec).spec == written
    assert ServerAddress.parse(spec).command("a b") == f"adb {options}-s 'a b'"


IMPOSSIBLE = ["", "5037", "tcp:", "tcp:x", "tcp:0", "tcp:65536", "udp:1", "localfilesystem:rel"]


@pytest.mark.parametrize("spec", [*IMPOSSIBLE, "localfilesystem:/" + "x" * 107])
def test_impossible_socket_specs_are_refused(spec):
    with pytest.raises(UserError) as caught:
        ServerAddress.parse(spec)
    assert caught.value.hint


async def test_version_and_devices(client):
    assert await client.version() == 41
    (device,) = await client.list_devices()
    assert (device.serial, device.state, device.product) == ("FAKE1", AdbState.DEVICE, "p")


async def test_shell_keeps_the_streams_apart_where_it_can_and_has_the_exit_code_always(server, client):
    result = await client.shell("FAKE1", "echo out; echo err >&2; exit 3", timeout_s=HANG_S)
    assert (result.stdout, result.stderr, result.exit_code, result.text) == (b"out\n", b"err\n", 3, "out\n")
    client.forget("FAKE1")
    server.features = "cmd"  # without shell_v2
    result = await client.shell("FAKE1", "printf no-newline; exit 3", timeout_s=HANG_S)
    assert (result.stdout, result.exit_code) == (b"no-newline", 3)


async def test_features_are_asked_once_until_forgotten(server, client):
    for forgotten, asked in ((False, 1), (False, 1), (True, 2)):
        if forgotten:
            client.forget("FAKE1")
        await client.shell("FAKE1", "true", timeout_s=HANG_S)
        assert sum(words.endswith(":features") for words in server.spoken) == asked


async def test_a_shell_that_takes_too_long_tells_what_it_said(server, client):
    server.services["shell,v2,raw:hang"] = says(b"OKAY" + struct.pack("<BI", 1, 5) + b"begun", hangs=True)
    with pytest.raises(AdbTimeout) as caught:
        await client.shell("FAKE1", "hang", timeout_s=0.2)
    assert caught.value.evidence == "begun"


async def test_a_link_lost_in_a_command_is_not_success(server, client):
    server.services["shell,v2,raw:half"] = says(b"OKAY" + struct.pack("<BI", 1, 4) + b"half")
    with pytest.raises(AdbLinkLost) as caught:
        await client.shell("FAKE1", "half", timeout_s=HANG_S)
    assert not isinstance(caught.value, AdbTimeout)


@pytest.mark.parametrize("server_dies", [False, True])
async def test_a_phone_that_goes_as_a_service_is_opened_is_not_the_servers_fault(server, client, server_dies):
    there, gone = client.address, ServerAddress.parse(f"{server.socket}.gone")

    async def go(reader, writer):
        client.address = gone if server_dies else there

    server.shell = server.services["tcp:5000"] = go
    blamed = AdbServerUnreachable if server_dies else AdbLinkLost
    with pytest.raises(blamed):
        await client.shell("FAKE1", "true", timeout_s=HANG_S)
    client.address = there
    with pytest.raises(blamed):
        await client.open_tcp("FAKE1", 5000, timeout_s=HANG_S)


@pytest.mark.parametrize("hangs", [True, False])
async def test_an_rpc_server_that_does_not_start_tells_no_secret(server, client, monkeypatch, hangs):
    server.shell = says(b"", hangs=hangs)
    monkeypatch.setattr(rpc_server, "START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(rpc_server, "STOP_TIMEOUT_S", 0.2)
    with pytest.raises(AdbTimeout if hangs else AdbLinkLost) as caught:
        await RpcServer(client, "FAKE1").start("bundle")
    asked = next(each for each in server.spoken if "FARM_SECRET=" in each)
    secret = asked.partition("FARM_SECRET=")[2].split()[0]
    assert len(secret) == 2 * rpc_server.SECRET_BYTES
    assert "rpc_supervise.sh" in caught.value.message
    assert secret not in caught.value.message + caught.value.hint + caught.value.evidence


async def test_an_unknown_phone(client):
    with pytest.raises(DeviceNotFound, match="nope"):
        await client.open_service("nope", "sync:")


async def test_open_tcp_loses_no_byte(server, client):
    async def speaks_first(reader, writer):
        writer.write(b"OKAYhello from the phone")
        writer.write(await reader.readexactly(4))
        await writer.drain()

    server.services["tcp:5000"] = speaks_first
    stream = await client.open_tcp("FAKE1", 5000, timeout_s=HANG_S)
    loop = asyncio.get_running_loop()
    with contextlib.closing(stream):
        assert stream.getblocking() is False
        await loop.sock_sendall(stream, b"ping")
        got = b""
        while data := await loop.sock_recv(stream, 100):
            got += data
    assert got == b"hello from the phoneping"


async def test_a_closed_port_of_the_phone_is_named(client):
    with raises_code(Code.PORT_CLOSED, match="port 5001 of phone FAKE1"):
        await client.open_tcp("FAKE1", 5001, timeout_s=HANG_S)


async def test_a_wedged_server_is_a_timeout_not_a_hang(server, client, monkeypatch):
    monkeypatch.setattr(client_module, "HOST_TIMEOUT_S", 0.1)
    server.silent = True
    with pytest.raises(AdbServerUnreachable, match=r"did not answer in 0\.1 s"):
        await client.kill_server()


async def test_no_server_says_where_it_looked(tmp_path):
    with pytest.raises(AdbServerUnreachable, match="No adb server answers on localfilesystem:"):
        await AdbClient(f"localfilesystem:{tmp_path}/none").version()


async def test_without_descriptors_the_server_is_not_taken_for_gone(monkeypatch):
    """Else another one would be started; and an OSError ended the daemon's tunnels, and with them the daemon."""

    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(AdbServerUnreachable, match="Too many open files") as caught:
        await AdbClient("tcp:localhost:5038").version()
    assert not caught.value.no_listener


async def test_something_else_on_the_port():
    async def web(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    stranger = await asyncio.start_server(web, "127.0.0.1", 0)
    async with stranger:
        port = stranger.sockets[0].getsockname()[1]
        with pytest.raises(ProtocolError, match="not an adb server"):
            await AdbClient(f"tcp:{port}").version()


async def test_track_devices_tells_changes_and_the_end(server, client):
    tracked = client.track_devices()
    assert [device.serial for device in await anext(tracked)] == ["FAKE1"]
    server.set_devices("")
    assert await anext(tracked) == ()
    server.drop_connections()
    with pytest.raises(AdbServerUnreachable, match="went away"):
        await anext(tracked)


LONG = [b"x" * 65_536] * 64


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ((b"one\nzwei \xc3", b"\xbc\nlast"), ["one", "zwei ü", "last"]),
        ((b"a\r\nb", b"c\nd"), ["a", "bc", "d"]),
        ((b"\xc3", b"\xa9\n"), ["é"]),
        ((), []),
        (LONG, None),  # a line without an end comes in pieces
    ],
)
async def test_a_stream_gives_lines_and_the_exit_code(server, client, chunks, lines):
    packets = [struct.pack("<BI", 1, len(chunk)) + chunk for chunk in chunks]
    server.shell = says(b"OKAY" + b"".join(packets) + struct.pack("<BIB", 3, 1, 4))
    async with await client.open_shell("FAKE1", "anything") as stream:
        found = [line async for line in stream.lines()]
        assert stream.exit_code == 4
    assert "".join(found) == b"".join(LONG).decode() if lines is None else found == lines
    assert max(map(len, found), default=0) <= 2 * MAX_LINE_CHARACTERS


async def test_more_callers_than_the_backlog_all_get_through(client):
    assert await asyncio.gather(*(client.version() for _ in range(200))) == [41] * 200


async def test_connect_that_fails_is_an_error_whatever_adb_exits_with(server, client):
    words = "failed to connect to '10.1.1.1:5555': Connection refused"
    server.services["host:connect:10.1.1.1:5555"] = says(okay(words))
    with pytest.raises(DeviceNotFound, match=r"10\.1\.1\.1:5555"):
        await client.connect("10.1.1.1:5555")


async def test_a_network_phone_is_connected_and_disconnected_in_the_servers_words(server, client):
    for word in ("connect", "disconnect"):
        server.services[f"host:{word}:10.1.1.1:5555"] = says(okay(f"{word}ed to 10.1.1.1:5555"))
        assert await getattr(client, word)("10.1.1.1:5555") == f"{word}ed to 10.1.1.1:5555"


async def test_after_a_reboot_or_a_reconnect_a_phone_is_asked_again_what_it_can(server, client):
    server.services |= {"reboot:": says(b"OKAY"), "host-serial:FAKE1:reconnect": says(okay("reconnecting FAKE1"))}
    await client.features("FAKE1")
    await client.reboot("FAKE1")
    await client.features("FAKE1")
    assert await client.reconnect("FAKE1") == "reconnecting FAKE1"
    await client.features("FAKE1")
    assert sum(words.endswith(":features") for words in server.spoken) == 3
