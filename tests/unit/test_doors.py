"""Every port that clients reach, beside clients that say nothing or too little, or come all at once."""

import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager

import httpx
import pytest

from farm.adb.lease_proxy import tunnels
from farm.adb.lease_proxy.proxy import LeasedAdb
from farm.builders import membership
from farm.builders.membership import BuilderToken
from farm.lab.identity import new_certificate, open_identity
from farm.lab.link import LinkLimits
from farm.tvm_server import listener
from farm.tvm_server.connection import ConnectionLimits
from farm.tvm_server.wire import encode_magic
from farm.web import server as web_server
from farm.web import stream
from tests.support.linked_hosts import linked_hosts
from tests.support.waiting import HANG_S, until
from tests.support.web_desk import Desk, Page, status
from tests.support.web_rows import view

pytest.importorskip("distributed")
from distributed import comm

from farm.builders import tls as builders_tls

PLACES, OF_ADDRESS, CROWD = 8, 4, 30
HELLO = b"\x16\x03\x01"  # the beginning of a TLS handshake


@asynccontextmanager
async def web(numbers, folder):
    numbers(web_server, MAX_CONNECTIONS=PLACES, MAX_OF_ADDRESS=OF_ADDRESS)
    server = web_server.WebServer("127.0.0.1", 0)
    server.start(Page(Desk(status=status(view()))).app)

    async def served():
        async with httpx.AsyncClient() as client:
            assert (await client.get(server.url)).status_code == 200

    yield server.address[1], b"GET /", served
    await server.stop()


@asynccontextmanager
async def link(numbers, folder):
    async with linked_hosts(folder, LinkLimits(unknown=2 * OF_ADDRESS, handshake_s=HANG_S)) as lab:
        one, two = lab.add("one"), lab.add("two")
        two.serve("echo", lambda call: call.accept())

        async def served():
            await (await one.dial("two", "echo")).close()

        yield two.port, HELLO, served


@asynccontextmanager
async def builders(numbers, folder):
    numbers(builders_tls, MAX_CONNECTIONS=PLACES, MAX_OF_ADDRESS=OF_ADDRESS)
    own = open_identity(folder / "host", "farm")
    joined = []

    async def join(*about):
        joined.append(about)
        return {}

    security = builders_tls.HostSecurity(own, join)
    settings = security.get_listen_args("scheduler")
    door = builders_tls.GuardedBackend().get_listener("127.0.0.1:0", lambda link: link.close(), True, **settings)
    await door.start()
    port = door.get_host_port()[1]
    key, certificate = (each.decode() for each in new_certificate("ci-3"))
    security.use({}, {"ci-3": certificate})

    async def served():
        async with asyncio.timeout(HANG_S):
            link = await comm.connect(f"tls://127.0.0.1:{port}", **security.get_connection_args("client"))
        await link.close()
        token = BuilderToken("ci-3", "127.0.0.1", port, own.certificate, certificate, key)
        await asyncio.to_thread(membership.join, token, folder / "builder")
        assert joined == [("ci-3", certificate, open_identity(folder / "builder", "ci-3").certificate)]

    yield port, HELLO, served
    door.stop()


@asynccontextmanager
async def tvm(numbers, folder):
    numbers(listener, MIN_OF_USER=OF_ADDRESS, owner_of=lambda _: None)

    def answer(sock, peer, first, closed):
        sock.send(first)
        sock.close()
        closed()

    door = listener.Listener(ConnectionLimits(connections=PLACES), tracker=answer, session=answer)
    door.take(listener.bind("127.0.0.1", 0))
    yield door.port, encode_magic()[:2], lambda: answered(door.port, encode_magic(), encode_magic())
    door.stop()


@asynccontextmanager
async def adb(numbers, folder):
    numbers(tunnels, MAX_CONNECTIONS=PLACES)
    proxy = LeasedAdb(None, "serial", lambda _: asyncio.sleep(0, ""))
    port = await proxy.open()
    yield port, b"00", lambda: answered(port, b"0011host:list-forward", b"OKAY0000")
    await proxy.close()


async def answered(port, question, answer):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(question)
    async with asyncio.timeout(HANG_S):
        assert await reader.readexactly(len(answer)) == answer
    writer.transport.abort()


def is_cut(client):
    try:
        return client.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


DOORS = (web, link, builders, tvm, adb)
# From which address the clients come, whether they begin to speak, and whether they come before the port takes one.
ABUSES = {
    "silent": ("127.0.0.1", False, False),
    "slow": ("127.0.0.1", True, False),
    "burst": ("127.0.0.1", True, True),
    "one address": ("127.0.0.2", True, False),
}


@pytest.mark.parametrize("abuse", ABUSES)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_the_oldest_silent_client_makes_room_at_every_port(door, abuse, numbers, tmp_path):
    source, speaks, at_once = ABUSES[abuse]
    async with door(numbers, tmp_path) as (port, first, served):
        with contextlib.ExitStack() as clients:
            crowd = []
            for _ in range(CROWD):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", port), HANG_S, (source, 0)))
                client.sendall(first if speaks else b"")
                client.setblocking(False)
                crowd.append(client)
                await asyncio.sleep(0 if at_once else 0.001)
            await served()
            await until(lambda: sum(map(is_cut, crowd)) >= CROWD - PLACES)


async def test_a_burst_of_readers_of_events_is_counted_as_it_comes_and_the_page_is_served():
    server, page = web_server.WebServer("127.0.0.1", 0), Page(Desk(status=status(view())))
    server.start(page.app)
    with contextlib.ExitStack() as clients:
        for _ in range(web_server.BACKLOG - 8):
            client = clients.enter_context(socket.create_connection(server.address, HANG_S))
            client.sendall(b"GET /events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        async with httpx.AsyncClient() as client:
            assert (await client.get(server.url, timeout=HANG_S)).status_code == 200
        assert len(page.app.state.hints._readers) == stream.MAX_NAMELESS
    await until(lambda: page.app.state.hints._admission.limiter.taken == 0)
    await server.stop()
