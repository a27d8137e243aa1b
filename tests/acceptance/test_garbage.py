"""Garbage on every port of a farm at work, and what it must not move."""

import asyncio
import os
import random
import re
import socket
import urllib.request
from contextlib import suppress

import psutil
import pytest
import zmq
import zmq.asyncio

from farm.control.address import find, read_key
from farm.control.client import ControlClient
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, frames
from tests.support.other_users import ELSEWHERE, key_of, signed_in
from tests.support.raw import RawTracker
from tests.support.waiting import HANG_S
from tests.support.whole_farm import running_farm, until

SEED = 20261122
MESSAGES = {
    "tvm": 20_000,
    "gate": 10_000,
    "control": 20_000,
    "worker": 10_000,
    "curve": 20_000,
    "curve unknown": 10_000,
    "web": 10_000,
}
WARM = 10  # a tenth of the messages go first: caches and pools are filled then
GROWTH_BYTES = 32 << 20  # of daemon and gate: pools of allocators come and go by 10; 90,000 messages that stay are more
AT_ONCE = 20  # connections

HTTP = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/plain\r\n\r\n",
    (
        b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 16\r\n\r\ntoken=farm_&to=/"
    ),
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: evil.example\r\nCookie: farm_session=x\r\n\r\n",
)


def requests_of(cookie, csrf):
    """What a browser that is signed in sends, as a seed of garbage."""
    body = f"csrf={csrf}".encode()
    head = b"Host: 127.0.0.1\r\nCookie: farm_session=" + cookie.encode() + b"\r\n"
    form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(body)
    return (
        *HTTP,
        b"GET / HTTP/1.1\r\n" + head + b"\r\n",
        b"POST /devices/x/service HTTP/1.1\r\n" + head + form + body,
    )


@pytest.fixture(scope="module")
def farm(gate):
    with running_farm("huawei-mate-20", config=ELSEWHERE, gate=gate.socket) as farm:
        yield farm


class Noise:
    """Garbage for every port, the same for the same seed."""

    def __init__(self, farm, gate, key, part, http=HTTP):
        self.random = random.Random(SEED + part)
        self.farm, self.gate = farm, gate
        self.key = read_key(key)[0]
        self.status = farm.status()
        self.remote = find(key=key, environ={})
        self.http = http

    def words(self, *names):
        seeds = tuple(seed for name in names for seed in TARGETS[name].seeds)
        return mutated(self.random.choice(seeds), self.random, seeds)

    async def send(self, counts):
        makers = {
            "tvm": lambda count: self.streams(
                self.status["tracker"]["port"], count, lambda: self.words("tracker", "session-hello")[1:]
            ),
            "gate": lambda count: asyncio.to_thread(self.packets, count),
            "web": lambda count: self.streams(
                int(self.status["web"].rstrip("/").rpartition(":")[2]), count,
                lambda: mutated(self.random.choice(self.http), self.random, self.http),
            ),
            "control": lambda count: self.messages(f"ipc://{self.farm.socket}", count),
            "worker": lambda count: self.messages(f"ipc://{self.worker_socket()}", count),
            "curve": lambda count: self.messages(str(self.remote), count, known=True),
            "curve unknown": lambda count: self.streams(self.remote.port, count, lambda: self.words("control-request")),
        }  # fmt: skip
        for name, count in counts.items():
            await makers[name](count)

    def packets(self, count):
        """Datagrams to the gate's socket over connections that bring a few and leave."""
        seeds = TARGETS["gate"].seeds
        while count > 0:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
                daemon.settimeout(5)
                daemon.connect(str(self.gate.socket))
                for _ in range(min(count, self.random.randint(1, 10))):
                    count -= 1
                    daemon.send(mutated(self.random.choice(seeds), self.random, seeds) or b"x")

    def worker_socket(self):
        return next(path for path in self.farm.folder.rglob("worker.sock"))

    async def streams(self, port, count, make):
        """Connections that each bring a few messages and leave, some before they are answered."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(some, patient):
            async with limit:
                with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    try:
                        for data in some:
                            writer.write(data)
                        await writer.drain()
                        if patient:
                            writer.write_eof()
                            async with asyncio.timeout(1):
                                await reader.read(65536)
                    finally:
                        writer.transport.abort()

        while count > 0:
            batch = []
            for _ in range(AT_ONCE * 5):
                some = [make() for _ in range(min(count, self.random.randint(1, 20)))]
                count -= len(some)
                batch.append(one(some, self.random.random() < 0.2))
                if count <= 0:
                    break
            await asyncio.gather(*batch)

    async def messages(self, endpoint, count, *, known=False):
        """ZeroMQ messages over connections that are used for a while; answers are read."""
        context = zmq.asyncio.Context()
        try:
            while count > 0:
                opened = context.socket(zmq.DEALER)
                opened.linger = 10_000
                if known:
                    opened.curve_serverkey = self.key.server_key.encode()
                    opened.curve_publickey = self.key.public_key.encode()
                    opened.curve_secretkey = self.key.secret_key.encode()
                opened.connect(endpoint)
                for _ in range(min(count, 1000)):
                    body = frames(self.words("control-request", "control-reply", "gate")) or [b""]
                    await opened.send_multipart(body)
                    count -= 1
                    while await opened.poll(0):
                        await opened.recv_multipart()
                while await opened.poll(100):
                    await opened.recv_multipart()
                opened.close()
        finally:
            context.destroy(linger=10_000)


def size_of(*pids):
    """Memory and descriptors of processes, when what was closed is closed there too."""
    processes = [psutil.Process(pid) for pid in pids]
    return sum(each.memory_info().rss for each in processes), sum(each.num_fds() for each in processes)


def serves(farm):
    """People, stock clients and browsers are served, as soon as what was sent before has been read."""
    with ControlClient(farm.socket, silent_after_s=60.0) as client:
        client.call("status")
    assert farm.farm("shell", "--on", "android", "--", "echo alive").stdout == "alive\n"
    urllib.request.urlopen(farm.status()["web"], timeout=HANG_S).close()

    async def stock():
        client = await RawTracker.connect(farm.tracker()[1])
        client.sock.close()

    asyncio.run(stock())


def test_garbage_on_every_port_moves_nothing(farm, gate, tmp_path):
    both = farm.daemon.process.pid, gate.process.pid
    key = key_of(farm, "mallory", "viewer", tmp_path)
    token = farm.client.call("auth.new", name="mallory", role="viewer", web=True)["token"]
    http = requests_of(*signed_in(farm.status()["web"], token))
    asyncio.run(Noise(farm, gate, key, 1, http).send({name: count // WARM for name, count in MESSAGES.items()}))
    serves(farm)
    memory, descriptors = size_of(*both)
    asyncio.run(Noise(farm, gate, key, 2, http).send({name: count - count // WARM for name, count in MESSAGES.items()}))
    serves(farm)
    # connections that were left are closed within their time limits
    until(lambda: size_of(*both)[1] <= descriptors + 8)
    assert size_of(*both)[0] - memory < GROWTH_BYTES
    said = farm.daemon.log.read_text(errors="replace")
    for sender in (f"uid {os.geteuid()} pid {os.getpid()}", "key mallory from 127.0.0.1"):  # it did arrive
        assert re.search(rf"{sender} sent garbage, 10000 so far", said), sender
    rows = farm.client.call("audit.list", verb="auth.sign_in", limit=1000)["rows"]
    assert "wrong_token" in {row["outcome"] for row in rows}  # it came as far as the tokens
    assert "a daemon (pid" in gate.log_text
    assert "is no TVM client" in gate.log_text
    assert re.search("a message from .* was refused", said)  # what began like a tracker's client
    assert (farm.daemon.process.pid, gate.process.pid) == both
    assert max(farm.daemon.log.stat().st_size, gate.log.stat().st_size) < 4 << 20  # told, not repeated
    assert sum(MESSAGES.values()) == 100_000
