"""A phone made quiet for a measurement, and back, through `quiesce.sh`; every call is one shell round trip.

`quiesce_policy` (pure) has the levels and their configuration. `QuiesceController` runs the script at the begin and the
end of a measurement and renews it meanwhile; a phone that is not renewed restores itself from its own ledger, and the
life cycle restores a phone that was left quiet before it is leased again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from farm.adb.client import AdbClient
from farm.common.errors import Code, FarmError, PhoneError
from farm.devices.quiesce_policy import Level, QuiesceConfig, QuiesceResult, QuiesceStep, over_network
from farm.devices.server.phone_paths import QUIESCE, QUIESCE_LOCK
from farm.devices.server.rpc_server import script_error

if TYPE_CHECKING:
    from farm.devices.agent import Agent

# 25 calls of `settings` at most at level gentle: 0.3 s on a phone since Android 8, whose `settings` is no Java program.
BEGIN_TIMEOUT_S = 12.0  # a worker waits for it
RENEW_TIMEOUT_S = 5.0
END_TIMEOUT_S = 15.0
TRIAL_S = 60.0  # more than `begin` may take
RENEWALS = 3  # in the time after which a phone ends it by itself: two may fail
_EVIDENCE_CHARS = 2000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of restoring a phone; each entry in the script's words."""

    restored: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # another program changed it meanwhile
    rebooted: tuple[str, ...] = ()  # it went with the boot
    failed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # lines of its ledger that are not farm's, or not whole: nothing was done about them
    complete: bool = False


class QuiesceController:
    """Makes phones quiet, keeps them so, and knows which are: by serial, as names may change meanwhile."""

    def __init__(self, client: AdbClient, find: Callable[[str], Agent]) -> None:
        self._client = client
        self._find = find
        self.config = QuiesceConfig()  # may be exchanged: leases that have begun keep what they began with
        self.owners: dict[str, str] = {}  # by serial of each phone that this daemon will restore
        self._serials: dict[str, str] = {}  # by the name under which it was begun, whatever it is called now
        self._renewing: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        """Renew no phone any more: each quiet state ends by itself, or with the next daemon."""
        for name in tuple(self._serials):
            self.leave(name)

    async def begin(self, name: str, level: Level, owner: str, restore_after_s: float) -> QuiesceResult:
        """Make a phone quiet until `end` or `leave`, one of which is due whatever becomes of this call.

        Raises:
            NoSuchDeviceError: there is no such device.
            PhoneError: nothing was changed, or the changes are unknown.
        """
        agent = self._find(name)
        serial = self._serials[name] = agent.serial
        self.owners[serial] = owner
        devpath = agent.device.devpath if agent.device else ""
        link = "network" if over_network(serial, devpath) else "usb"
        # Airplane mode may cut the link: such a state lasts longer than a trial only if farm still reaches the phone.
        on_trial = level is Level.FULL
        seconds = max(1, round(min(TRIAL_S, restore_after_s) if on_trial else restore_after_s))
        command = f"sh {QUIESCE} begin {level} {link} {quote(owner)} {seconds}"
        result = await self._client.shell(serial, command, timeout_s=BEGIN_TIMEOUT_S)
        quiet = parse_begun(result.output)
        if on_trial and not await self._renew(serial, restore_after_s):
            raise PhoneError(f"{name} ended its quiet state before farm could renew it")
        self._renewing[serial] = asyncio.create_task(self._keep(serial, restore_after_s), name=f"quiet {name}")
        return quiet

    async def end(self, name: str, owner: str) -> Restored:
        """Change a phone back, unless it is another owner's by now.

        Raises:
            FarmError: as `restore`; it is left to the life cycle then, as by `leave`.
        """
        serial = self._serials.get(name) or self._find(name).serial
        try:
            return await restore(self._client, serial, owner)
        finally:
            if self.owners.get(serial) == owner:
                self.leave(name)

    def leave(self, name: str) -> None:
        """It is not changed back here any more: the life cycle does that, before the phone is leased again."""
        serial = self._serials.pop(name, "")
        self.owners.pop(serial, None)
        if (task := self._renewing.pop(serial, None)) is not None:
            task.cancel()

    async def _keep(self, serial: str, restore_after_s: float) -> None:
        while True:
            await asyncio.sleep(restore_after_s / RENEWALS)
            with suppress(FarmError):  # other parts notice a lost phone; it changes itself back
                if not await self._renew(serial, restore_after_s):
                    log.warning("%s has changed itself back while it measures", serial)
                    return

    async def _renew(self, serial: str, restore_after_s: float) -> bool:
        command = f"sh {QUIESCE} renew {max(1, round(restore_after_s))}"
        result = await self._client.shell(serial, command, timeout_s=RENEW_TIMEOUT_S)
        return result.text.startswith("renewed")


async def restore(client: AdbClient, serial: str, owner: str = "") -> Restored:
    """Change a phone back; nothing happens where nothing was changed, or not by `owner`.

    Raises:
        PhoneError: something stays changed, or the script is not there or said something else.
        AdbError: phone or link failed.
    """
    # The script waits for a begin that still runs there, though its caller has ended.
    command = f"if [ -e {QUIESCE_LOCK} ]; then sh {QUIESCE} end {quote(owner) if owner else ''}; else echo ended; fi"
    result = await client.shell(serial, command, timeout_s=END_TIMEOUT_S)
    output = result.output
    restored = parse_restored(output)
    for each in restored.left:
        log.warning("%s: another program changed %s during a measurement; it stays so", serial, each)
    for each in restored.unknown:
        log.warning("%s: its quiesce ledger had a line that is not farm's: %s", serial, each)
    if not restored.complete:
        raise PhoneError(
            f"the phone does not take back {', '.join(each.split()[0] for each in restored.failed)}",
            Code.NOT_RESTORED,
            hint="a reboot helps where system_server hangs: farm device reboot NAME",
            evidence=output[-_EVIDENCE_CHARS:],
        )
    return restored


def parse_begun(output: str) -> QuiesceResult:
    """Read the output of `quiesce.sh begin`.

    Raises:
        PhoneError: it failed, or it says something else.
    """
    steps, level = [], None
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("took", "refused"):
            name, _, detail = rest.partition(" ")
            steps.append(QuiesceStep(name, detail, word == "took"))
        elif word == "failed":
            raise PhoneError(f"the phone was not made quiet: {rest}", evidence=output[-_EVIDENCE_CHARS:])
        elif word == "begun" and rest in (Level.GENTLE, Level.FULL):
            level = Level(rest)
    if level is None:
        raise script_error("quiesce.sh did not say what it did", evidence=output[-_EVIDENCE_CHARS:])
    return QuiesceResult(level, tuple(steps))


def parse_restored(output: str) -> Restored:
    """Read the output of `quiesce.sh end`.

    Raises:
        PhoneError: it says something else.
    """
    found: dict[str, list[str]] = {"restored": [], "left": [], "rebooted": [], "failed": [], "unknown": []}
    last = ""
    for line in output.splitlines():
        last, _, rest = line.partition(" ")
        if last in found and rest.strip():
            found[last].append(rest)
    if last not in ("ended", "unfinished"):
        raise script_error("quiesce.sh did not say what it did", evidence=output[-_EVIDENCE_CHARS:])
    return Restored(**{name: tuple(lines) for name, lines in found.items()}, complete=last == "ended")
