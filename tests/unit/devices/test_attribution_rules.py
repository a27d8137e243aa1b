"""Places as sysfs names them, and whose fault it is when phones vanish together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.devices.power.power_rules import attribute
from farm.model.device import UsbPlace, hubs_above, parse_place


def places(**paths):
    """Serial -> place."""
    found = {serial: parse_place(path) for serial, path in paths.items()}
    assert None not in found.values()
    return {serial: place for serial, place in found.items() if place is not None}


LAB = places(a="1-4.1", b="1-4.2", c="1-4.3", d="1-5.1", e="1-5.2", f="2-1")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("usb:1-4.2", UsbPlace("1-4", 2, "1-4.2")),
        ("1-5", UsbPlace("usb1", 5, "1-5")),
        ("5-4.4.1", UsbPlace("5-4.4", 1, "5-4.4.1")),
        ("4-1", UsbPlace("usb4", 1, "4-1")),
    ],
)
def test_a_place(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    ["", "231-1", "336675328X", "17825792X", "1-4:1.0", "usb1", "1-0", "0-1", "1-4.", "1-4.2.", "1-4.0", "1.4", "-1",
     "1-1.1.1.1.1.1.1", "1-4.2\n", "\u0661-1", "usb:usb:1-1"],
)  # fmt: skip
def test_what_is_no_place_on_this_host(text):
    assert parse_place(text) is None


@given(st.text(alphabet="0123456789.-usb:X", max_size=20))
def test_a_path_is_its_hub_and_port_or_nothing(text):
    place = parse_place(text)
    if place is not None:
        assert place.path == text.removeprefix("usb:")
        assert place.path in (f"{place.hub}.{place.port}", f"{place.hub.removeprefix('usb')}-{place.port}")
        assert hubs_above(place)[-1] == f"usb{place.path.partition('-')[0]}"


def test_the_way_to_the_host():
    assert hubs_above(UsbPlace("5-4.4", 1, "5-4.4.1")) == ("5-4.4", "5-4", "usb5")


def test_one_phone_is_blamed_itself_while_others_of_its_hub_stay():
    (cause,) = attribute({"a"}, LAB, LAB.keys() - {"a"})
    assert (cause.devices, cause.reason) == (("a",), "")


def test_the_only_phone_of_a_hub_is_blamed_itself():
    (cause,) = attribute({"f"}, LAB, LAB.keys() - {"f"})
    assert cause.reason == ""


def test_all_phones_of_a_hub_are_its_fault():
    (cause,) = attribute({"a", "b", "c"}, LAB, {"d", "e", "f", "10.0.0.1:5555"})
    assert (cause.hub, cause.devices) == ("1-4", ("a", "b", "c"))
    assert cause.reason == "its hub 1-4 vanished with 3 phones"


def test_two_of_three_are_two_phones():
    causes = attribute({"a", "b"}, LAB, {"c", "d", "e", "f"})
    assert [(cause.devices, cause.reason) for cause in causes] == [(("a",), ""), (("b",), "")]


def test_two_hubs_and_a_phone_at_once():
    causes = attribute({"a", "b", "c", "d", "e", "n:5555"}, LAB, {"f"})
    assert [cause.hub for cause in causes] == [
        "usb1",  # its bus: both hubs hang on it, and nothing else is left there
        "",
    ]
    assert causes[0].reason == "its USB bus 1 vanished with 5 phones"
    assert (causes[1].devices, causes[1].reason) == (("n:5555",), "")


def test_everything_on_every_hub_is_the_hosts_fault():
    (cause,) = attribute(LAB.keys(), LAB, ())
    assert cause.hub == ""
    assert cause.devices == tuple(sorted(LAB))
    assert cause.reason == "all USB phones of this host (6) vanished together"


def test_a_hub_made_of_two_is_one_hub():
    lab = places(a="1-4.1.1", b="1-4.1.2", c="1-4.2")
    (cause,) = attribute(lab.keys(), lab, ())
    assert cause.hub == "1-4"


def test_the_lowest_hub_that_has_them_all_is_named():
    lab = places(a="1-4.1.1", b="1-4.1.2", c="2-1")
    (cause,) = attribute({"a", "b"}, lab, {"c"})
    assert cause.hub == "1-4.1"


def test_when_the_adb_server_went_nobody_else_is_blamed():
    (cause,) = attribute({"a", "n:5555"}, LAB, (), server_lost=True)
    assert (cause.hub, cause.devices, cause.reason) == ("", ("a", "n:5555"), "the adb server went away")
    assert attribute((), LAB, (), server_lost=True) == ()


SERIALS = [f"s{number}" for number in range(8)]
PATHS = st.from_regex(r"[12]-[12](\.[12]){0,2}", fullmatch=True)


@given(st.dictionaries(st.sampled_from(SERIALS), PATHS), st.sets(st.sampled_from(SERIALS)), st.booleans())
def test_every_loss_is_explained_once_and_no_hub_with_a_phone_left_is_blamed(paths, lost, server_lost):
    where, present = places(**paths), set(SERIALS) - lost
    causes = attribute(lost, where, present, server_lost=server_lost)
    assert sorted(serial for cause in causes for serial in cause.devices) == sorted(lost)
    for cause in causes:
        if cause.hub:
            assert len(cause.devices) > 1
            assert all(cause.hub in hubs_above(where[serial]) for serial in cause.devices)
            assert not any(cause.hub in hubs_above(where[serial]) for serial in present & where.keys())
        assert cause.reason or len(cause.devices) == 1
