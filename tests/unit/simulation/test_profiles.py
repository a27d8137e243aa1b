"""Profiles: genuine captures, loaded whole; sensors follow the state."""

import csv
from importlib import resources

import pytest

from farm.common.errors import UserError
from farm.simulation.plain import rewrite_paths
from farm.simulation.profiles import format_properties, list_profiles, load_profile, serial_of
from farm.simulation.sensors import battery_text, render, render_constant, thermalservice_text, write_files
from farm.simulation.state import BatteryStatus, PhoneState, ThrottlingStatus

HOT = PhoneState(
    boot_id="b",
    battery_level=7,
    battery_status=BatteryStatus.DISCHARGING,
    battery_voltage_mv=3500,
    usb_powered=False,
    temps_c={"cpu": 90.0, "gpu": 80.0, "skin": 46.0, "battery": 44.4},
    throttling=ThrottlingStatus.SEVERE,
    clock_scale=0.5,
)


def test_there_are_phones_of_four_makes_of_gpu():
    gpus = " ".join(load_profile(name).gpu for name in list_profiles())
    for family in ("Adreno 7", "Adreno 6", "Mali", "Xclipse"):
        assert family in gpus


@pytest.mark.parametrize("name", list_profiles())
def test_every_file_of_a_profile_names_its_source(name):
    root = resources.files("farm.simulation.profiles")
    rows = csv.DictReader((root / "SOURCES.tsv").read_text("utf-8").splitlines(), delimiter="\t")
    named = {row["file"] for row in rows if row["source"] or "composed" in row["notes"]}
    present = {f"{name}/{entry.name}" for entry in (root / name).iterdir() if entry.name != "profile.toml"}
    assert present <= named


@pytest.mark.parametrize("name", list_profiles())
def test_properties_survive_the_round_trip_with_their_own_serial_number(name):
    profile = load_profile(name)
    serial = serial_of("phone-a", profile)
    properties = profile.properties(serial)
    # Each property of the capture starts a line of its own; multi-line values and stray bytes must lose none.
    assert len(properties.keys() - {"farm.virtual.abi"}) == f"\n{profile.getprop}".count("\n[")
    assert properties["ro.serialno"] == properties["ro.boot.serialno"] == serial
    assert properties["farm.virtual.abi"] == "x86_64"
    assert properties["ro.product.cpu.abilist"].startswith("arm64-v8a")
    assert format_properties(properties).count("]: [") >= len(properties)


def test_serial_numbers_differ_between_phones_and_stay_for_a_phone():
    profile = load_profile("galaxy-s9")
    assert serial_of("a", profile) == serial_of("a", profile) != serial_of("b", profile)
    assert len(serial_of("a", profile)) == 16  # as long as the captured one


def test_an_unknown_profile_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="nokia") as caught:
        load_profile("nokia")
    assert "oneplus-12" in caught.value.hint


@pytest.mark.parametrize("name", list_profiles())
def test_zones_follow_their_group_in_their_own_unit(name):
    profile = load_profile(name)
    files = render(profile, HOT)
    unit = {"mc": 1000, "dc": 10, "c": 1}
    for group, wanted in HOT.temps_c.items():
        members = [number for number, zone in enumerate(profile.zones) if zone.group == group]
        assert members, f"{name} has no {group} zone"
        values = [
            int(files[f"sys/class/thermal/thermal_zone{number}/temp"]) / unit[profile.zones[number].unit]
            for number in members
        ]
        assert sum(values) / len(values) == pytest.approx(wanted, abs=0.5)
    for number, zone in enumerate(profile.zones):
        if not zone.group:
            assert files[f"sys/class/thermal/thermal_zone{number}/temp"] == f"{zone.value}\n"


@pytest.mark.parametrize("name", list_profiles())
def test_clocks_shrink_to_a_real_step(name):
    profile = load_profile(name)
    files = render_constant(profile) | render(profile, HOT)
    checked = 0
    for path, text in files.items():
        if path.endswith("cpuinfo_max_freq"):
            limit = int(files[path.replace("cpuinfo_max_freq", "scaling_max_freq")])
            steps = files[path.replace("cpuinfo_max_freq", "scaling_available_frequencies")].split()
            assert str(limit) in steps
            assert limit <= int(text) * 0.5 or limit == int(steps[0])
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize("name", list_profiles())
def test_battery_changes_only_what_the_state_says(name):
    template = load_profile(name).battery
    lines = battery_text(template, HOT).splitlines()
    assert {"  level: 7", "  status: 3", "  USB powered: false", "  temperature: 444", "  voltage: 3500"} <= set(lines)
    changed = [old for old, new in zip(template.splitlines(), lines, strict=True) if old != new]
    known = ("  AC powered", "  USB powered", "  level", "  status", "  temperature", "  voltage")
    assert all(line.startswith(known) for line in changed)


def test_thermalservice_keeps_its_stale_cache():
    profile = load_profile("galaxy-s9")
    text = thermalservice_text(profile.thermalservice, HOT)
    cached, current = text.split("Current temperatures from HAL:")
    assert "Thermal Status: 3" in cached
    assert "mValue=55.0, mType=0, mName=AP, mStatus=0" in cached
    assert "mValue=90.0, mType=0, mName=AP, mStatus=0" in current
    assert "mValue=46.0, mType=3, mName=SKIN, mStatus=3" in current
    assert "mValue=0.0, mType=2, mName=SUBBAT" in current  # the vendor's word for a sensor that is not there


def test_mounted_files_keep_their_inode_and_others_are_replaced(tmp_path):
    write_files(tmp_path, {"proc/boot_id": "a\n", "sys/x": "1\n"})
    before = {name: (tmp_path / name).stat().st_ino for name in ("proc/boot_id", "sys/x")}
    write_files(tmp_path, {"proc/boot_id": "b\n", "sys/x": "2\n"})
    assert ((tmp_path / "proc/boot_id").read_text(), (tmp_path / "sys/x").read_text()) == ("b\n", "2\n")
    assert (tmp_path / "proc/boot_id").stat().st_ino == before["proc/boot_id"]
    assert (tmp_path / "sys/x").stat().st_ino != before["sys/x"]


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("cat /data/local/tmp/a", "cat /r/data/local/tmp/a"),
        ("cat /proc/cpuinfo /proc/meminfo", "cat /r/proc/cpuinfo /r/proc/meminfo"),
        ("X=/data/x; cat '/sys/class/thermal'", "X=/r/data/x; cat '/r/sys/class/thermal'"),
        ("cat /proc/self/status /dev/null /database", "cat /proc/self/status /dev/null /database"),
        ("cat foo/data ./system/x", "cat foo/data ./system/x"),
        ("cd /data", "cd /r/data"),
        ("cd / && ls; cd /; cd /tmp", "cd /r && ls; cd /r; cd /tmp"),
    ],
)
def test_paths_of_the_phone_are_rewritten(command, wanted):
    assert rewrite_paths(command, "/r") == wanted
