"""What the lab can do to a phone, seen through the real adb programs."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farm.common.errors import Code, HostError, PhoneError, UserError
from farm.simulation.control import LabClient, running_lab
from tests.acceptance.simulation.conftest import PHONE, PROFILE
from tests.support.errors import raises_code
from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S

TMP = "/data/local/tmp"
ROOT = Path(__file__).parents[3]


def until(condition):
    deadline = time.monotonic() + HANG_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "condition never held"
        time.sleep(0.01)
    return value


@pytest.fixture(autouse=True)
def healthy(rig):
    yield
    rig.lab.fault(PHONE, "fast")
    rig.lab.free_disk(PHONE)
    rig.lab.cool(PHONE)
    rig.lab.battery(PHONE, 85, charging=True)
    rig.replug()
    rig.text("shell", f"rm -rf {TMP}/t")


@pytest.fixture
def file(tmp_path):
    """Five megabytes on the host."""
    made = tmp_path / "file"
    made.write_bytes(os.urandom(5_000_000))
    return made


def test_unplug_and_plug(rig):
    rig.unplug()
    assert rig.lab.phone(PHONE).powered
    rig.replug()
    assert rig.text("shell", "echo back") == "back\n"


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


def test_unauthorized_until_accepted_and_then_for_good(rig):
    rig.lab.fault(PHONE, "unauthorized")
    rig.lab.wait(PHONE, "key_shown")
    rig.adb.wait_for_state(rig.serial, "unauthorized")
    refused = rig.run("shell", "true")
    assert refused.returncode == 1
    assert b"device unauthorized" in refused.stderr
    rig.lab.accept(PHONE)
    rig.wait_online()
    rig.unplug()
    rig.replug()  # the signature of the accepted key is verified now
    with pytest.raises(PhoneError, match="no key to accept"):
        rig.lab.accept(PHONE)


def test_offline_is_listed_so_and_plug_ends_it(rig):
    rig.lab.offline(PHONE)
    until(
        lambda: (
            rig.adb.states().get(rig.serial, "gone") in {"offline", "connecting"} and not rig.lab.phone(PHONE).online
        )
    )
    assert rig.lab.phone(PHONE).fault == "offline"
    rig.replug()


def test_a_silent_phone_stays_listed_and_answers_nothing_and_a_refusing_one_closes_everything(rig):
    rig.lab.offline(PHONE, "silent")
    assert rig.adb.states()[rig.serial] == "device"
    with pytest.raises(subprocess.TimeoutExpired):
        rig.run("shell", "true", timeout_s=0.5)
    rig.replug()
    rig.lab.offline(PHONE, "refuse")
    refused = rig.run("shell", "true")
    assert refused.returncode != 0
    assert b"closed" in refused.stderr


def test_a_slow_link_is_slow_and_correct(rig, file, tmp_path):
    rig.lab.fault(PHONE, "slow", bytes_per_s=12_500_000, latency_s=0.02)
    began = time.monotonic()
    rig.text("push", str(file), f"{TMP}/t/file")
    assert time.monotonic() - began >= 0.4  # no haste of the host can undercut the link's pace
    rig.lab.fault(PHONE, "fast")
    rig.text("pull", f"{TMP}/t/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == file.read_bytes()


def test_a_push_cut_in_the_middle_leaves_nothing(rig, file):
    rig.text("shell", f"mkdir -p {TMP}/t")
    rig.lab.cut_push(PHONE, after_bytes=2_000_000)
    assert rig.run("push", str(file), f"{TMP}/t/file").returncode == 1
    rig.lab.wait(PHONE, "unplugged")
    rig.replug()
    assert rig.text("shell", f"ls -A {TMP}/t") == ""


def test_a_cut_link_can_come_back_by_itself(rig, file):
    rig.lab.cut_push(PHONE, after_bytes=1, replug_after_s=0.05)
    assert rig.run("push", str(file), f"{TMP}/t/file").returncode == 1
    rig.wait_online()


def test_a_full_disk_is_reported_and_the_rest_removed(rig, file):
    rig.text("shell", f"mkdir -p {TMP}/t")
    rig.lab.full_disk(PHONE, free_bytes=1_000_000)
    full = rig.run("push", str(file), f"{TMP}/t/file")
    assert full.returncode == 1
    assert b"No space left on device" in full.stdout + full.stderr
    assert rig.text("shell", f"ls -A {TMP}/t") == ""
    rig.lab.free_disk(PHONE)
    assert rig.run("push", str(file), f"{TMP}/t/file").returncode == 0


@needs_namespaces  # toybox' ps
@pytest.mark.parametrize("command", [("reboot",), ("shell", "reboot")])
def test_reboot_kills_everything_and_keeps_data(rig, command):
    boots = rig.lab.phone(PHONE).boots
    before = rig.text("shell", "cat /proc/sys/kernel/random/boot_id")
    rig.text("shell", f"mkdir -p {TMP}/t; echo kept > {TMP}/t/file; setsid sleep 77 </dev/null >/dev/null 2>&1 &")
    rig.run(*command, timeout_s=HANG_S)
    until(lambda: rig.lab.phone(PHONE).boots == boots + 1)
    rig.wait_online()
    assert rig.text("shell", f"cat {TMP}/t/file") == "kept\n"
    assert rig.text("shell", "cat /proc/sys/kernel/random/boot_id") != before
    assert "sleep" not in rig.text("shell", "ps -A -o NAME")


def test_power_cut_and_boot(rig):
    rig.lab.fault(PHONE, "power_cut")
    assert not rig.lab.phone(PHONE).powered
    rig.adb.wait_for_state(rig.serial, "")
    with pytest.raises(PhoneError, match="is off"):
        rig.lab.server_crash(PHONE)
    rig.lab.fault(PHONE, "boot")
    rig.wait_online()


@needs_namespaces  # a program that begins with #!/system/bin/sh
def test_processes_named_tvm_rpc_are_killed_and_stopped(rig, tmp_path):
    assert rig.lab.server_crash(PHONE) == 0
    program = tmp_path / "tvm_rpc"
    program.write_text("#!/system/bin/sh\nwhile true; do sleep 1; done\n")
    program.chmod(0o755)
    rig.text("push", str(program), f"{TMP}/t/tvm_rpc")
    pid = rig.text("shell", f"{TMP}/t/tvm_rpc </dev/null >/dev/null 2>&1 & echo $!").strip()
    until(lambda: rig.lab.server_hang(PHONE) >= 1)  # 2 when it was just forking
    until(lambda: rig.text("shell", f"cut -d' ' -f3 /proc/{pid}/stat").strip() == "T")
    assert rig.lab.fault(PHONE, "server_resume")[PHONE] >= 1
    assert rig.lab.server_crash(PHONE) >= 1
    until(lambda: rig.run("shell", f"kill -0 {pid}").returncode != 0)


def test_heat_and_battery_show_on_the_phone(rig):
    rig.lab.heat(PHONE, 48.0)
    rig.lab.battery(PHONE, 7, temp_c=41.5)
    thermal = rig.text("shell", "dumpsys thermalservice")
    assert "Thermal Status: 4" in thermal
    battery = rig.text("shell", "dumpsys battery")
    assert "level: 7" in battery
    assert "temperature: 415" in battery
    assert rig.text("shell", "cat /sys/class/thermal/thermal_zone*/temp") != ""


def test_a_ramp_takes_its_time(rig):
    rig.lab.heat(PHONE, 50.0, ramp_s=3600)
    assert "Thermal Status: 0" in rig.text("shell", "dumpsys thermalservice")
    rig.lab.heat(PHONE, 50.0, ramp_s=0.5)
    until(lambda: "Thermal Status: 4" in rig.text("shell", "dumpsys thermalservice"))


def test_the_phone_comes_back_to_a_new_adb_server(rig):
    rig.adb.stop()
    rig.lab.wait(PHONE, "not_online")
    rig.adb.start()
    rig.wait_online()


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


def test_a_phone_added_later_is_plugged_in_and_removed(rig):
    serial = rig.lab.add("second", "galaxy-s9").serial
    rig.adb.wait_for_state(serial, "device")
    rig.lab.remove("second")
    rig.adb.wait_for_state(serial, "")


def test_adb_connect_works_too(rig):
    address = rig.lab.phone(PHONE).address
    assert "connected to" in rig.adb.text("connect", address)
    rig.adb.wait_for_state(address, "device")
    assert rig.adb.text("shell", "echo both", serial=address) == "both\n"
    rig.adb.text("disconnect", address)
    assert rig.text("shell", "echo still") == "still\n"


def test_no_lab_and_a_lab_that_cannot_start(tmp_path):
    with raises_code(Code.NO_LAB, match="no lab answers"):
        LabClient(tmp_path)
    with pytest.raises(UserError, match="no such profile"), running_lab(tmp_path, {"x": "nokia-3310"}):
        pass


@pytest.mark.parametrize("fault", ["segfault", "ignore_sigterm", "wrong_numbers"])
def test_kernel_faults_reach_the_phone(rig, fault):
    read = "cat $FARM_VIRTUAL_STATE/kernel_fault"
    rig.lab.fault(PHONE, fault)
    assert rig.text("shell", read) == f"{fault}\n"
    rig.lab.good_kernels(PHONE)
    assert rig.text("shell", read) == "none\n"


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


def test_a_lab_without_namespaces(lab, adb_server):
    serial = lab({"a": PROFILE}, isolation="none").phone("a").serial
    assert adb_server.run("shell", "echo hi; exit 3", serial=serial).returncode == 3
    adb_server.text("shell", "mkdir -p /data/local/tmp/t", serial=serial)
    assert adb_server.run("push", __file__, "/data/local/tmp/t/file", serial=serial).returncode == 0
    assert "PJD110" in adb_server.text("shell", "getprop ro.product.model", serial=serial)
    assert adb_server.text("shell", "ls /data/local/tmp/t", serial=serial) == "file\n"


def test_a_killed_lab_takes_its_phones_with_it(tmp_path):
    command = [sys.executable, "-m", "farm.simulation.lab", "--dir", str(tmp_path), "--phone", f"a={PROFILE}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)
    try:
        until(lambda: "lab ready" in (tmp_path / "log").read_text())
        with LabClient(tmp_path) as client:
            phone = client.phone("a").pid
        os.kill(phone, 0)
    finally:
        process.kill()
        process.wait(HANG_S)
    until(lambda: not _alive(phone))


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
