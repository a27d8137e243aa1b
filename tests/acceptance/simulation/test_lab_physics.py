"""A phone that follows its load: it warms, is throttled and really slow, and cools again; its battery and its cable."""

import json
from itertools import pairwise

import pytest

from tests.acceptance.simulation.conftest import PHONE
from tests.acceptance.simulation.test_lab_faults import until
from tests.adb_server import adb_binaries
from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S

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
pytestmark = pytest.mark.parametrize("rig", sorted(adb_binaries())[-1:], indirect=True, scope="module")


@pytest.fixture(autouse=True)
def healthy(rig):
    yield
    rig.lab.fault(PHONE, "physics_off")
    rig.lab.cool(PHONE)
    rig.lab.battery(PHONE, 85, charging=True)


def state(rig):
    return json.loads((rig.lab.directory / PHONE / "state/state.json").read_text())


@pytest.fixture
def busy(rig, tmp_path):
    """The phone with a session that never rests; gives the rounds it did."""
    program = tmp_path / "tvm_rpc"
    program.write_text(SERVER)
    rig.text("push", str(program), "/data/local/tmp/tvm_rpc")
    rig.text("shell", "setsid sh /data/local/tmp/tvm_rpc server </dev/null >/dev/null 2>&1 &")
    yield rig.lab.directory / PHONE / "data/local/tmp/rounds"
    rig.lab.server_crash(PHONE)
    rig.text("shell", "rm /data/local/tmp/rounds")


def share_stopped(rig):
    """The share of 200 looks at which the session was stopped: by how much the phone is slowed down."""
    looked = f"n=0 i=0; while [ $i -lt 200 ]; do ! {STOPPED} >/dev/null || n=$((n + 1)); i=$((i + 1)); done; echo $n"
    return int(rig.text("shell", looked)) / 200


@needs_namespaces
def test_a_busy_phone_warms_is_slowed_down_and_cools_again(rig, busy):
    until(lambda: busy.exists() and busy.stat().st_size > 20)
    assert share_stopped(rig) == 0
    cool = state(rig)
    assert (cool["throttling"], cool["cpu_busy"]) == (0, None)  # off by default: the load is not even looked at

    rig.lab.fault(PHONE, "physics", speed=0.001)
    until(lambda: state(rig)["cpu_busy"])
    # 9 W, whatever share of a core a loaded host leaves us: unthrottled that would end at 72 °C.
    watts = min(100.0, 9 / state(rig)["cpu_busy"])
    rig.lab.fault(PHONE, "physics", speed=200.0, watts_per_core=watts)
    until(lambda: state(rig)["throttling"] >= 1)
    hot = state(rig)
    assert hot["temps_c"]["cpu"] > hot["temps_c"]["skin"] > cool["temps_c"]["skin"]
    clock = "cat /sys/devices/system/cpu/cpufreq/policy7/scaling_max_freq"
    assert int(rig.text("shell", clock)) < 3302400
    # In a hot cabinet it keeps a quarter of its clock.
    rig.lab.fault(PHONE, "physics", speed=10.0, watts_per_core=watts, ambient_c=47.0)
    rig.lab.heat(PHONE, 53)
    until(lambda: state(rig)["clock_scale"] == 0.25)
    until(lambda: rig.run("shell", STOPPED).returncode == 0)
    until(lambda: share_stopped(rig) > 0.4)  # of some 200 looks: a loaded host stops and continues it late
    assert state(rig)["throttling"] == 5

    rig.lab.server_crash(PHONE)
    rig.lab.fault(PHONE, "physics", speed=2000.0)
    seen = [state(rig)["temps_c"]["skin"]]
    until(lambda: seen.append(state(rig)["temps_c"]["skin"]) or seen[-1] < 34)
    falling = seen[seen.index(max(seen)) :]
    assert all(later <= earlier + 0.2 for earlier, later in pairwise(falling))
    until(lambda: state(rig)["clock_scale"] == 1)


def test_a_battery_drains_to_the_end_and_the_phone_comes_back_with_the_cable(rig):
    rig.lab.battery(PHONE, 3)
    rig.lab.unplug(PHONE)
    rig.lab.fault(PHONE, "physics", speed=2000.0)
    rig.lab.wait(PHONE, "off", timeout_s=HANG_S)
    assert state(rig)["battery_level"] == 0
    rig.lab.plug(PHONE)
    rig.lab.wait(PHONE, "online", timeout_s=HANG_S)
    until(lambda: state(rig)["battery_status"] == 2)
    assert state(rig)["battery_current_ma"] > 0


def test_settings_stay_over_a_reboot_and_the_screen_does_not(rig):
    rig.text(
        "shell", "settings put global window_animation_scale 0; svc power stayon true; input keyevent KEYCODE_SLEEP"
    )
    assert "  mWakefulness=Asleep\n" in rig.text("shell", "dumpsys power")
    rig.lab.reboot(PHONE)
    rig.wait_online()
    power = rig.text("shell", "dumpsys power")
    assert "  mWakefulness=Awake\n" in power
    assert "  mStayOn=true\n" in power
    assert rig.text("shell", "settings get global window_animation_scale") == "0\n"
