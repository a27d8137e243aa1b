"""The one family of errors.

Each leaf says whose fault it is, because retry policy follows the fault (never the message text):
phone -> another phone, at once; user -> never; host or farm -> back off and try again.
`str(error)` is one sentence for a person; `hint` says what to do next; `evidence` is what the outside world said.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Fault(StrEnum):
    """Whose fault an error is."""

    USER = "user"
    PHONE = "phone"
    HOST = "host"
    FARM = "farm"


class ExitCode:
    """Exit codes of every `farm` command (docs/interfaces.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_PHONE = 3
    NO_DAEMON = 4
    NOT_ALLOWED = 5
    INTERRUPTED = 130  # as shells have it for Ctrl-C


class FarmError(Exception):
    """Something went wrong inside farm."""

    fault: ClassVar[Fault] = Fault.FARM
    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = ExitCode.FAILED

    def __init__(self, message: str = "", *, hint: str = "", evidence: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.hint = hint
        self.evidence = evidence

    @property
    def message(self) -> str:
        """The one-sentence message."""
        return str(self.args[0])


class UserError(FarmError):
    """The request itself is wrong; trying again will not help."""

    fault = Fault.USER
    code = "bad_request"
    exit_code = ExitCode.USAGE


class NotAllowedError(UserError):
    """This user may not do that."""

    code = "not_allowed"
    exit_code = ExitCode.NOT_ALLOWED


class NoSuchDeviceError(UserError):
    """There is no device of that name."""

    code = "no_such_device"


class NoPhoneError(UserError):
    """No phone matches, or none is available now."""

    code = "no_phone"
    exit_code = ExitCode.NO_PHONE


class ModelError(UserError):
    """The model cannot be loaded, compiled or fed."""

    code = "bad_model"


class PhoneError(FarmError):
    """A phone did not do what it should."""

    fault = Fault.PHONE
    code = "phone"


class HostError(FarmError):
    """The lab host is missing something or refused something."""

    fault = Fault.HOST
    code = "host"


class StoppingError(HostError):
    """The farm daemon is stopping."""

    code = "stopping"


class DaemonUnreachableError(HostError):
    """The farm daemon does not answer."""

    code = "no_daemon"
    exit_code = ExitCode.NO_DAEMON


class ProtocolError(FarmError):
    """A peer sent bytes that the protocol does not allow."""

    code = "protocol"
