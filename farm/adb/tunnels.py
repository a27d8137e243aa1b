"""`adb forward` and `adb reverse` entries that farm owns: a ledger on disk, and the steps that make it true.

An entry lives until it is released: adb forgets every entry of a phone when its link is lost and all of them when its
server ends, so after a replug, a reboot or a restart (adb's or farm's) `reconcile` sets up again what is missing. An
entry that is not in the ledger is never touched, wherever it came from.

Two things done to a reverse abort the whole adb server, and every phone's sessions with it (docs/facts.md): removing
one while the phone dials it, and rebinding one to another host port. So a reverse is never rebound, and one is removed
only after the caller has confirmed that nothing on the phone dials it any more.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from farm.adb.client import AdbClient
from farm.adb.errors import AdbError, AdbPortTaken
from farm.common.errors import HostError, UserError
from farm.common.files import write_durably

EMULATOR_PORTS = range(5554, 5586)  # the adb server dials them: an RPC server there filled a disk (TVM PR 13172)
_SPEC = r"(?:tcp|localabstract|localreserved|localfilesystem|local|dev|jdwp|vsock|acceptfd):\S*"
_LINE = re.compile(rf"(?P<owner>.*?)\s+(?P<listen>{_SPEC})\s+(?P<dial>{_SPEC})\s*")


class TunnelKind(StrEnum):
    """Which side listens."""

    FORWARD = "forward"  # the host listens, the phone is dialled
    REVERSE = "reverse"  # the phone listens, the host is dialled


@dataclass(frozen=True, slots=True)
class Tunnel:
    """One entry. `listen` and `dial` are adb's socket specs (`tcp:9000`)."""

    kind: TunnelKind
    serial: str
    listen: str
    dial: str

    @property
    def port_of_phone(self) -> int:
        """The phone's TCP port at which the tunnel ends or begins, or 0 for another socket."""
        return port_of(self.dial if self.kind is TunnelKind.FORWARD else self.listen)

    @property
    def place(self) -> tuple[str, str, str]:
        """The socket that only one entry can have: a host socket for a forward, a phone's socket for a reverse."""
        return (self.kind, "" if self.kind is TunnelKind.FORWARD else self.serial, self.listen)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A tunnel in the ledger."""

    tunnel: Tunnel
    releasing: bool = False  # to be removed
    dialler_stopped: bool = False  # only then may a reverse be removed


class TunnelStep(StrEnum):
    """One thing to do, or why nothing is done."""

    ADD = "add"
    REMOVE = "remove"
    DROP = "drop"  # strike it off the ledger: adb has no such entry any more
    CONFLICT = "conflict"  # a foreign entry has the place: left alone
    WAIT = "wait"  # a reverse whose dialler still runs, or a phone that is away


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step for one entry; `reason` is for people."""

    step: TunnelStep
    tunnel: Tunnel
    reason: str = ""


def parse_forwards(text: str) -> tuple[Tunnel, ...]:
    """`adb forward --list`: SERIAL LOCAL REMOTE. Serials may hold spaces, the last line is blank."""
    return tuple(Tunnel(TunnelKind.FORWARD, match["owner"], match["listen"], match["dial"]) for match in _entries(text))


def parse_reverses(serial: str, text: str) -> tuple[Tunnel, ...]:
    """`adb reverse --list` of one phone: NAME REMOTE LOCAL, where NAME (`host-3`, `UsbFfs`) is not its serial."""
    return tuple(Tunnel(TunnelKind.REVERSE, serial, match["listen"], match["dial"]) for match in _entries(text))


def _entries(text: str) -> Iterable[re.Match[str]]:
    return (match for line in text.split("\n") if (match := _LINE.fullmatch(line.removesuffix("\r"))))


def plan(ledger: Iterable[LedgerEntry], listed: Iterable[Tunnel], usable: Collection[str]) -> list[PlannedStep]:
    """The steps that make the ledger true. Removals come first, since they may free a place.

    Args:
        ledger: what farm owns.
        listed: entries of adb now: all forwards, and the reverses of every usable phone.
        usable: serials of phones in state `device`.
    """
    there = {tunnel.place: tunnel for tunnel in listed}
    removals: list[PlannedStep] = []
    others: list[PlannedStep] = []
    for entry in ledger:
        tunnel, found = entry.tunnel, there.get(entry.tunnel.place)
        if entry.releasing:
            removals.append(_plan_release(entry, found, usable))
        elif tunnel.serial not in usable:
            others.append(PlannedStep(TunnelStep.WAIT, tunnel, "the phone is not attached"))
        elif found is None:
            others.append(PlannedStep(TunnelStep.ADD, tunnel))
        elif found != tunnel:
            others.append(PlannedStep(TunnelStep.CONFLICT, tunnel, f"it is used for {found.dial} of {found.serial}"))
    return [*removals, *others]


def _plan_release(entry: LedgerEntry, found: Tunnel | None, usable: Collection[str]) -> PlannedStep:
    tunnel = entry.tunnel
    if found != tunnel:  # removed with its link, or a foreign entry has the place by now
        return PlannedStep(TunnelStep.DROP, tunnel)
    if tunnel.serial not in usable:
        return PlannedStep(TunnelStep.WAIT, tunnel, "the phone is not attached; adb forgets the entry with it")
    if tunnel.kind is TunnelKind.REVERSE and not entry.dialler_stopped:
        return PlannedStep(TunnelStep.WAIT, tunnel, "the phone may still dial it, and removing it would abort adb")
    return PlannedStep(TunnelStep.REMOVE, tunnel)


def check_tunnel(tunnel: Tunnel) -> None:
    """Refuses tunnels that cannot or must not be.

    Raises:
        UserError: not a socket spec, an impossible port, or a host port that adb scans for emulators.
    """
    for spec in (tunnel.listen, tunnel.dial):
        if not re.fullmatch(_SPEC, spec) or spec.endswith(":"):
            raise UserError(f"{spec!r} is not an adb socket", hint="Write tcp:PORT or localabstract:NAME.")
        if spec.startswith("tcp:") and not port_of(spec):
            raise UserError(f"{spec!r} names no port", hint="Write tcp:PORT with a port between 1 and 65535.")
    on_host = tunnel.listen if tunnel.kind is TunnelKind.FORWARD else tunnel.dial
    if port_of(on_host) in EMULATOR_PORTS:
        raise UserError(
            f"adb looks for emulators on host ports {EMULATOR_PORTS[0]}-{EMULATOR_PORTS[-1]}; "
            f"{port_of(on_host)} is one of them",
            hint="Choose a port outside that range.",
        )


def port_of(spec: str) -> int:
    """The port of a tcp spec, or 0 for anything else or an impossible port."""
    kind, _, port = spec.rpartition(":")
    if not kind.startswith("tcp") or not (port.isascii() and port.isdigit()):
        return 0
    return int(port) if int(port) <= 0xFFFF else 0


_LEDGER_FILE: TypeAdapter[list[LedgerEntry]] = TypeAdapter(list[LedgerEntry])


class TunnelLedger:
    """The entries farm owns, stored in a JSON file; `reconcile` makes them true.

    Raises:
        HostError: the file exists and is not a ledger.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[tuple[str, str, str], LedgerEntry] = {}
        self._writing = asyncio.Lock()  # a change begins with what the one before it left
        if path.exists():
            try:
                entries = _LEDGER_FILE.validate_json(path.read_bytes())
            except ValidationError as error:
                raise HostError(
                    f"{path} is not a ledger of tunnels.",
                    hint="Move it away: farm then forgets its forwards; `adb forward --list` still shows them.",
                    evidence=str(error),
                ) from error
            self._entries = {entry.tunnel.place: entry for entry in entries}

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The entries that farm owns, in the order of making."""
        return tuple(self._entries.values())

    async def own(self, tunnel: Tunnel) -> None:
        """Takes a tunnel into the ledger; `reconcile` then sets it up.

        Raises:
            UserError: see `check_tunnel`, or the ledger has another tunnel in that place.
            HostError: the ledger cannot be written.
        """
        check_tunnel(tunnel)
        async with self._writing:
            held = self._entries.get(tunnel.place)
            if held is not None and held.tunnel != tunnel:
                raise UserError(
                    f"{tunnel.listen} is farm's already, for {held.tunnel.dial} of {held.tunnel.serial}",
                    hint="Release that one first, or choose another port.",
                )
            await self._save({**self._entries, tunnel.place: LedgerEntry(tunnel)})

    async def release(self, tunnel: Tunnel, *, dialler_stopped: bool = False) -> None:
        """Marks a tunnel for removal by the next `reconcile`. A foreign tunnel is left alone.

        Args:
            tunnel: as owned.
            dialler_stopped: for a reverse: nothing on the phone dials it any more (see the top of this file).

        Raises:
            HostError: the ledger cannot be written.
        """
        async with self._writing:
            held = self._entries.get(tunnel.place)
            if held is not None and held.tunnel == tunnel:
                stopped = dialler_stopped or held.dialler_stopped
                changed = replace(held, releasing=True, dialler_stopped=stopped)
                await self._save({**self._entries, tunnel.place: changed})

    async def reconcile(self, client: AdbClient, usable: Collection[str]) -> list[PlannedStep]:
        """Sets up missing tunnels and removes released ones; returns the planned steps, failures as CONFLICT.

        Call it after every change of the list of phones, one call at a time (farm.devices.tunnels).

        Raises:
            AdbError: the adb server does not answer.
            HostError: the ledger cannot be written.
        """
        reverses = [entry for entry in self.entries if entry.tunnel.kind is TunnelKind.REVERSE]
        listed = list(parse_forwards(await client.list_forwards()))
        for serial in sorted({entry.tunnel.serial for entry in reverses} & set(usable)):
            listed += parse_reverses(serial, await client.list_reverses(serial))
        return [await self._perform(client, planned) for planned in plan(self.entries, listed, usable)]

    async def _perform(self, client: AdbClient, planned: PlannedStep) -> PlannedStep:
        tunnel = planned.tunnel
        try:
            if planned.step is TunnelStep.ADD:
                await _add(client, tunnel)
            elif planned.step is TunnelStep.REMOVE:
                await _remove(client, tunnel)
        except AdbPortTaken as error:
            return replace(planned, step=TunnelStep.CONFLICT, reason=error.evidence or error.message)
        except AdbError as error:
            return replace(planned, step=TunnelStep.WAIT, reason=error.message)
        if planned.step in (TunnelStep.REMOVE, TunnelStep.DROP):
            await self._strike_off(tunnel)
        return planned

    async def _strike_off(self, tunnel: Tunnel) -> None:
        async with self._writing:
            held = self._entries.get(tunnel.place)
            if held is not None and held.releasing:  # not owned again meanwhile
                await self._save({place: each for place, each in self._entries.items() if place != tunnel.place})

    async def _save(self, entries: Mapping[tuple[str, str, str], LedgerEntry]) -> None:
        """On disk first, whole or not at all, then in memory."""
        try:
            await asyncio.to_thread(_write, self._path, tuple(entries.values()))
        except OSError as error:
            raise HostError(
                f"the ledger of tunnels {self._path} cannot be written: {error.strerror}",
                hint="free disk space, or look at the state folder's owner",
                evidence=str(error),
            ) from error
        self._entries = dict(entries)


def _write(path: Path, entries: Iterable[LedgerEntry]) -> None:
    """Blocks until it is on the disk: 5-50 ms, seconds on a busy one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps([asdict(entry) for entry in entries], indent=1).encode())


async def _add(client: AdbClient, tunnel: Tunnel) -> None:
    if tunnel.kind is TunnelKind.FORWARD:
        await client.add_forward(tunnel.serial, tunnel.listen, tunnel.dial)
    else:
        await client.add_reverse(tunnel.serial, tunnel.listen, tunnel.dial)


async def _remove(client: AdbClient, tunnel: Tunnel) -> None:
    if tunnel.kind is TunnelKind.FORWARD:
        await client.remove_forward(tunnel.serial, tunnel.listen)
    else:
        await client.remove_reverse(tunnel.serial, tunnel.listen)
