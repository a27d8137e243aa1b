"""Leases of phones at another host: their adb port at this one, over restarts, to their end."""

import asyncio
import contextlib
import errno
import os
import socket
from types import SimpleNamespace

import pytest

from farm.adb.lease_proxy import tunnels
from farm.common.errors import ProtocolError
from farm.control.router import Answer
from farm.lab import leases
from farm.lab.leases import CarriedLeases
from farm.model.requests import NoSuchLeaseError
from tests.support.linked_hosts import linked_hosts

SHOWN = {"lease": "l-1", "user": "ann", "tvm_host": "there", "tvm_port": 1, "adb_port": 2, "tvm_key": "secret"}
GATE = ("127.0.0.1", 9190)


class EchoAdb:
    """The adb server of a lease: it answers each client with what the client said, until it is cut."""

    def __init__(self):
        self.tasks = set()

    def take(self, client):
        self.tasks.add(asyncio.create_task(self._echo(client)))

    async def _echo(self, client):
        loop = asyncio.get_running_loop()
        with client:
            while data := await loop.sock_recv(client, 1 << 16):
                await loop.sock_sendall(client, b"adb: " + data)

    async def cut(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Lab:
    """The host `here`, and the host `there`, which holds leases."""

    def __init__(self, folder, hosts):
        self.hosts = hosts
        self.path = folder / "carried.json"
        self.refused = ""  # why a connection to a port is
        self.there = {"l-1": EchoAdb()}
        CarriedLeases(hosts.add("there"), self._adb_of, None, None, folder / "none")
        self.here = self.start()

    def _adb_of(self, lease):
        if lease not in self.there:
            raise NoSuchLeaseError(f"there is no lease {lease!r} now")
        return self.there[lease]

    def start(self):
        """The daemon `here`, or the next one."""

        def admits(user):
            async def admitted(_):
                return self.refused if user == "ann" else "another user"

            return admitted

        return CarriedLeases(self.hosts.add("here"), None, admits, lambda: GATE, self.path)

    async def stop(self):
        await self.here.close()
        await self.hosts.links["here"].stop()

    async def restart(self):
        await self.stop()
        self.here = self.start()

    async def shown(self, host="there"):
        return (await self.here.shown_here(host, Answer(SHOWN))).fields

    async def port(self):
        return (await self.shown())["adb_port"]

    async def forget_ended(self):
        async def is_open(lease):
            return lease in self.there

        await self.here.forget_ended(is_open)


@contextlib.asynccontextmanager
async def client(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def said(port, text=b"hello"):
    """What a client is told."""
    async with client(port) as (reader, writer):
        writer.write(text)
        return await reader.read(1000)


def is_closed(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
async def lab(tmp_path):
    async with linked_hosts(tmp_path) as hosts:
        lab = Lab(tmp_path, hosts)
        yield lab
        await lab.here.close()
        for adb in lab.there.values():
            await adb.cut()


async def test_a_lease_has_the_ports_of_the_host_where_it_is_shown(lab):
    shown = await lab.shown()
    assert shown == SHOWN | {"tvm_host": GATE[0], "tvm_port": GATE[1], "adb_port": shown["adb_port"]}
    assert await lab.shown() == shown
    assert [await said(shown["adb_port"], text) for text in (b"one", b"two")] == [b"adb: one", b"adb: two"]


async def test_the_end_of_the_lease_cuts_its_clients_and_closes_the_port(lab):
    port = await lab.port()
    async with client(port) as (reader, writer):
        writer.write(b"x")
        assert await reader.read(100) == b"adb: x"
        await lab.there.pop("l-1").cut()
        assert await reader.read(100) == b""
    assert (await said(port))[8:] == b"there is no lease 'l-1' now"
    await lab.forget_ended()
    assert is_closed(port)
    await lab.restart()
    assert is_closed(port)


async def test_another_user_is_turned_away(lab):
    lab.refused = "another user's lease"
    assert b"another user" in await said(await lab.port())


async def test_a_host_of_the_release_before_is_named_with_what_to_do(lab):
    lab.hosts.add("old")
    told = await said((await lab.shown("old"))["adb_port"])
    assert b"host here wants the service 'adb', which host old does not have (upgrade the host" in told


@pytest.mark.parametrize(("limit", "named"), [("MAX_OF_USER", b"2 of a user"), ("MAX_CARRIED", b"2 in all")])
async def test_idle_clients_leave_the_link_to_others(lab, numbers, limit, named):
    numbers(leases, **{limit: 2})
    await lab.restart()
    port = await lab.port()
    async with client(port) as idle, client(port) as other:
        for reader, writer in (idle, other):
            writer.write(b"x")
            assert await reader.read(100) == b"adb: x"
        assert b"too many adb connections to other hosts: at most " + named in await said(port)
    while b"too many" in await said(port):  # until the host has seen their ends
        pass
    assert await said(port) == b"adb: hello"


async def test_a_port_outlives_the_daemon_unless_another_program_has_taken_it(lab, caplog):
    port = await lab.port()
    await lab.restart()
    assert await said(port) == b"adb: hello"
    assert await lab.port() == port
    await lab.stop()
    with socket.create_server(("127.0.0.1", port)):
        lab.here = lab.start()
        moved = await lab.port()
        assert await said(moved) == b"adb: hello"
        assert f"the adb of lease l-1 has moved from port {port} to {moved}" in caplog.text
        await lab.forget_ended()
    await lab.restart()
    assert await lab.port() == moved != port  # it stays where it is


async def test_a_lease_that_ends_while_no_daemon_runs_leaves_nothing_in_the_file(lab):
    port = await lab.port()
    await lab.restart()
    await lab.there.pop("l-1").cut()
    await lab.forget_ended()
    assert is_closed(port)
    assert lab.path.read_text() == "{}"


async def test_ports_are_kept_once_the_disk_takes_them(lab, caplog):
    lab.path = lab.path.parent / "later" / lab.path.name
    await lab.restart()
    port = await lab.port()
    await lab.forget_ended()
    assert caplog.text.count("adb ports of leases will not outlive this daemon") == 1
    lab.path.parent.mkdir()
    await lab.forget_ended()
    await lab.restart()
    assert await said(port) == b"adb: hello"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"l-1": {"host": 1}}', "\x00", '{"l-1": {"host": "there", "user": "ann", "port": 70000}}']
)
async def test_a_damaged_file_costs_the_ports_alone(lab, content, caplog):
    lab.path.write_text(content)
    await lab.restart()
    assert await said(await lab.port()) == b"adb: hello"
    assert "carried.json cannot be read" in caplog.text


async def test_without_descriptors_the_daemon_starts_without_the_ports(lab, monkeypatch, caplog):
    port = await lab.port()

    def no_descriptor(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as limited:
        limited.setattr(tunnels, "socket", SimpleNamespace(**vars(socket) | {"socket": no_descriptor}))
        await lab.restart()
    assert "the adb of lease l-1 has no port until it is shown again" in caplog.text
    assert is_closed(port)
    assert await said(await lab.port()) == b"adb: hello"


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"lease": "l-1"}, {"lease": 1, "user": "ann"}, {"lease": [], "user": "ann"}, {"lease": "", "user": "ann"},
        {"lease": "l-1\0", "user": "ann"}, {"lease": "l-1", "user": "\ud800"}, {"lease": "l" * 257, "user": "ann"},
    ],
)  # fmt: skip
async def test_an_answer_in_another_form_is_refused(lab, fields):
    with pytest.raises(ProtocolError, match="host there described the lease in a form"):
        await lab.here.shown_here("there", Answer(fields))
