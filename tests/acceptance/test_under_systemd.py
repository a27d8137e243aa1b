"""The wheel's service under a real systemd, installed as docs/service.md says: its life, journal, files and doors."""

import json
import re
import signal
import sqlite3

import pytest

from tests.support.debian import booted_debian
from tests.support.whole_farm import answer, refused, until

pytestmark = pytest.mark.timeout(900)  # the first run makes the root: packages of Debian and of PyPI

PYTHON = "/opt/farm/bin/python"
CONFIG = "/etc/farm/farm.toml"
ADOPT = '[[adopt]]\nmatch = "virtual=yes"\n'
MISTAKE = "[quota]\ndevises = 1\n"
BUNDLE = "from pathlib import Path; from farm.simulation.runtime import build_bundle_folder as build; build(Path('{}'))"
PHONES = (
    "systemd-run", "--unit=phones", PYTHON, "-P", "-m", "farm.simulation.lab", "--dir", "/run/phones",
    "--expose-python", "--adb-socket", "localfilesystem:/run/farm-adb/adb.sock", "--phone", "one=oneplus-12",
)  # fmt: skip
STOCK_CLIENT = """
from tvm import rpc
print(rpc.connect_tracker("127.0.0.1", 9190).request("android", session_timeout=60).cpu(0).exist)
"""
CALLS, ENOUGH = "/run/calls", "/run/enough"  # a byte for each call of a session, and when it may end
SESSION = f"""
import pathlib
from tvm import rpc
session = rpc.connect_tracker("127.0.0.1", 9190).request("android", session_timeout=600)
with open("{CALLS}", "ab", buffering=0) as calls:
    while not pathlib.Path("{ENOUGH}").exists():
        assert session.cpu(0).exist
        calls.write(b".")
"""
WATCHDOG = "/run/systemd/system/farm.service.d/watchdog.conf"
WATCHDOG_S = 15
WORDS = {2: "CRITICAL", 3: "ERROR", 4: "WARNING", 6: "INFO"}  # by priority


@pytest.fixture(scope="module")
def debian(wheel):
    with booted_debian() as debian:
        debian.install(wheel, "tvm")
        debian.output("systemctl", "enable", "--now", "farm-adb.service", "farm-gate.socket", "farm.service")
        debian.output("useradd", "member")
        debian.output("usermod", "-aG", "farm", "member")
        debian.output("useradd", "stranger")
        yield debian


@pytest.fixture
def configured(debian):
    """Write the configuration; at the end the service is there with the first one."""
    first = debian.path(CONFIG).read_text()
    yield lambda more: debian.path(CONFIG).write_text(first + more)
    debian.path(CONFIG).write_text(first)
    debian.output("systemctl", "restart", "farm")


@pytest.fixture(scope="module")
def phone(debian):
    """A virtual phone on the service's adb server, adopted and ready."""
    with debian.path(CONFIG).open("a") as config:
        config.write(ADOPT)
    debian.output("systemctl", "reload", "farm")
    debian.output(PYTHON, "-P", "-c", BUNDLE.format("/srv/virtual"))
    debian.output("farm", "bundle", "add", "/srv/virtual")
    debian.output(*PHONES)
    until(lambda: phone_states(debian) == ["ready"])


def phone_states(debian):
    return [row["state"] for row in answer(debian.run("farm", "status", "--json"))["devices"]]


def running_pid(debian):
    """Of the daemon; "": it is not up."""
    state, pid = debian.unit("farm", "ActiveState", "MainPID")
    return pid if state == "active" and pid != "0" else ""


def warnings(debian):
    return debian.output("journalctl", "-u", "farm", "-p", "warning", "--no-pager")


def test_the_units_are_active_and_the_doctor_finds_nothing_to_repair(debian):
    for unit in ("farm-adb.service", "farm-gate.socket", "farm.service"):
        assert debian.unit(unit, "ActiveState", "UnitFileState") == ["active", "enabled"]
    found = {row["check"]: row["verdict"] for row in answer(debian.run("farm", "doctor", "--json"))["findings"]}
    assert {found[check] for check in ("service", "daemon", "exposure", "workers", "adb server")} == {"ok"}


def test_a_reload_is_done_or_fails_for_everybody_to_see(debian, configured):
    daemon = debian.unit("farm", "MainPID")
    configured("[lease]\nidle_s = 100.0\n")
    debian.output("systemctl", "reload", "farm")
    configured(MISTAKE)
    assert debian.run("systemctl", "reload", "farm").returncode != 0
    assert "error: /etc/farm/farm.toml: unknown key 'quota.devises'" in warnings(debian)
    refused(debian.run("farm", "reload"), 2, "unknown key 'quota.devises'")
    assert "config.refused daemon by=root" in warnings(debian)
    assert debian.unit("farm", "ActiveState", "MainPID") == ["active", *daemon]


def test_a_mistake_in_the_configuration_ends_the_service_once(debian, configured):
    configured(MISTAKE)
    assert debian.run("systemctl", "restart", "farm").returncode != 0
    # SubState would be auto-restart.
    assert debian.unit("farm", "SubState", "ExecMainStatus", "NRestarts") == ["failed", "2", "0"]
    refused(debian.run("farm", "status"), 4)


def test_an_operator_restarts_as_often_as_they_like(debian):
    for _ in range(6):
        debian.output("systemctl", "restart", "farm")
    assert debian.unit("farm", "ActiveState", "Result") == ["active", "success"]


def test_a_backup_is_where_the_operator_wants_it(debian):
    for path in ("/root/b.db", "/tmp/b.db"):
        debian.output("farm", "store", "backup", path)
        copy = debian.path(path)
        with sqlite3.connect(copy) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert (copy.owner(), copy.stat().st_mode & 0o777) == ("root", 0o600)


def test_what_the_sandbox_hides_is_refused_with_where_to_put_it(debian):
    done = debian.run("farm", "toolchain", "add", "other", "--python", "/root/bin/python")
    assert ("Permission denied" in done.stderr, "use /opt or /srv" in done.stderr) == (True, True), done


@pytest.mark.usefixtures("phone")
def test_members_of_the_group_have_phones_and_strangers_have_not(debian):
    refused(debian.run("farm", "status", user="stranger"), 5, "usermod -aG farm")
    tried = debian.run(PYTHON, "-c", STOCK_CLIENT, user="stranger")
    assert (tried.stdout, "not in the group farm" in tried.stderr) == ("", True)
    assert answer(debian.run("farm", "status", "--json", user="member"))["devices"]
    assert debian.output(PYTHON, "-c", STOCK_CLIENT, user="member") == "True\n"


@pytest.mark.usefixtures("phone")
def test_a_stock_session_outlives_a_restart_and_a_killed_daemon(debian):
    debian.output("systemd-run", "--unit=session", PYTHON, "-c", SESSION)
    calls = debian.path(CALLS)
    until(calls.exists)
    for end in (("restart",), ("kill", "--kill-whom=main", "--signal=SIGKILL")):
        (before,) = debian.unit("farm", "MainPID")
        debian.output("systemctl", *end, "farm")
        until(lambda old=before: running_pid(debian) not in ("", old))
        until(lambda: phone_states(debian) == ["busy"])
        made = calls.stat().st_size
        until(lambda made=made: calls.stat().st_size > made)
    debian.path(ENOUGH).touch()
    until(lambda: debian.unit("session", "ActiveState") != ["active"])
    assert debian.unit("session", "Result") == ["success"]  # else it would be kept as failed


@pytest.mark.usefixtures("phone")
def test_a_killed_adb_server_is_replaced_and_the_phone_comes_back(debian):
    debian.output("systemctl", "kill", "--signal=SIGKILL", "farm-adb")
    until(lambda: debian.unit("farm-adb", "ActiveState", "NRestarts") == ["active", "1"])
    until(lambda: phone_states(debian) == ["ready"])


def test_the_journal_has_priorities_and_one_time_a_line(debian):
    assert debian.run(PYTHON, "-c", STOCK_CLIENT, user="stranger").returncode != 0  # it causes a warning
    lines = debian.output("journalctl", "-u", "farm", "-u", "farm-gate", "-o", "json").splitlines()
    logged = [entry for entry in map(json.loads, lines) if entry["MESSAGE"].startswith(tuple(WORDS.values()))]
    assert {entry["PRIORITY"] for entry in logged} >= {"4", "6"}
    assert [each for each in logged if WORDS[int(each["PRIORITY"])] != each["MESSAGE"].split()[0]] == []
    assert "WARNING farm.tvm_server.listener: stranger" in warnings(debian)
    shown = debian.output("journalctl", "-u", "farm", "-u", "farm-gate", "--no-pager").splitlines()
    assert [line for line in shown if len(re.findall(r"\d\d:\d\d:\d\d", line)) != 1] == []


@pytest.mark.parametrize(("number", "result"), [(signal.SIGKILL, "signal"), (signal.SIGSTOP, "watchdog")])
def test_a_daemon_that_is_killed_or_hangs_is_replaced(number, result, debian):
    limit = debian.path(WATCHDOG)
    limit.parent.mkdir(parents=True, exist_ok=True)
    limit.write_text(f"[Service]\nWatchdogSec={WATCHDOG_S}\n")  # sooner than the unit's
    debian.output("systemctl", "daemon-reload")
    debian.output("systemctl", "restart", "farm")
    (pid,) = debian.unit("farm", "MainPID")
    debian.output("systemctl", "kill", "--kill-whom=main", f"--signal={number.name}", "farm")
    until(lambda: not debian.path(f"/proc/{pid}").exists())
    until(lambda: debian.unit("farm", "ActiveState") == ["active"] and debian.unit("farm", "NRestarts") != ["0"])
    assert f"Failed with result '{result}'" in warnings(debian)
    answer(debian.run("farm", "status", "--json"))


def test_installed_again_it_runs_on_and_uninstalled_it_leaves_the_database(debian):
    debian.output("farm", "install-service")
    assert debian.unit("farm", "ActiveState") == ["active"]
    debian.output("farm", "install-service", "--uninstall")
    assert debian.unit("farm", "LoadState", "ActiveState") == ["not-found", "inactive"]
    assert list(debian.path("/var/lib/farm").glob("*.db"))
