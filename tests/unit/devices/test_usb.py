"""Where phones are plugged in, and whose fault it is when they vanish together."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.devices import parse_device_list
from farm.common.events import EventLog
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.power.power_rules import WINDOW_S, UsbConfig, attribute
from farm.devices.power.switchboard import (
    DEVICES,
    UsbFaults,
    judge_phones,
    phones_on_usb,
    place_of,
    plugged_in,
    unplaced,
)
from farm.model.device import UsbPlace, hubs_above, parse_place
from farm.model.health import DeviceFault
from tests.support.fake_phone import StubAgent

CAPTURES = Path(__file__).parents[2] / "data" / "adb" / "devices"


def sysfs(folder, *devices):
    """Folders as the kernel has them: (name, bDeviceClass, serial, interface); no serial file when it is empty.

    An interface is `ff4201`, perhaps with its name behind it, or "" of a device that the host did not configure.
    """
    for name, device_class, serial, *interface in devices:
        made = folder / DEVICES / name
        made.mkdir(parents=True)
        (made / "bDeviceClass").write_text(f"{device_class}\n")
        if serial:
            (made / "serial").write_text(f"{serial}\n")
        for kind in interface:
            (made / "bConfigurationValue").write_text("1\n" if kind else "\n")
            (made / f"{name}:1.0").mkdir()
            (made / f"{name}:1.0" / "interface").write_text(f"{kind[6:]}\n")
            for place, part in enumerate(("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")):
                (made / f"{name}:1.0" / part).write_text(f"{kind[2 * place : 2 * place + 2]}\n")
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


CONFIGURED = {"10.0.0.7:5555": "3-1.4", "58db5c20": "1-4.9"}


@pytest.mark.parametrize(
    ("configured", "serial", "facts", "path"),
    [
        (CONFIGURED, "10.0.0.7:5555", {}, "3-1.4"),  # the configuration wins
        (CONFIGURED, "emulator-5554", {"hardware_serial": "58db5c20"}, "1-4.9"),
        (CONFIGURED, "58db5c20", {"devpath": "2-1"}, "1-4.9"),
        ({}, "R58M", {"devpath": "336675328X"}, "1-4.2"),  # adb names no path: sysfs finds it by its serial
        ({}, "emulator-5554", {"hardware_serial": "58db5c20"}, "2-1"),
        ({}, "unheard-of", {}, ""),
        ({}, "TWIN", {}, ""),  # two phones of one serial
        ({}, "10.0.0.7:5555", {"hardware_serial": "R58M"}, ""),  # over the network it is not where it is charged
        ({}, "adb-R58M-bReb3a._adb-tls-connect._tcp", {"hardware_serial": "R58M"}, ""),
    ],
)
def test_where_a_phone_is_plugged_in(tree, configured, serial, facts, path):
    assert place_of(UsbConfig(configured, str(tree)), serial, **facts) == parse_place(path)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([("1-4", "00", "A", "ff4201"), ("1-5", "00", "B", "ff4201"), ("1-6", "03", "", "030101")], []),
        ([("1-4", "00", "A", "ff4203")], ["1-4 (A)", "fastboot -s A reboot"]),
        ([("1-4", "00", "", "ff4203")], ["1-4", "fastboot -s usb:1-4 reboot"]),
        ([("1-4", "00", "A", "")], ["did not configure", "1-4 (A)", "set config"]),
        ([("1-4", "00", "A", "060101")], ["1-4 (A) has no adb", "USB debugging"]),
        ([("1-4", "00", "A", "ffff00MTP")], ["1-4 (A) has no adb", "USB debugging"]),
        ([("1-4", "00", "", "ff4201"), ("1-5", "00", "", "ff4201")], ["1-4, 1-5", "usb:PORT"]),
        ([("1-4", "00", "A", "ff4201"), ("1-5", "00", "A", "ff4201")], ["1-4 and 1-5", "usb:PORT"]),
    ],
    ids=["all is well", "fastboot", "fastboot alone", "not configured", "files", "MTP", "no serial", "one serial"],
)
def test_phones_on_cables_that_adb_does_not_show_by_a_serial_of_their_own(tmp_path, devices, words):
    found = list(judge_phones(phones_on_usb(sysfs(tmp_path, *devices))))
    assert len(found) == bool(words)
    assert all(word in f"{found[0].detail}: {found[0].fix}" for word in words)


def test_a_device_that_the_hosts_rules_keep_out_is_named(tmp_path):
    (sysfs(tmp_path, ("1-4", "00", "A", "")) / DEVICES / "1-4/authorized").write_text("0\n")
    (found,) = judge_phones(phones_on_usb(tmp_path))
    assert found.fix.endswith("1-4/authorized")


def test_no_sysfs_at_all(tmp_path):
    assert plugged_in(tmp_path / "none") == ()


def test_phones_on_a_cable_that_nobody_finds():
    place = parse_place("1-4")
    assert place is not None
    assert unplaced(["a", "b", "10.0.0.7:5555", "adb-x._adb-tls-connect._tcp"], {"a": place}) == ("b",)


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


NET = "10.0.0.1:5555"


@pytest.mark.parametrize(
    ("lost", "causes"),
    [
        ("a", [("", "a", "")]),  # others of its hub stay
        ("f", [("", "f", "")]),  # the only phone of its hub
        ("abc", [("1-4", "abc", "its hub 1-4 vanished with 3 phones")]),
        ("ab", [("", "a", ""), ("", "b", "")]),
        # Both hubs hang on one bus, and nothing else is left there.
        (["a", "b", "c", "d", "e", NET], [("usb1", "abcde", "its USB bus 1 vanished with 5 phones"), ("", NET, "")]),
        ("abcdef", [("", "abcdef", "all USB phones of this host (6) vanished together")]),
    ],
)
def test_whose_fault_a_loss_is(lost, causes):
    found = attribute(lost, LAB, {*LAB, NET} - {*lost})
    assert [(cause.hub, "".join(cause.devices), cause.reason) for cause in found] == causes


def test_the_lowest_hub_that_has_them_all_is_named_also_of_a_hub_made_of_two():
    lab = places(a="1-4.1.1", b="1-4.1.2", c="1-4.2")
    assert [cause.hub for cause in attribute(lab.keys(), lab, ())] == ["1-4"]
    lab = places(a="1-4.1.1", b="1-4.1.2", c="2-1")
    assert [cause.hub for cause in attribute({"a", "b"}, lab, {"c"})] == ["1-4.1"]


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


PLACES = {"a": "1-4.1", "b": "1-4.2", "c": "2-1", "net": ""}
HUB = [("hub.lost", "1-4"), ("hub.back", "1-4")]


class Lab:
    """Agents on hubs, and everything told about them."""

    def __init__(self):
        self.now_s = 100.0
        self.told = []
        events = EventLog()
        events.subscribe(lambda event: self.told.append((event.kind, event.subject, dict(event.data))))
        self.faults = UsbFaults(events, monotonic=lambda: self.now_s)
        self.agents = {
            serial: StubAgent(serial, f"phone-{serial}", place=parse_place(path)) for serial, path in PLACES.items()
        }
        self.listed("a b c net")

    def listed(self, serials, dead="", server_lost=False):
        """Adb lists these; returns the serials of the agents that changed."""
        dead = tuple(dead.split())
        changed = self.faults.update(self.agents, (*serials.split(), *dead), dead, server_lost=server_lost)
        return {agent.serial for agent in changed}

    def kinds(self):
        return [(kind, subject) for kind, subject, _ in self.told]

    def causes(self):
        """What explains the state of each phone, if anything does."""
        return {agent.serial: agent.external_cause for agent in self.agents.values() if agent.external_cause}


@pytest.fixture
def lab():
    return Lab()


def test_a_hub_is_told_once_and_its_phones_know(lab):
    assert lab.listed("b c net") == set()
    assert (lab.kinds(), lab.faults.problems()) == ([], [])  # one phone is no news here
    lab.now_s += 1.0
    assert lab.listed("c net") == {"a", "b"}
    assert lab.listed("c net") == set()
    why = "its hub 1-4 vanished with 2 phones"
    assert lab.told == [("hub.lost", "1-4", {"devices": ("phone-a", "phone-b"), "reason": why})]
    assert lab.causes() == {"a": why, "b": why}
    (problem,) = lab.faults.problems()
    assert problem.startswith("hub 1-4 vanished with 2 phones: phone-a, phone-b (")


def test_a_hub_whose_phones_stay_listed_as_dead_is_blamed_too(lab):
    assert lab.listed("b c net", dead="a") == set()
    assert lab.listed("c net", dead="a b") == {"a", "b"}
    assert lab.causes()["a"] == "its hub 1-4 went silent with 2 phones"
    assert lab.listed("c net", dead="b") == set()  # one leaves adb's list meanwhile
    assert lab.listed("b c net") == {"a", "b"}
    assert lab.kinds() == HUB


def test_phones_that_come_back_dead_for_a_moment_are_no_news(lab):
    lab.listed("c net")
    lab.listed("c net", dead="a b")
    lab.listed("a b c net")
    assert lab.kinds() == HUB


def test_one_phone_back_acquits_the_hub(lab):
    lab.listed("c net")
    assert lab.listed("a c net") == {"a", "b"}
    assert lab.kinds() == HUB
    assert lab.told[-1][2] == {"devices": ["phone-a"]}
    assert (lab.faults.problems(), lab.causes()) == ([], {})


def test_losses_far_apart_are_two_losses(lab):
    lab.listed("b c net")
    lab.now_s += WINDOW_S + 1.0
    lab.listed("c net")
    assert lab.kinds() == []


def test_everything_at_once_is_the_host_and_no_hub_beside_it(lab):
    lab.listed("c net")
    lab.now_s += 1.0
    assert lab.listed("net") == {"a", "b", "c"}
    assert len(lab.faults.problems()) == 1
    lab.listed("a b c net")
    assert lab.kinds() == [("hub.lost", "1-4"), ("host.usb_lost", "usb"), ("host.usb_back", "usb")]


def test_while_the_adb_server_is_gone_no_hub_is_blamed(lab):
    assert lab.listed("", server_lost=True) == set(PLACES)
    assert lab.causes() == dict.fromkeys(PLACES, "the adb server went away")
    assert lab.listed(" ".join(PLACES)) == set(PLACES)
    assert (lab.kinds(), lab.faults.problems(), lab.causes()) == ([], [], {})


def test_phones_that_recovery_sent_away_do_not_count(lab):
    agent = lab.agents["a"]
    progress = agent.state.progress.begin(RecoveryAction.REBOOT, DeviceFault.STUCK, "it is stuck", 1.0)
    agent.state = replace(agent.state, progress=progress)
    lab.listed("c net")
    assert lab.kinds() == []


def test_a_hub_whose_phones_are_forgotten_is_no_problem(lab):
    lab.listed("c net")
    del lab.agents["a"], lab.agents["b"]
    lab.listed("c net")
    assert lab.faults.problems() == []
