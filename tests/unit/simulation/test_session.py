"""Streams over a socket: a small host on one end of a socket pair, a phone's session with its services on the other."""

import asyncio
import fcntl
import os
import socket
import struct
import sys
import termios

import pytest

from farm.simulation.adbd import DeviceConnection
from farm.simulation.link import LinkPace
from farm.simulation.machine import DiskQuota, Machine, PushFuse
from farm.simulation.packets import MAX_PAYLOAD_BYTES, Command, Packet, PacketDecoder
from farm.simulation.session import AdbSession
from farm.simulation.sync import SyncService
from tests.support.waiting import HANG_S, until


class Host:
    """The host's end: sends packets, collects packets."""

    def __init__(self, sock):
        sock.setblocking(False)
        self.socket = sock
        self.decoder = PacketDecoder()
        self.decoder.max_payload, self.decoder.check_sums = MAX_PAYLOAD_BYTES, False
        self.waiting = []

    async def send(self, *packets):
        data = b"".join(bytes(part) for packet in packets for part in packet.encode())
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def packet(self):
        async with asyncio.timeout(HANG_S):
            while not self.waiting:
                data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20)
                if not data:
                    raise ConnectionError("the phone closed the link")
                self.waiting += self.decoder.feed(data)
        return self.waiting.pop(0)

    async def until_closed(self):
        while True:
            await self.packet()


def unread_bytes(sock):
    """What has arrived at a socket and was not read yet."""
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


class Rig:
    """A session whose only service is `sync:`."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)  # so that a megabyte never leaves at once
        self.host, self.phone_end = Host(theirs), ours
        self.quota, self.fuse = DiskQuota(), PushFuse()
        self.lost = []
        self.session = AdbSession(
            asyncio.get_running_loop(),
            ours,
            DeviceConnection("device::features=shell_v2"),
            open_service=self._open,
            on_online=lambda: None,
            on_key=lambda _key: None,
            on_lost=self.lost.append,
        )

    def _open(self, name, stream):
        if name == "sync:":
            stream.accept(SyncService(stream, Machine(environment={}), self.quota, self.fuse))
        else:
            stream.refuse()

    async def sync(self):
        await self.host.send(Packet(Command.CNXN, 0x01000001, MAX_PAYLOAD_BYTES, b"host::\0"))
        assert (await self.host.packet()).command is Command.CNXN
        await self.host.send(Packet(Command.OPEN, 7, 0, b"sync:\0"))
        assert (await self.host.packet()).command is Command.OKAY

    async def ask(self, data, reply_bytes):
        """One WRTE, and the bytes that come back until there are enough."""
        await self.host.send(Packet(Command.WRTE, 7, 1, data))
        reply = b""
        acknowledged = False
        while len(reply) < reply_bytes or not acknowledged:
            packet = await self.host.packet()
            if packet.command is Command.OKAY:
                acknowledged = True
            else:
                assert packet.command is Command.WRTE
                reply += bytes(packet.payload)
                await self.host.send(Packet(Command.OKAY, 7, 1))
        return reply


@pytest.fixture
async def rig():
    made = Rig()
    await made.sync()
    yield made
    made.session.close()
    made.host.socket.close()


def request(identifier, path, *, number=None):
    data = os.fsencode(path)
    return struct.pack("<4sI", identifier, len(data) if number is None else number) + data


def send(path, mode, *contents, mtime=1_000_000_000):
    parts = [request(b"SEND", f"{path},{mode}")]
    parts += [request(b"DATA", content) for content in contents]
    return b"".join(parts) + struct.pack("<4sI", b"DONE", mtime)


async def test_an_unknown_service_is_refused(rig):
    await rig.host.send(Packet(Command.OPEN, 9, 0, b"jdwp:1\0"))
    packet = await rig.host.packet()
    assert (packet.command, packet.arg0, packet.arg1) == (Command.CLSE, 0, 9)


async def test_a_file_and_its_mode_and_time(rig, tmp_path):
    assert await rig.ask(send(tmp_path / "a" / "b", 0o100750, b"one", b"two"), 8) == b"OKAY\0\0\0\0"
    found = (tmp_path / "a" / "b").stat()
    assert (found.st_mode & 0o777, int(found.st_mtime)) == (0o777, 1_000_000_000)
    assert (tmp_path / "a" / "b").read_bytes() == b"onetwo"


async def test_a_symlink(rig, tmp_path):
    assert await rig.ask(send(tmp_path / "link", 0o120777, b"target\0"), 8) == b"OKAY\0\0\0\0"
    assert str((tmp_path / "link").readlink()) == "target"


async def test_a_dry_run_writes_nothing(rig, tmp_path):
    setup = request(b"SND2", tmp_path / "x") + struct.pack("<4sII", b"SND2", 0o100644, 0x80000000)
    data = setup + request(b"DATA", b"abc") + struct.pack("<4sI", b"DONE", 0)
    assert await rig.ask(data, 8) == b"OKAY\0\0\0\0"
    assert not (tmp_path / "x").exists()


async def test_compression_that_was_not_offered_is_refused(rig, tmp_path):
    setup = request(b"SND2", tmp_path / "x") + struct.pack("<4sII", b"SND2", 0o100644, 1)
    reply = await rig.ask(setup + struct.pack("<4sI", b"DONE", 0), 8)
    assert reply.startswith(b"FAIL")


async def test_a_full_disk_leaves_no_half_file_and_after_a_failure_the_stream_goes_on(rig, tmp_path):
    rig.quota.left_bytes = 100
    reply = await rig.ask(send(tmp_path / "x", 0o100644, b"a" * 90, b"b" * 90), 8)
    assert reply[8:] == b"write failed: No space left on device"
    assert not (tmp_path / "x").exists()
    (tmp_path / "folder").mkdir()
    reply = await rig.ask(send(tmp_path / "folder", 0o100644, b"x" * 60_000), 8)
    assert reply[8:] == b"couldn't create file: Is a directory"
    assert await rig.ask(send(tmp_path / "good", 0o100644, b"x"), 8) == b"OKAY\0\0\0\0"


async def test_the_fuse_blows_once_in_the_middle(rig, tmp_path):
    rig.fuse.left_bytes, rig.fuse.blown = 5, rig.session.close
    await rig.host.send(Packet(Command.WRTE, 7, 1, send(tmp_path / "x", 0o100644, b"a" * 4, b"b" * 4)))
    with pytest.raises(ConnectionError):
        await rig.host.until_closed()
    assert not (tmp_path / "x").exists()
    assert rig.fuse.left_bytes is None


async def test_stat_and_list(rig, tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    reply = await rig.ask(request(b"STA2", tmp_path / "file"), 72)
    identifier, error, *_, size = struct.unpack_from("<4sIQQIIIIQ", reply)
    assert (identifier, error, size) == (b"STA2", 0, 5)
    assert (await rig.ask(request(b"LST2", tmp_path / "nothing"), 72))[4:8] == struct.pack("<I", 2)
    listing = await rig.ask(request(b"LIS2", tmp_path), 3 * 76 + len(b"...file") + 76)
    assert listing.count(b"DNT2") == 3
    assert listing[-76:] == b"DONE" + bytes(72)


async def test_a_lost_link_leaves_no_half_file(rig, tmp_path):
    half = request(b"SEND", f"{tmp_path / 'x'},33188") + request(b"DATA", b"half")
    await rig.host.send(Packet(Command.WRTE, 7, 1, half))
    assert (await rig.host.packet()).command is Command.OKAY
    await until(lambda: (tmp_path / "x").exists())
    rig.host.socket.close()
    await until(lambda: rig.lost)
    assert not (tmp_path / "x").exists()


async def test_what_is_no_sync_request_ends_the_stream(rig):
    reply = b""
    await rig.host.send(Packet(Command.WRTE, 7, 1, b"NOPE\0\0\0\0"))
    while (packet := await rig.host.packet()).command is not Command.CLSE:
        if packet.command is Command.WRTE:
            reply += bytes(packet.payload)
            await rig.host.send(Packet(Command.OKAY, 7, 1))
    assert reply.startswith(b"FAIL")


async def test_a_host_that_asks_too_early_still_gets_the_right_bytes(rig, tmp_path):
    # adb 36 sends a surplus OKAY now and then; a send buffer that is used again then overwrites what has not left yet.
    content = os.urandom(6_000_000)
    (tmp_path / "big").write_bytes(content)
    await rig.host.send(Packet(Command.WRTE, 7, 1, request(b"RECV", tmp_path / "big")))
    for _ in range(3):
        await rig.host.send(Packet(Command.OKAY, 7, 1))
    stream = b""
    while not stream.endswith(b"DONE\0\0\0\0"):
        packet = await rig.host.packet()
        if packet.command is Command.WRTE:
            stream += bytes(packet.payload)
            await rig.host.send(Packet(Command.OKAY, 7, 1))
    received, at = bytearray(), 0
    while stream[at : at + 4] == b"DATA":
        (length,) = struct.unpack_from("<I", stream, at + 4)
        received += stream[at + 8 : at + 8 + length]
        at += 8 + length
    assert bytes(received) == content


async def test_a_slow_link_delays_both_ways_and_loses_nothing(rig, tmp_path):
    rig.session.link.set_pace(LinkPace(bytes_per_s=200_000, latency_s=0.05))
    loop = asyncio.get_running_loop()  # the link's own clock: it delivers nothing before its time by it
    began = loop.time()
    assert await rig.ask(send(tmp_path / "x", 0o100644, b"a" * 40_000), 8) == b"OKAY\0\0\0\0"
    assert loop.time() - began >= 40_000 / 200_000 + 2 * 0.05
    assert (tmp_path / "x").read_bytes() == b"a" * 40_000


async def test_ending_the_pace_lets_everything_through(rig, tmp_path):
    rig.session.link.set_pace(LinkPace(bytes_per_s=10_000_000, latency_s=60))
    await rig.host.send(Packet(Command.WRTE, 7, 1, send(tmp_path / "x", 0o100644, b"a")))
    await until(lambda: not unread_bytes(rig.phone_end))  # it is on its way, for a minute
    assert not (tmp_path / "x").exists()
    rig.session.link.set_pace(None)
    await until(lambda: (tmp_path / "x").exists())


async def test_what_ends_in_the_portion_it_began_in_takes_nothing_else_along(rig):
    rig.session.link.set_pace(LinkPace(bytes_per_s=1_000_000, latency_s=0.01))
    opened, ended = Packet(Command.OPEN, 8, 0, b"sync:\0"), Packet(Command.CLSE, 8, 2)
    await rig.host.send(opened, ended, Packet(Command.OPEN, 9, 0, b"sync:\0"))
    while (packet := await rig.host.packet()).arg1 != 9:
        assert packet.arg1 == 8
    assert packet.command is Command.OKAY


async def test_a_deaf_phone_answers_nothing_but_notices_the_end(rig):
    rig.session.link.deaf = True
    await rig.host.send(Packet(Command.OPEN, 8, 0, b"sync:\0"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await rig.host.packet()
    rig.host.socket.close()
    await until(lambda: rig.lost)


async def test_a_host_that_breaks_the_protocol_is_dropped(rig):
    await rig.host.send(Packet(Command.WRTE, 7, 1, b""), Packet(Command.WRTE, 7, 1, b""))
    await asyncio.get_running_loop().sock_sendall(rig.host.socket, b"\xff" * 24)
    with pytest.raises(ConnectionError):
        await rig.host.until_closed()
    assert rig.lost == ["adb packet with a wrong magic"]
