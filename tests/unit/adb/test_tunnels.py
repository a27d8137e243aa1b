import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.devices import AdbDevice, AdbState
from farm.adb.errors import AdbError
from farm.adb.tunnels import (
    LedgerEntry,
    PlannedStep,
    Tunnel,
    TunnelKind,
    TunnelLedger,
    TunnelStep,
    check_tunnel,
    parse_forwards,
    parse_reverses,
    plan,
)
from farm.common.errors import HostError, UserError
from farm.common.tasks import LastingTasks, end_tasks
from farm.devices.tunnels import TunnelKeeper
from tests.support.waiting import HANG_S
from tests.unit.adb.fake_server import block, okay, says

ADD, REMOVE, DROP = TunnelStep.ADD, TunnelStep.REMOVE, TunnelStep.DROP
WAIT, CONFLICT = TunnelStep.WAIT, TunnelStep.CONFLICT


def forward(listen="tcp:9000", dial="tcp:6000", serial="A"):
    return Tunnel(TunnelKind.FORWARD, serial, listen, dial)


def reverse(listen="tcp:9190", dial="tcp:9190", serial="A"):
    return Tunnel(TunnelKind.REVERSE, serial, listen, dial)


def steps(planned):
    return [item.step for item in planned]


def test_lists_of_forwards():
    text = "A tcp:9000 tcp:6000\n two words tcp:9001 localabstract:x\nemulator-1 tcp:1 tcp:2\n\n"
    assert parse_forwards(text) == (
        forward(),
        forward("tcp:9001", "localabstract:x", " two words"),
        forward("tcp:1", "tcp:2", "emulator-1"),
    )


def test_lists_of_reverses_name_no_serial():
    text = "host-16 tcp:9190 tcp:9190\nUsbFfs tcp:1 localabstract:y\n"
    assert parse_reverses("A", text) == (reverse(), reverse("tcp:1", "localabstract:y"))
    assert parse_reverses("A", "(reverse) tcp:9190 tcp:9190") == (reverse(),)


@given(st.text())
def test_any_text_is_a_list(text):
    assert len(parse_forwards(text)) <= text.count("\n") + 1


MINE, BACK = LedgerEntry(forward()), LedgerEntry(reverse())
LEAVING = LedgerEntry(forward(), releasing=True)


@pytest.mark.parametrize(
    ("ledger", "listed", "usable", "wanted"),
    [
        ([MINE, LedgerEntry(forward("tcp:9001"))], [forward()], {"A"}, [ADD]),  # what is there is left
        ([MINE, BACK], [], set(), [WAIT, WAIT]),  # the phone is away
        ([LEAVING], [forward(dial="tcp:7")], {"A"}, [DROP]),
        ([LedgerEntry(reverse(), releasing=True)], [reverse()], {"A"}, [WAIT]),  # something may dial it
        ([LedgerEntry(reverse(), True, True)], [reverse()], {"A"}, [REMOVE]),
        ([LedgerEntry(reverse(), releasing=True)], [], {"A"}, [DROP]),
    ],
)
def test_what_is_done_for_each_entry(ledger, listed, usable, wanted):
    assert steps(plan(ledger, listed, usable)) == wanted


def test_a_place_taken_by_somebody_else_is_left_alone():
    (planned,) = plan([MINE], [forward(dial="tcp:7", serial="B")], {"A"})
    assert (planned.step, planned.reason) == (CONFLICT, "it is used for tcp:7 of B")


PLACES = st.sampled_from(["tcp:9000", "tcp:9001"])
TUNNELS = st.builds(
    Tunnel, st.sampled_from(TunnelKind), st.sampled_from(["A", "B"]), PLACES, st.sampled_from(["tcp:1", "tcp:2"])
)


@given(
    ledger=st.lists(
        st.builds(LedgerEntry, TUNNELS, st.booleans(), st.booleans()), unique_by=lambda entry: entry.tunnel.place
    ),
    listed=st.lists(TUNNELS, unique_by=lambda tunnel: tunnel.place),
    usable=st.sets(st.sampled_from(["A", "B"])),
)
def test_a_plan_touches_only_what_is_ours_and_never_rebinds(ledger, listed, usable):
    ours = {entry.tunnel for entry in ledger}
    places = {tunnel.place for tunnel in listed}
    everything = plan(ledger, listed, usable)
    for planned in everything:
        assert planned.tunnel in ours
        if planned.step is ADD:
            assert planned.tunnel.place not in places
        if planned.step is REMOVE:
            assert planned.tunnel in listed
    after = [tunnel for tunnel in listed if PlannedStep(REMOVE, tunnel) not in everything]
    after += [planned.tunnel for planned in everything if planned.step is ADD]
    done = {planned.tunnel for planned in everything if planned.step in (REMOVE, DROP)}
    again = plan([entry for entry in ledger if entry.tunnel not in done], after, usable)
    assert not {ADD, REMOVE, DROP} & set(steps(again))


BAD = [forward(port) for port in ("tcp:5554", "tcp:5585", "tcp:0", "tcp:70000", "9000", "tcp:90 00")]


@pytest.mark.parametrize("tunnel", [*BAD, reverse(dial="tcp:5555"), forward(dial="tcp:")])
def test_tunnels_that_must_not_be(tunnel):
    with pytest.raises(UserError) as caught:
        check_tunnel(tunnel)
    assert caught.value.hint


def test_the_phone_may_listen_on_5555():
    check_tunnel(forward(dial="tcp:5555"))
    check_tunnel(reverse("tcp:5555"))


async def test_the_ledger_survives_a_restart(tmp_path):
    path = tmp_path / "adb" / "tunnels.json"
    ledger = TunnelLedger(path)
    await ledger.own(forward())
    await ledger.own(reverse())
    await ledger.release(reverse())
    await ledger.release(forward("tcp:1"))  # not ours
    assert TunnelLedger(path).entries == ledger.entries == (MINE, LedgerEntry(reverse(), releasing=True))


async def test_two_tunnels_in_one_place_are_refused(tmp_path):
    ledger = TunnelLedger(tmp_path / "tunnels.json")
    await ledger.own(forward())
    await ledger.own(forward())
    with pytest.raises(UserError, match="farm's already, for tcp:6000 of A"):
        await ledger.own(forward(serial="B"))
    await ledger.own(reverse("tcp:9000"))  # another side, another place


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"tunnel": {"kind": "sideways"}}]', "\0"])
def test_a_file_that_is_no_ledger_is_refused(tmp_path, content):
    path = tmp_path / "tunnels.json"
    path.write_text(content)
    with pytest.raises(HostError, match="not a ledger"):
        TunnelLedger(path)


async def test_a_ledger_that_cannot_be_written_is_said(tmp_path):
    ledger = TunnelLedger(tmp_path / "file" / "tunnels.json")
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="cannot be written"):
        await ledger.own(forward())
    assert ledger.entries == ()


OURS, ENTRY = forward(serial="FAKE1"), "FAKE1 tcp:9000 tcp:6000"
LIST, OPEN = "host:list-forward", "host-serial:FAKE1:forward:norebind:tcp:9000;tcp:6000"


class Entries:
    """The forward entries of a fake server, and a keeper of them with the phone FAKE1 in its list."""

    def __init__(self, server, *lines):
        self.lines = list(lines)
        self.added = asyncio.Event()
        self.devices = (AdbDevice("FAKE1", AdbState.DEVICE),)
        server.services |= {LIST: self.list, OPEN: self.add, "host-serial:FAKE1:killforward:tcp:9000": self.remove}

    async def list(self, _, writer):
        writer.write(okay("".join(f"{line}\n" for line in self.lines)))

    async def add(self, _, writer):
        if any("tcp:9000" in line for line in self.lines):
            writer.write(b"OKAYFAIL0021cannot rebind existing socket!!!")
            return
        self.lines.append(ENTRY)
        self.added.set()
        writer.write(b"OKAYOKAY")

    async def remove(self, _, writer):
        self.lines.remove(ENTRY)
        writer.write(b"OKAYOKAY")

    async def snapshots(self):
        yield self.devices
        await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def kept(self, client, path):
        keeper = TunnelKeeper(client, self, TunnelLedger(path))
        running = [LastingTasks().start(*each) for each in keeper.tasks().items()]
        try:
            yield keeper
        finally:
            await end_tasks(*running)


async def test_reconcile_sets_up_and_takes_down_only_ours(server, client, tmp_path):
    entries = Entries(server, "FAKE1 tcp:8000 tcp:1")
    ledger = TunnelLedger(tmp_path / "tunnels.json")
    await ledger.own(OURS)
    assert steps(await ledger.reconcile(client, set())) == [WAIT]
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [ADD]
    assert await ledger.reconcile(client, {"FAKE1"}) == []
    entries.lines = ["FAKE1 tcp:8000 tcp:1"]  # a replug
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [ADD]
    await ledger.release(OURS)
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [REMOVE]
    assert (entries.lines, ledger.entries) == (["FAKE1 tcp:8000 tcp:1"], ())


@pytest.mark.parametrize(
    ("said", "step"),
    [("cannot bind listener: Address already in use", CONFLICT), ("device offline", WAIT)],
)
async def test_a_forward_that_cannot_be_set_up_says_why(server, client, tmp_path, said, step):
    Entries(server)
    server.services[OPEN] = says(b"OKAYFAIL" + block(said))
    ledger = TunnelLedger(tmp_path / "tunnels.json")
    await ledger.own(OURS)
    (planned,) = await ledger.reconcile(client, {"FAKE1"})
    assert (planned.step, planned.reason != "") == (step, True)


async def test_a_reverse_is_set_up_and_taken_down_at_its_phone(server, client, tmp_path):
    there, ours = "", reverse(serial="FAKE1")
    Entries(server)
    server.services |= {
        "reverse:list-forward": lambda *streams: says(okay(there))(*streams),
        f"reverse:forward:norebind:{ours.listen};{ours.dial}": says(b"OKAYOKAY"),
        f"reverse:killforward:{ours.listen}": says(b"OKAYOKAY"),
    }
    ledger = TunnelLedger(tmp_path / "tunnels.json")
    await ledger.own(ours)
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [ADD]
    there = f"UsbFfs {ours.listen} {ours.dial}\n"
    await ledger.release(ours)
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [WAIT]  # something may dial it
    await ledger.release(ours, dialler_stopped=True)
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [REMOVE]
    assert [words for words in server.spoken if "norebind" in words or "kill" in words] == [
        f"reverse:forward:norebind:{ours.listen};{ours.dial}", f"reverse:killforward:{ours.listen}"
    ]  # fmt: skip
    assert ledger.entries == ()


async def test_an_order_that_comes_during_a_round_is_carried_out_in_the_next(server, client, tmp_path):
    entries, begun, go_on = Entries(server), asyncio.Event(), asyncio.Event()

    async def slow(reader, writer):
        begun.set()
        await go_on.wait()
        await entries.list(reader, writer)

    server.services[LIST] = slow
    async with entries.kept(client, tmp_path / "tunnels.json") as keeper:
        await asyncio.wait_for(begun.wait(), HANG_S)
        adding = asyncio.create_task(keeper.add(OURS))
        await asyncio.wait((adding,), timeout=0.05)
        assert not adding.done()  # the round under way knows nothing of it
        go_on.set()
        await asyncio.wait_for(adding, HANG_S)
        assert entries.lines == [ENTRY]
        assert keeper.listed() == ((OURS, ""),)
        assert await keeper.remove(OURS, dialler_stopped=False) == ""
        assert entries.lines == []


async def test_a_round_that_failed_is_said_and_tried_again(server, client, tmp_path, monkeypatch):
    monkeypatch.setattr("farm.devices.tunnels.RETRY_S", 0.01)
    entries = Entries(server)
    server.services[LIST] = says(b"FAIL0004busy")
    async with entries.kept(client, tmp_path / "tunnels.json") as keeper:
        with pytest.raises(AdbError):
            await keeper.add(OURS)
        server.services[LIST] = entries.list
        await asyncio.wait_for(entries.added.wait(), HANG_S)


SERVER = [
    forward("tcp:1", "tcp:5000", "FAKE1"), forward("tcp:1", "tcp:localhost:5099", "FAKE1"),
    reverse("tcp:5000", serial="FAKE1"),
]  # fmt: skip


@pytest.mark.parametrize("tunnel", SERVER)
async def test_no_tunnel_leads_to_farms_own_server_and_one_of_an_earlier_farm_is_given_up(
    server, client, tmp_path, tunnel
):
    entries = Entries(server)
    server.services["reverse:list-forward"] = says(okay(""))
    await TunnelLedger(tmp_path / "tunnels.json").own(tunnel)
    async with entries.kept(client, tmp_path / "tunnels.json") as keeper:
        with pytest.raises(UserError) as caught:
            await keeper.add(tunnel)
        assert "--port=5101" in caught.value.hint
        await keeper.add(OURS)
        assert [each for each, _ in keeper.listed() if each != OURS] == []
        assert entries.lines == [ENTRY]
