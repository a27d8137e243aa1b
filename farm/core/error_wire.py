"""Errors as JSON and back: what crosses a process boundary when something fails.

The class survives as far as it matters: whose fault it is (retry policy), its code and its exit code. A receiver
that does not know the sender's class gets one of the same fault, code and exit code, so `except PhoneError` works on
both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from farm.core.errors import FarmError, Fault, HostError, PhoneError, UserError

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
