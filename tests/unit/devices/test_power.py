"""Power switches against programs that behave like uhubctl and a PDU's tool; phones sent away without power."""

import asyncio
from types import SimpleNamespace

import pytest

from farm.common.errors import Code, PhoneError
from farm.devices.power.power import CommandSwitch, PowerError, Uhubctl, cycle, parse_status, powered, udev_fix
from farm.devices.power.power_rules import PowerConfig, PowerRule
from farm.devices.power.switchboard import REFUSED_S, RESTORE_EVERY_S, Switchboard
from farm.devices.untether import Untether
from farm.model.device import Life, UsbPlace, parse_place
from tests.support.errors import raises_code
from tests.support.fake_phone import FakeSwitch, StubAgent
from tests.support.virtual_time import virtual_time
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


class Program:
    """A program of that body; it finds its arguments in $*, and its own folder, with a file `off`, in $here."""

    def __init__(self, folder, body):
        self.folder, self.calls_file = folder, folder / "calls"
        self.becomes(body)

    def becomes(self, body):
        """The same program behaves otherwise from now on."""
        (self.folder / "program").write_text(f'#!/bin/sh\nhere={self.folder}\necho "$*" >>$here/calls\n{body}\n')
        (self.folder / "program").chmod(0o755)

    def __str__(self):
        return str(self.folder / "program")

    def calls(self):
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def is_off(self):
        return (self.folder / "off").exists()


def hub(off="touch $here/off", on="rm -f $here/off", name="hub 1-4"):
    """A body that behaves as uhubctl; what it does when it is told to switch."""
    return f"""\
[ -f $here/off ] && now='0000 off' || now='0503 power highspeed enable connect'
echo 'Current status for {name} [2109:2817, USB 2.10, 4 ports, ppps]'; echo "  Port 2: $now"
case "$*" in
*'-a off') {off}; said=off ;;
*'-a on') {on}; said=on ;;
*) exit 0 ;;
esac
[ -f $here/off ] && now='0000 off' || now='0100 power'
echo "Sent power $said request"
echo 'New status for {name} [2109:2817, USB 2.10, 4 ports, ppps]'; echo "  Port 2: $now"
"""


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path, hub())


@pytest.fixture
def board(program, tmp_path):
    """A switchboard over the program, with notes."""
    return lambda **options: Switchboard(PowerConfig(uhubctl=str(program)), tmp_path / "ports-off", **options)


async def test_off_and_on_are_checked_before_and_after(program):
    switch = Uhubctl(str(program))
    await switch.off(PLACE)
    assert program.is_off()
    await switch.off(PLACE)  # it is off: nothing is ordered
    await switch.on(PLACE)
    assert not program.is_off()
    look = "-N -l 1-4 -p 2"
    assert program.calls() == [look, f"{look} -a off", look, look, f"{look} -a on"]


async def test_a_port_that_drops_late_is_waited_for(program):
    program.becomes(hub(off="(sleep 0.3; touch $here/off) >/dev/null 2>&1 & true"))
    await Uhubctl(str(program)).off(PLACE)
    assert program.is_off()


@pytest.mark.parametrize(
    ("complaint", "why"),
    [
        ("", "took the order, but its port 2 is not off"),
        # Without write access to sysfs uhubctl complains and switches through libusb.
        ("Failed to set port status by writing to /sys/x (Permission denied).", "lacks the permission"),
    ],
)
async def test_a_hub_that_only_says_so_and_one_that_complains_and_switches(program, complaint, why):
    complains = f"echo '{complaint}' >&2\n"
    program.becomes(complains + hub(off="true"))
    with pytest.raises(PowerError, match=why):
        await Uhubctl(str(program), verify_s=0.0).off(PLACE)
    program.becomes(complains + hub())
    await Uhubctl(str(program)).off(PLACE)
    assert program.is_off()


async def test_a_root_hub_has_its_own_name_at_uhubctl(program):
    program.becomes(hub(name="hub 1"))
    await Uhubctl(str(program)).off(UsbPlace("usb1", 2, "1-2"))
    assert program.calls()[-1] == "-N -l 1 -p 2 -a off"


async def test_version_2_4_does_not_know_n(program):
    program.becomes('case "$*" in -N*) echo "uhubctl: invalid option -- \'N\'" >&2; exit 1;; esac\n' + hub())
    await Uhubctl(str(program)).off(PLACE)
    assert program.calls() == ["-N -l 1-4 -p 2", "-l 1-4 -p 2", "-l 1-4 -p 2 -a off"]


@pytest.mark.parametrize(
    ("stderr", "said", "hint"),
    [
        ("There were permission problems while accessing USB.\nNo compatible devices", "lacks the perm", "udev"),
        ("Failed to set port status by writing to /sys/x (Permission denied).", "lacks the permission", "udevadm"),
        ("No compatible devices detected at location 1-4!", "cannot switch its ports one by one", "[power.hub]"),
        ("Error initializing USB!", "exit 1", "by hand"),
    ],
)
async def test_its_complaints_name_what_mends_them(program, stderr, said, hint):
    (program.folder / "stderr").write_text(stderr)
    program.becomes("cat $here/stderr >&2; exit 1")
    with pytest.raises(PowerError, match=said) as caught:
        await Uhubctl(str(program)).off(PLACE)
    assert hint in caught.value.hint
    assert "git.io" not in caught.value.message


async def test_nobody_looks_at_all_ports_while_one_is_switched(program):
    """Whoever looks meanwhile would see a hub half switched."""
    program.becomes(hub(off="until [ -f $here/go ]; do sleep 0.01; done; touch $here/off"))
    switch = Uhubctl(str(program))
    switching = asyncio.create_task(switch.off(PLACE))
    await until(lambda: "-a off" in " ".join(program.calls()))
    looking = asyncio.create_task(switch.ports())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not looking.done()
    before = program.calls()
    (program.folder / "go").touch()
    await asyncio.gather(switching, looking)
    assert program.calls() == [*before, "-N"]


async def test_a_program_that_is_not_there_and_one_that_hangs(program, tmp_path):
    switch = Uhubctl(str(tmp_path / "uhubctl"))
    assert not switch.installed
    with pytest.raises(PowerError, match="uhubctl is not installed") as caught:
        await switch.ports()
    assert "apt-get install uhubctl" in caught.value.hint
    program.becomes("exec sleep 60")
    with pytest.raises(PowerError, match=r"did not end in 0\.2 s"):
        await Uhubctl(str(program), timeout_s=0.2).off(PLACE)


# --- a lab's own command


def command(program, **fields):
    program = str(program)
    rule = PowerRule(
        "command", (program, "{host}", "{port}", "off"), (program, "{host}", "{port}", "on"),
        (program, "state"), {"host": "10.0.0.9", **fields},
    )  # fmt: skip
    return CommandSwitch(rule, verify_s=0.0)


async def test_a_labs_own_command_gets_its_words(program):
    program.becomes('case "$1" in state) cat $here/state;; *) echo "$3" >$here/state;; esac')
    switch = command(program, host="a b; rm -rf /")
    await switch.off(PLACE)
    await switch.on(PLACE)
    assert program.calls() == ["a b; rm -rf / 2 off", "state", "a b; rm -rf / 2 on", "state"]


async def test_a_command_that_fails_or_lies(program):
    program.becomes("echo no route >&2; exit 3")
    with pytest.raises(PowerError, match=r"failed for port 1-4\.2 \(exit 3\)") as caught:
        await command(program).off(PLACE)
    assert caught.value.evidence == "no route\n"
    program.becomes("echo on")
    with pytest.raises(PowerError, match=r"should be off, but .* says 'on'"):
        await command(program).off(PLACE)


@pytest.mark.parametrize(
    ("rule", "said", "hint"),
    [
        (PowerRule("command", ("pdu", "{outlet}"), ("pdu",)), "outlet", "{port}"),
        (PowerRule("command", ("pdu", "{}{outlet}{hub.x}"), ("x",)), "unknown field", ""),
        (PowerRule("command"), "no command", ""),
    ],
)
async def test_a_field_that_nobody_defined(rule, said, hint):
    with pytest.raises(PowerError, match=said) as caught:
        await CommandSwitch(rule).off(PLACE)
    assert hint in caught.value.hint


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


# --- the switchboard


async def test_why_a_ports_power_cannot_be_cut(program, tmp_path):
    missing = Switchboard(PowerConfig(uhubctl=str(tmp_path / "none"), hub={"1-5": PowerRule("none")}))
    other = UsbPlace("1-5", 1, "1-5.1")
    assert "USB port is unknown" in missing.why_not(None)
    assert "not installed" in missing.why_not(PLACE)
    assert "not switched" in missing.why_not(other)
    with pytest.raises(PowerError, match="not switched"):
        await missing.on(other)
    program.becomes("echo 'No compatible devices detected at location 1-4!' >&2; exit 1")
    board = Switchboard(PowerConfig(uhubctl=str(program)))
    assert board.why_not(PLACE) == ""
    with pytest.raises(PowerError):
        await board.off(PLACE)
    assert "one by one" in board.why_not(PLACE)  # it learned


async def test_a_refusal_holds_for_its_port_only_and_not_for_ever(program, board):
    now_s = 0.0
    program.becomes("echo 'Error initializing USB!' >&2; exit 1")
    board = board(monotonic=lambda: now_s)
    with pytest.raises(PowerError):
        await board.off(PLACE)
    assert "exit 1" in board.why_not(PLACE)
    assert board.why_not(UsbPlace("1-4", 3, "1-4.3")) == board.why_not(PLACE, ordered=True) == ""
    now_s = REFUSED_S
    assert board.why_not(PLACE) == ""


async def test_uhubctl_is_looked_for_when_somebody_asks_for_that(tmp_path):
    board = Switchboard(PowerConfig(uhubctl=str(tmp_path / "program")))
    Program(tmp_path, "")
    assert "not installed" in board.why_not(PLACE)  # asked at every event of every phone: no look at the disk
    assert board.why_not(PLACE, ordered=True) == board.why_not(PLACE) == ""


@pytest.mark.parametrize(
    ("hub", "losing"),
    [
        ({}, ("a", "c")),
        ({"1-4": PowerRule(off=("relay", "{hub}"), on=("relay", "{hub}"))}, ("a", "b", "c")),  # ganged
        ({"1-4.2": PowerRule(off=("relay", "7"), on=("relay", "7"))}, ("a", "c")),  # an outlet
    ],
)
def test_whom_a_cut_hurts(hub, losing):
    where = {serial: parse_place(path) for serial, path in {"a": "1-4.2", "b": "1-4.3", "c": "1-4.2.1"}.items()}
    assert Switchboard(PowerConfig(hub=hub)).losing_power(PLACE, where) == losing


async def test_a_port_that_a_killed_daemon_left_off_gets_its_power_back(program, board, tmp_path):
    await board().off(PLACE)
    (tmp_path / "ports-off/no place").touch()
    after = board()
    await after.restore_power()
    assert not program.is_off()
    assert [path.name for path in (tmp_path / "ports-off").iterdir()] == ["no place"]
    calls = program.calls()
    await after.restore_power()
    assert program.calls() == calls


async def test_a_port_without_power_that_stays_so_is_tried_again_at_the_next_start(tmp_path):
    (tmp_path / "ports-off").mkdir()
    (tmp_path / "ports-off" / PLACE.path).touch()
    await Switchboard(PowerConfig(uhubctl=str(tmp_path / "none")), tmp_path / "ports-off").restore_power()
    assert (tmp_path / "ports-off" / PLACE.path).exists()


async def test_a_port_that_could_not_be_lit_is_a_problem_until_it_is(program, board, tmp_path):
    board = board()
    await board.off(PLACE)
    await board.restore_power()
    assert board.problems() == []
    assert program.is_off()  # it is off for a moment: whoever wanted that lights it
    program.becomes(hub(on="exit 3"))
    with pytest.raises(PowerError):
        await board.on(PLACE)
    assert PLACE.path in board.problems()[0]
    await board.restore_power()
    assert len(board.problems()) == 1
    program.becomes(hub())
    await board.restore_power()
    assert (board.problems(), program.is_off(), list((tmp_path / "ports-off").iterdir())) == ([], False, [])


@virtual_time
async def test_switched_off_ports_are_tried_again_and_again():
    switch = FakeSwitch(on_fails=PowerError("it sparks"))
    board = Switchboard()
    board._switch_of = lambda _: switch
    with pytest.raises(PowerError):
        await board.on(PLACE)
    running = asyncio.create_task(board.run())
    await asyncio.sleep(2.5 * RESTORE_EVERY_S)
    assert (len(switch.done), len(board.problems())) == (4, 1)
    switch.on_fails = None
    await asyncio.sleep(RESTORE_EVERY_S)
    assert board.problems() == []
    running.cancel()


async def test_a_full_disk_is_told_as_a_switch_that_cannot(program, board, tmp_path):
    (tmp_path / "ports-off").write_text("not a folder")
    board = board()
    await board.restore_power()
    with pytest.raises(PowerError, match="keeps its power") as caught:
        await board.off(PLACE)
    assert "df" in caught.value.hint
    assert not program.is_off()
    await board.on(PLACE)


# --- a power cycle

OFF_AND_ON = ["off 1-4.2", "on 1-4.2"]


@virtual_time
async def test_a_cycle_waits_until_adb_has_noticed():
    switch, looks = FakeSwitch(), [True, True, False]
    await cycle(switch, PLACE, lambda: looks.pop(0))
    assert (switch.done, looks) == (OFF_AND_ON, [])


async def test_power_comes_back_when_cutting_failed():
    switch = FakeSwitch(off_fails=PowerError("it sparks"))
    with pytest.raises(PowerError, match="sparks"):
        await cycle(switch, PLACE, lambda: True)
    assert switch.done == OFF_AND_ON


async def test_power_comes_back_when_nobody_waits_any_more():
    switch = FakeSwitch()
    task = asyncio.create_task(cycle(switch, PLACE, lambda: True))
    await switch.is_off.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert switch.done == OFF_AND_ON


def test_the_udev_rule_is_one_command():
    assert udev_fix("lab").count("\n") == 0
    assert 'GROUP="lab"' in udev_fix("lab")


class Lab(FakeSwitch):
    """A fleet of one phone, and the switch of its port: the phone goes and comes with its power."""

    def __init__(self, *, refusal="", others=(), returns=Life.READY, **fails):
        super().__init__(**fails)
        self.agent = StubAgent("S1", "unit", place=UsbPlace("1-4", 2, "1-4.2"))
        self.listening = []
        self.recovery = SimpleNamespace(neighbours=lambda _: [SimpleNamespace(name=each) for each in others])
        self.returns = returns
        self.find = self.view = lambda _: self.agent
        self.why_not = lambda place, *, ordered: refusal
        self.untether = Untether(self, self)

    def subscribe(self, callback):
        self.listening.append(callback)
        return lambda: self.listening.remove(callback)

    async def off(self, place):
        assert self.agent.untethered
        self._lives(Life.GONE, None)
        await super().off(place)

    async def on(self, place):
        await super().on(place)
        self._lives(self.returns, object())

    def _lives(self, life, device):
        self.agent.life, self.agent.device = life, device
        for callback in self.listening:
            callback(self.agent)


@virtual_time
async def test_the_phone_is_back_and_ready_when_its_power_is():
    lab = Lab()
    await lab.untether.cut("unit", 300.0)
    assert lab.done == ["off 1-4.2", "on 1-4.2"]
    assert (lab.agent.life, lab.agent.untethered, lab.listening) == (Life.READY, False, [])


@pytest.mark.parametrize(
    ("lab", "why"),
    [
        ({"refusal": "uhubctl is not installed"}, "unit cannot be untethered: uhubctl is not installed"),
        ({"others": ("left", "right")}, "left, right would lose power, too"),
    ],
)
async def test_a_port_that_cannot_be_cut_is_refused_before(lab, why):
    lab = Lab(**lab)
    with raises_code(Code.POWER_NOT_MEASURABLE, match=why):
        await lab.untether.cut("unit", 0.01)
    assert lab.done == []


def test_a_farm_without_a_switch_is_refused():
    with raises_code(Code.POWER_NOT_MEASURABLE):
        Untether(Lab(), None).check("unit")


@virtual_time
async def test_a_port_that_does_not_come_back_is_one_error():
    lab = Lab(on_fails=PowerError("the port stays off"))
    with pytest.raises(PowerError, match="stays off"):
        await lab.untether.cut("unit", 300.0)
    assert not lab.agent.untethered


@pytest.mark.parametrize("life", [Life.GONE, Life.QUARANTINED])
@virtual_time
async def test_a_phone_that_does_not_come_back_is_one_error(life):
    with pytest.raises(PhoneError, match=f"unit is {life} and not ready"):
        await Lab(returns=life).untether.cut("unit", 300.0)
