from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.devices import AdbDevice, AdbState, ListForm, distinct, keep_only, parse_device_line, parse_device_list
from tests.support.golden import as_json, golden

DATA = Path(__file__).parents[2] / "data" / "adb" / "devices"
D, NO = AdbState.DEVICE, AdbState.NO_PERMISSIONS


def read(file):
    return parse_device_list(file.read_text())


@pytest.mark.parametrize(("file", "listed"), golden(DATA, read))
def test_genuine_lists(file, listed):
    assert as_json(read(file)) == listed


@given(
    serial=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=40).filter(
        lambda text: text.strip() and not text.startswith(("List of", "* ", "adb ", "error:"))
    ),
    state=st.sampled_from([state for state in AdbState if state is not NO]),
)
def test_the_short_format_is_never_ambiguous(serial, state):
    assert parse_device_line(f"{serial}\t{state}") == AdbDevice(serial, state)


@given(
    serial=st.from_regex(r"\A ?[A-Za-z0-9][A-Za-z0-9 .:_()-]{0,28}[A-Za-z0-9]\Z").filter(
        lambda text: not text.startswith(("List of", "adb ", "error:"))
    ),
    state=st.sampled_from([D, AdbState.OFFLINE, AdbState.UNAUTHORIZED, AdbState.RECOVERY]),
    path=st.sampled_from(["", " usb:1-4.2", " 231-1"]),
)
def test_the_long_format_keeps_spaces_in_serials(serial, state, path):
    line = f"{serial:<22} {state}{path} product:p model:m device:d transport_id:3"
    device = parse_device_line(line)
    assert device == AdbDevice(serial, state, "p", "m", "d", 3, path.strip().removeprefix("usb:"))


@given(st.text())
def test_any_text_is_a_list(text):
    assert len(parse_device_list(text)) <= text.count("\n") + 1


TWINS = """\
0123456789ABCDEF       device usb:1-4.2 product:p model:m device:d transport_id:3
0123456789ABCDEF       offline usb:1-4.3 transport_id:4
(no serial number)     device usb:1-4.4 transport_id:5
R5CT1                  device usb:1-4.5 transport_id:6
"""


def test_phones_with_one_serial_or_none_are_named_by_their_ports_for_ever():
    twins, shared = parse_device_list(TWINS), set()
    assert [each.serial for each in distinct(twins, shared)] == ["usb:1-4.2", "usb:1-4.3", "usb:1-4.4", "R5CT1"]
    assert [each.serial for each in distinct(twins[:1], shared)] == ["usb:1-4.2"]
    assert keep_only(TWINS.encode(), "usb:1-4.3", ListForm.TEXT) == TWINS.encode().splitlines(keepends=True)[1]
