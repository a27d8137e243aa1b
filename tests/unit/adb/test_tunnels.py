from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.client import AdbClient
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
from farm.devices.tunnels import TunnelKeeper
from tests.support.waiting import HANG_S
from tests.unit.adb.fake_server import FakeServer


def forward(listen: str = "tcp:9000", dial: str = "tcp:5000", serial: str = "A") -> Tunnel:
    return Tunnel(TunnelKind.FORWARD, serial, listen, dial)


def reverse(listen: str = "tcp:9190", dial: str = "tcp:9190", serial: str = "A") -> Tunnel:
    return Tunnel(TunnelKind.REVERSE, serial, listen, dial)


def steps(planned: list[PlannedStep]) -> list[TunnelStep]:
    return [item.step for item in planned]


def test_lists_of_forwards() -> None:
    text = "A tcp:9000 tcp:5000\n two words tcp:9001 localabstract:x\nemulator-1 tcp:1 tcp:2\n\n"
    assert parse_forwards(text) == (
        forward(),
        forward("tcp:9001", "localabstract:x", " two words"),
        forward("tcp:1", "tcp:2", "emulator-1"),
    )


def test_lists_of_reverses_name_no_serial() -> None:
    assert parse_reverses("A", "host-16 tcp:9190 tcp:9190\nUsbFfs tcp:1 localabstract:y\n") == (
        reverse(),
        reverse("tcp:1", "localabstract:y"),
    )
    assert parse_reverses("A", "(reverse) tcp:9190 tcp:9190") == (reverse(),)


@given(st.text())
def test_any_text_is_a_list(text: str) -> None:
    assert len(parse_forwards(text)) <= text.count("\n") + 1


def test_what_is_missing_is_added_and_what_is_there_is_left() -> None:
    ledger = [LedgerEntry(forward()), LedgerEntry(forward("tcp:9001"))]
    assert plan(ledger, [forward()], {"A"}) == [PlannedStep(TunnelStep.ADD, forward("tcp:9001"))]


def test_a_phone_that_is_away_waits() -> None:
    assert steps(plan([LedgerEntry(forward()), LedgerEntry(reverse())], [], set())) == [
        TunnelStep.WAIT,
        TunnelStep.WAIT,
    ]


def test_a_place_taken_by_somebody_else_is_left_alone() -> None:
    (planned,) = plan([LedgerEntry(forward())], [forward(dial="tcp:7", serial="B")], {"A"})
    assert (planned.step, planned.reason) == (TunnelStep.CONFLICT, "it is used for tcp:7 of B")
    assert steps(plan([LedgerEntry(forward(), releasing=True)], [forward(dial="tcp:7")], {"A"})) == [TunnelStep.DROP]


def test_a_reverse_is_removed_only_when_nothing_dials_it() -> None:
    assert steps(plan([LedgerEntry(reverse(), releasing=True)], [reverse()], {"A"})) == [TunnelStep.WAIT]
    assert steps(plan([LedgerEntry(reverse(), True, True)], [reverse()], {"A"})) == [TunnelStep.REMOVE]
    assert steps(plan([LedgerEntry(reverse(), releasing=True)], [], {"A"})) == [TunnelStep.DROP]


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
def test_a_plan_touches_only_what_is_ours_and_never_rebinds(
    ledger: list[LedgerEntry], listed: list[Tunnel], usable: set[str]
) -> None:
    ours = {entry.tunnel for entry in ledger}
    places = {tunnel.place for tunnel in listed}
    for planned in plan(ledger, listed, usable):
        assert planned.tunnel in ours
        if planned.step is TunnelStep.ADD:
            assert planned.tunnel.place not in places
        if planned.step is TunnelStep.REMOVE:
            assert planned.tunnel in listed
    everything = plan(ledger, listed, usable)
    after = [tunnel for tunnel in listed if PlannedStep(TunnelStep.REMOVE, tunnel) not in everything]
    after += [planned.tunnel for planned in everything if planned.step is TunnelStep.ADD]
    done = {planned.tunnel for planned in everything if planned.step in (TunnelStep.REMOVE, TunnelStep.DROP)}
    again = plan([entry for entry in ledger if entry.tunnel not in done], after, usable)
    assert not {TunnelStep.ADD, TunnelStep.REMOVE, TunnelStep.DROP} & set(steps(again))


@pytest.mark.parametrize(
    "tunnel",
    [
        forward("tcp:5554"),
        forward("tcp:5585"),
        reverse(dial="tcp:5555"),
        forward("tcp:0"),
        forward("tcp:70000"),
        forward("9000"),
        forward(dial="tcp:"),
        forward("tcp:90 00"),
    ],
)
def test_tunnels_that_must_not_be(tunnel: Tunnel) -> None:
    with pytest.raises(UserError) as caught:
        check_tunnel(tunnel)
    assert caught.value.hint


def test_the_phone_may_listen_on_5555() -> None:
    check_tunnel(forward(dial="tcp:5555"))
    check_tunnel(reverse("tcp:5555"))


async def test_the_ledger_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "adb" / "tunnels.json"
    ledger = TunnelLedger(path)
    await ledger.own(forward())
    await ledger.own(reverse())
    await ledger.release(reverse())
    await ledger.release(forward("tcp:1"))  # not ours
    assert (
        TunnelLedger(path).entries == (LedgerEntry(forward()), LedgerEntry(reverse(), releasing=True)) == ledger.entries
    )


async def test_two_tunnels_in_one_place_are_refused(tmp_path: Path) -> None:
    ledger = TunnelLedger(tmp_path / "tunnels.json")
    await ledger.own(forward())
    await ledger.own(forward())
    with pytest.raises(UserError, match="farm's already, for tcp:5000 of A"):
        await ledger.own(forward(serial="B"))
    await ledger.own(reverse("tcp:9000"))  # another side, another place


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"tunnel": {"kind": "sideways"}}]', "\0"])
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tunnels.json"
    path.write_text(content)
    with pytest.raises(HostError, match="not a ledger"):
        TunnelLedger(path)


class Entries:
    """forward entries of a fake server."""

    def __init__(self, server: FakeServer, *lines: str) -> None:
        self.lines = list(lines)
        server.services["host:list-forward"] = self.list
        server.services["host-serial:FAKE1:forward:norebind:tcp:9000;tcp:5000"] = self.add
        server.services["host-serial:FAKE1:killforward:tcp:9000"] = self.remove

    async def list(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        text = "".join(f"{line}\n" for line in self.lines).encode()
        writer.write(b"OKAY%04x%s" % (len(text), text))

    async def add(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if any("tcp:9000" in line for line in self.lines):
            writer.write(b"OKAYFAIL0021cannot rebind existing socket!!!")
            return
        self.lines.append("FAKE1 tcp:9000 tcp:5000")
        writer.write(b"OKAYOKAY")

    async def remove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines.remove("FAKE1 tcp:9000 tcp:5000")
        writer.write(b"OKAYOKAY")


async def test_reconcile_sets_up_and_takes_down_only_ours(
    server: FakeServer, client: AdbClient, tmp_path: Path
) -> None:
    entries = Entries(server, "FAKE1 tcp:8000 tcp:1")
    ledger = TunnelLedger(tmp_path / "tunnels.json")
    mine = forward(serial="FAKE1")
    await ledger.own(mine)
    assert steps(await ledger.reconcile(client, set())) == [TunnelStep.WAIT]
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [TunnelStep.ADD]
    assert await ledger.reconcile(client, {"FAKE1"}) == []
    entries.lines = ["FAKE1 tcp:8000 tcp:1"]  # a replug
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [TunnelStep.ADD]
    await ledger.release(mine)
    assert steps(await ledger.reconcile(client, {"FAKE1"})) == [TunnelStep.REMOVE]
    assert (entries.lines, ledger.entries) == (["FAKE1 tcp:8000 tcp:1"], ())


class Listing:
    """adb's list as a watcher tells it."""

    def __init__(self) -> None:
        self.devices: tuple[AdbDevice, ...] | None = None
        self.changes: asyncio.Queue[tuple[AdbDevice, ...]] = asyncio.Queue()

    async def snapshots(self) -> AsyncIterator[tuple[AdbDevice, ...]]:
        while True:
            self.devices = await self.changes.get()
            yield self.devices


PLUGGED = (AdbDevice("FAKE1", AdbState.DEVICE),)


async def test_an_order_that_comes_during_a_round_is_carried_out_in_the_next(
    server: FakeServer, client: AdbClient, tmp_path: Path
) -> None:
    entries = Entries(server)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await go_on.wait()
        await entries.list(reader, writer)

    server.services["host:list-forward"] = slow
    listing = Listing()
    keeper = TunnelKeeper(client, listing, TunnelLedger(tmp_path / "tunnels.json"))
    running = asyncio.create_task(keeper.run())
    try:
        listing.changes.put_nowait(PLUGGED)
        await asyncio.wait_for(begun.wait(), HANG_S)
        adding = asyncio.create_task(keeper.add(forward(serial="FAKE1")))
        await asyncio.wait((adding,), timeout=0.05)
        assert not adding.done()  # the round under way knows nothing of it
        go_on.set()
        await asyncio.wait_for(adding, HANG_S)
        assert entries.lines == ["FAKE1 tcp:9000 tcp:5000"]
        assert keeper.listed() == ((forward(serial="FAKE1"), ""),)
        assert await keeper.remove(forward(serial="FAKE1"), dialler_stopped=False) == ""
        assert entries.lines == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_round_that_failed_is_said_and_tried_again(
    server: FakeServer, client: AdbClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.devices.tunnels.RETRY_S", 0.01)
    entries, added = Entries(server), asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.services["host:list-forward"] = entries.list
        writer.write(b"FAIL0004busy")

    async def add(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await entries.add(reader, writer)
        added.set()

    server.services["host:list-forward"] = refuse
    server.services["host-serial:FAKE1:forward:norebind:tcp:9000;tcp:5000"] = add
    listing = Listing()
    listing.devices = PLUGGED
    keeper = TunnelKeeper(client, listing, TunnelLedger(tmp_path / "tunnels.json"))
    running = asyncio.create_task(keeper.run())
    try:
        with pytest.raises(AdbError):
            await keeper.add(forward(serial="FAKE1"))
        await asyncio.wait_for(added.wait(), HANG_S)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_ledger_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = TunnelLedger(tmp_path / "tunnels.json")
    ledger._path = tmp_path / "file" / "tunnels.json"
    with pytest.raises(HostError, match="cannot be written"):
        await ledger.own(forward())
    assert ledger.entries == ()
