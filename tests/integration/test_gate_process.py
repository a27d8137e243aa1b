"""The gate as a process of its own: its two sides over real sockets, and what it does with whoever is no daemon."""

import asyncio
import contextlib
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

from farm.core.events import EventLog
from farm.core.requests import Door, LeaseRequest
from farm.core.selector import Selector
from farm.leasing import Leasing
from farm.tracker import entrance, gate_door, gate_messages, gate_process, newcomers, remote_route, wire
from farm.tracker.connection import Limits
from farm.tracker.door import DoorPolicy
from farm.tracker.gate import GateLimits
from farm.tracker.gate_door import GateDoor, GateRefusedError, GateUnreachableError
from farm.tracker.gate_process import GateProcess, GateSocketError, sockets_of
from farm.tracker.handshake import SessionCode
from farm.tracker.places import FEWEST
from farm.tracker.relay import GOODBYE
from farm.tracker.sockets import OtherEnd
from tests.support.keeping import MemoryKeeper
from tests.support.raw import RawPhone, RawTracker, open_session
from tests.support.tvm import ROOT, FakeDevices, environment
from tests.support.waiting import PATIENCE_S, until


class Daemon:
    """Leasing and a door through the gate; its keeper is the store that outlives it."""

    def __init__(self, lab, epoch, farm="this farm"):
        self.events = EventLog()
        self.devices = FakeDevices()
        self.leasing = Leasing(self.devices, self.events, epoch, lab.keeper)
        policy = DoorPolicy(gate=GateLimits(idle_s=lab.idle_s))
        self.door = GateDoor(lab.path, farm, self.leasing, self.leasing, policy)
        self.port = lab.phone.port

    async def start(self):
        await self.door.start()
        self.kept = self.leasing.take_up(self.leasing_records(), self.door.survivors)
        self.devices.add("pixel", "android", port=self.port, secret="secret")
        self.door.begin()
        return self

    def leasing_records(self):
        return self.leasing._grants._keeper.open()

    async def stop(self):
        await self.door.stop()
        await self.leasing.close()

    async def die(self):
        """As kill -9 looks to the gate: the connection is lost, and nothing is said before."""
        self.door._link.close()
        self.door._link, self.door._linked = None, False
        self.door._sessions.clear()
        self.door._keeper.cancel()
        await self.door.tracker.close()

    def ended(self):
        return [event.data for event in self.events.since() if event.kind == "session.ended"]


class Lab:
    """A gate in this loop, one phone called `pixel` that echoes."""

    def __init__(self, *, wait_s=PATIENCE_S, idle_s=600.0):
        self.phone = RawPhone("secret", None)
        self.keeper = MemoryKeeper()
        self.wait_s, self.idle_s = wait_s, idle_s
        self.stop = asyncio.Event()
        self.closing = []

    async def __aenter__(self):
        self.loop = asyncio.get_running_loop()
        self.folder = tempfile.TemporaryDirectory(prefix="gate-")
        self.path = Path(self.folder.name) / "gate.sock"
        await self.phone.__aenter__()
        tvm, control = sockets_of("127.0.0.1", 0, self.path)
        self.gate = GateProcess(self.wait_s)
        self.task = asyncio.create_task(self.gate.run(tvm, control, self.stop))
        await until(lambda: self.gate.port)
        return self

    async def __aexit__(self, *_):
        for one in self.closing:
            one.close()
        self.stop.set()
        await self.task
        await self.phone.__aexit__()
        self.folder.cleanup()

    async def daemon(self, epoch=1, **more):
        return await Daemon(self, epoch, **more).start()

    async def key(self):
        client = await RawTracker.connect(self.gate.port)
        try:
            code, (host, port, match_key) = await client.ask(wire.Request("android", "", 1))
        finally:
            client.close()
        assert (code, host, port) == (0, "127.0.0.1", self.gate.port)
        return match_key

    async def dial(self, match_key):
        sock, hello, _ = await open_session(self.gate.port, match_key, "")
        self.closing.append(sock)
        return sock, hello

    async def session(self):
        sock, hello = await self.dial(await self.key())
        assert (hello.code, hello.server_key) == (SessionCode.SUCCESS, "server:android")
        return sock

    async def connected(self):
        """A connection to the daemon's socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        await self.loop.sock_connect(sock, str(self.path))
        return sock

    async def raw(self, *messages):
        """A connection to the daemon's socket that says this; returns what the gate answered until it closed."""
        with await self.connected() as sock:
            for message in messages:
                await self.loop.sock_sendall(sock, message)
            said = []
            async with asyncio.timeout(PATIENCE_S):
                while data := await self.loop.sock_recv(sock, 1 << 16):
                    said.append(json.loads(data))
            return said


async def echo(sock, data=b"ping"):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, data)
    async with asyncio.timeout(PATIENCE_S):
        return await loop.sock_recv(sock, 1 << 16) == data


def hello(v=gate_messages.VERSION, farm="this farm"):
    return gate_messages.encode(gate_messages.Hello(v, "0", farm, 1, 600.0))


async def test_a_session_through_both_processes_is_opened_copied_ended_and_counted():
    async with Lab() as lab:
        daemon = await lab.daemon()
        sock = await lab.session()
        assert await echo(sock)
        assert daemon.door.sessions == 1
        await until(lambda: daemon.door.heard_at)
        assert await echo(sock, GOODBYE)
        sock.close()
        await until(daemon.ended)
        [ended] = daemon.ended()
        assert (ended["outcome"], ended["bytes_up"], ended["bytes_down"]) == ("closed", 16, 16)
        await until(lambda: not daemon.leasing.holders())
        _, refused = await lab.dial("android:0123")
        assert refused.code is SessionCode.MISMATCH
        await daemon.stop()


@pytest.mark.parametrize("end", ["stop", "die"])
async def test_the_next_daemon_takes_up_session_and_lease(end):
    async with Lab() as lab:
        first = await lab.daemon()
        sock = await lab.session()
        [before] = first.leasing.holders()
        await getattr(first, end)()
        assert await echo(sock)
        second = await lab.daemon(2)
        assert second.kept == {before.lease.id}
        [after] = second.leasing.holders()
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
        lease = await first.leasing.acquire(LeaseRequest(Selector.parse("android"), "alice", Door.JOB))
        sock, _ = await lab.dial(first.leasing.new_match_key(lease.id, single_use=False))
        assert await echo(sock)
        await first.die()
        second = await lab.daemon(2)
        await until(second.ended)
        [ended] = second.ended()
        assert (ended["outcome"], ended["fence"], ended["user"]) == ("cut", lease.fence, "alice")
        assert second.kept == frozenset()
        assert not second.leasing.holders()
        await second.stop()


async def test_newcomers_wait_for_a_daemon_and_are_served():
    async with Lab() as lab:
        asking = asyncio.create_task(lab.key())
        dialling = asyncio.create_task(lab.dial("android:0123"))
        await until(lambda: lab.gate._newcomers.waiting == lab.gate._route.waiting == 1)
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
        assert lab.gate._newcomers.waiting == lab.gate._route.waiting == 0
        await until(lambda: lab.gate._entrance.open == 0)


async def test_no_more_newcomers_wait_than_there_is_room_for(monkeypatch, caplog):
    monkeypatch.setattr(newcomers, "MOST_WAITING", 1)
    async with Lab() as lab:
        first = asyncio.create_task(lab.key())
        await until(lambda: lab.gate._newcomers.waiting == 1)
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
            await lab.loop.sock_sendall(fake, gate_messages.encode(gate_messages.Ready()))
            await until(lambda: lab.gate._newcomers._link is not None)
            asking = asyncio.create_task(lab.key())
            await until(lambda: lab.gate._newcomers._all)
        daemon = await lab.daemon()
        assert await asking
        await daemon.stop()


async def test_a_daemon_that_dies_while_it_is_handed_newcomers_leaves_them_for_the_next(caplog):
    async with Lab() as lab:
        asking = [asyncio.create_task(lab.key()) for _ in range(2)]
        await until(lambda: lab.gate._newcomers.waiting == 2)
        with await lab.connected() as fake:
            await lab.loop.sock_sendall(fake, hello())
            await until(lambda: lab.gate._daemon is not None)
            with contextlib.suppress(BlockingIOError):
                while True:  # unread, it would hide what comes last
                    fake.recv(1 << 16)
            fake.send(gate_messages.encode(gate_messages.Ready()))
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
            await lab.loop.sock_sendall(hanging, gate_messages.encode(gate_messages.Ready()))
            await until(lambda: lab.gate._newcomers._link is not None)
            client = await RawTracker.connect(lab.gate.port, greet=False)
            await client.send(wire.encode_magic())
            await until(lambda: lab.gate._newcomers._all)
            client.close()
            await until(lambda: not lab.gate._newcomers._all)
            assert lab.gate._newcomers.waiting == lab.gate._entrance.open == 0


async def test_of_one_user_no_more_wait_than_its_share(monkeypatch, caplog):
    for module in (newcomers, remote_route):
        monkeypatch.setattr(module, "MOST_WAITING", 4 * FEWEST)
    monkeypatch.setattr(entrance, "other_end", lambda _: OtherEnd(user, 1, None))
    async with Lab() as lab:
        user = "ann"
        waiting = [asyncio.create_task(lab.key()) for _ in range(FEWEST)]
        opening = [asyncio.create_task(lab.dial("android:0123")) for _ in range(FEWEST)]
        await until(lambda: lab.gate._newcomers.waiting == lab.gate._route.waiting == FEWEST)
        with pytest.raises(EOFError):
            await lab.key()
        assert (await lab.dial("android:0123"))[1].code is SessionCode.MISMATCH
        assert caplog.text.count(f"{FEWEST} of ann wait for it already") == 2
        user = "bob"
        waiting.append(asyncio.create_task(lab.key()))
        await until(lambda: lab.gate._newcomers.waiting == FEWEST + 1)
        for one in (*waiting, *opening):
            one.cancel()
        await asyncio.gather(*waiting, *opening, return_exceptions=True)


async def test_who_takes_too_many_connections_is_a_problem_of_the_daemon(monkeypatch):
    monkeypatch.setattr(gate_process, "Limits", lambda: Limits(connections=4 * FEWEST))
    async with Lab() as lab:
        clients = [await RawTracker.connect(lab.gate.port, greet=False) for _ in range(FEWEST)]
        await until(lambda: lab.gate._entrance.open == FEWEST)
        with pytest.raises(EOFError):
            await lab.key()
        daemon = await lab.daemon()
        await until(lambda: "connections at once" in daemon.door.problem)
        clients.pop().close()
        await until(lambda: not daemon.door.problem)
        for client in clients:
            client.close()
        await daemon.stop()


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


async def test_a_daemon_told_to_stop_while_it_looks_for_the_gate_leaves_no_socket(monkeypatch):
    made = []

    class Kept(socket.socket):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    async def never(*_):
        await asyncio.Event().wait()

    async with Lab() as lab:
        monkeypatch.setattr(gate_door.socket, "socket", Kept)
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
        (hello(v=99), "version 1 of the gate's protocol, the daemon (farm 0) version 99"),
        (b'{"kind": "hello", "v": 7, "more": 1}', "the daemon (farm of another release) version 7"),
        (gate_messages.encode(gate_messages.Ready()), "did not begin with hello"),
    ],
)
async def test_whoever_is_no_daemon_of_this_release_is_told_why(first, said):
    async with Lab() as lab:
        [answer] = await lab.raw(first)
        assert answer["kind"] == "unwelcome"
        assert said in answer["reason"]
        daemon = await lab.daemon()
        await daemon.stop()


async def test_a_second_daemon_and_another_farms_daemon_are_refused(monkeypatch):
    monkeypatch.setattr(gate_door, "REFUSED_WAIT_S", 0.0)
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
    monkeypatch.setattr(gate_door, "REFUSED_WAIT_S", 0.0)
    async with Lab() as lab:
        [answer] = await lab.raw()  # who says nothing has no place either
        assert "it runs as uid" in answer["reason"]
        assert lab.gate._links == set()
        with pytest.raises(GateRefusedError, match="runs as uid"):
            await lab.daemon()


async def test_more_silent_daemons_than_the_gate_looks_at_wait_outside(monkeypatch):
    monkeypatch.setattr(gate_process, "MOST_LINKS", 2)
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


async def test_a_gate_that_ends_tells_its_sessions_ends_and_the_daemon_finds_the_next_one():
    async with Lab() as lab:
        daemon = await lab.daemon()
        await lab.session()
        lab.stop.set()
        await lab.task
        assert [end["outcome"] for end in daemon.ended()] == ["cut"]
        await until(lambda: "the gate is gone" in daemon.door.problem)
        assert daemon.door.pid == 0
        lab.stop = asyncio.Event()
        lab.gate = GateProcess(lab.wait_s)
        lab.task = asyncio.create_task(lab.gate.run(*sockets_of("127.0.0.1", 0, lab.path), lab.stop))
        await until(lambda: not daemon.door.problem)
        assert (daemon.door.port, daemon.door.pid) == (lab.gate.port, os.getpid())
        assert await echo(await lab.session())
        await daemon.leasing.revoke("pixel", "kicked")
        await daemon.stop()


async def test_a_gate_that_hangs_is_given_up_and_reached_again(monkeypatch, caplog):
    monkeypatch.setattr(gate_process, "ALIVE_EVERY_S", 3600.0)
    async with Lab() as lab:
        daemon = await lab.daemon()
        await lab.session()
        monkeypatch.setattr(gate_door, "SILENT_S", 0.05)
        lab.gate._daemon.link.send(gate_messages.Crowded(""))  # its last word
        daemon.door._keeper.cancel()  # which waits for the time of before
        daemon.door._keeper = asyncio.create_task(daemon.door._keep())
        await until(daemon.ended)
        assert [end["outcome"] for end in daemon.ended()] == ["cut"]
        monkeypatch.setattr(gate_door, "SILENT_S", 3600.0)
        await until(lambda: daemon.door.sessions == 0 and not daemon.door.problem)
        assert "it has said nothing for 0.05 s" in caplog.text
        await daemon.stop()


async def test_no_gate_is_said_with_a_hint(monkeypatch):
    monkeypatch.setattr(gate_door, "START_WAIT_S", 0.0)
    async with Lab() as lab:
        lab.path = Path(lab.folder.name) / "none.sock"
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
                daemon.settimeout(PATIENCE_S)
                daemon.connect(path)
                daemon.send(hello())
                welcome = json.loads(daemon.recv(1 << 16))
                assert (welcome["kind"], welcome["port"]) == ("welcome", tvm.getsockname()[1])
        finally:
            child.terminate()
            assert child.wait(PATIENCE_S) == 0, log.read_text()
