"""Hosts over real TLS: who is let in, what is answered, and what a connection carries."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from pathlib import Path

import pytest

from farm.common.errors import Code, FarmError, HostUnreachableError, UserError
from farm.lab import hosts, tls
from farm.lab import link as link_module
from farm.lab.identity import open_identity
from farm.lab.link import LinkLimits
from farm.lab.tls import server_context
from farm.lab.wire import Preface, encode_preface
from tests.support.linked_hosts import LinkedHosts, linked_hosts
from tests.support.waiting import until


@pytest.fixture
async def lab(tmp_path):
    async with linked_hosts(tmp_path) as lab:
        for name in ("one", "two"):
            lab.add(name)
        yield lab


async def echo(call):
    await call.accept(at=call.host, got=call.fields)
    reader, writer = await call.streams()
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


def refusals(caplog):
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


async def logged(caplog, text):
    await until(lambda: any(text in line for line in refusals(caplog)))


async def test_a_service_of_another_host_is_reached_and_knows_who_calls(lab):
    lab.links["two"].serve("echo", echo)
    connection = await lab.links["one"].dial("two", "echo", {"word": "größe"})
    assert (connection.host, connection.fields) == ("two", {"at": "one", "got": {"word": "größe"}})
    reader, writer = await connection.streams()
    sent = os.urandom(3_000_000)

    async def send():
        writer.write(sent)
        await writer.drain()

    sending = asyncio.create_task(send())
    assert await reader.readexactly(len(sent)) == sent
    await sending
    await connection.close()


async def test_bytes_behind_preface_and_answer_are_the_services(lab):
    async def talk(call):
        await call.accept()
        await asyncio.get_running_loop().sock_sendall(call.sock, b"first words")
        reader, _ = await call.streams()
        assert await reader.readexactly(5) == b"early"

    lab.links["two"].serve("talk", talk)
    connection = await lab.links["one"].dial("two", "talk")
    reader, writer = await connection.streams()
    writer.write(b"early")
    assert await reader.read() == b"first words"
    await connection.close()


async def test_what_was_written_before_an_end_arrives(lab):
    content = os.urandom(5_000_000)

    async def give(call):
        await call.accept(size_bytes=len(content))
        _, writer = await call.streams()
        writer.write(content)
        await writer.drain()

    lab.links["two"].serve("give", give)
    connection = await lab.links["one"].dial("two", "give")
    reader, _ = await connection.streams()
    assert await reader.read() == content
    await connection.close()


def test_the_answer_of_a_side_that_ends_with_unread_bytes_is_copied():
    (plain, service), (sink, there) = socket.socketpair(), socket.socketpair()
    with plain, sink, there:
        plain.setblocking(False)
        plain.send(b"never read")
        service.send(b"refused")
        service.close()
        assert tls._OneWay(plain, sink).move()
        assert there.recv(100) == b"refused"


async def test_a_refusal_arrives_as_the_error_that_it_is(lab):
    async def refuse(call):
        raise UserError("there is no such thing", Code.NO_SUCH_ARTIFACT, hint="look elsewhere")

    async def fail(call):
        raise KeyError("bug")

    lab.links["two"].serve("refuse", refuse)
    lab.links["two"].serve("fail", fail)
    with pytest.raises(UserError) as caught:
        await lab.links["one"].dial("two", "refuse")
    assert (caught.value.code, caught.value.hint) == (Code.NO_SUCH_ARTIFACT, "look elsewhere")
    with pytest.raises(FarmError, match="KeyError at host two"):
        await lab.links["one"].dial("two", "fail")


async def test_a_service_that_the_other_release_does_not_have(lab, caplog):
    with pytest.raises(FarmError, match="'later', which host two does not have") as caught:
        await lab.links["one"].dial("two", "later")
    assert caught.value.code == Code.BAD_HOST_VERSION
    await logged(caplog, "host one wants the service 'later'")


async def test_another_version_is_refused_in_words(lab, monkeypatch):
    monkeypatch.setattr(link_module, "encode_preface", lambda preface: encode_preface(Preface("echo", {}, 2)))
    with pytest.raises(FarmError, match="it speaks version 2 of the protocol between hosts, two 1"):
        await lab.links["one"].dial("two", "echo")


async def test_a_host_without_a_row_is_refused_by_both_sides(lab, caplog):
    stranger = lab.add("three", known=False)
    lab.links["two"].serve("echo", echo)
    with pytest.raises(HostUnreachableError, match=r"it refuses this host \(.*alert unknown ca\)"):
        await stranger.dial("two", "echo")
    await logged(caplog, "refused as a host of the lab: its certificate belongs to no host of the lab")
    lab.change("two", address=f"127.0.0.1:{stranger.port}")
    with pytest.raises(HostUnreachableError, match="its certificate belongs to no host of the lab"):
        await lab.add("four").dial("two", "echo")


async def test_a_host_of_the_lab_is_not_taken_for_another(lab):
    lab.add("three")
    lab.change("two", address=lab.rows["three"].address)
    with pytest.raises(HostUnreachableError, match="is another host of the lab"):
        await lab.links["one"].dial("two", "echo")


async def test_a_removed_host_is_refused_at_once_and_its_connections_are_cut(lab, caplog, monkeypatch):
    monkeypatch.setattr(link_module, "CHECK_EVERY_S", 0.05)
    lab.links["two"].serve("echo", echo)
    connection = await lab.links["one"].dial("two", "echo")
    reader, writer = await connection.streams()
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    lab.remove("one")
    with pytest.raises(HostUnreachableError, match="it refuses this host"):
        await lab.links["one"].dial("two", "echo")
    assert await reader.read() == b""
    await connection.close()
    await logged(caplog, "one: it is no host of the lab any more: its connections are cut")


@pytest.mark.parametrize("frozen", [False, True])
async def test_while_the_rows_cannot_be_read_those_read_last_count(lab, monkeypatch, frozen):
    lab.links["two"].serve("echo", echo)
    await (await lab.links["one"].dial("two", "echo")).close()

    async def away():
        if frozen:
            await asyncio.Event().wait()
        raise link_module.HostError("the database is away")

    monkeypatch.setattr(hosts, "RECENT_S", 0.0)
    monkeypatch.setattr(hosts, "READ_LIMIT_S", 0.05)
    for link in lab.links.values():
        monkeypatch.setattr(link._hosts, "_read", away)
    await (await lab.links["one"].dial("two", "echo")).close()


@pytest.mark.parametrize("text", ["Zm9v", "größe", "A" * 100_000])
async def test_a_row_that_something_else_wrote_shuts_no_other_host_out(lab, text):
    lab.links["two"].serve("echo", echo)
    lab.add("three")
    lab.change("three", certificate=f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    await (await lab.links["one"].dial("two", "echo")).close()


@pytest.mark.parametrize(
    ("host", "change", "why"),
    [
        ("four", {}, "it is no host of the lab"),
        ("two", {"address": "127.0.0.1:1"}, "127.0.0.1:1: Connect call failed|127.0.0.1:1: Connection refused"),
        ("two", {"address": "nonsense"}, "nonsense"),
        ("two", {"address": f"{'a' * 64}:1"}, "aaa.*label too long"),
    ],
)
async def test_a_host_that_cannot_be_dialled_is_named(lab, host, change, why):
    if change:
        lab.change(host, **change)
    with pytest.raises(HostUnreachableError, match=f"host {host} cannot be reached: {why}"):
        await lab.links["one"].dial(host, "echo")


async def test_a_host_that_does_not_listen_dials_back(lab):
    hidden = lab.add("hidden", listens=False)
    hidden.serve("echo", echo)
    connection = await lab.links["one"].dial("hidden", "echo", {"n": 1})
    assert (connection.host, connection.fields) == ("hidden", {"at": "one", "got": {"n": 1}})
    reader, writer = await connection.streams()
    sent = os.urandom(1_000_000)
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    await connection.close()
    with pytest.raises(FarmError, match="'later', which host hidden does not have"):
        await lab.links["one"].dial("hidden", "later")
    assert not lab.links["one"]._awaited


async def test_of_two_hosts_one_must_listen(lab):
    lab.add("hidden", listens=False)
    with pytest.raises(HostUnreachableError, match="neither it nor deaf listens for others") as caught:
        await lab.add("deaf", listens=False).dial("hidden", "echo")
    assert "[lab] listen" in caught.value.hint


async def test_only_the_host_that_was_asked_dials_back_and_once(lab, caplog):
    caplog.set_level(logging.INFO)
    asked = []
    lab.links["one"]._ask_back = lambda host, token: asked.append(token)
    hidden, other = lab.add("hidden", listens=False), lab.links["two"]
    hidden.serve("echo", echo)
    dialling = asyncio.create_task(lab.links["one"].dial("hidden", "echo"))
    await until(lambda: asked)
    other.dial_back("one", asked[0])
    await until(lambda: "one does not wait for two any more" in caplog.text)
    hidden.dial_back("one", asked[0])
    await (await dialling).close()
    hidden.dial_back("one", asked[0])
    await until(lambda: "one does not wait for hidden any more" in caplog.text)


async def test_a_host_that_never_dials_back_is_not_asked_for_ever(tmp_path):
    async with linked_hosts(tmp_path, LinkLimits(unanswered=2, ask_again_s=3600)) as lab:
        asked, one = [], lab.add("one")
        one._ask_back = lambda host, token: asked.append(token)
        hidden = lab.add("hidden", listens=False)
        for _ in range(2):
            with pytest.raises(HostUnreachableError, match="has not answered within"):
                await one.dial("hidden", "echo", limit_s=0.05)
        with pytest.raises(HostUnreachableError, match="it was asked 2 times to dial this host"):
            await one.dial("hidden", "echo")
        assert len(asked) == 2
        hidden.dial_back("one", asked[0])  # too late for that one, but it lives
        await until(lambda: not one._unanswered)
        lab.add("stopped", listens=False)
        lab.change("stopped", beat_at=None)
        with pytest.raises(HostUnreachableError, match="it does not run"):
            await one.dial("stopped", "echo")


async def test_a_host_that_does_not_answer_is_given_up(lab):
    waits = asyncio.Event()
    lab.links["two"].serve("wait", lambda call: waits.wait())
    with pytest.raises(HostUnreachableError, match=r"it has not answered within 0.3 s"):
        await lab.links["one"].dial("two", "wait", limit_s=0.3)
    waits.set()


async def test_a_slow_handshake_and_a_host_that_says_nothing_are_ended(tmp_path, caplog):
    async with linked_hosts(tmp_path, LinkLimits(handshake_s=0.2, preface_s=0.2)) as lab:
        lab.add("one")
        lab.add("two")
        silent = socket.create_connection(("127.0.0.1", lab.links["two"].port))
        await logged(caplog, "the handshake took too long")
        silent.close()
        context = lab.links["one"]._hosts
        table = await context.now()
        plain = socket.create_connection(("127.0.0.1", lab.links["two"].port))
        tls = await asyncio.to_thread(table.client.wrap_socket, plain)
        await logged(caplog, "host one has sent no preface within 0.2 s")
        tls.close()


async def test_strangers_that_stay_shut_no_host_out(tmp_path, caplog):
    async with linked_hosts(tmp_path, LinkLimits(unknown=4, handshake_s=60.0)) as lab:
        lab.add("one")
        two = lab.add("two")
        two.serve("echo", echo)
        await (await lab.links["one"].dial("two", "echo")).close()
        with contextlib.ExitStack() as strangers:
            for first in (b"garbage of no TLS", b"", b"") * 4:
                stranger = strangers.enter_context(
                    socket.create_connection(("127.0.0.1", two.port), 9, ("127.0.0.2", 0))
                )
                stranger.sendall(first)
            await logged(caplog, "127.0.0.2: too many connections")
            await (await lab.links["one"].dial("two", "echo")).close()
            assert two._unknown.of("127.0.0.2") == 2


async def test_connections_of_a_host_are_bounded(tmp_path, caplog):
    async with linked_hosts(tmp_path, LinkLimits(of_host=1)) as lab:
        lab.add("one").limits = LinkLimits()
        lab.add("two").serve("echo", echo)
        first = await lab.links["one"].dial("two", "echo")
        with pytest.raises(HostUnreachableError):
            await lab.links["one"].dial("two", "echo")
        await logged(caplog, "host one has 1 connections")
        await first.close()


async def test_a_host_that_reads_nothing_is_cut_off_when_a_service_ends(lab, monkeypatch):
    """What a service has written when it returns is sent, but not waited for without end."""
    monkeypatch.setattr(link_module, "STALLED_S", 0.05)
    monkeypatch.setattr(tls, "LAST_BYTES_S", 0.05)

    async def flood(call):
        await call.accept()
        _, writer = await call.streams()
        writer.write(bytes(50_000_000))

    lab.links["two"].serve("flood", flood)
    connection = await lab.links["one"].dial("two", "flood")
    two = lab.links["two"]
    await until(lambda: not two._open and not any(each.is_alive() for each in two._tls._threads))
    await connection.close()


async def test_an_idle_connection_ends(tmp_path):
    async with linked_hosts(tmp_path, LinkLimits(idle_s=0.2)) as lab:
        lab.add("one")
        lab.add("two").serve("echo", echo)
        reader, _ = await (connection := await lab.links["one"].dial("two", "echo")).streams()
        assert await reader.read() == b""
        await connection.close()


async def test_tls_1_2_is_refused(lab, caplog):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", lab.links["two"].port)) as plain, pytest.raises(OSError):
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


async def test_stopping_cuts_what_is_open(tmp_path):
    lab = LinkedHosts(tmp_path)
    lab.add("one")
    lab.add("two").serve("echo", echo)
    reader, _ = await (connection := await lab.links["one"].dial("two", "echo")).streams()
    await lab.links["two"].stop()
    assert await reader.read() == b""
    await connection.close()
    await lab.links["one"].stop()


async def test_a_connection_that_has_just_come_is_closed_when_the_link_stops(lab):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        come, _ = listener.accept()
        lab.links["one"]._accepted(come)
        await lab.links["one"].stop()
    assert come.fileno() == -1


def descriptors():
    return list(Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("moment", ["the handshake's result", "the rows are read", "the preface is awaited"])
async def test_a_connection_whose_task_is_cancelled_is_closed(lab, monkeypatch, moment):
    """A link that stops cancels its tasks wherever they wait; a socket without an owner would stay open."""
    before, two = len(descriptors()), lab.links["two"]
    table = await lab.links["one"]._hosts.now()
    await two._hosts.now()
    reached = asyncio.Event()

    async def never():
        reached.set()
        await asyncio.Event().wait()

    if moment == "the handshake's result":
        secured = two._tls._secured
        monkeypatch.setattr(two._tls, "_secured", lambda *given: (secured(*given), reached.set(), cancel()))
    elif moment == "the rows are read":
        monkeypatch.setattr(two._hosts, "now", never)
    else:
        monkeypatch.setattr(two, "_checked", None)

    def cancel():
        for task in two._tasks._tasks:
            task.cancel()

    plain = socket.create_connection(("127.0.0.1", two.port))
    client = await asyncio.to_thread(table.client.wrap_socket, plain)
    await until(lambda: two._open if moment == "the preface is awaited" else reached.is_set())
    cancel()
    client.close()
    await two._tasks.end(60.0)
    await until(lambda: len(descriptors()) == before)


async def test_a_dial_back_that_comes_in_the_moment_of_its_cancellation_is_closed(lab):
    one, hidden = lab.links["one"], lab.add("hidden", listens=False)
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
