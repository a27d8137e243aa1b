"""What the lab can do to a phone, seen through the real adb programs."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from farm.common.errors import Code, HostError, UserError
from farm.simulation.control import LabClient, running_lab
from tests.acceptance.simulation.conftest import PHONE, PROFILE
from tests.support.errors import raises_code
from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until

TMP = "/data/local/tmp"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def healthy(rig):
    yield
    rig.lab.fault(PHONE, "fast")
    rig.lab.free_disk(PHONE)
    rig.lab.cool(PHONE)
    rig.lab.battery(PHONE, 85, charging=True)
    rig.replug()
    rig.text("shell", f"rm -rf {TMP}/t")


@needs_namespaces  # toybox' ps
def test_what_runs_detached_survives_an_unplug_and_a_shell_does_not(rig):
    detached = rig.text("shell", "setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $!").strip()
    following = subprocess.Popen(
        [rig.adb.binary, "-s", rig.serial, "shell", "echo $$; sleep 61; true"],
        env=rig.adb.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert following.stdout is not None
    shell = following.stdout.readline().decode().strip()
    # mksh forgets a SIGHUP that comes just before it starts a child.
    until(lambda: "sleep 61" in rig.text("shell", "ps -A -o ARGS").splitlines())
    rig.lab.unplug(PHONE)
    following.wait(HANG_S)
    following.stdout.close()
    rig.replug()
    until(lambda: rig.run("shell", f"kill -0 {shell}").returncode != 0)
    assert rig.run("shell", f"kill -0 {detached}").returncode == 0
    rig.text("shell", f"kill {detached}")


def test_reverses_end_with_the_link(rig):
    port = rig.text("reverse", "tcp:0", "tcp:1").strip()
    rig.unplug()
    rig.replug()
    assert rig.text("reverse", "--list").strip() == ""
    assert rig.run("shell", f"nc 127.0.0.1 {port} </dev/null").returncode != 0


def test_a_ramp_takes_its_time(rig):
    rig.lab.heat(PHONE, 50.0, ramp_s=3600)
    assert "Thermal Status: 0" in rig.text("shell", "dumpsys thermalservice")
    rig.lab.heat(PHONE, 50.0, ramp_s=0.5)
    until(lambda: "Thermal Status: 4" in rig.text("shell", "dumpsys thermalservice"))


def test_bad_orders_get_one_clear_answer(rig):
    for order, fault, said in (
        (lambda: rig.lab.fault(PHONE, "explode"), UserError, "no such fault"),
        (lambda: rig.lab.unplug("nobody"), UserError, "no such phone: nobody"),
        (lambda: rig.lab.wait(PHONE, "happy"), UserError, "no such condition"),
        (lambda: rig.lab.wait(PHONE, "off", timeout_s=0.05), HostError, r"not off within 0\.05 s: pixel"),
        (lambda: rig.lab.add("second", "nokia-3310"), UserError, "no such profile"),
        (lambda: rig.lab.add(PHONE, PROFILE), UserError, "called pixel already"),
        (lambda: rig.lab.add("../evil", PROFILE), UserError, "cannot be called"),
    ):
        with pytest.raises(fault, match=said):
            order()


def test_junk_on_the_control_socket_is_answered_or_dropped(rig):
    with socket.socket(socket.AF_UNIX) as junk:
        junk.settimeout(HANG_S)
        junk.connect(str(rig.lab.directory / "control.sock"))
        junk.sendall(b"not json\n[1]\n{}\n")
        answers = junk.makefile("rb")
        assert [b'"ok": false' in answers.readline() for _ in range(3)] == [True] * 3
    assert rig.lab.phone(PHONE).online


def test_no_lab_and_a_lab_that_cannot_start(tmp_path):
    with raises_code(Code.NO_LAB, match="no lab answers"):
        LabClient(tmp_path)
    with pytest.raises(UserError, match="no such profile"), running_lab(tmp_path, {"x": "nokia-3310"}):
        pass


def test_a_lab_ends_with_the_process_that_started_it(tmp_path):
    starter = (
        "import os, sys; from pathlib import Path; from farm.simulation.control import running_lab\n"
        f"with running_lab(Path(sys.argv[1]), {{'a': '{PROFILE}'}}) as lab:\n"
        "    print(lab.phone('a').pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", starter, str(tmp_path)]
    died = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert died.returncode == -9, died.stderr
    until(lambda: not _alive(int(died.stdout)))


def test_a_second_lab_in_the_same_folder_is_refused(rig):
    with pytest.raises(UserError, match="another lab"), running_lab(rig.lab.directory, {}):
        pass
    assert rig.lab.phone(PHONE).online


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_small_data_partition_is_full_for_shells_too(tmp_path_factory, adb_server):
    directory = tmp_path_factory.mktemp("lab")
    with running_lab(directory, {"a": PROFILE}, adb_socket=adb_server.socket, data_bytes=8 << 20) as lab:
        if lab.phone("a").isolation == "none":
            pytest.skip("no namespaces here, so no /data of its own")
        serial = lab.phone("a").serial
        adb_server.wait_for_state(serial, "device")
        lab.full_disk("a", free_bytes=100_000)
        write = adb_server.run("shell", "head -c 2000000 /dev/zero > /data/local/tmp/x", serial=serial)
        assert b"No space left on device" in write.stderr
        lab.free_disk("a")
        adb_server.text("shell", "head -c 2000000 /dev/zero > /data/local/tmp/x", serial=serial)
