"""Farm's own adb server, with the real programs and no phone."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from farm.adb import program
from farm.adb.errors import AdbError, AdbNotInstalled, AdbPortTaken, AdbServerUnreachable
from farm.adb.program import find_adb, other_servers, port_holder, read_version, server_pid, socket_holder
from farm.adb.server import AdbServer, authorization_steps
from farm.adb.watch_policy import BackOff, Load, WatchPolicy
from tests.integration.adb.conftest import server_in
from tests.support.tvm import free_port
from tests.support.waiting import HANG_S, until
from tests.unit.adb.watching import watching

FAST = WatchPolicy(server=BackOff(0.01, 0.1), tick_s=0.05, probe_every_s=0.1, probe_timeout_s=0.3)


@pytest.fixture
def short_limits(monkeypatch):
    """A server that hangs is waited for to the end of each limit."""
    monkeypatch.setattr("farm.adb.client.HOST_TIMEOUT_S", 0.3)
    monkeypatch.setattr("farm.adb.server.DYING_TIMEOUT_S", 0.2)
    monkeypatch.setattr("farm.adb.server.STOP_TIMEOUT_S", 0.2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
async def test_a_member_of_its_group_does_not_reach_it(own_server, folder):
    """Users have a lease's own adb server; this one has everybody's phones."""
    await asyncio.to_thread(folder.chmod, 0o755)
    path, answered = folder / "adb.sock", await own_server.client.version()
    with socket.socket(socket.AF_UNIX) as member:
        os.setegid(path.stat().st_gid)
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError):
                member.connect(str(path))
        finally:
            os.seteuid(0)
            os.setegid(0)
        member.connect(str(path))
    assert (answered, stat.S_IMODE(path.stat().st_mode) & 0o077) == (41, 0)


async def test_the_farms_key_is_the_servers_only_key(own_server, folder):
    assert own_server.key == folder / "adbkey"
    assert stat.S_IMODE(own_server.key.stat().st_mode) == 0o600
    assert (folder / ".android" / "adbkey").resolve() == own_server.key.resolve()
    before = own_server.key.read_bytes()
    await own_server.restart()
    assert own_server.key.read_bytes() == before
    keys = await asyncio.to_thread(lambda: [path for path in folder.rglob("adbkey") if not path.is_symlink()])
    assert keys == [own_server.key]


async def test_a_crashed_server_is_started_again_over_its_old_socket(own_server):
    first = own_server.pid
    os.kill(first, signal.SIGKILL)
    assert await own_server.ensure() == 41
    assert own_server.pid not in (None, first)


async def test_a_server_that_is_stopped_leaves_no_socket(own_server, folder):
    await own_server.stop()
    assert not (folder / "adb.sock").exists()
    assert await own_server.ensure() == 41


async def test_a_server_that_is_stopped_while_it_starts_is_not_left_behind(binary, folder):
    """As when a daemon is ended right after its start: the start continues, although nobody waits for it any more."""
    server = AdbServer(binary, f"localfilesystem:{folder / 'adb.sock'}", folder / "adb", usb=False)
    caller = asyncio.create_task(server.ensure())
    await asyncio.sleep(0)
    caller.cancel()
    await server.stop()
    assert server._starting.done()
    assert server.pid is None
    assert not (folder / "adb.sock").exists()


async def test_many_callers_start_one_server(binary, folder):
    server = server_in(folder, binary)
    try:
        assert await asyncio.gather(*(server.ensure() for _ in range(20))) == [41] * 20
        mine = [
            p
            for p in psutil.Process().children()
            if p.name() == "adb" and f"{folder}/adb.sock" in " ".join(p.cmdline())
        ]
        assert [p.pid for p in mine] == [server.pid]
    finally:
        await server.stop()


async def test_somebody_elses_server_on_a_port_is_used_and_left_running(binary, folder):
    spec = f"tcp:127.0.0.1:{free_port()}"
    first = AdbServer(binary, spec, folder / "first", usb=False)
    second = AdbServer(binary, spec, folder / "second", usb=False)
    try:
        assert await first.ensure() == await second.ensure() == 41
        assert second.pid is None
        await second.stop()
        assert await first.client.version() == 41
    finally:
        await first.stop()


async def started_by_somebodys_adb(server, folder):
    """Any adb program starts a server where it finds none: the process id of that."""
    theirs = {**os.environ, "HOME": str(folder / "them"), "ADB_SERVER_SOCKET": server.client.address.spec}
    theirs |= {"ADB_USB": "0", "ADB_MDNS": "0", "ADB_LOCAL_TRANSPORT_MAX_PORT": "5554"}
    (folder / "them").mkdir()
    adb = await asyncio.create_subprocess_exec(
        str(server.binary.path), "devices", env=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await asyncio.wait_for(adb.wait(), HANG_S)
    return server_pid(server.client.address)


def who_answers(server):
    """The process id of the server that takes connections; None: nobody does yet."""
    try:
        return server_pid(server.client.address)
    except OSError:
        return None


async def test_a_server_that_somebodys_adb_started_on_farms_socket_is_replaced(own_server, folder):
    await own_server.stop()
    foreign = await started_by_somebodys_adb(own_server, folder)
    assert await own_server.ensure() == 41
    assert server_pid(own_server.client.address) == own_server.pid != foreign


@pytest.mark.parametrize("first", [True, False])
async def test_a_server_of_somebodys_adb_that_comes_while_farms_is_started_is_replaced(
    own_server, folder, monkeypatch, *, first
):
    await own_server.stop()
    start, socket_file = own_server._start, Path(own_server.client.address.path)
    came = []

    async def start_beside():
        if first and not came:
            came.append(psutil.Process(await started_by_somebodys_adb(own_server, folder)))
        await start()
        if not came:
            await until(lambda: who_answers(own_server) == own_server.pid)
            await asyncio.to_thread(socket_file.unlink)  # as adb itself does where it means to listen
            came.append(psutil.Process(await started_by_somebodys_adb(own_server, folder)))

    monkeypatch.setattr(own_server, "_start", start_beside)
    try:
        assert await own_server.ensure() == 41
        assert server_pid(own_server.client.address) == own_server.pid != came[0].pid
        await asyncio.to_thread(came[0].wait, 20)
    finally:
        for each in came:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


async def test_the_server_of_a_killed_daemon_is_taken_over(own_server, folder):
    second = server_in(folder, own_server.binary)
    assert await second.ensure() == 41
    assert second.pid == own_server.pid
    await second.stop()
    with pytest.raises(AdbServerUnreachable):
        await own_server.client.version()


async def test_one_that_ends_with_a_connection_taken_is_waited_for(own_server, folder, monkeypatch):
    adopted = server_in(folder, own_server.binary)
    closed = AdbServerUnreachable("the adb server closed the connection")
    answers = iter([41, closed, AdbServerUnreachable("nobody listens", no_listener=True)])

    async def version():
        answer = next(answers)
        if isinstance(answer, AdbError):
            raise answer
        return answer

    monkeypatch.setattr(adopted.client, "version", version)
    await adopted.stop(even_adopted=True)
    assert list(answers) == []


async def test_it_works_on_a_tcp_port_too_and_says_who_holds_it(binary, folder):
    server = AdbServer(binary, f"tcp:127.0.0.1:{free_port()}", folder, usb=False)
    try:
        assert await server.ensure() == 41
        holder = port_holder(server.client.address.port)
        assert holder == socket_holder(server.client.address)
        assert holder.pid == server.pid
    finally:
        await server.stop()


async def test_a_taken_port_names_its_holder(binary, folder):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # bound, not listening: a connect is refused, a listen impossible
        server = AdbServer(binary, f"tcp:{holder.getsockname()[1]}", folder, usb=False)
        with pytest.raises(AdbPortTaken) as caught:
            await server.ensure()
        assert "Address already in use" in caught.value.evidence
        await server.stop()


async def test_another_server_is_seen_without_a_word_to_it(own_server):
    seen = other_servers(own_server.client.address.spec, port=free_port())
    assert own_server.pid not in [process.pid for process in seen]
    foreign = [process for process in other_servers("tcp:1", port=free_port()) if process.pid == own_server.pid]
    assert len(foreign) == 1
    assert foreign[0].user in str(foreign[0])
    assert str(own_server.pid) in str(foreign[0])
    assert not foreign[0].usb  # started with ADB_USB=0: it holds nobody's phone


async def test_a_server_is_ones_own_however_its_address_is_spelled(binary, folder):
    server = AdbServer(binary, f"tcp:{free_port()}", folder, usb=False)
    port = server.client.address.port
    try:
        await server.ensure()
        for own in (f"tcp:{port}", f"tcp:localhost:{port}", f"tcp:127.0.0.1:{port}"):
            for usual in (port, free_port()):
                assert server.pid not in [each.pid for each in other_servers(own, port=usual)]
    finally:
        await server.stop()


async def test_whoever_listens_on_the_usual_port_counts(tmp_path):
    stranger = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with stranger:
        port = stranger.sockets[0].getsockname()[1]
        found = [p for p in other_servers("tcp:1", port=port) if p.pid == os.getpid()]
        assert [(p.pid, p.usb) for p in found] == [(os.getpid(), True)]


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(
    ("leases", "patience_s", "told"),
    [(0, FAST.hurt_after_s, ["adb.lost", "adb.back"]), (1, 1.0, ["adb.hangs", "adb.lost", "adb.back"])],
    ids=["idle", "nothing works on it any more"],
)
async def test_the_watcher_replaces_a_hanging_server(own_server, leases, patience_s, told):
    async with watching(own_server.client, replace(FAST, hurt_after_s=patience_s), server=own_server) as (
        watcher,
        seen,
    ):
        watcher.load = lambda: Load(leases=leases)
        await seen.until(lambda: watcher.devices == ())
        first = own_server.pid
        os.kill(first, signal.SIGSTOP)
        await seen.until(lambda: seen.kinds == told)
        assert "hangs" in seen.news[0].message
        assert own_server.pid not in (None, first)


async def test_a_hanging_server_with_leases_on_it_gets_its_time(own_server):
    async with watching(own_server.client, FAST, server=own_server) as (watcher, seen):
        watcher.load = lambda: Load(leases=1)
        await seen.until(lambda: watcher.devices == ())
        first = own_server.pid
        os.kill(first, signal.SIGSTOP)
        await seen.until(lambda: seen.kinds == ["adb.hangs"])
        os.kill(first, signal.SIGCONT)
        await seen.until(lambda: seen.kinds == ["adb.hangs", "adb.back"])
        assert own_server.pid == first


def test_the_adb_program_is_found_in_order(binary, tmp_path, monkeypatch):
    assert find_adb(binary.path) == binary
    link = tmp_path / "adb"
    link.symlink_to(binary.path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_adb().path == link
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_adb().path.parts[-3:] == ("adbutils", "binaries", "adb")
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(AdbNotInstalled, match="PATH or inside adbutils"):
        find_adb()


@pytest.mark.parametrize("kind", ["missing", "python", "directory"])
def test_a_configured_program_that_is_not_adb_is_refused(tmp_path, kind):
    path = {"missing": tmp_path / "adb", "python": Path(sys.executable), "directory": tmp_path}[kind]
    with pytest.raises(AdbNotInstalled) as caught:
        read_version(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_the_walk_through_names_phone_and_key(tmp_path):
    text = authorization_steps("SER1", tmp_path / "adbkey")
    assert "SER1" in text
    assert str(tmp_path / "adbkey.pub") in text
    assert max(map(len, text.splitlines())) < 200
