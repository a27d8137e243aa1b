"""A scripted adb server for tests: real smart-socket words over a unix socket, its one phone is a folder on this host.

Shell commands run under the host's sh with every `/data/local/tmp` replaced by that folder; `sync:` is served too.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = "/data/local/tmp"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def says(data, *, hangs=False):
    """A service that writes these bytes, and then ends or stays silent forever."""

    async def answer(reader, writer):
        writer.write(data)
        await writer.drain()
        if hangs:
            await reader.read()

    return answer


def block(text):
    """A text with its length before it."""
    return b"%04x" % len(text.encode()) + text.encode()


def okay(text):
    return b"OKAY" + block(text)


@dataclass
class FakeServer:
    """What it answers is plain fields: a test changes them and looks."""

    folder: Path
    serial: str = "FAKE1"
    version: int = 41
    features: str = "shell_v2,cmd,stat_v2"
    devices: str = "FAKE1                  device product:p model:m device:d transport_id:1\n"
    path: str = "/bin:/usr/bin"  # where the phone's shell finds programs
    silent: bool = False  # wedged: takes connections, answers nothing
    cut_after: int | None = None  # bytes of file data after which the link breaks
    full_after: int | None = None  # bytes of file data after which the phone's storage is full
    damage: bool = False  # flips a byte of each file on arrival
    spoken: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    services: dict[str, Handler] = field(default_factory=dict)
    shell: Handler | None = None  # answers every command in place of the host's sh
    socket: str = ""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def local(self, path):
        return Path(path.replace(ROOT, str(self.folder)))

    def set_devices(self, text):
        self.devices = text
        self.changed.set()

    def drop_connections(self):
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader, writer):
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._talk(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _talk(self, reader, writer):
        while True:
            request = (await reader.readexactly(int(await reader.readexactly(4), 16))).decode()
            self.spoken.append(request)
            if self.silent:
                await reader.read()
                return
            if request == f"host:transport:{self.serial}" and request not in self.services:
                writer.write(b"OKAY")
                continue
            if request.startswith("host:transport:") and request not in self.services:
                _fail(writer, f"device '{request[15:]}' not found")
                return
            await self._answer(request, reader, writer)
            await writer.drain()
            return

    async def _answer(self, request, reader, writer):
        if request in self.services:
            await self.services[request](reader, writer)
        elif request == "host:version":
            writer.write(okay(f"{self.version:04x}"))
        elif request == "host:devices-l":
            writer.write(okay(self.devices))
        elif request == "host:track-devices-l":
            writer.write(b"OKAY")
            while True:
                writer.write(block(self.devices))
                self.changed.clear()
                await self.changed.wait()
        elif request.endswith(":features"):
            writer.write(okay(self.features))
        elif self.shell and request.startswith("shell"):
            await self.shell(reader, writer)
        elif request.startswith("shell,v2"):
            await self._shell_v2(request.partition(":")[2], writer)
        elif request.startswith("shell:"):
            writer.write(b"OKAY" + (await self._run(request[6:]))[0])
        elif request == "sync:":
            writer.write(b"OKAY")
            await self._sync(reader, writer)
        else:
            _fail(writer, "closed")

    async def _run(self, command):
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command.replace(ROOT, str(self.folder)),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"PATH": self.path},
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode is not None
        return out.replace(str(self.folder).encode(), ROOT.encode()), err, process.returncode & 0xFF

    async def _shell_v2(self, command, writer):
        out, err, code = await self._run(command)
        writer.write(b"OKAY")
        for number, data in ((1, out), (2, err)):
            if data:
                writer.write(struct.pack("<BI", number, len(data)) + data)
        writer.write(struct.pack("<BIB", 3, 1, code))

    async def _sync(self, reader, writer):
        while True:
            word, size = struct.unpack("<4sI", await reader.readexactly(8))
            if word == b"QUIT":
                return
            path = (await reader.readexactly(size)).decode()
            if word == b"STAT":
                there = self.local(path)
                stat = there.stat() if there.exists() else None
                numbers = (stat.st_mode, stat.st_size & 0xFFFFFFFF, int(stat.st_mtime)) if stat else (0, 0, 0)
                writer.write(b"STAT" + struct.pack("<III", *numbers))
            elif word == b"RECV":
                self._receive(self.local(path), writer)
            elif word == b"SEND":
                name, _, mode = path.rpartition(",")
                await self._send(self.local(name), int(mode), reader, writer)
            else:
                return

    def _receive(self, path, writer):
        if not path.exists():
            message = b"open failed: No such file or directory"
            writer.write(struct.pack("<4sI", b"FAIL", len(message)) + message)
            return
        content = path.read_bytes()
        for start in range(0, len(content), 65536):
            chunk = content[start : start + 65536]
            writer.write(struct.pack("<4sI", b"DATA", len(chunk)) + chunk)
        writer.write(struct.pack("<4sI", b"DONE", 0))

    async def _send(self, path, mode, reader, writer):
        path.parent.mkdir(parents=True, exist_ok=True)
        got = 0
        with path.open("wb") as file:
            while True:
                word, size = struct.unpack("<4sI", await reader.readexactly(8))
                if word == b"DONE":
                    break
                data = await reader.readexactly(size)
                got += size
                if self.full_after is not None and got > self.full_after:
                    path.unlink()
                    message = b"write failed: No space left on device"
                    writer.write(struct.pack("<4sI", b"FAIL", len(message)) + message)
                    await reader.read()
                    return
                if self.cut_after is not None and got > self.cut_after:
                    path.unlink()
                    writer.transport.abort()
                    return
                file.write(bytes([data[0] ^ 1]) + data[1:] if self.damage else data)
        user = mode & 0o700
        path.chmod(user | user >> 3 | user >> 6)
        writer.write(b"OKAY" + bytes(4))


def _fail(writer, message):
    writer.write(b"FAIL" + block(message))


@contextlib.asynccontextmanager
async def fake_server(folder):
    """Runs one on a unix socket of its own."""
    phone = folder / "phone"
    phone.mkdir()
    fake = FakeServer(phone)
    path = folder / "adb.sock"
    server = await asyncio.start_unix_server(fake.serve, str(path))
    fake.socket = f"localfilesystem:{path}"
    try:
        yield fake
    finally:
        server.close()
        fake.drop_connections()
        await server.wait_closed()
