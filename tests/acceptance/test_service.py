"""Daemon and gate as systemd runs them: what it is told and when, watchdogs, reloads, the rights of farm.service."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from farm.common.errors import ExitCode
from farm.control.client import ControlClient
from farm.jobs.config import JobsConfig
from farm.jobs.worker_user import SETUID_AND_SETGID
from farm.simulation.virtual_farm import DaemonProcess
from farm.tvm_server.gate import messages as m
from tests.support import seccomp
from tests.support.long_bench import bench_under_way
from tests.support.stock_client import Clients
from tests.support.systemd import Host, Manager
from tests.support.users import needs_another_user
from tests.support.whole_farm import Story, answer, refused, running_farm, until

WATCHDOG_S = 6.0
UNIT = Path(__file__).parents[2] / "systemd" / "farm.service"
DAEMON, WORKER = "nobody", "daemon"  # users that every host has, in the places of farm and farm-job


@contextmanager
def watched_farm(*profiles, tmp_path, monkeypatch, config=""):
    manager = Manager(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", f"{WATCHDOG_S * 1e6:.0f}")
    started = DaemonProcess.start

    def start(self):
        manager.attempt = lambda: role_at(self.runtime / "control.sock")
        return started(self)

    monkeypatch.setattr(DaemonProcess, "start", start)
    with running_farm(*profiles, config=config) as farm:
        yield farm, manager


def role_at(path):
    with ControlClient(path) as client:
        return client.call("ping")["role"]


def gaps(times):
    return [after - before for before, after in pairwise(times)]


def test_a_watchdog_hears_progress_and_nothing_else(tmp_path, monkeypatch):
    with watched_farm("galaxy-a55", tmp_path=tmp_path, monkeypatch=monkeypatch) as (farm, manager):
        assert manager.served_when_ready == "operator"
        until(lambda: "STATUS=phones: 1 ready; 0 leased, 0 sessions, 0 requests waiting" in manager.statuses())

        # An adb server that hangs is the phones' trouble, not the daemon's: it is asked, it times out, it is replaced.
        story = Story(farm)
        adb = next(child for child in psutil.Process(farm.daemon.process.pid).children() if child.name() == "adb")
        wedged_at = time.monotonic()
        adb.send_signal(signal.SIGSTOP)
        story.until("adb.lost")
        until(lambda: len(manager.times("WATCHDOG=1", wedged_at)) >= 3)
        alive = manager.times("WATCHDOG=1")
        assert max(gaps(alive)) < WATCHDOG_S, gaps(alive)
        story.until("device.ready")

        # A daemon that stands still says nothing: systemd would end it now, with SIGABRT.
        daemon = psutil.Process(farm.daemon.process.pid)
        daemon.suspend()
        until(lambda: daemon.status() == psutil.STATUS_STOPPED)
        said = len(manager.received)
        stopped_at = time.monotonic()
        until(lambda: time.monotonic() - stopped_at > WATCHDOG_S)
        assert len(manager.received) <= said + 1  # one may have been on its way
        daemon.resume()
        until(lambda: len(manager.received) > said + 1)

        farm.daemon.stop()
        until(lambda: manager.times("STOPPING=1"))
    assert len(manager.times("READY=1")) == 1
    assert "STOPPING=1" in manager.received[-1][1]


def greeting(path):
    """What a gate answers a daemon."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.connect(str(path))
        daemon.send(m.encode(m.DaemonHello(m.VERSION, "0", "a farm", os.getpid(), 600.0)))
        return m.decode(daemon.recv(m.MAX_MESSAGE_BYTES), m.FROM_GATE)


def test_a_gate_that_hangs_is_not_fed_and_the_next_one_has_its_port():
    with tempfile.TemporaryDirectory(prefix="farm-s-") as folder:
        host = Host(Path(folder))
        first, second = (Manager(host.folder, name) for name in ("first", "second"))
        with host.sockets("farm-gate.socket") as passed:
            tvm, control = passed
            first.attempt = second.attempt = lambda: greeting(control.getsockname())
            with host.service("farm-gate.service", passed=passed, manager=first, watchdog_s=WATCHDOG_S) as gate:
                until(lambda: first.served_when_ready)
                assert first.served_when_ready.port == tvm.getsockname()[1]
                until(lambda: len(first.times("WATCHDOG=1")) >= 3)
                assert max(gaps(first.times("WATCHDOG=1"))) < WATCHDOG_S
                assert first.statuses()[0] == "STATUS=0 sessions, 0 clients wait; the daemon is away"

                process = psutil.Process(gate.pid)
                process.suspend()
                until(lambda: process.status() == psutil.STATUS_STOPPED)
                said, stopped_at = len(first.received), time.monotonic()
                until(lambda: time.monotonic() - stopped_at > WATCHDOG_S)
                assert len(first.received) <= said + 1  # one may have been on its way
                gate.send_signal(signal.SIGABRT)  # as WatchdogSignal= says
                process.resume()
                assert gate.wait() == -signal.SIGABRT
                assert "Fatal Python error: Aborted" in host.log.read_text()
            with host.service("farm-gate.service", passed=passed, manager=second) as gate:
                until(lambda: second.served_when_ready)
                assert second.served_when_ready.port == tvm.getsockname()[1]
                gate.terminate()
                assert gate.wait() == 0
            until(lambda: second.times("STOPPING=1"))
            assert not first.times("STOPPING=1")


def test_a_reload_while_a_session_goes_on(tmp_path, monkeypatch, kernel):
    hold = "session = connect().request('android'); tell(add_one(session)); wait(); tell(add_one(session))"
    with watched_farm("galaxy-note20", tmp_path=tmp_path, monkeypatch=monkeypatch) as (farm, manager):
        configured = farm.daemon.config.read_text()
        with Clients(farm, kernel).running(hold) as client:
            assert client.hear() is True
            story = Story(farm)

            farm.daemon.config.write_text(configured + "[aliases]\nmine = 'pool=virtual'\n[jobs]\nworkers = 3\n")
            # As `systemctl kill -s HUP farm`; adb has a service of its own there.
            children = [each for each in psutil.Process(farm.daemon.process.pid).children(True) if each.name() != "adb"]
            for each in (*children, farm.daemon.process):
                each.send_signal(signal.SIGHUP)
            told = story.until("config.reloaded")["data"]
            assert (told["by"], told["applied"], told["restart"]) == ("SIGHUP", ["aliases.mine"], ["jobs.workers"])
            assert "mine" in [row["key"] for row in farm.status()["keys"]]

            farm.daemon.config.write_text(configured + "[quota]\ndevises = 1\n")
            refused(farm.farm("reload"), 2, "unknown key 'quota.devises'")
            assert story.until("config.refused")["data"]["by"] == "root"
            assert "mine" in [row["key"] for row in farm.status()["keys"]]  # the old one holds on

            farm.daemon.config.write_text(configured + "[lease]\nidle_s = 100.0\n")
            assert answer(farm.farm("reload", "--json")) == {
                "applied": ["aliases.mine", "lease.idle_s"],
                "restart": [],
                "notes": [],
            }
            assert "mine" not in [row["key"] for row in farm.status()["keys"]]
            assert not {"session.cut", "lease.revoked"} & set(story.kinds())
            assert {"gate", "farm.worker.zygote"} <= {word for each in children for word in each.cmdline()}
            client.go()
            assert client.hear() is True  # the same session, after three reloads
        until(lambda: len(manager.times("READY=1")) == 4)
        assert len(manager.times("RELOADING=1")) == 3


def as_the_unit_has_it(folder):
    """A program that runs another with the rights of farm.service: its own user, two capabilities, its system calls."""
    script = folder / "as-farm"
    script.write_text(
        f"""#!/bin/sh
before=
for word in "$@"; do
    case $before in
    --state-dir | --runtime-dir)
        mkdir -p "$word" && chown {DAEMON} "$word" && chmod 711 "$word" && chmod o+x "${{word%/*}}" || exit
        ;;
    esac
    before=$word
done
capabilities=-all,+setuid,+setgid
umask 077
exec setpriv --reuid {DAEMON} --regid nogroup --groups {WORKER} --inh-caps $capabilities \
    --ambient-caps $capabilities --bounding-set $capabilities --no-new-privs \
    {sys.executable} {seccomp.__file__} {UNIT} "$@"
"""
    )
    script.chmod(0o755)
    return (str(script),)


def effective_capabilities(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapPrm:"))


@needs_another_user
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv here")
@pytest.mark.skipif(bool(seccomp.why_not()), reason=seccomp.why_not() or "a filter can be made here")
def test_workers_are_somebody_else_with_the_rights_of_the_unit(tmp_path, monkeypatch):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    monkeypatch.setattr(DaemonProcess, "wrapper", as_the_unit_has_it(tmp_path))
    with running_farm("galaxy-s9", config=f'[jobs]\nuser = "{WORKER}"\n', other_user=True) as farm:
        daemon = psutil.Process(farm.daemon.process.pid)
        assert daemon.username() == DAEMON
        assert effective_capabilities(daemon.pid) == SETUID_AND_SETGID
        (found,) = (row for row in farm.client.call("doctor")["findings"] if row["check"] == "workers")
        assert found["detail"] == f"run as {WORKER}, with a uid for each user"

        # An operator's folder, closed to the daemon, is uploaded.
        [kept] = farm.client.call("bundle.list")["bundles"]
        closed = tmp_path / "closed"
        shutil.copytree(farm.folder / "state" / "bundles" / "objects" / kept["hash"] / "files", closed)
        closed.chmod(0o700)
        assert answer(farm.farm("bundle", "add", str(closed), "--name", "own", "--json"))["hash"] == kept["hash"]

        # Whoever dials a lease is told from a phone: that takes a look at the adb server's sockets.
        held = answer(farm.farm("lease", "acquire", "--on", "android", "--for", "1m", "--json"))
        listed = subprocess.run(
            [farm.adb_path, "-P", str(held["adb_port"]), "devices"], capture_output=True, text=True, check=True,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        )  # fmt: skip
        assert held["serial"] in listed.stdout
        assert farm.farm("lease", "release", held["lease"]).returncode == 0

        with bench_under_way(farm) as worker:
            uid = worker.uids().real
            assert uid == worker.gids().real >= JobsConfig().first_uid
            assert effective_capabilities(worker.pid) == 0
            folder = worker.cwd()
            # What a worker leaves behind in a folder that is closed to the daemon is removed all the same.
            subprocess.run(
                ["sh", "-c", f"mkdir -p {folder}/deep/er && touch {folder}/deep/er/file && chmod 700 {folder}/deep"],
                user=uid, group=uid, extra_groups=[pwd.getpwnam(WORKER).pw_gid], check=True,
            )  # fmt: skip


def test_a_drained_host_hands_nothing_out_until_it_is_told_or_restarted(kernel):
    hold = "session = connect().request('android'); tell(add_one(session)); wait(); close(session)"
    with running_farm("galaxy-note20") as farm:
        clients = Clients(farm, kernel)
        with clients.running(hold) as first:
            assert first.hear() is True
            done = farm.farm("drain")
            assert done.returncode == ExitCode.NO_PHONE, done  # one is out
            assert any("drains this host" in problem for problem in farm.status()["problems"])
            with clients.running(hold) as second:
                until(lambda: any(row["pending"] for row in farm.status()["keys"]))
                first.finish()
                done = farm.farm("drain", "--wait", "60", "--json")
                assert (done.returncode, answer(done)["leases"]) == (0, [])
                assert any(row["pending"] for row in farm.status()["keys"])  # it waits, and is not refused
                refused(farm.farm("lease", "acquire", "--on", "android"), ExitCode.NO_PHONE, "farm drain --end")
                assert farm.farm("drain", "--end").returncode == 0
                assert second.hear() is True
                assert not farm.status()["problems"]
