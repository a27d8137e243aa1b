"""Which words of adb or of a phone mean what: one ordered table, first match wins.

The words were collected from real servers and phones (tests/data/adb/errors); the order matters where one output
holds several: a failure that was overcome (an old server killed and started anew) stands above the one that stayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from farm.adb.errors import (
    AdbError,
    AdbFailed,
    AdbLinkLost,
    AdbPortTaken,
    AdbServerUnreachable,
    AdbTimeout,
    AdbVersionClash,
    DeviceNoPermissions,
    DeviceNotFound,
    DeviceOffline,
    DeviceUnauthorized,
    PhonePathRefused,
    PhoneStorageFull,
)


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    build: Callable[..., AdbError]
    message: str  # {who} / {phone}: whom it is about, as a sentence begins / goes on; {0}: the pattern's group
    hint: str


def _rule(pattern: str, build: Callable[..., AdbError], message: str, hint: str) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), build, message, hint)


_FREE_SPACE = "Free space on the phone (farm device forget --clean removes old bundles)."
_PATH = "Choose another folder on the phone; /data/local/tmp is the one every shell may write to."
_RULES: tuple[_Rule, ...] = (
    _rule(
        r"device unauthorized",
        DeviceUnauthorized,
        "{who} has not accepted farm's adb key.",
        "Unlock its screen and accept the prompt (farm doctor explains each step).",
    ),
    _rule(
        r"device still (?:authorizing|connecting)",
        DeviceOffline,
        "{who} is still connecting.",
        "Wait a moment; if it stays so, replug it.",
    ),
    _rule(r"device offline", DeviceOffline, "{who} is offline.", "Replug it, or run: farm device reboot"),
    _rule(
        r"insufficient permissions for device|no permissions",
        DeviceNoPermissions,
        "The host may not open {phone} on USB.",
        "Install Android udev rules and add the farm's user to group plugdev.",
    ),
    _rule(
        r"device '[^']*' not found|no devices/emulators found|device not found|no such device|unknown device",
        DeviceNotFound,
        "{who} is not attached to the adb server.",
        "Check its cable and that USB debugging is on; farm status lists what is attached.",
    ),
    _rule(
        r"no space left on\W* ?device|enospc",
        PhoneStorageFull,
        "The storage of {phone} is full.",
        _FREE_SPACE,
    ),
    _rule(
        r"(?:couldn't create file|secure_mkdirs failed|stat failed when [^\n]*|cannot create[^\n]*|"
        r"fchown failed): ([^\n:]+)",
        PhonePathRefused,
        "{who} refuses the path: {0}.",
        _PATH,
    ),
    _rule(
        r"open failed: ([^\n:]+)",
        PhonePathRefused,
        "{who} does not give the file: {0}.",
        "Look at it with: farm shell --on NAME -- ls -l PATH",
    ),
    _rule(
        r"\Ascreencap error\Z",
        AdbFailed,
        "{who} gives no picture of its screen.",
        "A virtual phone has none; another's says why: farm shell --on NAME -- screencap -p /dev/null",
    ),
    _rule(
        r"read-only file system",
        PhonePathRefused,
        "{who} refuses the path: Read-only file system.",
        _PATH,
    ),
    _rule(
        r"adb server version \((\d+)\) doesn't match this client \((\d+)\)|adb server is out of date",
        AdbVersionClash,
        "Two adb versions fight over one server.",
        "Let everybody use one adb program: set [adb] binary, or give farm's server its own socket.",
    ),
    _rule(
        r"cannot bind (?:listener|to|')|could not install \*?smartsocket\*? listener|address already in use",
        AdbPortTaken,
        "A host port that adb should listen on is taken or forbidden.",
        "Choose another port, or find its holder with: ss -ltnp",
    ),
    _rule(
        r"protocol fault|cannot connect to daemon|failed to start daemon|server didn't ack|check server version",
        AdbServerUnreachable,
        "The adb server broke off or does not answer.",
        "farm starts its own server again by itself; farm doctor shows what holds the socket.",
    ),
    _rule(
        r"(?:failed|unable) to connect to|cannot connect to|connection refused|no route to host|"
        r"name or service not known",
        DeviceNotFound,
        "{who} cannot be reached over the network.",
        "Check the address, that the phone is on and that `adb tcpip` was run on it.",
    ),
    _rule(
        r"(?:operation|connection) timed out",
        AdbTimeout,
        "{who} did not answer in time.",
        "Check the network or the cable.",
    ),
    _rule(
        r"\Aclosed\Z|connection reset|connect error for write|device disconnected|eof",
        AdbLinkLost,
        "The link to {phone} ended, or it does not offer the service.",
        "",
    ),
)
_CLASH_VERSIONS = re.compile(r"adb server version \((\d+)\) doesn't match this client \((\d+)\)")
_STATED_FAILURE = re.compile(r"\berror\b|\bfail(?:ed|ure|s)?\b|couldn't|cannot|unable|denied", re.IGNORECASE)
_OVERCOME = re.compile(r"daemon started successfully")


def classify(text: str, *, serial: str = "") -> AdbError | None:
    """The typed error that a text of adb or of a phone means; None when it states no failure.

    Args:
        text: what the server or the phone said, in full; it becomes the error's evidence.
        serial: whom it is about, for the message.
    """
    who, phone = (f"Phone {serial}", f"phone {serial}") if serial else ("The phone", "the phone")
    rules = [rule for rule in _RULES if rule.build is not AdbVersionClash or not _OVERCOME.search(text)]
    for rule in rules:
        match = rule.pattern.search(text)
        if match is None:
            continue
        words = [group.strip() if group else "" for group in match.groups()]
        error = rule.build(rule.message.format(*words, who=who, phone=phone), hint=rule.hint, evidence=text.strip())
        if isinstance(error, AdbVersionClash) and (versions := _CLASH_VERSIONS.search(text)):
            error.server_version, error.own_version = int(versions[1]), int(versions[2])
        return error
    return _unknown(text, who) if _STATED_FAILURE.search(text) else None


def failure(text: str, *, serial: str = "") -> AdbError:
    """Like `classify`, for a text that certainly is a refusal (a FAIL, an exit code that is not 0)."""
    who = f"Phone {serial}" if serial else "The phone"
    return classify(text, serial=serial) or _unknown(text, who)


def _unknown(text: str, who: str) -> AdbFailed:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return AdbFailed(f"{who} or the adb server refused: {lines[0] if lines else '(no words)'}", evidence=text.strip())
