"""Errors between farm, the adb server and a phone: one leaf per thing a caller would do differently.

`evidence` always holds the text of the server or the phone. One ordered table maps texts to leaves; the first match
wins. The texts come from real servers and phones (tests/data/adb/errors); the order matters where one output holds
several: a failure that was overcome (an old server killed and started again) stands above the one that stayed.
"""
# The names below are the interface agreed in docs/protocol.md; an `Error` suffix on each would add nothing.
# ruff: noqa: N818

from __future__ import annotations

import re
from collections.abc import Callable

from farm.common.errors import FarmError, HostError, PhoneError


class AdbError(FarmError):
    """An adb operation failed."""


class AdbServerUnreachable(AdbError, HostError):
    """The adb server does not answer."""

    code = "adb_unreachable"

    def __init__(self, message: str = "", *, hint: str = "", evidence: str = "", no_listener: bool = False) -> None:
        super().__init__(message, hint=hint, evidence=evidence)
        self.no_listener = no_listener  # False: a server is there, and hangs or broke off


class AdbNotInstalled(AdbError, HostError):
    """No usable adb program was found."""

    code = "adb_missing"


class AdbVersionClash(AdbError, HostError):
    """The adb server has another protocol version than farm's adb program. Each kills the other's server."""

    code = "adb_version_clash"


class AdbPortTaken(AdbError, HostError):
    """A host port or socket that adb should listen on is taken."""

    code = "adb_port_taken"


class DeviceNoPermissions(AdbError, HostError):
    """The host's user may not open the phone's USB node."""

    code = "no_permissions"


class DeviceUnauthorized(AdbError, PhoneError):
    """Farm's adb key was not accepted on the phone's screen yet."""

    code = "unauthorized"


class DeviceOffline(AdbError, PhoneError):
    """The phone is listed but its transport does not answer."""

    code = "offline"


class DeviceNotFound(AdbError, PhoneError):
    """No such phone is attached to the adb server."""

    code = "not_found"


class AdbTimeout(AdbError, PhoneError):
    """The phone did not answer in time."""

    code = "adb_timeout"


class AdbLinkLost(AdbError, PhoneError):
    """The link to the phone ended in the middle of an operation."""

    code = "link_lost"


class PhoneStorageFull(AdbError, PhoneError):
    """The phone's storage is full."""

    code = "storage_full"


class PhonePathRefused(AdbError, PhoneError):
    """The phone refuses that path."""

    code = "path_refused"


class AdbFailed(AdbError, PhoneError):
    """The adb server or the phone refused, in words farm does not know."""

    code = "adb_failed"


# A pattern; the error that it means; its message, with {subject} and {phone} for the phone as a sentence begins or goes
# on and {0} for the pattern's group; a hint.
_Rule = tuple[re.Pattern[str], Callable[..., AdbError], str, str]


def _rule(pattern: str, build: Callable[..., AdbError], message: str, hint: str) -> _Rule:
    return re.compile(pattern, re.IGNORECASE), build, message, hint


_FREE_SPACE = "Free space on the phone (farm device forget --clean removes old bundles)."
_PATH = "Choose another folder on the phone; /data/local/tmp is the one every shell may write to."
_RULES: tuple[_Rule, ...] = (
    _rule(
        r"device unauthorized",
        DeviceUnauthorized,
        "{subject} has not accepted farm's adb key.",
        "Unlock its screen and accept the prompt (farm doctor explains each step).",
    ),
    _rule(
        r"device still (?:authorizing|connecting)",
        DeviceOffline,
        "{subject} is still connecting.",
        "Wait a moment; if it stays so, replug it.",
    ),
    _rule(r"device offline", DeviceOffline, "{subject} is offline.", "Replug it, or run: farm device reboot NAME"),
    _rule(
        r"insufficient permissions for device|no permissions",
        DeviceNoPermissions,
        "The host may not open {phone} on USB.",
        "Install Android udev rules and add the farm's user to group plugdev.",
    ),
    _rule(
        r"device '[^']*' not found|no devices/emulators found|device not found|no such device|unknown device",
        DeviceNotFound,
        "{subject} is not attached to the adb server.",
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
        "{subject} refuses the path: {0}.",
        _PATH,
    ),
    _rule(
        r"open failed: ([^\n:]+)",
        PhonePathRefused,
        "{subject} does not give the file: {0}.",
        "Look at it with: farm shell --on NAME -- ls -l PATH",
    ),
    _rule(
        r"read-only file system",
        PhonePathRefused,
        "{subject} refuses the path: Read-only file system.",
        _PATH,
    ),
    _rule(
        r"adb server version \((\d+)\) doesn't match this client \((\d+)\)|adb server is out of date",
        AdbVersionClash,
        "Two adb versions fight over one server.",
        "Use one adb program for all users: set [adb] binary, or give farm's server its own socket.",
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
        "{subject} cannot be reached over the network.",
        "Check the address, that the phone is on and that `adb tcpip` was run on it.",
    ),
    _rule(
        r"(?:operation|connection) timed out",
        AdbTimeout,
        "{subject} did not answer in time.",
        "Check the network or the cable.",
    ),
    _rule(
        r"\Aclosed\Z|connection reset|connect error for write|device disconnected|eof",
        AdbLinkLost,
        "The link to {phone} ended, or it does not offer the service.",
        "",
    ),
)
_STATED_FAILURE = re.compile(r"\berror\b|\bfail(?:ed|ure|s)?\b|couldn't|cannot|unable|denied", re.IGNORECASE)
_OVERCOME = re.compile(r"daemon started successfully")


def classify(text: str, *, serial: str = "") -> AdbError | None:
    """The typed error that a text of adb or of a phone means; None when it states no failure.

    Args:
        text: the whole output of the server or the phone; it becomes the error's evidence.
        serial: the phone's, for the message.
    """
    subject, phone = (f"Phone {serial}", f"phone {serial}") if serial else ("The phone", "the phone")
    for pattern, build, message, hint in _RULES:
        match = pattern.search(text)
        if match is None or (build is AdbVersionClash and _OVERCOME.search(text)):
            continue
        words = [group.strip() if group else "" for group in match.groups()]
        return build(message.format(*words, subject=subject, phone=phone), hint=hint, evidence=text.strip())
    return _unknown(text, subject) if _STATED_FAILURE.search(text) else None


def failure(text: str, *, serial: str = "") -> AdbError:
    """Like `classify`, for a text that certainly is a refusal (a FAIL, an exit code that is not 0)."""
    subject = f"Phone {serial}" if serial else "The phone"
    return classify(text, serial=serial) or _unknown(text, subject)


def _unknown(text: str, subject: str) -> AdbFailed:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return AdbFailed(
        f"{subject} or the adb server refused: {lines[0] if lines else '(no words)'}", evidence=text.strip()
    )
