from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.devices import AdbDevice, AdbState, parse_device_line, parse_device_list

DATA = Path(__file__).parents[2] / "data" / "adb" / "devices"
D, NO = AdbState.DEVICE, AdbState.NO_PERMISSIONS
# file -> (serial, state, model, transport id, devpath) of each device
EXPECTED: dict[str, list[tuple[str, AdbState, str, int | None, str]]] = {
    "adb_client-odd-lines": [
        ("XXXXXXXXXXXXXXXXX", D, "SM_T813", 4, "1-5"),
        ("XXXXXXXXXXXXXX", AdbState.SIDELOAD, "Quest_2", 5, "2-3.2"),
        ("192.168.1.100:5555", D, "Quest_2", 6, ""),
        ("XXXXXXXXXXXXXX", D, "Quest_2", 2, "2-3.2"),
    ],
    "briefcase-macos-devpath": [("200ABCDEFGHIJK", D, "Pixel_7", 1, "231-1")],
    "briefcase-multiple_devices": [
        ("041234567892009a", AdbState.UNAUTHORIZED, "", 2, "336675328X"),
        ("KABCDABCDA1513", D, "Kogan_Agora_9", 1, "336675584X"),
        ("emulator-5554", D, "Android_SDK_built_for_x86", 4, ""),
        ("emulator-5556", AdbState.OFFLINE, "", 32, ""),
    ],
    "briefcase-no_devices": [],
    "briefcase-no_permissions": [("200ABCDEFGHIJK", NO, "", 1, "5-4.4.1"), ("300ABCDEFGHIJK", NO, "", 1, "5-4.4.1")],
    "briefcase-one_emulator": [("emulator-5554", D, "Android_SDK_built_for_x86", 4, "")],
    "mdns-serial-honor": [("adb-XXXXXXXXXXXXXXXX-bReb3a._adb-tls-connect._tcp", D, "ALT_NX1", 1, "")],
    "no-permissions-short-three": [("XXXXXXXXXXXXXXXX", NO, "", None, "")] * 3,
    "offline-samsung-windows": [("1234... (serial number)", AdbState.OFFLINE, "", 83, "")],
    "plain-two-devices-mobly": [("XXXXXXXXXXXXXXXXX", D, "", None, "")] * 2,
    "scrcpy-daemon_start": [("0123456789abcdef", D, "MyModel", 1, "2-1")],
    "scrcpy-spaces": [("0123456789abcdef", AdbState.UNAUTHORIZED, "", 3, "1-4")],
    "serial-with-leading-space-rk3288": [(" XXXXXXXXXXXXXX", D, "rk3288", 15, "17825792X")],
    "tcp-serial-rk3288": [("198.18.3.42:5555", D, "rk3288", 1, "")],
}


def test_every_capture_is_listed_here() -> None:
    assert {path.stem for path in DATA.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_genuine_lists(name: str) -> None:
    listing = parse_device_list((DATA / f"{name}.txt").read_text())
    assert [(d.serial, d.state, d.model, d.transport_id, d.devpath) for d in listing] == EXPECTED[name]


def test_the_reason_for_no_permissions_is_kept() -> None:
    listing = parse_device_list((DATA / "briefcase-no_permissions.txt").read_text())
    assert "user russell is not in the plugdev group" in listing[0].detail


@pytest.mark.parametrize(
    "words",
    [
        "no permissions",
        "no permissions (verify udev rules)",
        "no permissions; see [http://developer.android.com/tools/device.html]",
        "no permissions (udev requires plugdev group membership); see [http://developer.android.com/tools/device.html]",
        "no permissions (missing udev rules? user is in the plugdev group); see [https://x/y]",
    ],
)
@pytest.mark.parametrize("line", ["SER\t{}", "SER                    {} usb:1-4 transport_id:2"])
def test_no_permissions_in_every_wording(line: str, words: str) -> None:
    device = parse_device_line(line.format(words))
    assert device is not None
    assert (device.serial, device.state) == ("SER", NO)


@pytest.mark.parametrize(
    ("line", "serial", "detail"),
    [
        ("SER\tsleeping soundly", "SER", "sleeping soundly"),
        ("SER     dozing usb:1-1 transport_id:7", "SER", "dozing usb:1-1"),
    ],
)
def test_a_state_of_the_future_keeps_the_phone_visible(line: str, serial: str, detail: str) -> None:
    device = parse_device_line(line)
    assert device is not None
    assert (device.serial, device.state, device.detail) == (serial, AdbState.UNKNOWN, detail)


@given(
    serial=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=40).filter(
        lambda text: text.strip() and not text.startswith(("List of", "* ", "adb ", "error:"))
    ),
    state=st.sampled_from([state for state in AdbState if state is not NO]),
)
def test_the_short_format_is_never_ambiguous(serial: str, state: AdbState) -> None:
    assert parse_device_line(f"{serial}\t{state}") == AdbDevice(serial, state)


@given(
    serial=st.from_regex(r"\A ?[A-Za-z0-9][A-Za-z0-9 .:_()-]{0,28}[A-Za-z0-9]\Z").filter(
        lambda text: not text.startswith(("List of", "adb ", "error:"))
    ),
    state=st.sampled_from([D, AdbState.OFFLINE, AdbState.UNAUTHORIZED, AdbState.RECOVERY]),
    path=st.sampled_from(["", " usb:1-4.2", " 231-1"]),
)
def test_the_long_format_keeps_spaces_in_serials(serial: str, state: AdbState, path: str) -> None:
    line = f"{serial:<22} {state}{path} product:p model:m device:d transport_id:3"
    device = parse_device_line(line)
    assert device == AdbDevice(serial, state, "p", "m", "d", 3, path.strip().removeprefix("usb:"))


@given(st.text())
def test_any_text_is_a_list(text: str) -> None:
    assert len(parse_device_list(text)) <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("line", "serial", "state", "product", "devpath"),
    [
        (
            "R58M12 device usb:1-4 product:Galaxy S8 model:SM G950F device:dream transport_id:4",
            "R58M12",
            "device",
            "Galaxy S8",
            "1-4",
        ),
        ("Y1 device product:my device model:z", "Y1", "device", "my device", ""),
        (
            "N1 no permissions (user in plugdev group; see [http://developer.android.com/to",
            "N1",
            "no permissions",
            "",
            "",
        ),
        ("N2 no permissions usb:3-1 transport_id:3", "N2", "no permissions", "", "3-1"),
        ("N3 no permissions; see [http://x] usb:1-2 product:a b", "N3", "no permissions", "a b", "1-2"),
        ("M1 offline !! 12", "M1", "offline", "", ""),
    ],
)
def test_every_line_keeps_its_serial_and_state(line: str, serial: str, state: str, product: str, devpath: str) -> None:
    found = parse_device_line(line)
    assert found is not None
    assert (found.serial, found.state, found.product, found.devpath) == (serial, state, product, devpath)
