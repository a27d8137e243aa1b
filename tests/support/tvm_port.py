"""The port of stock TVM clients over fake devices, and the sockets that a test opened."""

import asyncio
import socket

from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head.model import LeasePolicy
from farm.model.requests import LeaseRequest, LeaseSource
from farm.tvm_server import wire
from farm.tvm_server.connection import ConnectionLimits
from farm.tvm_server.gate.gate import GateLimits
from farm.tvm_server.server import TvmServer, TvmServerPolicy
from tests.support.gate_lab import GateInLoop
from tests.support.keeping import MemoryKeeper
from tests.support.local_head import leasing_over
from tests.support.raw import RawPhone, RawTracker
from tests.support.tvm import FakeDevices
from tests.support.waiting import HANG_S, until


class TvmPort(GateInLoop):
    """A tracker over `phones`, which nobody dials; `policy` is that of the server, `limits` the gate's too."""

    def __init__(self, *phones, address="127.0.0.1", lease=None, limits=None, sessions=None, **policy):
        limits, sessions = limits or ConnectionLimits(), sessions or GateLimits()
        super().__init__(address=address, clients=limits, sessions=sessions)
        self.devices, self.events = FakeDevices(), EventLog()
        for phone in phones:
            self.devices.add(phone, "android")
        self._lease = lease or LeasePolicy(unused_s=60)
        self._policy = TvmServerPolicy(limits=limits, idle_s=sessions.idle_s, **policy)

    async def __aenter__(self):
        await super().__aenter__()
        self.leasing = leasing_over(self.devices, self.events, 1, MemoryKeeper(), self._lease)
        self.door = TvmServer(self.path, "this farm", self.leasing.tvm, self.leasing.tvm, self._policy)
        await self.door.start()
        self.door.begin()
        return self

    async def __aexit__(self, *_):
        await self.door.stop()
        await self.leasing.close()
        await super().__aexit__()

    async def socket(self, family=socket.AF_INET, address="127.0.0.1", sock=None):
        """A connection that has said nothing."""
        sock = sock or socket.socket(family)
        self._opened.append(sock)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (address, self.door.port))
        return sock

    async def client(self, *, greet=True, **where):
        """A client of the tracker."""
        client = RawTracker(await self.socket(**where))
        if greet:
            await client.send(wire.encode_magic())
            assert await client.event() == wire.TrackerHello()
        return client

    def queue(self, key):
        return self.door.summary()["queue_info"].get(key)

    def kinds(self):
        return [event.kind for event in self.events.since()]


class SessionPort(TvmPort):
    """With one phone called `pixel` that echoes, or does what `session` does."""

    def __init__(self, session=None, *, lease=None, **gate):
        limits = ConnectionLimits(handshake_s=5.0)
        super().__init__(lease=lease or LeasePolicy(), limits=limits, sessions=GateLimits(**gate))
        self.phone = RawPhone("secret", session)

    async def __aenter__(self):
        await self.phone.__aenter__()
        self.devices.add("pixel", "android", port=self.phone.port, secret="secret")
        return await super().__aenter__()

    async def __aexit__(self, *_):
        await super().__aexit__()
        await self.phone.__aexit__()

    async def job(self):
        lease = await self.leasing.acquire(LeaseRequest(Selector.parse("android"), "alice", LeaseSource.JOB))
        return lease, self.leasing.new_match_key(lease.id, single_use=False)

    async def told(self):
        """Every kind told; an end is told once it is kept."""
        await until(lambda: "lease.released" in self.kinds())
        return self.kinds()

    def ended(self):
        return [event.data for event in self.events.since() if event.kind == "session.ended"]

    async def over(self, sessions=1):
        await until(lambda: len(self.ended()) == sessions)
        return self.ended()[-1]


async def send(sock, data):
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def receive(sock, count):
    loop, data = asyncio.get_running_loop(), b""
    async with asyncio.timeout(HANG_S):
        while len(data) < count and (chunk := await loop.sock_recv(sock, 1 << 20)):
            data += chunk
    return data


async def at_end(sock):
    """Whatever comes until the other side has closed."""
    try:
        return await receive(sock, 1 << 40)
    except ConnectionError:
        return b""
