"""Cutting the power of a phone's USB port: by uhubctl, or by a command of the lab's own (a PDU, a relay board).

The protocol is two functions. A switch answers when the port is as wanted, and has looked; a lab's own command that
has no `state` is believed by its exit code.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from farm.common.errors import HostError
from farm.common.tasks import at_most
from farm.devices.power.power_rules import TIMEOUT_S, PowerRule
from farm.model.device import UsbPlace

PROGRAM = "uhubctl"
VERIFY_S = 5.0  # USB 3 hubs take 0.15 s to drop a port, kernels before 6.0 may switch it on again within a second
OFF_S = 3.0  # port capacitors and a phone's charger keep its link up for a moment; uhubctl's own default is 2
GONE_S = 10.0  # the kernel notifies adb at once; before 6.0 it may not do so at all
_KILLED_S = 2.0  # a program that hangs in a USB driver does not die: it is not waited for
_POLL_S = 0.1
_EVIDENCE_CHARS = 2000
_FIELD = re.compile(r"\{(\w+)\}")
_FIELDS_HINT = "fields: {hub}, {port}, {path} and those of its `fields` table"

# As uhubctl's README wants them; the second line is for Linux 6.0 and later, which switches ports through sysfs.
UDEV_RULES = (
    'SUBSYSTEM=="usb", DRIVER=="hub|usb", MODE="0664", GROUP="{group}"',
    (
        'SUBSYSTEM=="usb", DRIVER=="hub|usb", RUN+="/bin/sh -c \\"chgrp -f {group} $sys$devpath/*port*/disable;'
        ' chmod -f 660 $sys$devpath/*port*/disable || true\\""'
    ),
)


class PowerError(HostError):
    """The power of a USB port could not be switched."""

    code = "power_failed"


class PowerSwitch(Protocol):
    """Switches the power of USB ports."""

    async def off(self, place: UsbPlace) -> None:
        """Cut the port's power; returns when it has none.

        Raises:
            PowerError: it could not, or the port still has power.
        """

    async def on(self, place: UsbPlace) -> None:
        """Give the port its power back; returns when it has it.

        Raises:
            PowerError: it could not, or the port has none.
        """


class Uhubctl:
    """Hubs that switch each port by itself, through the program uhubctl (2.4 or later), never with sudo.

    ```toml
    [power]
    switch = "uhubctl"                  # the default, used when the program is installed
    uhubctl = "/usr/sbin/uhubctl"       # default: PATH
    ```
    """

    def __init__(self, program: str = "", timeout_s: float = TIMEOUT_S, verify_s: float = VERIFY_S) -> None:
        self._program = program or PROGRAM
        self._timeout_s, self._verify_s = timeout_s, verify_s
        self._brief: tuple[str, ...] = ("-N",)  # do not ask devices for their names: a wedged one answers after 5 s
        self._turn = asyncio.Lock()  # two at once would see each other's hubs half switched
        self.installed = self.find()

    def find(self) -> bool:
        """Whether the program is there now; `installed` is the last result, without a search."""
        self.installed = shutil.which(self._program) is not None
        return self.installed

    async def off(self, place: UsbPlace) -> None:
        """See `PowerSwitch`."""
        await self._switch(place, on=False)

    async def on(self, place: UsbPlace) -> None:
        """See `PowerSwitch`."""
        await self._switch(place, on=True)

    async def ports(self) -> tuple[PortStatus, ...]:
        """Every port that it can switch.

        Raises:
            PowerError: it is not installed, may not open the hubs, or there are none.
        """
        async with self._turn:
            return parse_status((await self._call((), "any hub"))[0])

    async def _switch(self, place: UsbPlace, *, on: bool) -> None:
        action = "on" if on else "off"
        where = ("-l", place.hub.removeprefix("usb"), "-p", str(place.port))
        async with self._turn:
            before = powered((await self._call(where, f"hub {place.hub}"))[0], place.port)
            if before is None:
                raise PowerError(f"uhubctl shows no port {place.port} on hub {place.hub}", hint="uhubctl -l HUB")
            if before is on:
                return
            output, complaint = await self._call((*where, "-a", action), f"hub {place.hub}")
            deadline, now = time.monotonic() + self._verify_s, powered(output, place.port, after=True)
            while now is not on:
                if time.monotonic() > deadline:
                    if lacks_permission(complaint):  # it tries another way then, which may have worked
                        raise _not_permitted(f"hub {place.hub}", complaint)
                    raise PowerError(
                        f"hub {place.hub} took the order, but its port {place.port} is not {action}",
                        hint="many hubs claim to switch and do not (docs/facts.md): [power.hub] switch = 'none'",
                        evidence=output[-_EVIDENCE_CHARS:],
                    )
                await asyncio.sleep(_POLL_S)
                output, _ = await self._call(where, f"hub {place.hub}")
                now = powered(output, place.port)

    async def _call(self, arguments: Sequence[str], target: str) -> tuple[str, str]:
        """Run uhubctl; returns its output and its complaints."""
        code, out, err = await _run((self._program, *self._brief, *arguments), self._timeout_s, _NOT_INSTALLED)
        if code and self._brief and "option" in err:  # 2.4 has no -N; 2.5 has
            self._brief = ()
            return await self._call(arguments, target)
        if code and lacks_permission(err):
            raise _not_permitted(target, err)
        if knows_no_hub(err):
            raise PowerError(
                f"uhubctl cannot switch {target}: it is not there, or cannot switch its ports one by one",
                hint="`uhubctl` lists hubs that can; another kind of switch: [power.hub] (docs/configuration.md)",
                evidence=err,
            )
        if code:
            raise PowerError(f"uhubctl failed for {target} (exit {code})", hint="try it by hand", evidence=err or out)
        return out, err


def _not_permitted(target: str, evidence: str) -> PowerError:
    return PowerError(f"uhubctl may not switch {target}: it lacks the permission", hint=udev_fix(), evidence=evidence)


class CommandSwitch:
    """A lab's own program per port: a PDU, a relay board, a hub with its own tool.

    ```toml
    [power.hub."1-4"]                                 # a hub, or one port: [power.hub."1-4.2"]
    off = ["pdu", "{host}", "{port}", "off"]          # words; no shell reads them
    on = ["pdu", "{host}", "{port}", "on"]
    state = ["pdu", "{host}", "{port}"]               # optional: prints on or off
    fields = {host = "10.0.0.9"}                      # beside {hub}, {port} and {path} of the place
    ```
    """

    def __init__(self, rule: PowerRule, timeout_s: float = TIMEOUT_S, verify_s: float = VERIFY_S) -> None:
        self._rule = rule
        self._timeout_s, self._verify_s = timeout_s, verify_s

    async def off(self, place: UsbPlace) -> None:
        """See `PowerSwitch`."""
        await self._switch(place, self._rule.off, "off")

    async def on(self, place: UsbPlace) -> None:
        """See `PowerSwitch`."""
        await self._switch(place, self._rule.on, "on")

    async def _switch(self, place: UsbPlace, words: Sequence[str], wanted: str) -> None:
        await self._call(words, place)
        if not self._rule.state:
            return
        deadline = time.monotonic() + self._verify_s
        while (output := (await self._call(self._rule.state, place)).strip().lower()) != wanted:
            if time.monotonic() > deadline:
                raise PowerError(
                    f"port {place.path} should be {wanted}, but {self._rule.state[0]} says {output[:40]!r}",
                    hint="its `state` command must print on or off",
                    evidence=output[:_EVIDENCE_CHARS],
                )
            await asyncio.sleep(_POLL_S)

    async def _call(self, words: Sequence[str], place: UsbPlace) -> str:
        command = fill(words, self._rule.fields, place)
        code, out, err = await _run(command, self._timeout_s, "correct [power] (docs/configuration.md)")
        if code:
            raise PowerError(
                f"{command[0]} failed for port {place.path} (exit {code})",
                hint=f"try it by hand: {' '.join(command)}",
                evidence=(err or out)[-_EVIDENCE_CHARS:],
            )
        return out


async def cycle(power: PowerSwitch, place: UsbPlace, listed: Callable[[], bool], off_s: float | None = None) -> None:
    """Cut a port's power, wait until adb has noticed and the phone is really without, and give it back.

    Whatever happens in between, being cancelled too, the power comes back.

    Args:
        power: the switch.
        place: the port.
        listed: whether adb still lists the phone.
        off_s: how long it has no power; None: as long as a phone needs to notice.

    Raises:
        PowerError: it could not be cut, or does not come back.
    """
    try:
        await power.off(place)
        off_at = time.monotonic()
        while listed() and time.monotonic() < off_at + GONE_S:  # noqa: ASYNC110 (a port has no event)
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(max(0.0, off_at + (OFF_S if off_s is None else off_s) - time.monotonic()))
    finally:
        back = asyncio.create_task(power.on(place), name=f"power on {place.path}")
        try:
            await asyncio.shield(back)
        except asyncio.CancelledError:
            await asyncio.wait({back})
            raise


def fill(words: Sequence[str], fields: Mapping[str, str], place: UsbPlace) -> tuple[str, ...]:
    """A command's words with {fields} in place.

    Raises:
        PowerError: there are no words, or an undefined field.
    """
    known = {**fields, "hub": place.hub, "port": str(place.port), "path": place.path}
    unknown = sorted({name for word in words for name in _FIELD.findall(word)} - known.keys())
    if unknown:
        raise PowerError(f"a power command has an unknown field {{{unknown[0]}}}", hint=_FIELDS_HINT)
    filled = tuple(_FIELD.sub(lambda match: known[match[1]], word) for word in words)
    if not filled:
        raise PowerError(f"port {place.path} has no command to switch it", hint="[power] off and on are both needed")
    return filled


def udev_fix(group: str = "farm") -> str:
    """The command that lets a group switch hubs without being root."""
    lines = " ".join("'" + rule.format(group=group) + "'" for rule in UDEV_RULES)
    return (
        f"printf '%s\\n' {lines} | sudo tee /etc/udev/rules.d/52-farm-usb.rules"
        " && sudo udevadm control --reload && sudo udevadm trigger --attr-match=subsystem=usb"
    )


_NOT_INSTALLED = "apt-get install uhubctl, or name another switch in [power]"


async def _run(command: Sequence[str], timeout_s: float, missing_hint: str) -> tuple[int, str, str]:
    """Exit code and output; it never outlives its time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        name = Path(command[0]).name
        why = "is not installed" if isinstance(error, FileNotFoundError) else f"cannot be run: {error.strerror}"
        raise PowerError(f"{name} {why}", hint=missing_hint, evidence=str(error)) from error
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise PowerError(
            f"{Path(command[0]).name} did not end in {timeout_s:g} s",
            hint="a hub that hangs? try it by hand",
            evidence=" ".join(command),
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            async with at_most(_KILLED_S):
                await process.wait()
    return process.returncode or 0, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


_HUB = re.compile(r"(Current|New) status for hub (\S+) \[.*\]")
_PORT = re.compile(r"  Port (\d+): [0-9a-f]{4}((?: [^\[]\S*)*)(?: \[.*\])?")
# Words of its complaints. It ends with 0 even when a hub refused to switch: only the status afterwards shows it.
_NO_HUB = "No compatible devices detected"
_NO_PERMISSION = ("permission problems", "Permission denied", "LIBUSB_ERROR_ACCESS", "Operation not permitted")


@dataclass(frozen=True, slots=True)
class PortStatus:
    """One port of one hub as uhubctl reports it."""

    hub: str  # uhubctl's location: "1-4", a root hub is "1"
    port: int
    powered: bool
    after: bool  # reported after the action (`New status`), not before it


def parse_status(text: str) -> tuple[PortStatus, ...]:
    """Every port reported, in order: a USB 3 hub is two, and an action reports each before and after. Never raises."""
    ports: list[PortStatus] = []
    when, hub = "", ""
    for line in text.splitlines():
        if match := _HUB.fullmatch(line):
            when, hub = match[1], match[2]
        elif hub and (match := _PORT.fullmatch(line)):
            ports.append(PortStatus(hub, int(match[1]), "off" not in match[2].split(), when == "New"))
    return tuple(ports)


def powered(text: str, port: int, *, after: bool = False) -> bool | None:
    """Whether a port has power on any half of its hub (USB 2 and USB 3 share it); None: it was not reported."""
    reported = [each.powered for each in parse_status(text) if each.port == port and (each.after or not after)]
    return any(reported) if reported else None


def lacks_permission(stderr: str) -> bool:
    """Whether it complains that it may not open a hub."""
    return any(words in stderr for words in _NO_PERMISSION)


def knows_no_hub(stderr: str) -> bool:
    """Whether it complains that no hub, or none at that place, can switch its ports one by one."""
    return _NO_HUB in stderr
