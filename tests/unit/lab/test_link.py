"""Hosts over real TLS: who is let in, what is answered, and what a connection carries."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import struct
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from farm.common.errors import Code, FarmError, HostUnreachableError, UserError
from farm.lab import hosts, tls
from farm.lab import link as link_module
from farm.lab.identity import open_identity
from farm.lab.link import LinkLimits
from farm.lab.tls import server_context
from farm.lab.wire import Preface, encode_preface
from tests.support.errors import raises_code
from tests.support.linked_hosts import linked_hosts
from tests.support.waiting import until


async def echo(call):
    await call.accept(at=call.host, got=call.fields)
    reader, writer = await call.streams()
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def two_hosts(folder, limits=None):
    """The hosts one and two; two echoes."""
    async with linked_hosts(folder, limits) as lab:
        for name in ("one", "two"):
            lab.add(name)
        lab.links["two"].serve("echo", echo)
        yield lab


@pytest.fixture
async def lab(tmp_path):
    async with two_hosts(tmp_path) as lab:
        yield lab


@pytest.fixture
def one(lab):
    return lab.links["one"]


@pytest.fixture
def two(lab):
    return lab.links["two"]


@asynccontextmanager
async def dialled(link, host="two", service="echo", fields=None):
    """A connection with its streams."""
    connection = await link.dial(host, service, fields or {})
    try:
        yield connection, *await connection.streams()
    finally:
        await connection.close()


async def reaches(link, host="two"):
    async with dialled(link, host):
        pass


def unreachable(match):
    return pytest.raises(HostUnreachableError, match=match)


def refusals(caplog):
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


async def logged(caplog, text):
    await until(lambda: any(text in line for line in refusals(caplog)))


@pytest.mark.parametrize("listens", [True, False])
async def test_a_service_of_another_host_is_reached_and_knows_who_calls(lab, one, listens):
    """A host that does not listen dials back."""
    lab.add("three", listens=listens).serve("echo", echo)
    async with dialled(one, "three", fields={"word": "größe"}) as (connection, reader, writer):
        assert (connection.host, connection.fields) == ("three", {"at": "one", "got": {"word": "größe"}})
        sent = os.urandom(3_000_000)

        async def send():
            writer.write(sent)
            await writer.drain()

        sending = asyncio.create_task(send())
        assert await reader.readexactly(len(sent)) == sent
        await sending
    with pytest.raises(FarmError, match="'later', which host three does not have"):
        await one.dial("three", "later")
    assert not one._awaited


async def test_bytes_behind_preface_and_answer_are_the_services(one, two):
    async def talk(call):
        await call.accept()
        await asyncio.get_running_loop().sock_sendall(call.sock, b"first words")
        reader, _ = await call.streams()
        assert await reader.readexactly(5) == b"early"

    two.serve("talk", talk)
    async with dialled(one, service="talk") as (_, reader, writer):
        writer.write(b"early")
        assert await reader.read() == b"first words"


async def test_what_was_written_before_an_end_arrives(one, two):
    content = os.urandom(5_000_000)

    async def give(call):
        await call.accept(size_bytes=len(content))
        _, writer = await call.streams()
        writer.write(content)
        await writer.drain()

    two.serve("give", give)
    async with dialled(one, service="give") as (_, reader, _):
        assert await reader.read() == content


@pytest.mark.parametrize("said", [b"refused", b""])
def test_the_answer_of_a_side_that_ends_with_unread_bytes_is_copied(said):
    (plain, service), (sink, there) = socket.socketpair(), socket.socketpair()
    with plain, sink, there:
        plain.setblocking(False)
        plain.send(b"never read")
        service.send(said)
        service.close()
        if said:
            assert tls._OneWay(plain, sink).move()
            assert there.recv(100) == said
        else:
            with pytest.raises(ConnectionResetError):
                tls._OneWay(plain, sink).move()


async def test_a_refusal_arrives_as_the_error_that_it_is(one, two, caplog):
    async def refuse(call):
        raise UserError("there is no such thing", Code.NO_SUCH_ARTIFACT, hint="look elsewhere")

    async def fail(call):
        raise KeyError("bug")

    two.serve("refuse", refuse)
    two.serve("fail", fail)
    with pytest.raises(UserError) as caught:
        await one.dial("two", "refuse")
    assert (caught.value.code, caught.value.hint) == (Code.NO_SUCH_ARTIFACT, "look elsewhere")
    with pytest.raises(FarmError, match="KeyError at host two"):
        await one.dial("two", "fail")
    with raises_code(Code.BAD_HOST_VERSION, match="'later', which host two does not have"):
        await one.dial("two", "later")
    await logged(caplog, "host one wants the service 'later'")


async def test_another_version_is_refused_in_words(one, monkeypatch):
    monkeypatch.setattr(link_module, "encode_preface", lambda preface: encode_preface(Preface("echo", {}, 2)))
    with pytest.raises(FarmError, match="it speaks version 2 of the protocol between hosts, two 1"):
        await one.dial("two", "echo")


async def test_a_host_without_a_row_is_refused_by_both_sides(lab, caplog):
    stranger = lab.add("three", known=False)
    with unreachable(r"it refuses this host \(.*alert unknown ca\)"):
        await stranger.dial("two", "echo")
    await logged(caplog, "refused as a host of the lab: its certificate belongs to no host of the lab")
    lab.change("two", address=f"127.0.0.1:{stranger.port}")
    with unreachable("its certificate belongs to no host of the lab"):
        await lab.add("four").dial("two", "echo")


async def test_a_host_that_has_just_joined_is_let_in_by_one_that_read_the_rows_before(lab, one):
    async with dialled(one):
        pass
    async with dialled(lab.add("three")) as (_, reader, writer):
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"


async def test_a_host_of_the_lab_is_not_taken_for_another(lab, one):
    lab.add("three")
    lab.change("two", address=lab.rows["three"].address)
    with unreachable("is another host of the lab"):
        await one.dial("two", "echo")


async def test_a_removed_host_is_refused_at_once_and_its_connections_are_cut(lab, one, caplog, numbers):
    numbers(link_module, CHECK_EVERY_S=0.05)
    async with dialled(one) as (_, reader, writer):
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        lab.remove("one")
        with unreachable("it refuses this host"):
            await one.dial("two", "echo")
        assert await reader.read() == b""
    await logged(caplog, "one: it is no host of the lab any more: its connections are cut")


@pytest.mark.parametrize("frozen", [False, True])
async def test_while_the_rows_cannot_be_read_those_read_last_count(lab, one, numbers, monkeypatch, frozen):
    await reaches(one)

    async def away():
        if frozen:
            await asyncio.Event().wait()
        raise link_module.HostError("the database is away")

    numbers(hosts, RECENT_S=0.0, READ_LIMIT_S=0.05)
    for link in lab.links.values():
        monkeypatch.setattr(link._hosts, "_read", away)
    await reaches(one)


@pytest.mark.parametrize("text", ["Zm9v", "größe", "A" * 100_000])
async def test_a_row_that_something_else_wrote_shuts_no_other_host_out(lab, one, text):
    lab.add("three")
    lab.change("three", certificate=f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    await reaches(one)


@pytest.mark.parametrize(
    ("host", "change", "why"),
    [
        ("four", {}, "it is no host of the lab"),
        ("two", {"address": "127.0.0.1:1"}, "127.0.0.1:1: Connect call failed|127.0.0.1:1: Connection refused"),
        ("two", {"address": "nonsense"}, "nonsense"),
        ("two", {"address": f"{'a' * 64}:1"}, "aaa.*label too long"),
    ],
)
async def test_a_host_that_cannot_be_dialled_is_named(lab, one, host, change, why):
    if change:
        lab.change(host, **change)
    with unreachable(f"host {host} cannot be reached: {why}"):
        await one.dial(host, "echo")


async def test_of_two_hosts_one_must_listen(lab):
    lab.add("hidden", listens=False)
    with unreachable("neither it nor deaf listens for others") as caught:
        await lab.add("deaf", listens=False).dial("hidden", "echo")
    assert "[lab] listen" in caught.value.hint


async def test_only_the_host_that_was_asked_dials_back_and_once(lab, one, two, caplog):
    caplog.set_level(logging.INFO)
    asked = []
    one._ask_back = lambda host, token: asked.append(token)
    hidden = lab.add("hidden", listens=False)
    hidden.serve("echo", echo)
    dialling = asyncio.create_task(one.dial("hidden", "echo"))
    await until(lambda: asked)
    two.dial_back("one", asked[0])
    await until(lambda: "one does not wait for two any more" in caplog.text)
    hidden.dial_back("one", asked[0])
    await (await dialling).close()
    hidden.dial_back("one", asked[0])
    await until(lambda: "one does not wait for hidden any more" in caplog.text)


async def test_a_host_that_never_dials_back_is_not_asked_for_ever(tmp_path):
    async with linked_hosts(tmp_path, LinkLimits(unanswered=2, ask_again_s=3600)) as lab:
        asked, one, hidden = [], lab.add("one"), lab.add("hidden", listens=False)
        one._ask_back = lambda host, token: asked.append(token)
        while len(asked) < 2:  # on a loaded host the limit may end before it is asked
            with unreachable("has not answered within"):
                await one.dial("hidden", "echo", limit_s=0.05)
        with unreachable("it was asked 2 times to dial this host"):
            await one.dial("hidden", "echo")
        assert len(asked) == 2
        hidden.dial_back("one", asked[0])  # too late for that one, but it lives
        await until(lambda: not one._unanswered)
        lab.add("stopped", listens=False)
        lab.change("stopped", beat_at=None)
        with unreachable("it does not run"):
            await one.dial("stopped", "echo")


async def test_a_host_that_does_not_answer_is_given_up(one, two):
    waits = asyncio.Event()
    two.serve("wait", lambda call: waits.wait())
    with unreachable(r"it has not answered within 0.3 s"):
        await one.dial("two", "wait", limit_s=0.3)
    waits.set()


async def secured(lab, host):
    """A TLS connection of host one on which nothing was said."""
    table = await lab.links["one"]._hosts.now()
    plain = socket.create_connection(("127.0.0.1", lab.links[host].port))
    return await asyncio.to_thread(table.client.wrap_socket, plain)


async def test_a_slow_handshake_and_a_host_that_says_nothing_are_ended(tmp_path, caplog):
    async with two_hosts(tmp_path, LinkLimits(handshake_s=0.2, preface_s=0.2)) as lab:
        with socket.create_connection(("127.0.0.1", lab.links["two"].port)):
            await logged(caplog, "the handshake took too long")
        with await secured(lab, "two"):
            await logged(caplog, "host one has sent no preface within 0.2 s")


async def test_strangers_that_stay_shut_no_host_out(tmp_path, caplog):
    async with two_hosts(tmp_path, LinkLimits(unknown=4, handshake_s=60.0)) as lab:
        one, two = lab.links["one"], lab.links["two"]
        await reaches(one)
        with contextlib.ExitStack() as strangers:
            for first in (b"garbage of no TLS", b"", b"") * 4:
                stranger = socket.create_connection(("127.0.0.1", two.port), 9, ("127.0.0.2", 0))
                strangers.enter_context(stranger).sendall(first)
            await logged(caplog, "127.0.0.2: too many connections")
            await reaches(one)
            assert two._unknown.limiter.of("127.0.0.2") == 2


async def test_connections_of_a_host_are_bounded(tmp_path, caplog):
    async with two_hosts(tmp_path, LinkLimits(of_host=1)) as lab:
        lab.links["one"].limits = LinkLimits()
        async with dialled(lab.links["one"]):
            with pytest.raises(HostUnreachableError):
                await lab.links["one"].dial("two", "echo")
            await logged(caplog, "host one has 1 connections")


async def test_a_host_that_reads_nothing_is_cut_off_when_a_service_ends(one, two, numbers):
    """What a service has written when it returns is sent, but not waited for without end."""
    numbers(link_module, STALLED_S=0.05)
    numbers(tls, LAST_BYTES_S=0.05)

    async def flood(call):
        await call.accept()
        _, writer = await call.streams()
        writer.write(bytes(50_000_000))

    two.serve("flood", flood)
    connection = await one.dial("two", "flood")
    await until(lambda: not two._open and not any(each.is_alive() for each in two._tls._threads))
    await connection.close()


@pytest.mark.parametrize("limits", [LinkLimits(idle_s=0.2), None], ids=["idle", "stopped"])
async def test_an_idle_connection_and_what_is_open_at_a_stop_end(tmp_path, limits):
    async with two_hosts(tmp_path, limits) as lab, dialled(lab.links["one"]) as (_, reader, _):
        if limits is None:
            await lab.links["two"].stop()
        assert await reader.read() == b""


async def test_tls_1_2_is_refused(two, caplog):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", two.port)) as plain, pytest.raises(OSError):
        await asyncio.to_thread(context.wrap_socket, plain)
    await logged(caplog, "refused as a host of the lab: TLS failed (unsupported protocol)")


def test_an_identity_is_kept_and_belongs_to_its_name(tmp_path):
    first = open_identity(tmp_path, "one")
    assert open_identity(tmp_path, "one") == first
    assert first.key_file.stat().st_mode & 0o777 == 0o600
    renamed = open_identity(tmp_path, "two")
    assert renamed.certificate != first.certificate
    assert server_context(renamed, [first.certificate])
    renamed.key_file.write_text("damaged")
    with pytest.raises(link_module.HostError, match="cannot be used") as caught:
        open_identity(tmp_path, "two")
    assert "lab.key" in caught.value.hint


async def test_a_connection_that_has_just_come_is_closed_when_the_link_stops(one):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        come, _ = listener.accept()
        one._accepted(come)
        await one.stop()
    assert come.fileno() == -1


async def test_a_connection_that_was_reset_before_its_handshake_leaves_no_socket(one):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        come, _ = listener.accept()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    with pytest.raises(tls.TlsError):
        await one._tls.secure(come, server_context(one.identity, []))


def descriptors():
    return list(Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("moment", ["the handshake's result", "the rows are read", "the preface is awaited"])
async def test_a_connection_whose_task_is_cancelled_is_closed(lab, two, monkeypatch, moment):
    """A link that stops cancels its tasks wherever they wait; a socket without an owner would stay open."""
    before = len(descriptors())
    await two._hosts.now()
    reached = asyncio.Event()

    async def never():
        reached.set()
        await asyncio.Event().wait()

    if moment == "the handshake's result":
        result = two._tls._secured
        monkeypatch.setattr(two._tls, "_secured", lambda *given: (result(*given), reached.set(), cancel()))
    elif moment == "the rows are read":
        monkeypatch.setattr(two._hosts, "now", never)
    else:
        monkeypatch.setattr(two, "_checked", None)

    def cancel():
        for task in two._tasks._tasks:
            task.cancel()

    client = await secured(lab, "two")
    await until(lambda: two._open if moment == "the preface is awaited" else reached.is_set())
    cancel()
    client.close()
    await two._tasks.end(60.0)
    await until(lambda: len(descriptors()) == before)


async def test_a_dial_back_that_comes_in_the_moment_of_its_cancellation_is_closed(lab, one):
    hidden = lab.add("hidden", listens=False)
    hidden.serve("echo", echo)
    before = len(descriptors())
    dialling = asyncio.create_task(one.dial("hidden", "echo"))
    await until(lambda: one._awaited)
    came_back = one._services[link_module.BACK]

    async def come_back(call):
        await came_back(call)
        dialling.cancel()

    one._services[link_module.BACK] = come_back
    with pytest.raises(asyncio.CancelledError):
        await dialling
    await until(lambda: len(descriptors()) == before)
