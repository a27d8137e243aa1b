"""A gate in the test's own loop, a phone that echoes behind it, and daemons that come and go."""

import asyncio
import json
import socket
import tempfile
from pathlib import Path

from farm.common.events import EventLog
from farm.tvm_server import wire
from farm.tvm_server.gate import messages as gate_messages
from farm.tvm_server.gate.gate import GateLimits
from farm.tvm_server.gate.process import GateProcess, sockets_of
from farm.tvm_server.gate.remote_server import GateTvmServer
from farm.tvm_server.server import TvmServerPolicy
from farm.tvm_server.wire import SessionCode
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over, requests_of
from tests.support.raw import RawPhone, RawTracker, open_session
from tests.support.tvm import FakeDevices
from tests.support.waiting import HANG_S, until


class Daemon:
    """Leasing and a door through the gate; its keeper is the store that outlives it."""

    def __init__(self, lab, epoch, farm="this farm"):
        self.events = EventLog()
        self.devices = FakeDevices()
        self.leasing = leasing_over(self.devices, self.events, epoch, lab.keeper)
        policy = TvmServerPolicy(gate=GateLimits(idle_s=lab.idle_s))
        self.door = GateTvmServer(lab.path, farm, self.leasing.tvm, self.leasing.tvm, policy)
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


class Lab:
    """A gate in this loop, one phone called `pixel` that echoes."""

    def __init__(self, *, wait_s=HANG_S, idle_s=600.0):
        self.phone = RawPhone("secret", None)
        self.keeper = MemoryKeeper()
        self.wait_s, self.idle_s = wait_s, idle_s
        self.stop = asyncio.Event()
        self.closing = []

    async def __aenter__(self):
        self.loop = asyncio.get_running_loop()
        self.folder = tempfile.TemporaryDirectory(prefix="gate-")
        self.path = Path(self.folder.name) / "gate.sock"
        await self.phone.__aenter__()
        tvm, control = sockets_of("127.0.0.1", 0, self.path)
        self.gate = GateProcess(self.wait_s)
        self.task = asyncio.create_task(self.gate.run(tvm, control, self.stop))
        await until(lambda: self.gate.port)
        return self

    async def __aexit__(self, *_):
        for one in self.closing:
            one.close()
        self.stop.set()
        await self.task
        await self.phone.__aexit__()
        self.folder.cleanup()

    async def daemon(self, epoch=1, **more):
        return await Daemon(self, epoch, **more).start()

    async def key(self):
        client = await RawTracker.connect(self.gate.port)
        try:
            code, (host, port, match_key) = await client.ask(wire.TrackerRequest("android", "", 1))
        finally:
            client.close()
        assert (code, host, port) == (0, "127.0.0.1", self.gate.port)
        return match_key

    async def dial(self, match_key):
        sock, hello, _ = await open_session(self.gate.port, match_key, "")
        self.closing.append(sock)
        return sock, hello

    async def session(self):
        sock, hello = await self.dial(await self.key())
        assert (hello.code, hello.server_key) == (SessionCode.SUCCESS, "server:android")
        return sock

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
