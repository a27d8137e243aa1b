"""What `farm status` says to somebody who is not on the lab's host."""

import re

import pytest
from typer.testing import CliRunner

from farm.cli.main import app
from farm.cli.output import table
from farm.cli.status import device_table, figures, key_lines, status_lines, tunnel_hint

ANSWER = {
    "tracker": {"host": "127.0.0.1", "port": 9190}, "web": "http://127.0.0.1:9191/", "keys": [], "devices": [],
    "problems": [],
}  # fmt: skip


@pytest.mark.parametrize(("lab", "host"), [("lab.example", "lab.example"), ("127.0.0.1", "LAB"), ("localhost", "LAB")])
def test_addresses_of_a_lab_elsewhere_come_with_the_way_there(lab, host):
    line = f"  as on the lab's own host; from here: ssh -L 9190:127.0.0.1:9190 -L 9191:127.0.0.1:9191 {host}"
    assert list(status_lines(ANSWER, lab))[2] == line
    assert "9191" not in tunnel_hint({**ANSWER, "web": ""}, lab)


def test_keys_stand_side_by_side_but_for_names_of_phones_that_nobody_waits_for():
    free = {"total": 1, "free": 1, "pending": 0}
    keys = [{"key": key, **free} for key in ("adreno-750", "android", "nord", "pixel", "sm8650")]
    keys[2] |= {"free": 0, "pending": 2}
    assert list(key_lines(keys, ["nord", "pixel"], 44)) == [
        "Keys (free/all):",
        "  adreno-750 1/1       nord 0/1, 2 waiting",
        "  android 1/1          sm8650 1/1",
    ]
    assert list(key_lines([], [])) == ["no keys: no phone is in service and no client waits"]


def phone(state):
    return dict.fromkeys(("soc", "gpu", "holder"), "") | {
        "name": "pixel", "state": state, "virtual": False, "temperature_c": 36.0, "battery_percent": 85,
        "read_at": None, "reason": "",
    }  # fmt: skip


@pytest.mark.parametrize(("state", "figures"), [("ready", ["36.0C", "85%"]), ("gone", ["-", "-"])])
def test_a_phone_that_is_gone_has_no_temperature(state, figures):
    assert list(device_table([phone(state)]))[1].split()[4:6] == figures


def test_old_readings_have_their_age_and_are_grey_at_a_terminal():
    words = figures({**phone("ready"), "read_at": "2026-01-01T00:00:00+00:00"})
    assert all(re.fullmatch(r"(36\.0C|85%) \d+d ago", each) for each in words)
    (_, line) = table(("DEVICE", "TEMP"), [("pixel", words[0])], width=80)
    assert line.painted == f"pixel   \x1b[2m{words[0]}\x1b[0m"


def test_80_columns_have_states_and_readings_of_a_lab_whole():
    old = {"read_at": "2026-01-01T00:00:00+00:00", "soc": "SM8650", "gpu": "Adreno 750", "host": "lab2"}
    away = {**phone("unreachable"), **old, "name": "huawei-mate-20-lab2", "reason": "lab2 is lost for 2h 5m"}
    busy = {**phone("quarantined"), **old, "name": "galaxy-lab2", "holder": "continuous-integration"}
    lines = list(device_table([away, busy], 80))
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["DEVICE", "STATE", "TEMP", "BATTERY", "HOLDER"]
    assert re.fullmatch(r"huawei-mate-20-lab2  unreachable  36\.0C \d+d ago  85% \d+d ago  -", lines[1])
    assert lines[2] == "  lab2 is lost for 2h 5m"
    assert lines[3].split()[1] == "quarantined"


def test_in_a_lab_each_phone_has_its_host_and_hosts_stand_ahead():
    hosts = [
        {"name": "lab1", "state": "ok", "silent_s": 0.4},
        {"name": "lab2", "state": "lost", "silent_s": 61.0},
        {"name": "lab3", "state": "stopped", "silent_s": None},
    ]
    devices = [{**phone("ready"), "host": "lab1"}, {**phone("gone"), "host": "lab2"}]
    lines = list(status_lines({**ANSWER, "hosts": hosts, "devices": devices}))
    assert lines[2] == "Hosts lab1 ok, lab2 lost for 1m 1s, lab3 stopped"
    assert [line.split()[:3] for line in lines[-3:]] == [
        ["DEVICE", "HOST", "STATE"], ["pixel", "lab1", "ready"], ["pixel", "lab2", "gone"],
    ]  # fmt: skip
    assert "HOST" not in "".join(device_table([phone("ready")]))


@pytest.mark.parametrize(
    ("words", "verb", "answer", "said"),
    [
        ("device list", "status", {"devices": []}, "no phones: plug one in"),
        ("bundle list", "bundle.list", {"bundles": []}, "no bundles: farm bundle build"),
        ("records list", "records.list", {"sets": []}, "no records: farm tune"),
        ("lease list", "lease.list", {"leases": [], "waiting": []}, "no leases: farm lease acquire"),
        ("reservation list", "reservation.list", {"reservations": []}, "no reservations: farm reservation add"),
        ("poison list", "poison.list", {"poison": [], "more": 0}, "no poisons"),
        ("forward list", "forward.list", {"tunnels": []}, "no forwards: farm forward add"),
    ],
)
def test_an_empty_list_says_the_next_step(monkeypatch, words, verb, answer, said):
    for module in ("farm.cli.device", "farm.cli.runtimes", "farm.cli.records", "farm.cli.access",
                   "farm.kinds.lease.command"):  # fmt: skip
        monkeypatch.setattr(f"{module}.call", lambda kind, **_: answer if kind == verb else {})
    (line,) = CliRunner().invoke(app, words.split()).output.splitlines()
    assert line.startswith(said)


def test_on_its_own_host_they_are_as_they_are():
    assert "ssh" not in "".join(status_lines(ANSWER))
