"""Hubs: places, power by port through uhubctl's words, and the folders of sysfs."""

from types import SimpleNamespace

import pytest

from farm.common.errors import UserError
from farm.simulation.usb_hubs import DEVICES, Hubs, hubs_above, parent_of


class FakePhone:
    def __init__(self, name):
        self.name, self.title, self.said = name, "Maker Model", []
        self.plugged = self.powered = self.port_power = True
        self.spec = SimpleNamespace(serial=f"serial-{name}")

    async def set_port_power(self, *, on):
        self.port_power = on
        self.said.append(on)


@pytest.fixture
def phones():
    return {"1-4.2": FakePhone("a"), "1-4.3": FakePhone("b"), "1-4.4.1": FakePhone("c"), "2-1": FakePhone("d")}


@pytest.fixture
def hubs(tmp_path, phones):
    made = Hubs(tmp_path)
    for place, phone in phones.items():
        made.add(phone, place)
    return made


async def uhubctl(hubs, words):
    return await hubs.uhubctl(words.split())


def seen(tmp_path):
    return sorted(entry.name for entry in (tmp_path / DEVICES).iterdir())


@pytest.mark.parametrize(("place", "parent"), [("1-4.2", ("1-4", 2)), ("1-4", ("1", 4)), ("2-1.4.13", ("2-1.4", 13))])
def test_places(place, parent):
    assert parent_of(place) == parent


@pytest.mark.parametrize("place", ["", "1", "1-", "1-4.", "usb1", "1-0", "1-4.2/..", "1-1.1.1.1.1.1.1"])
def test_impossible_places(place):
    with pytest.raises(UserError):
        parent_of(place)


@pytest.mark.parametrize("place", ["1-4.2", "1-4", "1-4.2.1"])
def test_a_taken_place_is_refused(hubs, place):
    assert hubs_above(["1-4.2", "1-4.4.7"]) == {"1": 16, "1-4": 4, "1-4.4": 7}
    with pytest.raises(UserError, match="taken"):
        hubs.add(FakePhone("x"), place)


async def test_status_in_uhubctls_words(hubs):
    said = await uhubctl(hubs, "-l 1-4")
    assert said.code == 0
    assert said.out.splitlines() == [
        "Current status for hub 1-4 [2109:2817 VIA Labs, Inc. USB2.0 Hub, USB 2.10, 4 ports, ppps]",
        "  Port 1: 0100 power",
        "  Port 2: 0503 power highspeed enable connect [18d1:4ee7 Maker Model serial-a]",
        "  Port 3: 0503 power highspeed enable connect [18d1:4ee7 Maker Model serial-b]",
        "  Port 4: 0503 power highspeed enable connect [2109:2817 VIA Labs, Inc. USB2.0 Hub, USB 2.10, 4 ports, ppps]",
    ]


async def test_a_cycle_goes_off_and_on_again(hubs, phones):
    said = await uhubctl(hubs, "--location=1-4 -p 2 -a cycle -d 0")
    assert phones["1-4.2"].said == [False, True]
    assert not phones["1-4.3"].said
    words = [line for line in said.out.splitlines() if not line.startswith("Current") and not line.startswith("New")]
    connected = "  Port 2: 0503 power highspeed enable connect [18d1:4ee7 Maker Model serial-a]"
    off = "  Port 2: 0000 off"
    assert words == [connected, "Sent power off request", off, off, "Sent power on request", connected]


async def test_off_stays_off_until_on_and_a_hub_without_current_takes_what_hangs_on_it(hubs, phones, tmp_path):
    assert (await uhubctl(hubs, "-l1-4 -p2-3 -a0")).code == 0
    assert (phones["1-4.2"].port_power, phones["1-4.3"].port_power) == (False, False)
    assert "1-4.2" not in seen(tmp_path)
    await uhubctl(hubs, "-l1-4 -p2 -aon")
    assert (phones["1-4.2"].port_power, phones["1-4.3"].port_power) == (True, False)
    await uhubctl(hubs, "-l1-4 -p3 -aon")
    await uhubctl(hubs, "-l 1-4 -p 4 -a off")
    assert not phones["1-4.4.1"].port_power
    assert seen(tmp_path) == ["1-4", "1-4.2", "1-4.3", "2-1", "usb1", "usb2"]
    assert (await uhubctl(hubs, "-l 1-4.4")).code == 1


async def test_a_hub_is_pulled_and_put_back(hubs, phones, tmp_path):
    await hubs.set_plugged("1-4", plugged=False)
    assert [phone.port_power for phone in phones.values()] == [False, False, False, True]
    assert seen(tmp_path) == ["2-1", "usb1", "usb2"]
    await hubs.set_plugged("1-4", plugged=True)
    assert all(phone.port_power for phone in phones.values())
    with pytest.raises(UserError):
        await hubs.set_plugged("1-9", plugged=False)


def test_sysfs_has_serial_numbers_in_folders_inside_their_hub(hubs, phones, tmp_path):
    folder = (tmp_path / DEVICES / "1-4.4.1").resolve()
    assert (folder / "serial").read_text() == "serial-c\n"
    assert [folder.parent.name, folder.parent.parent.name, folder.parent.parent.parent.name] == ["1-4.4", "1-4", "usb1"]
    assert (folder.parent / "bDeviceClass").read_text() == "09\n"
    before = (folder / "devnum").read_text()
    phones["1-4.4.1"].powered = False
    hubs.refresh()
    assert not folder.exists()
    phones["1-4.4.1"].powered = True
    hubs.refresh()
    assert (folder / "devnum").read_text() != before  # the kernel numbers each coming again


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-l", "1-9"], "No compatible devices detected at location 1-9!"),
        (["-l", "2", "-p", "1", "-a", "off"], "No compatible devices detected at location 2!"),  # a root hub
        (["-a", "off"], "Error: changing port state for multiple hubs at once is not supported."),
        (["-z"], "Run with -h to get usage info."),
        (["-l", "1-4", "stray"], "Invalid command line syntax!"),
        (["-l", "1-4", "-p", "0"], "Bad port spec 0-0, port numbers must be from 1 to 14"),
        (["-l", "1-4", "-p", "3-2"], "Bad port spec 3-2, first port must be less than last"),
    ],
)
async def test_what_uhubctl_refuses(hubs, phones, arguments, words):
    said = await hubs.uhubctl(arguments)
    assert (said.code, said.out) == (1, "")
    assert words in said.err
    assert all(phone.port_power for phone in phones.values())
