"""A gate in the test's own loop, a phone that echoes behind it, and daemons that come and go."""

import asyncio
import json
import socket
import tempfile
from pathlib import Path

from farm.common.events import EventLog
from farm.tvm_server import wire
from farm.tvm_server.gate import messages as gate_messages
from farm.tvm_server.gate.process import GateProcess, sockets_of
from farm.tvm_server.server import TvmServer
from farm.tvm_server.wire import SessionCode
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over, requests_of
from tests.support.raw import RawPhone, RawTracker, open_session
from tests.support.tvm import FakeDevices
from tests.support.waiting import HANG_S, until


class GateInLoop:
    """What the process `farm gate` runs, for daemons that find it at `path`; `limits` are those of a GateProcess."""

    def __init__(self, *, address="127.0.0.1", wait_s=HANG_S, **limits):
        self._address, self._wait_s, self._limits = address, wait_s, limits
        self._opened = []

    async def __aenter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="gate-")
        self.path = Path(self._folder.name) / "gate.sock"
        await self.begin()
        return self

    async def __aexit__(self, *_):
        for each in self._opened:
            each.close()
        await self.end()
        self._folder.cleanup()

    async def begin(self):
        self.gate, self._stop = GateProcess(self._wait_s, **self._limits), asyncio.Event()
        sockets = sockets_of(self._address, 0, self.path)
        self._task = asyncio.create_task(self.gate.run(*sockets, self._stop))
        await until(lambda: self.gate.port)

    async def end(self):
        self._stop.set()
        await self._task

    async def key(self, name="android"):
        client = await RawTracker.connect(self.gate.port)
        try:
            code, (host, port, match_key) = await client.ask(wire.TrackerRequest(name, "", 1))
        finally:
            client.close()
        assert (code, host, port) == (0, "127.0.0.1", self.gate.port)
        return match_key

    async def dial(self, match_key, options=""):
        sock, hello, rest = await open_session(self.gate.port, match_key, options)
        self._opened.append(sock)
        assert rest == b""
        return sock, hello

    async def session(self, options="", name="android"):
        sock, hello = await self.dial(await self.key(name), options)
        assert (hello.code, hello.server_key) == (SessionCode.SUCCESS, f"server:{name}")
        return sock


class Daemon:
    """Leasing and a door through the gate; its keeper is the store that outlives it."""

    def __init__(self, lab, epoch, farm="this farm"):
        self.events = EventLog()
        self.devices = FakeDevices()
        self.leasing = leasing_over(self.devices, self.events, epoch, lab.keeper)
        self.door = TvmServer(lab.path, farm, self.leasing.tvm, self.leasing.tvm)
        self.port = lab.phone.port

    async def start(self):
        await self.door.start()
        self.kept = self.leasing.tvm.restore_leases(self.leasing_records(), self.door.orphans)
        self.devices.add("pixel", "android", port=self.port, secret="secret")
        self.door.begin()
        return self

    def leasing_records(self):
        return requests_of(self.leasing)._table.open()

    async def stop(self):
        await self.door.stop()
        await self.leasing.close()

    async def die(self):
        """As kill -9 looks to the gate: the connection is lost, and nothing is said before."""
        self.door._link.close()
        self.door._link, self.door._linked = None, False
        self.door._sessions.clear()
        self.door._keeper.cancel()
        await self.door.tracker.close()

    def ended(self):
        return [event.data for event in self.events.since() if event.kind == "session.ended"]


class Lab(GateInLoop):
    """With one phone called `pixel` that echoes."""

    def __init__(self, **gate):
        super().__init__(**gate)
        self.phone = RawPhone("secret", None)
        self.keeper = MemoryKeeper()

    async def __aenter__(self):
        self.loop = asyncio.get_running_loop()
        await self.phone.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *_):
        await super().__aexit__()
        await self.phone.__aexit__()

    async def daemon(self, epoch=1, **more):
        return await Daemon(self, epoch, **more).start()

    async def connected(self):
        """A connection to the daemon's socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        await self.loop.sock_connect(sock, str(self.path))
        return sock

    async def raw(self, *messages):
        """A connection to the daemon's socket that says this; returns what the gate answered until it closed."""
        with await self.connected() as sock:
            for message in messages:
                await self.loop.sock_sendall(sock, message)
            answers = []
            async with asyncio.timeout(HANG_S):
                while data := await self.loop.sock_recv(sock, 1 << 16):
                    answers.append(json.loads(data))
            return answers


async def echo(sock, data=b"ping"):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, data)
    async with asyncio.timeout(HANG_S):
        return await loop.sock_recv(sock, 1 << 16) == data


READY = gate_messages.encode(gate_messages.Notice(gate_messages.Signal.DAEMON_READY))


def hello(v=gate_messages.VERSION, farm="this farm"):
    return gate_messages.encode(gate_messages.DaemonHello(v, "0", farm, 1, 600.0))
