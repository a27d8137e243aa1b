"""Power switches against programs that behave like uhubctl and like a PDU's tool, well and badly."""

import asyncio

import pytest

from farm.devices.power import power, switchboard
from farm.devices.power.power import CommandSwitch, PowerError, Uhubctl, cycle, parse_status, powered, udev_fix
from farm.devices.power.power_rules import PowerConfig, PowerRule
from farm.devices.power.switchboard import REFUSED_S, Switchboard
from farm.model.device import UsbPlace, parse_place
from tests.support.waiting import until

PLACE = UsbPlace("1-4", 2, "1-4.2")

# As uhubctl 2.5 prints for a USB 3 hub (two halves) and 2.6 with -N; its README and print_port_status.
SUPER_SPEED = """\
Current status for hub 2-1.4 [2109:0813 VIA Labs, Inc. USB3.0 Hub, USB 3.00, 4 ports, ppps]
  Port 2: 0263 power 5gbps U3 enable connect [04e8:6860 SAMSUNG SAMSUNG_Android R58M]
Current status for hub 1-1.4 [2109:2813 VIA Labs, Inc. USB2.0 Hub, USB 2.10, 4 ports, ppps]
  Port 2: 0100 power
Sent power off request
New status for hub 2-1.4 [2109:0813 VIA Labs, Inc. USB3.0 Hub, USB 3.00, 4 ports, ppps]
  Port 2: 0080 off
New status for hub 1-1.4 [2109:2813 VIA Labs, Inc. USB2.0 Hub, USB 2.10, 4 ports, ppps]
  Port 2: 0000 off
"""


def test_a_usb3_hub_is_told_twice_before_and_after():
    assert [each.hub for each in parse_status(SUPER_SPEED)] == ["2-1.4", "1-1.4", "2-1.4", "1-1.4"]
    assert powered(SUPER_SPEED, 2) is True
    assert powered(SUPER_SPEED, 2, after=True) is False
    assert powered(SUPER_SPEED, 3) is None
    half = SUPER_SPEED.replace("Port 2: 0080 off", "Port 2: 02a0 power 5gbps Rx.Detect")
    assert powered(half, 2, after=True) is True  # the other half still feeds the phone


def test_a_phone_called_off_has_power():
    text = "Current status for hub 1-4 [x, ppps]\n  Port 2: 0503 power highspeed enable connect [1:2 Switch off 3]\n"
    assert powered(text, 2) is True


def fake(folder, body):
    """A program; it finds its arguments in $*, and its own folder in $here."""
    program = folder / "program"
    program.write_text(f'#!/bin/sh\nhere={folder}\necho "$*" >>$here/calls\n{body}\n')
    program.chmod(0o755)
    return str(program)


HUB = """\
[ -f $here/off ] && now='0000 off' || now='0503 power highspeed enable connect'
echo 'Current status for hub 1-4 [2109:2817, USB 2.10, 4 ports, ppps]'; echo "  Port 2: $now"
case "$*" in
*'-a off') LAG said=off ;;
*'-a on') rm -f $here/off; said=on ;;
*) exit 0 ;;
esac
[ -f $here/off ] && now='0000 off' || now='0100 power'
echo "Sent power $said request"
echo 'New status for hub 1-4 [2109:2817, USB 2.10, 4 ports, ppps]'; echo "  Port 2: $now"
"""


async def test_off_and_on_are_checked_before_and_after(tmp_path):
    switch = Uhubctl(fake(tmp_path, HUB.replace("LAG", "touch $here/off;")))
    await switch.off(PLACE)
    assert (tmp_path / "off").exists()
    await switch.off(PLACE)  # it is off: nothing is ordered
    await switch.on(PLACE)
    assert not (tmp_path / "off").exists()
    assert (tmp_path / "calls").read_text().splitlines() == [
        "-N -l 1-4 -p 2", "-N -l 1-4 -p 2 -a off", "-N -l 1-4 -p 2",
        "-N -l 1-4 -p 2", "-N -l 1-4 -p 2 -a on",
    ]  # fmt: skip


async def test_a_port_that_drops_late_is_waited_for(tmp_path):
    late = HUB.replace("LAG", "(sleep 0.3; touch $here/off) >/dev/null 2>&1 &")
    await Uhubctl(fake(tmp_path, late)).off(PLACE)
    assert (tmp_path / "off").exists()


async def test_a_hub_that_only_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(power, "VERIFY_S", 0.0)
    switch = Uhubctl(fake(tmp_path, HUB.replace("LAG", "")))
    with pytest.raises(PowerError, match="took the order, but its port 2 is not off"):
        await switch.off(PLACE)


async def test_a_root_hub_has_its_own_name_at_uhubctl(tmp_path):
    switch = Uhubctl(fake(tmp_path, HUB.replace("LAG", "touch $here/off;").replace("hub 1-4", "hub 1")))
    await switch.off(UsbPlace("usb1", 2, "1-2"))
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "-N -l 1 -p 2 -a off"


async def test_version_2_4_does_not_know_n(tmp_path):
    body = 'case "$*" in -N*) echo "uhubctl: invalid option -- \'N\'" >&2; exit 1;; esac\n' + HUB.replace(
        "LAG", "touch $here/off;"
    )
    switch = Uhubctl(fake(tmp_path, body))
    await switch.off(PLACE)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "-N -l 1-4 -p 2", "-l 1-4 -p 2", "-l 1-4 -p 2 -a off"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stderr", "said", "hint"),
    [
        ("There were permission problems while accessing USB.\nNo compatible devices", "lacks the perm", "udev"),
        ("Failed to set port status by writing to /sys/x (Permission denied).", "lacks the permission", "udevadm"),
        ("No compatible devices detected at location 1-4!", "cannot switch its ports one by one", "[power.hub]"),
        ("Error initializing USB!", "exit 1", "by hand"),
    ],
)  # fmt: skip
async def test_its_complaints_name_what_mends_them(tmp_path, stderr, said, hint):
    (tmp_path / "stderr").write_text(stderr)
    switch = Uhubctl(fake(tmp_path, "cat $here/stderr >&2; exit 1"))
    with pytest.raises(PowerError, match=said) as caught:
        await switch.off(PLACE)
    assert hint in caught.value.hint
    assert "git.io" not in caught.value.message


async def test_nobody_looks_at_all_ports_while_one_is_switched(tmp_path):
    """Whoever looks meanwhile would see a hub half switched."""
    switch = Uhubctl(fake(tmp_path, HUB.replace("LAG", "until [ -f $here/go ]; do sleep 0.01; done; touch $here/off;")))
    calls = tmp_path / "calls"
    switching = asyncio.create_task(switch.off(PLACE))
    await until(lambda: calls.exists() and "-a off" in calls.read_text())
    looking = asyncio.create_task(switch.ports())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not looking.done()
    before = calls.read_text()
    (tmp_path / "go").touch()
    await switching
    await looking
    assert calls.read_text() == before + "-N\n"


async def test_a_program_that_is_not_there(tmp_path):
    switch = Uhubctl(str(tmp_path / "uhubctl"))
    assert not switch.installed
    with pytest.raises(PowerError, match="uhubctl is not installed") as caught:
        await switch.ports()
    assert "apt-get install uhubctl" in caught.value.hint


async def test_a_program_that_hangs_is_ended(tmp_path):
    switch = Uhubctl(fake(tmp_path, "exec sleep 60"), timeout_s=0.2)
    with pytest.raises(PowerError, match=r"did not end in 0\.2 s"):
        await switch.off(PLACE)


def command(folder, body, **fields):
    """A lab's own switch, whose program is that body."""
    program = fake(folder, body)
    rule = PowerRule(
        "command", (program, "{host}", "{port}", "off"), (program, "{host}", "{port}", "on"),
        (program, "state"), {"host": "10.0.0.9", **fields},
    )  # fmt: skip
    return CommandSwitch(rule)


async def test_a_labs_own_command_gets_its_words(tmp_path):
    body = 'case "$1" in state) cat $here/state;; *) echo "$3" >$here/state;; esac'
    switch = command(tmp_path, body, host="a b; rm -rf /")
    await switch.off(PLACE)
    await switch.on(PLACE)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "a b; rm -rf / 2 off", "state", "a b; rm -rf / 2 on", "state"
    ]  # fmt: skip


async def test_a_command_that_fails_or_lies(tmp_path, monkeypatch):
    monkeypatch.setattr(power, "VERIFY_S", 0.0)
    with pytest.raises(PowerError, match=r"failed for port 1-4\.2 \(exit 3\)") as caught:
        await command(tmp_path, "echo no route >&2; exit 3").off(PLACE)
    assert caught.value.evidence == "no route\n"
    with pytest.raises(PowerError, match=r"should be off, but .* says 'on'"):
        await command(tmp_path, "echo on").off(PLACE)


async def test_a_field_that_nobody_defined(tmp_path):
    rule = PowerRule("command", ("pdu", "{outlet}"), ("pdu",))
    with pytest.raises(PowerError, match="outlet") as caught:
        await CommandSwitch(rule).off(PLACE)
    assert "{port}" in caught.value.hint
    with pytest.raises(PowerError, match="unknown field"):
        await CommandSwitch(PowerRule("command", ("pdu", "{}{outlet}{hub.x}"), ("x",))).off(PLACE)
    with pytest.raises(PowerError, match="no command"):
        await CommandSwitch(PowerRule("command")).off(PLACE)


async def test_a_complaint_of_a_hub_that_switched_anyway(tmp_path, monkeypatch):
    """Without write access to sysfs uhubctl complains and switches through libusb."""
    complaint = "echo 'Failed to set port status by writing to /sys/x (Permission denied).' >&2\n"
    await Uhubctl(fake(tmp_path, complaint + HUB.replace("LAG", "touch $here/off;"))).off(PLACE)
    assert (tmp_path / "off").exists()
    (tmp_path / "off").unlink()
    monkeypatch.setattr(power, "VERIFY_S", 0.0)
    with pytest.raises(PowerError, match="lacks the permission"):
        await Uhubctl(fake(tmp_path, complaint + HUB.replace("LAG", ""))).off(PLACE)


def test_rules_from_the_nearest_to_the_general():
    config = PowerConfig(
        fields={"host": "a"},
        hub={
            "1-4": PowerRule(off=("pdu", "{host}"), on=("pdu",), fields={"outlet": "7"}),
            "1-4.2": PowerRule(fields={"host": "b"}),
            "1-5": PowerRule("none"),
        },
    )
    own = config.rule_for(PLACE)
    assert (own.switch, own.off, own.fields) == ("command", ("pdu", "{host}"), {"host": "b", "outlet": "7"})
    assert config.rule_for(UsbPlace("1-5", 1, "1-5.1")).switch == "none"
    assert config.rule_for(UsbPlace("2-1", 1, "2-1.1")).switch == "uhubctl"


async def test_why_a_ports_power_cannot_be_cut(tmp_path):
    missing = Switchboard(PowerConfig(uhubctl=str(tmp_path / "none"), hub={"1-5": PowerRule("none")}))
    assert "USB port is unknown" in missing.why_not(None)
    assert "not installed" in missing.why_not(PLACE)
    assert "not switched" in missing.why_not(UsbPlace("1-5", 1, "1-5.1"))
    with pytest.raises(PowerError, match="not switched"):
        await missing.on(UsbPlace("1-5", 1, "1-5.1"))
    program = fake(tmp_path, "echo 'No compatible devices detected at location 1-4!' >&2; exit 1")
    board = Switchboard(PowerConfig(uhubctl=program))
    assert board.why_not(PLACE) == ""
    with pytest.raises(PowerError):
        await board.off(PLACE)
    assert "one by one" in board.why_not(PLACE)  # it learned


async def test_a_refusal_holds_for_its_port_only_and_not_for_ever(tmp_path):
    now_s = 0.0
    config = PowerConfig(uhubctl=fake(tmp_path, "echo 'Error initializing USB!' >&2; exit 1"))
    board = Switchboard(config, monotonic=lambda: now_s)
    with pytest.raises(PowerError):
        await board.off(PLACE)
    assert "exit 1" in board.why_not(PLACE)
    assert board.why_not(UsbPlace("1-4", 3, "1-4.3")) == ""
    assert board.why_not(PLACE, ordered=True) == ""
    now_s = REFUSED_S
    assert board.why_not(PLACE) == ""


async def test_uhubctl_is_looked_for_when_somebody_asks_for_that(tmp_path):
    board = Switchboard(PowerConfig(uhubctl=str(tmp_path / "program")))
    fake(tmp_path, "")
    assert "not installed" in board.why_not(PLACE)  # asked at every event of every phone: no look at the disk
    assert board.why_not(PLACE, ordered=True) == ""
    assert board.why_not(PLACE) == ""


def test_whom_a_cut_hurts():
    lab = {serial: parse_place(path) for serial, path in {"a": "1-4.2", "b": "1-4.3", "c": "1-4.2.1"}.items()}
    where = {serial: place for serial, place in lab.items() if place is not None}
    assert Switchboard().losing_power(PLACE, where) == ("a", "c")
    ganged = PowerConfig(hub={"1-4": PowerRule(off=("relay", "{hub}"), on=("relay", "{hub}"))})
    assert Switchboard(ganged).losing_power(PLACE, where) == ("a", "b", "c")
    outlet = PowerConfig(hub={"1-4.2": PowerRule(off=("relay", "7"), on=("relay", "7"))})
    assert Switchboard(outlet).losing_power(PLACE, where) == ("a", "c")


async def test_a_port_that_a_killed_daemon_left_off_gets_its_power_back(tmp_path):
    config, notes = PowerConfig(uhubctl=fake(tmp_path, HUB.replace("LAG", "touch $here/off;"))), tmp_path / "ports-off"
    await Switchboard(config, notes).off(PLACE)
    (notes / "no place").touch()
    after = Switchboard(config, notes)
    await after.restore_power()
    assert not (tmp_path / "off").exists()
    assert [path.name for path in notes.iterdir()] == ["no place"]
    calls = (tmp_path / "calls").read_text()
    await after.restore_power()
    assert (tmp_path / "calls").read_text() == calls


async def test_a_port_without_power_that_stays_so_is_tried_again_at_the_next_start(tmp_path):
    (tmp_path / "ports-off").mkdir()
    (tmp_path / "ports-off" / PLACE.path).touch()
    await Switchboard(PowerConfig(uhubctl=str(tmp_path / "none")), tmp_path / "ports-off").restore_power()
    assert (tmp_path / "ports-off" / PLACE.path).exists()


async def test_a_port_that_could_not_be_lit_is_a_problem_until_it_is(tmp_path):
    broken = HUB.replace("LAG", "touch $here/off;").replace("*'-a on')", "*'-a on') [ ! -f $here/broken ] || exit 3;")
    board = Switchboard(PowerConfig(uhubctl=fake(tmp_path, broken)), tmp_path / "ports-off")
    await board.off(PLACE)
    await board.restore_power()
    assert board.problems() == []
    assert (tmp_path / "off").exists()  # it is off for a moment: whoever wanted that lights it
    (tmp_path / "broken").touch()
    with pytest.raises(PowerError):
        await board.on(PLACE)
    assert PLACE.path in board.problems()[0]
    await board.restore_power()
    assert len(board.problems()) == 1
    (tmp_path / "broken").unlink()
    await board.restore_power()
    assert board.problems() == []
    assert not (tmp_path / "off").exists()
    assert not list((tmp_path / "ports-off").iterdir())


async def test_switched_off_ports_are_tried_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(switchboard, "RESTORE_EVERY_S", 0.01)
    body = "[ -f $here/repaired ] || exit 3\n" + HUB
    (tmp_path / "ports-off").mkdir()
    (tmp_path / "ports-off" / PLACE.path).touch()
    (tmp_path / "off").touch()
    board = Switchboard(PowerConfig(uhubctl=fake(tmp_path, body)), tmp_path / "ports-off")
    running = asyncio.create_task(board.run())
    await until(board.problems)
    (tmp_path / "repaired").touch()
    await until(lambda: not board.problems())
    assert not (tmp_path / "off").exists()
    running.cancel()


async def test_a_full_disk_is_told_as_a_switch_that_cannot(tmp_path):
    (tmp_path / "ports-off").write_text("not a folder")
    board = Switchboard(
        PowerConfig(uhubctl=fake(tmp_path, HUB.replace("LAG", "touch $here/off;"))), tmp_path / "ports-off"
    )
    await board.restore_power()
    with pytest.raises(PowerError, match="keeps its power") as caught:
        await board.off(PLACE)
    assert "df" in caught.value.hint
    assert not (tmp_path / "off").exists()
    await board.on(PLACE)


class Switch:
    """Remembers what was done; cutting fails when it is told to."""

    def __init__(self, *, broken=False):
        self.done = []
        self.broken = broken
        self.is_off = asyncio.Event()

    async def off(self, place):
        self.done.append(f"off {place.path}")
        self.is_off.set()
        if self.broken:
            raise PowerError("it sparks")

    async def on(self, place):
        await asyncio.sleep(0)
        self.done.append(f"on {place.path}")


async def test_a_cycle_waits_until_adb_has_noticed(monkeypatch):
    monkeypatch.setattr(power, "OFF_S", 0.0)
    monkeypatch.setattr(power, "_POLL_S", 0.001)
    switch, looks = Switch(), iter([True, True, False])
    await cycle(switch, PLACE, lambda: next(looks))
    assert switch.done == ["off 1-4.2", "on 1-4.2"]
    assert next(looks, None) is None


async def test_power_comes_back_when_cutting_failed():
    switch = Switch(broken=True)
    with pytest.raises(PowerError, match="sparks"):
        await cycle(switch, PLACE, lambda: True)
    assert switch.done == ["off 1-4.2", "on 1-4.2"]


async def test_power_comes_back_when_nobody_waits_any_more():
    switch = Switch()
    task = asyncio.create_task(cycle(switch, PLACE, lambda: True))
    await switch.is_off.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert switch.done == ["off 1-4.2", "on 1-4.2"]


def test_the_udev_rule_is_one_command():
    assert udev_fix("lab").count("\n") == 0
    assert 'GROUP="lab"' in udev_fix("lab")
