"""A phone that follows its load: it warms, is throttled and really slow, and cools again; its battery and its cable."""

import json
import os
import subprocess
from itertools import pairwise

import pytest

from farm.common.errors import PhoneError
from farm.simulation.control import running_lab
from tests.acceptance.simulation.conftest import Rig
from tests.acceptance.simulation.test_lab_faults import until
from tests.adb_server import AdbServer, adb_binaries
from tests.support.needs import needs, needs_namespaces
from tests.support.waiting import HANG_S

NAMES = ("rooted", "plain")
PLACES = {"rooted": "1-4.2", "plain": "1-4.3"}
# Stands for an RPC server with a session: what matters is its name and who is whose parent. A round is some work.
SERVER = """\
#!/system/bin/sh
if [ "$1" = session ]; then
  while :; do
    i=0
    while [ $i -lt 500 ]; do i=$((i + 1)); done
    echo x >>/data/local/tmp/rounds
  done
fi
sh "$0" session
"""


STOPPED = "cat /proc/[0-9]*/stat | grep '(sh) T'"
HEALTHY = {
    "physics_off": {},
    "clock_stuck": {"share": 1.0},
    "cpu_load": {"load": 0.4},
    "cool": {},
    "replay_end": {},
    "dead_battery": {"on": False},
    "network": {"on": False},
    "airplane": {"on": False},
    "charge": {"mode": "start"},
    "port_on": {},
    "battery": {"level": 85, "charging": True},
    "dumpsys_hangs": {"on": False},
    "boot_hang": {"boots": 0},
}


class House:
    """Two phones on one hub."""

    def __init__(self, folder, server, lab):
        self.folder = folder
        self.lab = lab
        self.rigs = {name: Rig(server, lab, lab.phone(name).serial) for name in NAMES}

    def said(self, name, command):
        return self.rigs[name].text("shell", command)

    def state(self, name):
        return json.loads((self.folder / name / "state/state.json").read_text())

    def wait_online(self, name):
        self.lab.wait(name, "online")
        self.rigs[name].adb.wait_for_state(self.rigs[name].serial, "device")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    server = AdbServer(list(adb_binaries().values())[-1], tmp_path_factory.mktemp("adb"))
    server.start()
    folder = tmp_path_factory.mktemp("lab")
    phones = {"rooted": "oneplus-12+root", "plain": "realme-gt-neo3"}
    try:
        with running_lab(folder, phones, adb_socket=server.socket, places=PLACES) as lab:
            made = House(folder, server, lab)
            for name in NAMES:
                made.wait_online(name)
            yield made
    finally:
        server.stop()


@pytest.fixture
def lab(house):
    yield house.lab
    for name in NAMES:
        for fault, arguments in HEALTHY.items():
            house.lab.fault(name, fault, **arguments)
        if not house.lab.phone(name).powered:
            house.lab.fault(name, "boot")
        house.wait_online(name)


@pytest.fixture
def busy(house, tmp_path):
    """The phone `plain` with a session that never rests; gives the rounds it did."""
    rig = house.rigs["plain"]
    program = tmp_path / "tvm_rpc"
    program.write_text(SERVER)
    rig.text("push", str(program), "/data/local/tmp/tvm_rpc")
    rig.text("shell", "setsid sh /data/local/tmp/tvm_rpc server </dev/null >/dev/null 2>&1 &")
    yield house.folder / "plain/data/local/tmp/rounds"
    house.lab.server_crash("plain")
    rig.text("shell", "rm /data/local/tmp/rounds")


def share_stopped(house):
    """The share of 200 looks at which the session was stopped: by how much the phone is slowed down."""
    looked = f"n=0 i=0; while [ $i -lt 200 ]; do ! {STOPPED} >/dev/null || n=$((n + 1)); i=$((i + 1)); done; echo $n"
    return int(house.said("plain", looked)) / 200


@needs_namespaces
def test_a_busy_phone_warms_is_slowed_down_and_cools_again(house, lab, busy):
    until(lambda: busy.exists() and busy.stat().st_size > 20)
    assert share_stopped(house) == 0
    cool = house.state("plain")
    assert (cool["throttling"], cool["cpu_busy"]) == (0, None)  # off by default: the load is not even looked at

    lab.fault("plain", "physics", speed=0.001)
    until(lambda: house.state("plain")["cpu_busy"])
    # 9 W, whatever share of a core a loaded host leaves us: unthrottled that would end at 72 °C.
    watts = min(100.0, 9 / house.state("plain")["cpu_busy"])
    lab.fault("plain", "physics", speed=200.0, watts_per_core=watts)
    until(lambda: house.state("plain")["throttling"] >= 1)
    hot = house.state("plain")
    assert hot["temps_c"]["cpu"] > hot["temps_c"]["skin"] > cool["temps_c"]["skin"]
    clock = "cat /sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq"
    assert int(house.said("plain", clock)) < 2850000
    # In a hot cabinet it keeps a quarter of its clock.
    lab.fault("plain", "physics", speed=10.0, watts_per_core=watts, ambient_c=47.0)
    lab.heat("plain", 53)
    until(lambda: house.state("plain")["clock_scale"] == 0.25)
    until(lambda: house.rigs["plain"].run("shell", STOPPED).returncode == 0)
    until(lambda: share_stopped(house) > 0.4)  # of some 200 looks: a loaded host stops and continues it late
    assert house.state("plain")["throttling"] == 5

    lab.server_crash("plain")
    lab.fault("plain", "physics", speed=2000.0)
    seen = [house.state("plain")["temps_c"]["skin"]]
    until(lambda: seen.append(house.state("plain")["temps_c"]["skin"]) or seen[-1] < 34)
    falling = seen[seen.index(max(seen)) :]
    assert all(later <= earlier + 0.2 for earlier, later in pairwise(falling))
    until(lambda: house.state("plain")["clock_scale"] == 1)


@needs_namespaces
def test_a_stuck_clock_is_as_slow_as_it_says_and_ends(house, lab, busy):
    until(lambda: busy.exists() and busy.stat().st_size > 20)
    lab.fault("plain", "clock_stuck", share=0.1)
    until(lambda: house.rigs["plain"].run("shell", STOPPED).returncode == 0)
    until(lambda: share_stopped(house) > 0.6)  # of some 200 looks: a loaded host stops and continues it late
    lab.fault("plain", "clock_stuck", share=1.0)
    at = busy.stat().st_size
    until(lambda: busy.stat().st_size > at + 20)
    assert share_stopped(house) == 0


@needs_namespaces
def test_throttling_does_not_wake_a_hung_server(house, lab, busy):
    until(lambda: busy.exists())
    lab.fault("plain", "clock_stuck", share=0.5)
    lab.server_hang("plain")
    stopped = "cat /proc/[0-9]*/stat | grep -c '(sh) T'"
    # a signal takes effect when its turn comes
    until(lambda: house.said("plain", stopped).strip() == "2")
    for _ in range(20):
        assert house.said("plain", stopped).strip() == "2"
    lab.fault("plain", "server_resume")
    at = busy.stat().st_size
    until(lambda: busy.stat().st_size > at)


def test_a_battery_drains_to_the_end_and_the_phone_comes_back_with_the_cable(house, lab):
    lab.battery("plain", 3)
    lab.unplug("plain")
    lab.fault("plain", "physics", speed=2000.0)
    lab.wait("plain", "off", timeout_s=HANG_S)
    assert house.state("plain")["battery_level"] == 0
    lab.plug("plain")
    lab.wait("plain", "online", timeout_s=HANG_S)
    until(lambda: house.state("plain")["battery_status"] == 2)
    assert house.state("plain")["battery_current_ma"] > 0


@needs_namespaces
def test_charging_can_be_stopped_by_fault_and_by_root(house, lab):
    rig = house.rigs["rooted"]
    read = "cat /sys/class/power_supply/battery/status"
    lab.fault("rooted", "physics")
    until(lambda: rig.text("shell", read) == "Charging\n")
    rig.text("shell", "echo 0 > /sys/class/power_supply/battery/charging_enabled")
    until(lambda: rig.text("shell", read) == "Not charging\n")
    rig.text("shell", "echo 1 > /sys/class/power_supply/battery/charging_enabled")
    lab.fault("rooted", "charge", mode="suspend")
    until(lambda: rig.text("shell", read) == "Discharging\n")
    assert "USB powered: false" in rig.text("shell", "dumpsys battery")


def test_a_worn_battery_says_so(house, lab):
    lab.fault("plain", "wear", cycles=1200, full_share=0.5, health="over_voltage", voltage_mv=4480)
    try:
        said = house.said("plain", "dumpsys battery; cat /sys/class/power_supply/battery/uevent")
        assert {"  health: 5", "  voltage: 4480"} <= set(said.splitlines())
        assert {"POWER_SUPPLY_CYCLE_COUNT=1200", "POWER_SUPPLY_CHARGE_FULL=2500000"} <= set(said.splitlines())
    finally:
        lab.fault("plain", "wear", cycles=120, full_share=0.96, health="good", voltage_mv=4100)


@needs_namespaces
def test_root_pins_clocks_and_nobody_else_does(house, lab):
    policy = "/sys/devices/system/cpu/cpufreq/policy7"
    pin = f"echo performance > {policy}/scaling_governor"
    rooted, plain = house.rigs["rooted"], house.rigs["plain"]
    assert rooted.text("shell", "su -c 'id -u'") == "0\n"
    rooted.text("shell", pin)
    until(lambda: rooted.text("shell", f"cat {policy}/scaling_cur_freq") == "3302400\n")
    rooted.text("shell", f"echo nonsense > {policy}/scaling_max_freq")
    until(lambda: rooted.text("shell", f"cat {policy}/scaling_max_freq") == "3302400\n")
    rooted.text("shell", "echo 2 > /sys/class/kgsl/kgsl-3d0/max_pwrlevel")
    until(lambda: rooted.text("shell", "cat /sys/class/kgsl/kgsl-3d0/max_gpuclk") == "770000000\n")
    refused = plain.run("shell", pin.replace("policy7", "policy4"))
    assert refused.returncode != 0
    assert b"denied" in refused.stderr or b"Read-only" in refused.stderr
    assert plain.run("shell", "su -c id").returncode == 127
    lab.reboot("rooted")
    house.wait_online("rooted")
    assert rooted.text("shell", f"cat {policy}/scaling_governor") == "schedutil\n"


def test_a_gpu_fault_is_in_the_log_that_root_reads(house, lab):
    lab.fault("*", "gpu_fault")
    assert "kgsl-3d0: GPU PAGE FAULT" in house.said("rooted", "dmesg")
    assert house.said("rooted", "cat /sys/class/kgsl/kgsl-3d0/reset_count") == "1\n"
    assert house.rigs["plain"].run("shell", "dmesg").returncode != 0


def test_settings_stay_over_a_reboot_and_the_screen_does_not(house, lab):
    rig = house.rigs["plain"]
    rig.text(
        "shell", "settings put global window_animation_scale 0; svc power stayon true; input keyevent KEYCODE_SLEEP"
    )
    assert "  mWakefulness=Asleep\n" in rig.text("shell", "dumpsys power")
    lab.reboot("plain")
    house.wait_online("plain")
    power = rig.text("shell", "dumpsys power")
    assert "  mWakefulness=Awake\n" in power
    assert "  mStayOn=true\n" in power
    assert rig.text("shell", "settings get global window_animation_scale") == "0\n"


def test_airplane_mode_cuts_the_link_of_a_phone_on_the_network_only(house, lab):
    rig = house.rigs["plain"]
    rig.text("shell", "cmd connectivity airplane-mode enable")
    assert rig.text("shell", "cmd connectivity airplane-mode") == "enabled\n"
    rig.text("shell", "cmd connectivity airplane-mode disable")
    lab.fault("plain", "network")
    rig.run("shell", "cmd connectivity airplane-mode enable")
    lab.wait("plain", "not_online")
    lab.reboot("plain")
    assert lab.phone("plain").powered is False
    lab.wait("plain", "on")
    assert not lab.phone("plain").online  # the setting outlives the boot
    lab.fault("plain", "airplane", on=False)
    house.wait_online("plain")


def test_a_port_is_switched_by_uhubctl_and_a_hub_is_pulled(house, lab):
    def run(*command):
        return subprocess.run([house.folder / "bin" / command[0], *command[1:]], capture_output=True, text=True)

    done = run("uhubctl", "-l", "1-4", "-p", "2", "-a", "off")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Sent power off request" in done.stdout
    house.rigs["rooted"].adb.wait_for_state(house.rigs["rooted"].serial, "")
    devices = house.folder / "usb/bus/usb/devices"
    assert not (devices / "1-4.2").exists()
    assert lab.phone("rooted").powered  # it has a battery
    assert lab.phone("plain").online
    assert run("usb-power", "on", "1-4.2").returncode == 0
    house.wait_online("rooted")
    assert (devices / "1-4.2/serial").read_text().strip() == lab.phone("rooted").hardware_serial
    lab.unplug_hub("1-4")
    assert not any(lab.phone(name).online for name in NAMES)
    lab.plug_hub("1-4")
    for name in NAMES:
        house.wait_online(name)
    assert run("uhubctl", "-l", "9-9").returncode == 1


def test_a_phone_without_a_battery_goes_and_comes_with_its_port(house, lab):
    boots = lab.phone("plain").boots
    lab.fault("plain", "dead_battery")
    lab.fault("plain", "port_off")
    assert not lab.phone("plain").powered
    lab.fault("plain", "port_on")
    house.wait_online("plain")
    assert lab.phone("plain").boots == boots + 1


def test_a_hung_boot_needs_another_one(house, lab):
    lab.fault("plain", "boot_hang", boots=1)
    lab.reboot("plain")
    lab.wait("plain", "on")
    assert not lab.phone("plain").online
    lab.reboot("plain")
    house.wait_online("plain")


def test_a_boot_loop_ends_after_its_boots(house, lab):
    boots = lab.phone("plain").boots
    lab.fault("plain", "boot_loop", boots=2, up_s=0.05)
    until(lambda: lab.phone("plain").boots == boots + 3)
    house.wait_online("plain")


@needs_namespaces
@needs("g++")
@pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs another user than the phone's shell")
def test_what_is_stuck_in_a_driver_outlives_sigkill_until_the_driver_returns(house, lab):
    rig = house.rigs["plain"]
    lab.fault("plain", "unkillable", seconds=4.0)
    assert rig.text("shell", "cat $FARM_VIRTUAL_STATE/kernel_fault") == "unkillable 4\n"
    stuck = "$FARM_VIRTUAL_STATE/stuck_driver 4 & sleep 0.3; kill -s KILL $!; kill -s KILL $!"
    said = rig.run("shell", f"{stuck}; sleep 0.1; cat /proc/$!/stat; wait $!; echo ended")
    assert b"(stuck_driver) R" in said.stdout
    assert said.stdout.endswith(b"ended\n")
    lab.good_kernels("plain")
    with pytest.raises(PhoneError):
        lab.fault("rooted", "unkillable")


def test_dumpsys_gives_up_when_services_hang(house, lab):
    lab.fault("plain", "dumpsys_hangs")
    assert "DUMP TIMEOUT (1000ms) EXPIRED" in house.said("plain", "dumpsys -t 1 battery")


def test_df_says_what_is_left_on_a_full_disk(house, lab):
    rig = house.rigs["plain"]
    lab.full_disk("plain", 3_000_000)
    fields = rig.text("shell", "df /data").splitlines()[1].split()
    assert (fields[3], fields[5]) == (str(3_000_000 // 1024), "/data")
    assert int(fields[1]) == int(fields[2]) + int(fields[3])
    assert rig.text("shell", "df /data/local/tmp").splitlines()[1].split()[3] == fields[3]
    lab.free_disk("plain")
    assert int(rig.text("shell", "df /data").splitlines()[1].split()[3]) > 100 * int(fields[3])


def test_a_slow_shell_comes_late_and_says_all(house, lab):
    lab.fault("plain", "slow_shell", delay_s=0.3)
    assert house.said("plain", "echo here") == "here\n"
    lab.fault("plain", "slow_shell")


def test_captures_and_traces_are_played(house, lab, tmp_path):
    rig = house.rigs["plain"]
    text = "Current Battery Service state:\n  level: 11\n"
    (tmp_path / "battery.txt").write_text(text)
    lab.fault("plain", "capture", file="dumpsys/battery", path=str(tmp_path / "battery.txt"))
    assert rig.text("shell", "dumpsys battery") == text
    moments = [
        {"t": 0, "state": {"battery_level": 40}, "probe": "==farm:zones\nthermal_zone0 odd=51000\n"},
        {"t": 100, "state": {"battery_level": 39}},
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, moments)))
    lab.fault("plain", "replay", path=str(tmp_path / "trace.jsonl"), speed=1000.0)
    until(lambda: house.state("plain")["battery_level"] == 39)
    assert rig.text("shell", "cat /sys/class/thermal/thermal_zone0/type /sys/class/thermal/thermal_zone0/temp") == (
        "odd\n51000\n"
    )
    lab.fault("plain", "replay_end")
    assert "level: 39" in rig.text("shell", "dumpsys battery")
