"""A phone made quiet for a measurement, and back, through `quiesce.sh`; every call is one shell round trip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote

from farm.adb.client import AdbClient
from farm.core.errors import PhoneError
from farm.core.quiesce import Level, Quiet, Step, over_network
from farm.fleet.agent import Agent
from farm.fleet.phone_paths import QUIESCE
from farm.fleet.rpc_server import ScriptError

# 25 calls of `settings` at most at level gentle: 0.3 s on a phone since Android 8, whose `settings` is no Java program.
BEGIN_TIMEOUT_S = 12.0  # a worker waits for it
RENEW_TIMEOUT_S = 5.0
END_TIMEOUT_S = 15.0
TRIAL_S = 60  # what was changed must leave the link as it was: only who can renew keeps it any longer
_EVIDENCE_CHARS = 2000


class NotRestoredError(PhoneError):
    """Values that were changed for a measurement could not be changed back."""

    code = "not_restored"


@dataclass(frozen=True, slots=True)
class Restored:
    """What came of changing a phone back; each entry in the script's words."""

    restored: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # somebody else changed it meanwhile
    rebooted: tuple[str, ...] = ()  # it went with the boot
    failed: tuple[str, ...] = ()
    complete: bool = False


class Quieting:
    """Makes phones quiet and knows which are: by the names that `find` knows."""

    def __init__(self, client: AdbClient, find: Callable[[str], Agent]) -> None:
        self._client = client
        self._find = find
        self.names: set[str] = set()  # of phones whose values somebody here is to change back

    async def begin(self, name: str, level: Level, owner: str, restore_after_s: float) -> Quiet:
        """Make a phone quiet; it is to be ended whatever becomes of this call.

        Raises:
            NoSuchDeviceError: there is no such device.
            PhoneError: nothing was changed, or nobody knows what.
        """
        agent = self._find(name)
        self.names.add(name)
        devpath = agent.device.devpath if agent.device else ""
        link = "network" if over_network(agent.serial, devpath) else "usb"
        command = f"sh {QUIESCE} begin {level} {link} {quote(owner)} {min(TRIAL_S, round(restore_after_s))}"
        result = await self._client.shell(agent.serial, command, timeout_s=BEGIN_TIMEOUT_S)
        quiet = parse_begun(result.text + result.stderr.decode("utf-8", "replace"))
        await self.renew(name, restore_after_s)
        return quiet

    async def renew(self, name: str, restore_after_s: float) -> None:
        """Keep a phone quiet for so many seconds more.

        Raises:
            AdbError: phone or link failed.
        """
        command = f"sh {QUIESCE} renew {max(1, round(restore_after_s))}"
        await self._client.shell(self._find(name).serial, command, timeout_s=RENEW_TIMEOUT_S)

    async def end(self, name: str) -> Restored:
        """Change a phone back.

        Raises:
            FarmError: as `restore`.
        """
        restored = await restore(self._client, self._find(name).serial)
        self.names.discard(name)
        return restored

    def leave(self, name: str) -> None:
        """Nobody here ends it any more: the life cycle does."""
        self.names.discard(name)


async def restore(client: AdbClient, serial: str) -> Restored:
    """Change a phone back; nothing happens where nothing was changed.

    Raises:
        NotRestoredError: something stays changed.
        ScriptError: the script is not there, or said something else.
        AdbError: phone or link failed.
    """
    result = await client.shell(serial, f"sh {QUIESCE} end", timeout_s=END_TIMEOUT_S)
    said = result.text + result.stderr.decode("utf-8", "replace")
    restored = parse_restored(said)
    if not restored.complete:
        raise NotRestoredError(
            f"the phone does not take back {', '.join(each.split()[0] for each in restored.failed)}",
            hint="a reboot helps where system_server hangs: farm device reboot NAME",
            evidence=said[-_EVIDENCE_CHARS:],
        )
    return restored


def parse_begun(said: str) -> Quiet:
    """Read what `quiesce.sh begin` says.

    Raises:
        PhoneError: it failed.
        ScriptError: it says something else.
    """
    steps, level = [], None
    for line in said.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("took", "refused"):
            name, _, detail = rest.partition(" ")
            steps.append(Step(name, detail, word == "took"))
        elif word == "failed":
            raise PhoneError(f"the phone was not made quiet: {rest}", evidence=said[-_EVIDENCE_CHARS:])
        elif word == "begun" and rest in (Level.GENTLE, Level.FULL):
            level = Level(rest)
    if level is None:
        raise ScriptError("quiesce.sh did not say what it did", evidence=said[-_EVIDENCE_CHARS:])
    return Quiet(level, tuple(steps))


def parse_restored(said: str) -> Restored:
    """Read what `quiesce.sh end` says.

    Raises:
        ScriptError: it says something else.
    """
    found: dict[str, list[str]] = {"restored": [], "left": [], "rebooted": [], "failed": []}
    last = ""
    for line in said.splitlines():
        last, _, rest = line.partition(" ")
        if last in found:
            found[last].append(rest)
    if last not in ("ended", "unfinished"):
        raise ScriptError("quiesce.sh did not say what it did", evidence=said[-_EVIDENCE_CHARS:])
    return Restored(**{name: tuple(lines) for name, lines in found.items()}, complete=last == "ended")
