"""What can go wrong between farm, the adb server and a phone: one leaf per thing a caller would do differently.

`evidence` always holds the server's or the phone's own words. Which text becomes which leaf: farm.adb.failures.
"""
# The names below are the interface agreed in docs/interfaces.md; an `Error` suffix on each would say nothing more.
# ruff: noqa: N818

from __future__ import annotations

from farm.core.errors import FarmError, HostError, PhoneError


class AdbError(FarmError):
    """An adb operation failed."""


class AdbServerUnreachable(AdbError, HostError):
    """The adb server does not answer."""

    code = "adb_unreachable"

    def __init__(self, message: str = "", *, hint: str = "", evidence: str = "", nobody_listens: bool = False) -> None:
        super().__init__(message, hint=hint, evidence=evidence)
        self.nobody_listens = nobody_listens  # False: something is there, and hangs or broke off


class AdbNotInstalled(AdbError, HostError):
    """No usable adb program was found."""

    code = "adb_missing"


class AdbVersionClash(AdbError, HostError):
    """The adb server has another protocol version than farm's adb program; each kills the other's server."""

    code = "adb_version_clash"

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        evidence: str = "",
        server_version: int = 0,
        own_version: int = 0,
        holder: str = "",
    ) -> None:
        super().__init__(message, hint=hint, evidence=evidence)
        self.server_version = server_version  # 0 = not known
        self.own_version = own_version  # 0 = not known
        self.holder = holder  # "pid 123 of bob (/usr/bin/adb ...)", empty when not known


class AdbPortTaken(AdbError, HostError):
    """A host port or socket that adb should listen on is taken."""

    code = "adb_port_taken"


class DeviceNoPermissions(AdbError, HostError):
    """The host's user may not open the phone's USB node."""

    code = "no_permissions"


class DeviceUnauthorized(AdbError, PhoneError):
    """Nobody has accepted farm's adb key on the phone's screen yet."""

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


class PhonePortClosed(AdbError, PhoneError):
    """Nothing listens on that port of the phone."""

    code = "port_closed"


class PhoneStorageFull(AdbError, PhoneError):
    """The phone's storage is full."""

    code = "storage_full"


class PhonePathRefused(AdbError, PhoneError):
    """The phone refuses that path."""

    code = "path_refused"


class PushMismatch(AdbError, PhoneError):
    """A pushed file's content on the phone is not what was sent."""

    code = "push_mismatch"


class AdbFailed(AdbError, PhoneError):
    """The adb server or the phone refused, in words farm does not know."""

    code = "adb_failed"
