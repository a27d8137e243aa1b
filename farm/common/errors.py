"""The one family of errors, and their JSON form between processes.

Each leaf says whose fault it is, because retry policy follows the fault (never the message text):
phone -> another phone, at once; user -> never; host or farm -> back off and try again.
`str(error)` is one sentence for a person; `hint` says what to do next; `evidence` is the text of the peer.

`error_to_wire` keeps fault, code and exit code. A receiver that does not know the sender's class gets one of the same
fault, code and exit code, so `except PhoneError` works on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
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


MAX_TEXT_CHARS = 4096  # per field; evidence can be a whole log, a person reads a screenful
_BY_FAULT: Mapping[str, type[FarmError]] = {
    Fault.USER: UserError,
    Fault.PHONE: PhoneError,
    Fault.HOST: HostError,
    Fault.FARM: FarmError,
}


def error_to_wire(error: BaseException) -> dict[str, object]:
    """An error as JSON-able fields; anything that is no FarmError is a farm bug and says only its class and text."""
    if not isinstance(error, FarmError):
        error = FarmError(
            f"{type(error).__name__}: {error}", hint="this is a bug in farm; the daemon's log has the trace"
        )
    return {
        "code": error.code,
        "fault": str(error.fault),
        "exit": error.exit_code,
        "message": error.message[:MAX_TEXT_CHARS],
        "hint": error.hint[:MAX_TEXT_CHARS],
        "evidence": error.evidence[-MAX_TEXT_CHARS:],  # the end of a log tells more than its start
    }


def error_from_wire(fields: Mapping[str, object]) -> FarmError:
    """The error that `error_to_wire` described. Never raises: odd fields become an error that quotes them."""
    fault, code, exit_code = fields.get("fault"), fields.get("code"), fields.get("exit")
    base = _BY_FAULT.get(fault) if isinstance(fault, str) else None
    if base is None or not isinstance(code, str):
        return FarmError("the peer reported an error in a form this version does not know", evidence=str(dict(fields)))
    if not isinstance(exit_code, int) or isinstance(exit_code, bool):
        exit_code = base.exit_code
    return _class_for(base, code, exit_code)(
        _text(fields, "message"), hint=_text(fields, "hint"), evidence=_text(fields, "evidence")
    )


def _class_for(base: type[FarmError], code: str, exit_code: int) -> type[FarmError]:
    for known in (base, *_descendants(base)):
        same = known.code == code and known.exit_code == exit_code
        if same and known.__init__ is FarmError.__init__:
            return known
    return _foreign_class(str(base.fault), code, exit_code)


def _descendants(base: type[FarmError]) -> Iterator[type[FarmError]]:
    for child in base.__subclasses__():
        yield child
        yield from _descendants(child)


@lru_cache(maxsize=256)
def _foreign_class(fault: str, code: str, exit_code: int) -> type[FarmError]:
    base = _BY_FAULT[fault]
    return type(f"Remote{base.__name__}", (base,), {"code": code, "exit_code": exit_code, "__doc__": base.__doc__})


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name, "")
    return value if isinstance(value, str) else str(value)
