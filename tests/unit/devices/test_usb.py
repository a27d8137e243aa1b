"""Where phones are plugged in: adb's list, sysfs, the configuration."""

from pathlib import Path

import pytest

from farm.adb.devices import parse_device_list
from farm.devices.power.power_rules import UsbConfig
from farm.devices.power.usb import DEVICES, place_of, plugged_in, unplaced
from farm.model.device import UsbPlace, parse_place

CAPTURES = Path(__file__).parents[2] / "data" / "adb" / "devices"


def sysfs(folder, *devices):
    """Folders as the kernel has them: (name, bDeviceClass, serial); no serial file when it is empty."""
    for name, device_class, serial in devices:
        made = folder / DEVICES / name
        made.mkdir(parents=True)
        (made / "bDeviceClass").write_text(f"{device_class}\n")
        if serial:
            (made / "serial").write_text(f"{serial}\n")
    return folder


@pytest.fixture
def tree(tmp_path):
    return sysfs(
        tmp_path, ("usb1", "09", "0000:00:14.0"), ("1-4", "09", ""), ("1-4:1.0", "", ""), ("1-4.2", "00", "R58M"),
        ("1-4.3", "09", ""), ("1-4.3.1", "00", "TWIN"), ("1-5", "00", "TWIN"), ("2-1", "00", "58db5c20"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("capture", "paths"),
    [
        ("adb_client-odd-lines.txt", ["1-5", "2-3.2", None, "2-3.2"]),
        ("briefcase-macos-devpath.txt", [None]),
        ("briefcase-multiple_devices.txt", [None, None, None, None]),
        ("briefcase-no_permissions.txt", ["5-4.4.1", "5-4.4.1"]),
        ("scrcpy-spaces.txt", ["1-4"]),
        ("serial-with-leading-space-rk3288.txt", [None]),
        ("tcp-serial-rk3288.txt", [None]),
        ("mdns-serial-honor.txt", [None]),
    ],
)
def test_what_adb_lists(capture, paths, tmp_path):
    usb = UsbConfig(sysfs=str(tmp_path))
    devices = parse_device_list((CAPTURES / capture).read_text())
    found = [place_of(usb, device.serial, device.devpath) for device in devices]
    assert [place.path if place else None for place in found] == paths


def test_the_configuration_wins(tree):
    usb = UsbConfig({"10.0.0.7:5555": "3-1.4", "58db5c20": "1-4.9"}, str(tree))
    assert place_of(usb, "10.0.0.7:5555") == UsbPlace("3-1", 4, "3-1.4")
    assert place_of(usb, "emulator-5554", hardware_serial="58db5c20") == UsbPlace("1-4", 9, "1-4.9")
    assert place_of(usb, "58db5c20", "2-1") == UsbPlace("1-4", 9, "1-4.9")


def test_sysfs_finds_a_phone_by_its_serial_when_adb_names_no_path(tree):
    usb = UsbConfig(sysfs=str(tree))
    assert place_of(usb, "R58M", "336675328X") == UsbPlace("1-4", 2, "1-4.2")
    assert place_of(usb, "emulator-5554", hardware_serial="58db5c20") == UsbPlace("usb2", 1, "2-1")
    assert place_of(usb, "unheard-of") is None


def test_two_phones_of_one_serial_are_nowhere(tree):
    assert place_of(UsbConfig(sysfs=str(tree)), "TWIN") is None


def test_a_phone_reached_over_the_network_is_not_where_it_is_charged(tree):
    usb = UsbConfig(sysfs=str(tree))
    assert place_of(usb, "10.0.0.7:5555", hardware_serial="R58M") is None
    assert place_of(usb, "adb-R58M-bReb3a._adb-tls-connect._tcp", hardware_serial="R58M") is None


def test_no_sysfs_at_all(tmp_path):
    assert plugged_in(tmp_path / "none") == ()


def test_phones_on_a_cable_that_nobody_finds():
    place = parse_place("1-4")
    assert place is not None
    assert unplaced(["a", "b", "10.0.0.7:5555", "adb-x._adb-tls-connect._tcp"], {"a": place}) == ("b",)
