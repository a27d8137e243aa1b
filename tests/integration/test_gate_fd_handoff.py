"""Who comes to the gate while it has no daemon: waits within limits, and is served by the next."""

import asyncio
import contextlib
import logging

import pytest

from farm.model.sessions import Peer
from farm.tvm_server import listener, wire
from farm.tvm_server.connection import ConnectionLimits
from farm.tvm_server.gate import forwarding
from farm.tvm_server.listener import MIN_OF_USER
from farm.tvm_server.wire import SessionCode
from tests.support.gate_lab import READY, Lab, hello
from tests.support.raw import RawTracker
from tests.support.waiting import until


async def test_newcomers_wait_for_a_daemon_and_are_served():
    async with Lab() as lab:
        asking = asyncio.create_task(lab.key())
        dialling = asyncio.create_task(lab.dial("android:0123"))
        await until(lambda: lab.gate._handoff.waiting == lab.gate._route.waiting == 1)
        daemon = await lab.daemon()
        assert (await asking).startswith("android:")
        assert (await dialling)[1].code is SessionCode.MISMATCH
        await daemon.stop()


async def test_newcomers_that_wait_too_long_are_sent_away_and_said_so(caplog):
    caplog.set_level(logging.WARNING)
    async with Lab(wait_s=0.02) as lab:
        with pytest.raises(EOFError):
            await lab.key()
        assert (await lab.dial("android:0123"))[1].code is SessionCode.MISMATCH
        assert caplog.text.count("did not come back within 0.02 s") == 2
        assert lab.gate._handoff.waiting == lab.gate._route.waiting == 0
        await until(lambda: lab.gate._listener.open == 0)


async def test_no_more_connections_wait_than_the_limit(monkeypatch, caplog):
    monkeypatch.setattr(forwarding, "MAX_WAITING", 1)
    async with Lab() as lab:
        first = asyncio.create_task(lab.key())
        await until(lambda: lab.gate._handoff.waiting == 1)
        with pytest.raises(EOFError):
            await lab.key()
        assert "1 wait for it already" in caplog.text
        daemon = await lab.daemon()
        assert await first
        await daemon.stop()


async def test_a_newcomer_that_its_daemon_never_took_is_served_by_the_next():
    async with Lab() as lab:
        with await lab.connected() as fake:
            await lab.loop.sock_sendall(fake, hello())
            await lab.loop.sock_sendall(fake, READY)
            await until(lambda: lab.gate._handoff._link is not None)
            asking = asyncio.create_task(lab.key())
            await until(lambda: lab.gate._handoff._all)
        daemon = await lab.daemon()
        assert await asking
        await daemon.stop()


async def test_a_daemon_that_dies_while_it_is_handed_newcomers_leaves_them_for_the_next(caplog):
    async with Lab() as lab:
        asking = [asyncio.create_task(lab.key()) for _ in range(2)]
        await until(lambda: lab.gate._handoff.waiting == 2)
        with await lab.connected() as fake:
            await lab.loop.sock_sendall(fake, hello())
            await until(lambda: lab.gate._daemon is not None)
            with contextlib.suppress(BlockingIOError):
                while True:  # unread, it would hide what comes last
                    fake.recv(1 << 16)
            fake.send(READY)
        await until(lambda: lab.gate._daemon is None)
        daemon = await lab.daemon()
        daemon.devices.add("galaxy", "android", port=daemon.port, secret="secret")  # one for each
        assert all(await asyncio.gather(*asking))
        await daemon.stop()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_newcomers_that_leave_a_hanging_daemon_are_not_kept():
    async with Lab() as lab:
        with await lab.connected() as hanging:
            await lab.loop.sock_sendall(hanging, hello())
            await lab.loop.sock_sendall(hanging, READY)
            await until(lambda: lab.gate._handoff._link is not None)
            client = await RawTracker.connect(lab.gate.port, greet=False)
            await client.send(wire.encode_magic())
            await until(lambda: lab.gate._handoff._all)
            client.close()
            await until(lambda: not lab.gate._handoff._all)
            assert lab.gate._handoff.waiting == lab.gate._listener.open == 0


async def test_of_one_user_no_more_wait_than_its_share(monkeypatch, caplog):
    monkeypatch.setattr(forwarding, "MAX_WAITING", 4 * MIN_OF_USER)
    monkeypatch.setattr(listener, "peer_of", lambda _: (Peer("127.0.0.1", 1, user), None))
    async with Lab() as lab:
        user = "ann"
        waiting = [asyncio.create_task(lab.key()) for _ in range(MIN_OF_USER)]
        opening = [asyncio.create_task(lab.dial("android:0123")) for _ in range(MIN_OF_USER)]
        await until(lambda: lab.gate._handoff.waiting == lab.gate._route.waiting == MIN_OF_USER)
        with pytest.raises(EOFError):
            await lab.key()
        assert (await lab.dial("android:0123"))[1].code is SessionCode.MISMATCH
        assert caplog.text.count(f"{MIN_OF_USER} of ann wait for it already") == 2
        user = "bob"
        waiting.append(asyncio.create_task(lab.key()))
        await until(lambda: lab.gate._handoff.waiting == MIN_OF_USER + 1)
        for one in (*waiting, *opening):
            one.cancel()
        await asyncio.gather(*waiting, *opening, return_exceptions=True)


async def test_who_takes_too_many_connections_is_a_problem_of_the_daemon():
    async with Lab(clients=ConnectionLimits(connections=4 * MIN_OF_USER)) as lab:
        clients = [await RawTracker.connect(lab.gate.port, greet=False) for _ in range(MIN_OF_USER)]
        for client in clients:
            await client.send(wire.encode_magic())  # one that is silent would make room
        door = lab.gate._listener
        await until(lambda: door.open == MIN_OF_USER and not door._admission._silent)
        with pytest.raises(EOFError):
            await lab.key()
        daemon = await lab.daemon()
        await until(lambda: "connections at once" in daemon.door.problem)
        clients.pop().close()
        await until(lambda: not daemon.door.problem)
        for client in clients:
            client.close()
        await daemon.stop()
