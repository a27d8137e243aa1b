"""What `farm status` says to somebody who is not on the lab's host, and of hosts, keys and phones."""

import re

import pytest

from farm.cli.output import table
from farm.cli.status import device_table, figures, key_lines, status_lines, tunnel_hint

ANSWER = {
    "tracker": {"host": "127.0.0.1", "port": 9190}, "web": "http://127.0.0.1:9191/", "keys": [], "devices": [],
    "problems": [],
}  # fmt: skip
OLD = {"read_age_s": 1e7}


@pytest.mark.parametrize(("lab", "host"), [("lab.example", "lab.example"), ("127.0.0.1", "LAB"), ("localhost", "LAB")])
def test_addresses_of_a_lab_elsewhere_come_with_the_way_there(lab, host):
    line = f"  as on the lab's own host; from here: ssh -L 9190:127.0.0.1:9190 -L 9191:127.0.0.1:9191 {host}"
    assert list(status_lines(ANSWER, lab))[2] == line
    assert "9191" not in tunnel_hint({**ANSWER, "web": ""}, lab)
    assert "ssh" not in "".join(status_lines(ANSWER))


def test_keys_stand_side_by_side_but_for_names_of_phones_that_nobody_waits_for():
    free = {"total": 1, "free": 1, "pending": 0}
    keys = [{"key": key, **free} for key in ("adreno-750", "android", "nord", "pixel", "sm8650")]
    keys[2] |= {"free": 0, "pending": 2}
    assert list(key_lines(keys, ["nord", "pixel"], 44)) == [
        "Keys (free/all):",
        "  adreno-750 1/1       nord 0/1, 2 waiting",
        "  android 1/1          sm8650 1/1",
    ]
    lost = {"key": "adreno-999", "total": 0, "free": 0, "pending": 1}
    assert list(key_lines([lost], []))[1:] == ["  adreno-999 0/0, 1 waiting: no phone has this key"]
    assert list(key_lines([], [])) == ["no keys: no phone is in service and no client waits"]


def phone(state, **facts):
    return {
        "name": "pixel", "state": state, "virtual": False, "temperature_c": 36.0, "battery_percent": 85, "soc": "",
        "gpu": "", "holder": "", "read_age_s": None, "reason": "", **facts,
    }  # fmt: skip


def test_old_readings_have_their_age_and_are_grey_at_a_terminal():
    words = figures(phone("ready", **OLD))
    assert all(re.fullmatch(r"(36\.0C|85%) \d+d ago", each) for each in words)
    (_, line) = table(("DEVICE", "TEMP"), [("pixel", words[0])], width=80)
    assert line.painted == f"pixel   \x1b[2m{words[0]}\x1b[0m"


def test_80_columns_have_states_and_readings_of_a_lab_whole():
    facts = {**OLD, "soc": "SM8650", "gpu": "Adreno 750", "host": "lab2"}
    away = phone("unreachable", **facts, name="huawei-mate-20-lab2", reason="lab2 is lost for 2h 5m")
    busy = phone("quarantined", **facts, name="galaxy-lab2", holder="continuous-integration")
    lines = list(device_table([away, busy], 80))
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["DEVICE", "STATE", "TEMP", "BATTERY", "HOLDER"]
    assert re.fullmatch(r"huawei-mate-20-lab2  unreachable  36\.0C \d+d ago  85% \d+d ago  -", lines[1])
    assert (lines[2], lines[3].split()[1]) == ("  lab2 is lost for 2h 5m", "quarantined")


def test_in_a_lab_each_phone_has_its_host_and_hosts_stand_ahead(snapshot):
    hosts = [
        {"name": "lab1", "state": "ok", "silent_s": 0.4}, {"name": "lab2", "state": "lost", "silent_s": 61.0},
        {"name": "lab3", "state": "stopped", "silent_s": None},
    ]  # fmt: skip
    devices = [phone("ready", host="lab1"), phone("gone", host="lab2")]
    snapshot(
        "\n".join([*status_lines({**ANSWER, "hosts": hosts, "devices": devices}), "", *device_table([phone("ready")])])
    )
