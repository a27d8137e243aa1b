"""The gate over real sockets: who gets through, how sessions end, and that every byte arrives."""

import asyncio
import os
import socket
import struct
from dataclasses import replace

import pytest

from farm.head.model import LeasePolicy
from farm.leasing.sessions import digest
from farm.model.device import Life
from farm.tvm_server.gate.relay import GOODBYE
from farm.tvm_server.wire import SESSION_MAGIC, SessionCode
from tests.support.raw import open_session
from tests.support.tvm_port import SessionPort, at_end, receive, send
from tests.support.waiting import until


async def test_a_session_is_opened_copied_ended_and_counted():
    async with SessionPort() as lab:
        sock = await lab.session()
        await send(sock, b"ping")
        assert await receive(sock, 4) == b"ping"
        await send(sock, GOODBYE)
        assert await receive(sock, len(GOODBYE)) == GOODBYE
        sock.close()
        end = await lab.over()
        assert (end["outcome"], end["bytes_up"], end["bytes_down"]) == ("closed", 16, 16)
        assert await lab.told() == ["lease.granted", "session.opened", "session.ended", "lease.released"]
        assert lab.phone.hellos == ["secret"]
        assert not lab.devices.broken
        await until(lambda: lab.phone.open == 0)
        assert (await lab.session()).fileno() > 0


async def test_a_handshake_byte_by_byte_and_a_first_packet_with_it():
    async with SessionPort() as lab:
        key = await lab.key()
        body = f"client:{key}".encode()
        stream = struct.pack("<ii", SESSION_MAGIC, len(body)) + body
        sock = await lab.socket()
        for byte in stream[:-1]:
            await send(sock, bytes([byte]))
        await send(sock, stream[-1:] + b"first")
        answer = struct.pack("<ii", SESSION_MAGIC, len(b"server:android")) + b"server:android"
        assert await receive(sock, len(answer) + 5) == answer + b"first"


async def test_unknown_spent_and_busy_keys_are_refused():
    async with SessionPort() as lab:
        for unknown in ("android:0", "x", "android:" + "f" * 32):
            sock, hello = await lab.dial(unknown)
            assert hello.code is SessionCode.MISMATCH
            assert await at_end(sock) == b""
        key = await lab.key()
        await lab.dial(key)
        assert (await lab.dial(key))[1].code is SessionCode.MISMATCH
        assert len(lab.phone.hellos) == 1


async def test_a_job_key_opens_one_session_at_a_time_until_the_lease_ends():
    async with SessionPort() as lab:
        lease, key = await lab.job()
        first, hello = await lab.dial(key)
        assert hello.code is SessionCode.SUCCESS
        assert (await lab.dial(key))[1].code is SessionCode.DUPLICATE
        first.close()
        await lab.over()
        second, hello = await lab.dial(key)
        assert hello.code is SessionCode.SUCCESS
        lab.leasing.release(lease.id)
        assert await at_end(second) == b""
        await lab.over(2)
        assert not lab.leasing.active.holders()
        assert (await lab.dial(key))[1].code is SessionCode.MISMATCH


async def test_a_grant_that_nobody_uses_is_reclaimed():
    async with SessionPort(lease=LeasePolicy(unused_s=0.05)) as lab:
        key = await lab.key()
        await until(lambda: not lab.leasing.active.holders())
        assert await lab.told() == ["lease.granted", "lease.released"]
        assert (await lab.dial(key))[1].code is SessionCode.MISMATCH
        assert not lab.devices.broken


async def test_a_session_longer_than_its_timeout_is_cut_and_the_phone_cleaned():
    async with SessionPort() as lab:
        sock = await lab.session(" -timeout=0.1")
        assert lab.phone.hellos == ["secret"]  # of which the phone never hears
        await send(sock, b"kernel")
        assert await at_end(sock) in (b"", b"kernel")
        end = await lab.over()
        assert end["outcome"] == "timed-out"
        assert "0.1 s" in end["detail"]
        assert lab.kinds()[:4] == ["lease.granted", "session.opened", "session.cut", "session.ended"]
        assert lab.devices.broken == [("pixel", end["detail"])]
        await lab.session()


async def test_a_session_without_bytes_is_cut_and_one_with_bytes_is_not():
    async with SessionPort(idle_s=0.5) as lab:
        sock = await lab.session()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() < begun + 1.0:
            await send(sock, b"x")
            assert await receive(sock, 1) == b"x"
        assert await at_end(sock) == b""
        assert (await lab.over())["outcome"] == "idle"


async def test_an_operator_cuts_a_session():
    async with SessionPort() as lab:
        sock = await lab.session()
        await send(sock, b"work")
        assert await receive(sock, 4) == b"work"
        (holder,) = lab.leasing.active.holders()
        assert holder.session
        await lab.leasing.revoke("pixel", "maintenance")
        assert await at_end(sock) == b""
        assert await lab.told() == [
            "lease.granted", "session.opened", "lease.revoked", "session.cut", "session.ended", "lease.released",
        ]  # fmt: skip
        assert lab.ended()[0]["detail"] == "maintenance"
        assert lab.devices.broken


async def test_a_client_killed_while_the_phone_works_leaves_a_phone_to_be_cleaned():
    async def work(sock):
        await asyncio.get_running_loop().sock_recv(sock, 100)
        await asyncio.Event().wait()

    async with SessionPort(work) as lab:
        sock = await lab.session()
        await send(sock, b"kernel")
        await until(lambda: next(iter(lab.gate._gate._sessions.values()))._relay.bytes_up == 6)
        sock.close()
        assert (await lab.over())["outcome"] == "vanished"
        assert lab.devices.broken


async def test_a_phone_that_crashes_ends_the_session_after_its_last_bytes():
    async def crash(sock):
        loop = asyncio.get_running_loop()
        await loop.sock_recv(sock, 100)
        await loop.sock_sendall(sock, b"last words" * 100_000)

    async with SessionPort(crash) as lab:
        sock = await lab.session()
        await send(sock, b"kernel")
        await asyncio.sleep(0)
        assert await at_end(sock) == b"last words" * 100_000
        assert (await lab.over())["outcome"] == "phone-closed"
        assert lab.devices.broken


async def test_a_phone_that_closes_first_after_the_goodbye_has_not_crashed():
    async def leave(sock):
        await asyncio.get_running_loop().sock_recv(sock, 100)

    async with SessionPort(leave) as lab:
        sock = await lab.session()
        await send(sock, GOODBYE)
        assert await at_end(sock) == b""
        assert (await lab.over())["outcome"] == "closed"
        assert not lab.devices.broken


async def test_a_phone_that_is_lost_takes_its_session_with_it():
    async with SessionPort() as lab:
        sock = await lab.session()
        lab.devices.become("pixel", Life.OFFLINE, "unplugged")
        assert await at_end(sock) == b""
        await lab.over()
        assert lab.kinds()[2] == "lease.revoked"
        assert not lab.leasing.active.holders()


async def test_a_server_that_refuses_or_hangs_or_is_not_there():
    async with SessionPort(answer_s=0.5) as lab:
        for trouble, words in (("answer", "refused"), ("hang", "did not answer"), ("port", "")):
            if trouble == "answer":
                lab.phone.answer = SessionCode.DUPLICATE
            elif trouble == "hang":
                lab.phone.answer, lab.phone.hang = SessionCode.SUCCESS, True
            else:
                lab.phone.hang = False
                lab.devices.ports["pixel"] = 1
            broken = len(lab.devices.broken)
            _, hello = await lab.dial(await lab.key())
            assert hello.code is SessionCode.MISMATCH
            end = await lab.over(broken + 1)
            assert end["outcome"] == "not-opened"
            assert words in end["detail"]
            assert len(lab.devices.broken) == broken + 1
        assert "session.opened" not in lab.kinds()


async def leads_to(lab, other, lease, key):
    """A door where the client of a lease of `other` may connect, too."""

    async def dial(host, peer, limit_s):
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", other.door.port))
        return sock

    request = replace(lease.request, match_sha256=digest(key))
    lab.leasing.elsewhere.connect("one", dial)
    lab.leasing.elsewhere.add(replace(lease, request=request), "two")


async def test_a_busy_key_of_another_hosts_phone_is_refused_as_one_of_this_host(monkeypatch):
    monkeypatch.setattr("farm.leasing.sessions.FREE_WAIT_S", 0.01)
    async with SessionPort() as lab, SessionPort() as other:
        lease, key = await other.job()
        await leads_to(lab, other, lease, key)
        _, hello = await other.dial(key)
        assert hello.code is SessionCode.SUCCESS
        assert (await lab.dial(key))[1].code is SessionCode.DUPLICATE
        assert not lab.devices.broken


async def test_a_recovering_phone_of_another_host_is_waited_for_as_one_of_this_host():
    async with SessionPort(answer_s=0.01) as lab, SessionPort() as other:
        lease, key = await other.job()
        await leads_to(lab, other, lease, key)
        other.devices.become("pixel", Life.RECOVERING, "wedged")
        dialling = asyncio.create_task(lab.dial(key))
        await until(lambda: (active := other.leasing.active.leases[lease.id]).session and active.session.waits)
        loop = asyncio.get_running_loop()
        late_s = loop.time() + 0.1  # ten times what a phone's own server may take
        await until(lambda: loop.time() > late_s)
        other.devices.become("pixel", Life.READY)
        assert (await dialling)[1].code is SessionCode.SUCCESS


async def test_a_client_that_leaves_before_the_phone_answers_frees_it():
    async with SessionPort() as lab:
        lab.phone.hang = True
        dialling = asyncio.create_task(open_session(lab.door.port, await lab.key()))
        await until(lambda: lab.phone.hellos == ["secret"])
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        assert (await lab.over())["outcome"] == "abandoned"
        await until(lambda: lab.phone.open == 0)
        assert not lab.leasing.active.holders()


async def test_a_session_can_be_cut_before_it_is_open():
    async with SessionPort() as lab:
        lab.phone.hang = True
        dialling = asyncio.create_task(open_session(lab.door.port, await lab.key()))
        await until(lambda: lab.phone.hellos == ["secret"])
        await lab.leasing.revoke("pixel", "no")
        with pytest.raises(EOFError):
            await dialling
        assert (await lab.over())["outcome"] == "cut"


async def test_a_client_that_dribbles_its_hello_is_dropped():
    async with SessionPort(handshake_s=0.1) as lab:
        sock = await lab.socket()
        await send(sock, struct.pack("<ii", SESSION_MAGIC, 100) + b"client:")
        assert await at_end(sock) == b""
        assert not lab.phone.hellos


@pytest.mark.parametrize(
    "stream", [b"", b"\x71", b"\x00" * 64, b"SSH-2.0-x\r\n", struct.pack("<ii", SESSION_MAGIC, -1)]
)
async def test_garbage_on_the_port_is_closed(stream):
    async with SessionPort() as lab:
        sock = await lab.socket()
        if stream:
            await send(sock, stream)
        if len(stream) < 4:
            sock.close()
        else:
            assert await at_end(sock) == b""
            sock.close()
        await until(lambda: lab.gate._listener.open == 0)
        await lab.session()


async def test_megabytes_both_ways_at_once_with_a_slow_reader():
    async with SessionPort() as lab:
        sock = await lab.session()
        data = os.urandom(1 << 20) * 24
        sending = asyncio.create_task(send(sock, data))
        (session,) = lab.gate._gate._sessions.values()
        await until(lambda: session._relay._down.sending)  # this side does not read: the way back is full
        assert await receive(sock, len(data)) == data
        await sending
        assert session._relay.bytes_up == session._relay.bytes_down == len(data)


async def test_a_client_that_dies_while_a_stuck_phone_takes_nothing_is_noticed():
    async def stuck(_):
        await asyncio.Event().wait()

    async with SessionPort(stuck) as lab:
        sock = await lab.session()
        sending = asyncio.create_task(send(sock, b"x" * (64 << 20)))
        relay = next(iter(lab.gate._gate._sessions.values()))._relay
        await until(lambda: relay._up.sending)
        sending.cancel()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a RST: a FIN would queue, too
        sock.close()
        assert (await lab.over())["outcome"] == "vanished"


async def test_stopping_the_server_cuts_and_reports_a_jobs_session():
    async with SessionPort() as lab:
        sock, _ = await lab.dial((await lab.job())[1])
        await lab.door.stop()
        assert await at_end(sock) == b""
        assert lab.ended()[0]["outcome"] == "cut"


async def test_the_checker_gets_a_phone_that_nobody_else_gets():
    async with SessionPort() as lab:
        lab.devices.become("pixel", Life.CHECKING)
        key = lab.leasing.checking_key("pixel")
        sock, hello = await lab.dial(key)
        assert hello.code is SessionCode.SUCCESS
        assert not lab.leasing.active.holders()
        stale = key
        key = lab.leasing.checking_key("pixel")
        assert await at_end(sock) == b""
        assert (await lab.dial(stale))[1].code is SessionCode.MISMATCH
        sock, _ = await lab.dial(key)
        lab.devices.become("pixel", Life.READY)
        assert await at_end(sock) == b""
        assert not lab.devices.broken
        await lab.session()


async def test_a_job_keeps_its_lease_while_its_phone_is_mended():
    async with SessionPort() as lab:
        lab.devices.recover = False
        _, key = await lab.job()
        sock, _ = await lab.dial(key)
        await send(sock, b"x")
        assert await receive(sock, 1) == b"x"
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await send(sock, b"crash")
        lab.devices.become("pixel", Life.RECOVERING, "wedged")
        await lab.over()
        dialling = asyncio.create_task(lab.dial(key))
        lab.devices.become("pixel", Life.CHECKING)
        await until(lambda: any(holder.session for holder in lab.leasing.active.holders()))
        lab.devices.become("pixel", Life.READY)
        _, hello = await dialling
        assert hello.code is SessionCode.SUCCESS
        assert "lease.revoked" not in lab.kinds()


async def test_a_job_loses_a_phone_that_does_not_come_back():
    async with SessionPort(lease=LeasePolicy(recovery_s=0.05)) as lab:
        await lab.job()
        lab.devices.become("pixel", Life.RECOVERING, "wedged")
        assert lab.leasing.active.holders()
        await until(lambda: not lab.leasing.active.holders())
        assert await lab.told() == ["lease.granted", "lease.revoked", "lease.released"]
