"""The gate as a process of its own: sessions that outlive their daemon, a gate that ends or hangs, its sockets."""

import asyncio
import errno
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from farm.common.selector import Selector
from farm.model.requests import LeaseRequest, LeaseSource
from farm.tvm_server import server
from farm.tvm_server.gate import messages as gate_messages
from farm.tvm_server.gate import process as gate_process
from farm.tvm_server.gate.process import GateSocketError, sockets_of
from farm.tvm_server.gate.relay import GOODBYE
from farm.tvm_server.server import GateUnreachableError
from farm.tvm_server.wire import SessionCode
from tests.support.gate_lab import Lab, echo, hello
from tests.support.tvm import ROOT, environment
from tests.support.waiting import HANG_S, until


async def test_a_session_through_both_processes_is_opened_copied_ended_and_counted():
    async with Lab() as lab:
        daemon = await lab.daemon()
        sock = await lab.session()
        assert await echo(sock)
        assert daemon.door.sessions == 1
        await until(lambda: daemon.door.last_phone_byte_at)
        assert await echo(sock, GOODBYE)
        sock.close()
        await until(daemon.ended)
        [ended] = daemon.ended()
        assert (ended["outcome"], ended["bytes_up"], ended["bytes_down"]) == ("closed", 16, 16)
        await until(lambda: not daemon.leasing.active.holders())
        _, refused = await lab.dial("android:0123")
        assert refused.code is SessionCode.MISMATCH
        await daemon.stop()


@pytest.mark.parametrize("end", ["stop", "die"])
async def test_the_next_daemon_takes_up_session_and_lease(end):
    async with Lab() as lab:
        first = await lab.daemon()
        sock = await lab.session()
        [before] = first.leasing.active.holders()
        await getattr(first, end)()
        assert await echo(sock)
        second = await lab.daemon(2)
        assert second.kept == {before.lease.id}
        [after] = second.leasing.active.holders()
        assert (after.lease.fence, after.session, after.peer) == (before.lease.fence, before.session, before.peer)
        assert second.leasing.in_session("pixel")
        assert second.devices.dialled == []
        await second.leasing.revoke("pixel", "kicked")
        assert [end["outcome"] for end in second.ended()] == ["cut"]
        assert first.ended() == []
        await until(lambda: not lab.keeper.open())
        await second.stop()


async def test_what_ended_while_nobody_was_there_is_told_to_the_next_daemon_and_to_no_other():
    async with Lab() as lab:
        first = await lab.daemon()
        sock = await lab.session()
        await first.die()
        sock.close()
        await until(lambda: lab.gate._route.open_sessions == 0)
        second = await lab.daemon(2)
        assert [end["outcome"] for end in second.ended()] == ["closed"]
        await until(lambda: not lab.keeper.open())
        await second.stop()
        third = await lab.daemon(3)
        assert third.ended() == []
        await third.stop()


async def test_a_session_whose_lease_ended_with_its_daemon_is_cut_and_told():
    async with Lab() as lab:
        first = await lab.daemon()
        lease = await first.leasing.acquire(LeaseRequest(Selector.parse("android"), "alice", LeaseSource.JOB))
        sock, _ = await lab.dial(first.leasing.new_match_key(lease.id, single_use=False))
        assert await echo(sock)
        await first.die()
        second = await lab.daemon(2)
        await until(second.ended)
        [ended] = second.ended()
        assert (ended["outcome"], ended["fence"], ended["user"]) == ("cut", lease.fence, "alice")
        assert second.kept == frozenset()
        assert not second.leasing.active.holders()
        await second.stop()


async def test_a_phones_descriptor_that_cannot_be_passed_ends_its_session_in_words(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    async with Lab() as lab:
        daemon = await lab.daemon()
        match_key = await lab.key()
        send = daemon.door._link.send

        def without_descriptors(message, carried=None):
            if carried is not None:
                raise OSError(errno.EMFILE, "Too many open files")
            send(message)

        monkeypatch.setattr(daemon.door._link, "send", without_descriptors)
        _, refused = await lab.dial(match_key)
        assert refused.code is SessionCode.MISMATCH
        [ended] = daemon.ended()
        assert "Too many open files" in ended["detail"]
        await daemon.stop()


async def test_a_gate_that_ends_tells_its_sessions_ends_and_the_daemon_finds_the_next_one():
    async with Lab() as lab:
        daemon, began_s = await lab.daemon(), asyncio.get_running_loop().time()
        await lab.session()
        assert daemon.door.gone_at < began_s
        await lab.end()
        assert [end["outcome"] for end in daemon.ended()] == ["cut"]
        await until(lambda: "the gate is gone" in daemon.door.problem)
        assert (daemon.door.pid, daemon.door.gone_at >= began_s) == (0, True)
        await lab.begin()
        await until(lambda: not daemon.door.problem)
        assert (daemon.door.port, daemon.door.pid) == (lab.gate.port, os.getpid())
        assert began_s <= daemon.door.gone_at <= asyncio.get_running_loop().time()
        assert await echo(await lab.session())
        await daemon.leasing.revoke("pixel", "kicked")
        await daemon.stop()


async def test_a_gate_that_hangs_is_given_up_and_reached_again(monkeypatch, caplog):
    monkeypatch.setattr(gate_process, "ALIVE_EVERY_S", 3600.0)
    async with Lab() as lab:
        daemon = await lab.daemon()
        await lab.session()
        monkeypatch.setattr(server, "GIVEN_UP_S", 0.05)
        lab.gate._daemon.link.send(gate_messages.ConnectionsRefused(""))  # its last word
        daemon.door._keeper.cancel()  # which waits for the time of before
        daemon.door._keeper = asyncio.create_task(daemon.door._keep())
        await until(daemon.ended)
        assert [end["outcome"] for end in daemon.ended()] == ["cut"]
        monkeypatch.setattr(server, "GIVEN_UP_S", 3600.0)
        await until(lambda: daemon.door.sessions == 0 and not daemon.door.problem)
        assert "it has sent nothing for 0.05 s" in caplog.text
        await daemon.stop()


async def test_a_gate_that_is_stopped_for_a_moment_keeps_its_sessions(monkeypatch):
    monkeypatch.setattr(gate_process, "ALIVE_EVERY_S", 3600.0)
    async with Lab() as lab:
        daemon = await lab.daemon()
        session = await lab.session()
        monkeypatch.setattr(server, "SILENT_S", 0.05)
        daemon.door._keeper.cancel()  # which waits for the time of before
        daemon.door._keeper = asyncio.create_task(daemon.door._keep())
        await until(lambda: "its sessions wait" in daemon.door.problem)
        monkeypatch.setattr(server, "SILENT_S", 3600.0)
        lab.gate._daemon.link.send(gate_messages.ConnectionsRefused(""))  # it continues
        await until(lambda: not daemon.door.problem)
        assert await echo(session)
        assert not daemon.ended()
        await daemon.leasing.revoke("pixel", "kicked")
        await daemon.stop()


async def test_a_standstill_of_the_daemon_is_no_silence_of_the_gate(monkeypatch):
    """Timers are due before what came meanwhile is read: the kernel answers an interrupted wait with nothing."""
    async with Lab() as lab:
        daemon = await lab.daemon()
        session = await lab.session()
        clock = lab.loop.time
        monkeypatch.setattr(lab.loop, "time", lambda: clock() + server.GIVEN_UP_S + 2)
        assert await echo(session)
        assert await echo(session)
        assert not daemon.door.problem
        assert not daemon.ended()
        await daemon.leasing.revoke("pixel", "kicked")
        await daemon.stop()


async def test_no_gate_is_said_with_a_hint(monkeypatch):
    monkeypatch.setattr(server, "START_WAIT_S", 0.0)
    async with Lab() as lab:
        lab.path = lab.path.with_name("none.sock")
        with pytest.raises(GateUnreachableError, match="there is no gate at") as failed:
            await lab.daemon()
        assert "farm-gate" in failed.value.hint


async def test_two_gates_do_not_share_a_socket():
    async with Lab() as lab:
        with pytest.raises(GateSocketError, match="another gate listens"):
            sockets_of("127.0.0.1", 0, lab.path)


def test_another_programs_socket_stays_and_a_dead_gates_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for a short path
    path = Path("g.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(GateSocketError, match="another program"):
            sockets_of("127.0.0.1", 0, path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    for one in sockets_of("127.0.0.1", 0, path):
        one.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_folder_is_made_for_the_socket(tmp_path):
    with pytest.raises(GateSocketError, match="No such file or directory"):
        sockets_of("127.0.0.1", 0, tmp_path / "none" / "g.sock")
    assert list(tmp_path.iterdir()) == []


def test_passed_sockets_are_taken_and_a_stop_is_an_orderly_end(tmp_path):
    with tempfile.TemporaryDirectory(prefix="gate-") as folder, socket.create_server(("127.0.0.1", 0)) as tvm:
        path = f"{folder}/g.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.bind(path)
            control.listen()
            log = tmp_path / "log"
            script = f'exec 3<&{tvm.fileno()} 4<&{control.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=2; exec "$@"'
            with log.open("wb") as out:
                child = subprocess.Popen(
                    ["bash", "-c", script, "gate", sys.executable, "-m", "farm", "gate", "--socket", "/nowhere/g.sock"],
                    pass_fds=(tvm.fileno(), control.fileno()), env=environment(), cwd=ROOT, stderr=out,
                )  # fmt: skip
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
                daemon.settimeout(HANG_S)
                daemon.connect(path)
                daemon.send(hello())
                welcome = json.loads(daemon.recv(1 << 16))
                assert (welcome["kind"], welcome["port"]) == ("welcome", tvm.getsockname()[1])
        finally:
            child.terminate()
            assert child.wait(HANG_S) == 0, log.read_text()
