"""What `farm doctor` says of hubs, places and permissions, with the command that repairs it."""

from farm.adb.devices import AdbDevice, AdbState
from farm.control.verbs.doctor import usb_findings
from farm.devices.power.power_rules import PowerConfig, PowerRule
from farm.devices.power.switchboard import Switchboard
from farm.model.device import DeviceView, Life, parse_place

TEXT = """\
Current status for hub 1-4 [2109:2817, USB 2.10, 4 ports, ppps]
  Port 1: 0503 power highspeed enable connect
  Port 2: 0000 off
"""


def view(name, path):
    return DeviceView(name, name.upper(), Life.READY, adopted=True, place=parse_place(path) if path else None)


async def look(folder, text, *views, listed=()):
    program = folder / "uhubctl"
    (folder / "text").write_text(text)
    refuses = "echo 'No compatible devices detected!' >&2; exit 1"
    program.write_text(f"#!/bin/sh\n{f'cat {folder}/text' if text else refuses}\n")
    program.chmod(0o755)
    config = PowerConfig(uhubctl=str(program), hub={"3-1": PowerRule("none")})
    return await usb_findings(config, Switchboard(config), views, listed)


async def test_hubs_that_switch_and_phones_that_are_well_placed(tmp_path):
    (finding,) = await look(tmp_path, TEXT, view("a", "1-4.1"), view("b", "3-1.1"))
    assert (finding.verdict, finding.detail) == ("ok", "uhubctl switches 1-4 (2 ports)")


async def test_a_port_without_power_and_a_phone_beyond_the_hubs(tmp_path):
    _, beyond, unpowered = await look(tmp_path, TEXT, view("a", "1-4.2"), view("b", "1-5.1"))
    assert beyond.detail == "b: their hub cannot switch its ports one by one"
    assert "[power.hub]" in beyond.fix
    assert (unpowered.detail, unpowered.fix) == ("the port of a has no power", "uhubctl -l 1-4 -p 2 -a on")


async def test_no_hub_can_switch(tmp_path):
    (finding,) = await look(tmp_path, "", view("a", "1-4.2"))
    assert finding.verdict == "warn"
    assert finding.detail.endswith("a cannot be power-cycled")
    (finding,) = await look(tmp_path, "")
    assert (finding.verdict, finding.fix) == ("ok", "")  # nobody needs one


async def test_phones_that_nobody_can_locate_or_open(tmp_path):
    listed = (
        *(AdbDevice(serial, AdbState.DEVICE) for serial in ("A", "B", "10.0.0.1:5555")),
        AdbDevice("C", AdbState.NO_PERMISSIONS, devpath="1-4.3"),
    )
    views = view("a", "1-4.1"), view("b", ""), view("c", "1-4.3")
    findings = {each.check: each for each in await look(tmp_path, TEXT, *views, listed=listed)}
    assert findings["usb places"].detail == "the USB port of B is not known"
    assert '[usb.places] "B"' in findings["usb places"].fix
    assert "may not open C" in findings["usb permission"].detail
    assert "udevadm trigger" in findings["usb permission"].fix


async def test_without_uhubctl_and_without_phones_nothing_is_said():
    config = PowerConfig(uhubctl="/nowhere/uhubctl")
    assert await usb_findings(config, Switchboard(config), (), ()) == []
