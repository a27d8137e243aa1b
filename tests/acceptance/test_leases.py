"""Leases of people on a virtual farm: acquired, used with adb and TVM, extended, ended in every way, over restarts."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from urllib.parse import urlsplit

import adbutils
import pytest
from adbutils.errors import AdbConnectionError

from farm import Client
from farm.common.errors import ExitCode
from tests.adb_server import adb_binaries
from tests.support.held_lease import LIMIT_S, acquire, adb, closed, environment, use_tvm
from tests.support.tvm import environment as for_tvm
from tests.support.users import needs_another_user
from tests.support.whole_farm import ON_PHONE, Story, answer, phones, refused, until, until_ready

NOBODY = 65534
SERVER_STATE = "/data/local/tmp/farm/run/state"

pytestmark = pytest.mark.farm("oneplus-12", "galaxy-a55")


@pytest.fixture
def farm(whole):
    until_ready(whole)
    yield whole
    for lease in whole.client.call("lease.list")["leases"]:
        whole.farm("lease", "kick", lease["id"])
    until(lambda: not whole.client.call("lease.list")["leases"])


def ours_by_kind(phone):
    """What is farm's on the phone, without the names of its server's start."""
    return sorted(re.sub(r"[.][0-9a-f]{16}$", "", path) for path in phone.ours())


def test_a_lease_is_adb_and_tvm_on_one_phone_and_leaves_no_trace(farm):
    phone, other = phones(farm)
    before, served = ours_by_kind(phone), phone.shell(f"cat {SERVER_STATE}")
    held = acquire(farm, phone.name, "--for", "10m", "--note", "looking at drivers")
    assert (held["device"], held["serial"]) == (phone.name, phone.serial)
    for binary in adb_binaries().values():
        listed = adb(held, "devices", binary=binary)
        assert listed.stdout.split("\n")[1:] == [f"{phone.serial}\tdevice", "", ""], listed
        assert adb(held, "-s", other.serial, "shell", "true", binary=binary).returncode != 0
    assert adb(held, "push", __file__, f"{ON_PHONE}/mine").returncode == 0
    started = adb(held, "shell", f"mkdir -p {ON_PHONE}/d; setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!")
    pid = started.stdout.strip()
    assert phone.shell(f"[ -e /proc/{pid} ] && echo alive") == "alive\n"
    assert adb(held, "reverse", "tcp:6100", "tcp:9").returncode == 0
    for own in (held["tvm_port"], held["adb_port"], urlsplit(farm.status()["web"]).port):
        assert "a port of farm itself" in adb(held, "reverse", "tcp:6101", f"tcp:{own}").stderr
    forwarded = int(adb(held, "forward", "tcp:0", "tcp:1").stdout)
    ours = served.split("port=")[1].split()[0]
    assert f"tcp:{ours} is farm's own RPC server" in adb(held, "forward", "tcp:0", f"tcp:{ours}").stderr
    used = use_tvm(held)
    assert used.stdout == "used\n", used
    row = next(row for row in answer(farm.farm("lease", "list", "--json"))["leases"])
    assert (row["id"], row["note"]) == (held["lease"], "looking at drivers")
    assert "looking at drivers" in farm.farm("lease", "list").stdout
    story = Story(farm)
    assert farm.farm("lease", "release", held["lease"]).returncode == 0
    tidied = story.until("device.tidied", subject=phone.name)
    assert tidied["data"] == {"killed": 1, "removed": 2, "left": 0}
    story.until("device.ready", subject=phone.name)
    story.read()
    story.order("lease.released", "device.checking", "device.ready", device=phone.name)
    assert phone.shell(f"[ -e /proc/{pid} ] || echo gone") == "gone\n"
    assert ours_by_kind(phone) == before
    assert phone.shell(f"cat {SERVER_STATE}") != served  # its holder could read the other one's secret
    assert closed(held["adb_port"])
    assert closed(forwarded)
    assert "tcp:6100" not in farm.adb("-s", phone.serial, "reverse", "--list").stdout
    assert answer(farm.farm("job", "show", held["job"], "--json"))["job"]["state"] == "done"
    assert held["tvm_key"] not in farm.daemon.log.read_text()


# adbutils leaves the socket of a refused call to the collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_script_uses_its_phone_by_adbutils_and_no_other(farm, tmp_path):
    phone, other = phones(farm)
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(os.urandom(300_000))
    with Client(farm.socket) as client, client.lease(on=phone.name, seconds=600) as lease:
        device = lease.adb
        assert (device.serial, device.shell("echo hi")) == (phone.serial, "hi")
        assert device.sync.push(sent, f"{ON_PHONE}/sent") == device.sync.pull(f"{ON_PHONE}/sent", back)
        assert back.read_bytes() == sent.read_bytes()
        server = adbutils.AdbClient("127.0.0.1", lease.adb_port)
        assert [each.serial for each in server.list()] == [phone.serial]
        with pytest.raises(adbutils.AdbError, match="not found"):
            server.device(other.serial).shell("true")
    with pytest.raises(AdbConnectionError):
        device.shell("true")


def test_its_time_ends_it_with_a_warning_before(farm):
    phone = phones(farm)[0]
    story = Story(farm)
    held = acquire(farm, phone.name, "--for", "3s")
    warned = story.until("lease.expiring", subject=held["lease"])
    assert warned["data"]["device"] == phone.name
    assert story.until("lease.released", subject=held["lease"])["data"]["device"] == phone.name
    story.until("device.ready", subject=phone.name)
    shown = answer(farm.farm("job", "show", held["job"], "--json"))
    assert (shown["job"]["state"], shown["result"]["ended"]) == ("done", "its time is over")
    assert shown["result"]["held_s"] >= 2.5


def test_extending_moves_the_end(farm):
    phone = phones(farm)[0]
    story = Story(farm)
    held = acquire(farm, phone.name, "--for", "1m")
    extended = answer(farm.farm("lease", "extend", phone.name, "--for", "10m", "--json"))
    assert extended["expires_at"] > held["expires_at"]
    refused(farm.farm("lease", "extend", held["lease"], "--for", "8d"), ExitCode.USAGE)
    refused(farm.farm("lease", "extend", held["lease"], "--for", "7d"), ExitCode.USAGE)
    assert answer(farm.farm("lease", "show", held["job"], "--json")) == {**held, "expires_at": extended["expires_at"]}
    assert farm.farm("lease", "release", held["job"]).returncode == 0
    story.until("lease.released", subject=held["lease"])
    refused(farm.farm("lease", "release", held["lease"]), ExitCode.USAGE)
    refused(farm.farm("lease", "show", held["lease"]), ExitCode.USAGE)


def test_a_kicked_lease_fails_and_its_streams_are_cut(farm):
    phone = phones(farm)[0]
    story = Story(farm)
    held = acquire(farm, phone.name)
    binary = next(iter(adb_binaries().values()))
    with subprocess.Popen(
        [binary, "shell", "while true; do echo x; sleep 0.1; done"], env=environment(held, HOME="/tmp"),
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as shell:  # fmt: skip
        assert shell.stdout.readline() == b"x\n"
        assert farm.farm("lease", "kick", held["lease"]).returncode == 0
        shell.stdout.read()
        shell.wait(LIMIT_S)
    story.until("job.failed", subject=held["job"])
    shown = answer(farm.farm("job", "show", held["job"], "--json"))
    assert (shown["job"]["state"], len(shown["attempts"])) == ("failed", 1)
    assert shown["job"]["error"]["code"] == "lease_ended"
    story.until("device.ready", subject=phone.name)
    assert closed(held["adb_port"])


def test_a_lost_phone_ends_its_lease_and_is_tidied_when_it_is_back(farm):
    phone = phones(farm)[0]
    held = acquire(farm, phone.name)
    assert adb(held, "shell", f"echo x > {ON_PHONE}/mine").returncode == 0
    story = Story(farm)
    farm.lab.unplug(phone.nickname)
    story.until("job.failed", subject=held["job"])
    farm.lab.plug(phone.nickname)
    assert story.until("device.tidied")["data"]["removed"] == 1
    story.until("device.ready")
    assert phone.shell(f"ls {ON_PHONE}").split() == ["farm"]
    assert len(answer(farm.farm("job", "show", held["job"], "--json"))["attempts"]) == 1


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_whoever_is_killed_while_waiting_leaves_nothing_but_a_daemon_that_ends_cancels_nothing(farm, over_a_restart):
    phone = phones(farm)[0]
    held = acquire(farm, phone.name)
    with subprocess.Popen(
        [sys.executable, "-m", "farm", "lease", "acquire", "--on", phone.name],
        env=os.environ | {"FARM_SOCKET": str(farm.socket)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    ) as waiting:  # fmt: skip
        assert "waits" in waiting.stderr.readline()
        [row] = farm.client.call("job.list", state=["queued"])["jobs"]
        if over_a_restart:
            farm.daemon.stop()
            farm.daemon.start().close()
            while "is back" not in waiting.stderr.readline():
                assert waiting.poll() is None
            assert farm.client.call("job.show", job=row["id"])["job"]["state"] == "queued"
            waiting.terminate()
        else:
            waiting.kill()
    until(lambda: farm.client.call("job.show", job=row["id"])["job"]["state"] == "cancelled")
    assert [row["id"] for row in farm.client.call("lease.list")["leases"]] == [held["lease"]]


def test_a_command_with_a_phone(farm):
    phone = phones(farm)[0]
    script = f'[ "$FARM_DEVICE" = {phone.name} ] && adb shell echo from $ANDROID_SERIAL; exit 7'
    done = farm.farm("lease", "run", "--on", phone.name, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (7, f"from {phone.serial}\n"), done
    until_ready(farm)
    assert farm.farm("lease", "run", "--on", phone.name, "--", "/no/such").returncode == 127
    until_ready(farm)
    ended = farm.farm("lease", "run", "--on", phone.name, "--for", "2s", "--", "sleep", "100")
    assert ended.returncode == 128 + 15, ended
    assert "has ended" in ended.stderr
    assert farm.client.call("lease.list")["leases"] == []


def test_exports_for_a_shell(farm):
    phone = phones(farm)[0]
    done = farm.farm("lease", "acquire", "--on", phone.name, "--env")
    assert done.returncode == 0, done
    shell = subprocess.run(
        ["sh", "-c", f"{done.stdout}\nadb shell echo hi; echo $FARM_DEVICE"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert shell.stdout == f"hi\n{phone.name}\n", shell
    text = farm.farm("lease", "show", phone.name).stdout
    assert "rpc.connect(" in text
    assert "ANDROID_ADB_SERVER_PORT=" in text


@needs_another_user
@pytest.mark.usefixtures("open_socket")
def test_another_user_gets_nothing_of_it(farm):
    phone = phones(farm)[0]
    held = acquire(farm, phone.name)
    stranger = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
    turned_away = adb(held, "shell", "true", binary="/usr/bin/adb", **stranger)
    assert turned_away.returncode != 0
    assert "another user" in turned_away.stderr
    env = for_tvm() | {"FARM_SOCKET": str(farm.socket), "HOME": "/"}
    for order in (["show"], ["release"], ["extend", "--for", "1h"]):
        done = subprocess.run(
            [sys.executable, "-m", "farm", "lease", order[0], held["lease"], *order[1:]], env=env,
            capture_output=True, text=True, timeout=LIMIT_S, check=False, **stranger,
        )  # fmt: skip
        refused(done, ExitCode.NOT_ALLOWED)
    assert adb(held, "shell", "echo mine").stdout == "mine\n"


def test_a_lease_outlives_the_daemon(farm):
    phone = phones(farm)[0]
    held = acquire(farm, phone.name, "--for", "10m")
    assert adb(held, "shell", f"echo x > {ON_PHONE}/mine").returncode == 0
    port = int(adb(held, "forward", "tcp:0", "tcp:1").stdout)
    assert adb(held, "reverse", "tcp:6100", "tcp:9").returncode == 0
    farm.daemon.kill()
    assert closed(held["adb_port"])
    farm.daemon.start().close()
    until(lambda: not closed(held["adb_port"]))
    until(lambda: not closed(port))
    farm.wait_ready(2)
    assert phone.shell(f"ls {ON_PHONE}/mine").strip() == f"{ON_PHONE}/mine"  # nobody tidied under its holder
    assert adb(held, "shell", "echo still mine").stdout == "still mine\n"
    until(lambda: "tcp:6100" in adb(held, "reverse", "--list").stdout)
    row = next(row for row in farm.client.call("lease.list")["leases"])
    assert row["id"] == held["lease"]
    moved = datetime.fromisoformat(row["expires_at"]) - datetime.fromisoformat(held["expires_at"])
    assert abs(moved.total_seconds()) < 1
    told = answer(farm.farm("lease", "show", held["lease"], "--json"))
    assert told["adb_port"] == held["adb_port"]
    for key in (held["tvm_key"], told["tvm_key"]):
        used = use_tvm({**told, "tvm_key": key})
        assert used.stdout == "used\n", used
    story = Story(farm)
    assert farm.farm("lease", "release", held["lease"]).returncode == 0
    assert story.until("device.tidied")["data"]["removed"] == 1
    story.until("device.ready", subject=phone.name)


def test_a_lease_whose_time_ends_while_the_daemon_is_down_is_over_and_tidied(farm):
    phone = phones(farm)[0]
    held = acquire(farm, phone.name, "--for", "2s")
    adb(held, "shell", f"echo x > {ON_PHONE}/mine")
    farm.daemon.kill()
    ends = datetime.fromisoformat(held["expires_at"])
    until(lambda: datetime.now(UTC) > ends)
    farm.daemon.start().close()
    until_ready(farm)
    shown = answer(farm.farm("job", "show", held["job"], "--json"))
    assert (shown["job"]["state"], len(shown["attempts"])) == ("done", 1)
    assert "mine" not in phone.shell(f"ls {ON_PHONE}")
