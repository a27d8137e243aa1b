"""Who may be the gate's daemon, and what whoever is none is told."""

import asyncio
import contextlib
import logging
import os
import socket

import pytest

from farm.common.systemd import Notifier
from farm.common.tasks import end_tasks
from farm.config import FarmConfig, TvmConfig
from farm.daemon.daemon import Daemon
from farm.daemon.starting import Start
from farm.tvm_server import server
from farm.tvm_server.gate import process as gate_process
from farm.tvm_server.gate.messages import VERSION, Rejected, encode
from farm.tvm_server.listener import bind
from farm.tvm_server.server import GateRefusedError, GateUnreachableError, check_gate
from tests.support.gate_lab import READY, Lab, echo, hello
from tests.support.waiting import until


async def test_a_daemon_told_to_stop_while_it_looks_for_the_gate_leaves_no_socket(monkeypatch):
    made = []

    class Kept(socket.socket):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    async def never(*_):
        await asyncio.Event().wait()

    async with Lab() as lab:
        monkeypatch.setattr(server.socket, "socket", Kept)
        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
        looking = asyncio.create_task(lab.daemon())
        await until(lambda: made)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert [each.fileno() for each in made] == [-1]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (hello(v=99), f"version {VERSION} of the gate's protocol, the daemon (farm 0) version 99"),
        (b'{"kind": "daemon_hello", "v": 7, "more": 1}', "the daemon (farm of another release) version 7"),
        (READY, "did not begin with hello"),
    ],
)
async def test_whoever_is_no_daemon_of_this_release_is_told_why(first, said):
    async with Lab() as lab:
        [answer] = await lab.raw(first)
        assert answer["kind"] == "rejected"
        assert said in answer["reason"]
        daemon = await lab.daemon()
        await daemon.stop()


async def test_a_start_asks_the_gate_and_leaves_it_as_it_was(caplog):
    caplog.set_level(logging.INFO)
    async with Lab() as lab:
        daemon = await lab.daemon()
        session = await lab.session()
        await daemon.die()
        await check_gate(lab.path, "this farm", 600.0)
        await until(lambda: caplog.text.count("the daemon is gone") == 2)
        levels = [record.levelname for record in caplog.records if "the daemon is gone" in record.message]
        assert levels == ["WARNING", "INFO"]  # only the first has served
        again = await lab.daemon(2)
        assert await echo(session)
        await again.stop()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_start_changes_nothing_for_a_gate_that_does_not_fit(tmp_path, monkeypatch, answers):
    """A daemon that brought its database up to date first would have no way back to its earlier release."""
    monkeypatch.setattr(server, "REFUSED_WAIT_S", 0.0)
    monkeypatch.setattr(server, "START_WAIT_S", 0.0)
    database, path = tmp_path / "farm.db", tmp_path / "gate.sock"
    database.write_bytes(b"of an earlier release")
    config = FarmConfig(state_dir=tmp_path, runtime_dir=tmp_path, tvm=TvmConfig(gate=str(path)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as older:
        if answers:
            older.bind(str(path))
            older.listen()
            asyncio.get_running_loop().run_in_executor(None, refuse, older)
        async with contextlib.AsyncExitStack() as stack:
            with pytest.raises(GateRefusedError if answers else GateUnreachableError):
                await Daemon(config, lambda _: config)._build(stack, Start(Notifier(), asyncio.Event()))
    assert database.read_bytes() == b"of an earlier release"
    assert [*tmp_path.glob("farm.db*")] == [database]


def refuse(listener):
    """As the gate of another release does."""
    sock, _ = listener.accept()
    with sock:
        sock.recv(1 << 16)
        sock.send(encode(Rejected(VERSION - 1, "0.0.9", "version 4")))


async def test_a_second_daemon_and_another_farms_daemon_are_refused(monkeypatch):
    monkeypatch.setattr(server, "REFUSED_WAIT_S", 0.0)
    async with Lab() as lab:
        daemon = await lab.daemon()
        await lab.session()
        with pytest.raises(GateRefusedError, match=f"another daemon .pid {os.getpid()}. has this gate"):
            await lab.daemon(2)
        await daemon.die()
        with pytest.raises(GateRefusedError, match="1 sessions of another farm"):
            await lab.daemon(2, farm="another")
        again = await lab.daemon(2)
        await again.leasing.revoke("pixel", "kicked")
        await again.stop()
        other = await lab.daemon(3, farm="another")
        await other.stop()


async def test_another_users_daemon_is_refused(monkeypatch):
    monkeypatch.setattr(gate_process, "trusted", lambda _: False)
    monkeypatch.setattr(server, "REFUSED_WAIT_S", 0.0)
    async with Lab() as lab:
        [answer] = await lab.raw()  # who says nothing has no place either
        assert "it runs as uid" in answer["reason"]
        assert lab.gate._links == set()
        with pytest.raises(GateRefusedError, match="runs as uid"):
            await lab.daemon()


async def test_more_silent_daemons_than_the_gate_serves_wait_outside(monkeypatch):
    monkeypatch.setattr(gate_process, "MAX_LINKS", 2)
    async with Lab() as lab:
        silent = [await lab.connected() for _ in range(3)]
        coming = asyncio.create_task(lab.daemon())
        await until(lambda: len(lab.gate._links) == 2)
        assert lab.gate._control._held
        for each in silent:
            each.close()
        daemon = await coming
        assert lab.gate._links == {lab.gate._daemon}
        await daemon.stop()


async def test_garbage_at_the_daemons_socket_leaves_the_gate_serving():
    async with Lab() as lab:
        daemon = await lab.daemon()
        sock = await lab.session()
        for data in (b"\xff", b"[" * 60_000, b"{}", os.urandom(1000)):
            assert await lab.raw(data) == []
        assert await echo(sock)
        await daemon.leasing.revoke("pixel", "kicked")
        await daemon.stop()


async def test_a_daemons_own_gate_waits_for_its_hello_and_ends_with_it_even_before(monkeypatch, caplog):
    """A daemon that was killed while it started left a gate that held the TVM port forever."""
    monkeypatch.setattr(gate_process, "HELLO_S", 0.0)
    caplog.set_level(logging.INFO)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gate = gate_process.GateProcess(wait_s=1.0)
    running = asyncio.create_task(gate.run(bind("127.0.0.1", 0), theirs, asyncio.Event()))
    try:
        await until(lambda: "TVM clients are served" in caplog.text)
        for _ in range(5):  # a limit of 0 s would be over
            await asyncio.sleep(0)
        assert gate._links
        ours.close()
        await until(running.done)
    finally:
        ours.close()
        await end_tasks(running)
    assert "it sent no hello" not in caplog.text
