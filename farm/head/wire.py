"""Messages between a host and a head apart from it, as JSON objects: the class's name as `kind`, and its fields.

Monotonic times mean nothing elsewhere: of a lease, how long ago it was granted is sent, and a time of the receiver's
clock is made of it. A receiver ignores fields that it does not know, and messages of a kind that it does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from farm.common.field_errors import one_line
from farm.head.messages import ToHead, ToHost

PROTOCOL = 1  # grows when a receiver must know more than which messages there are
UNDERSTOOD = range(PROTOCOL - 1, PROTOCOL + 1)  # this release's, and that of the release before

M = TypeVar("M")

log = logging.getLogger(__name__)


def speaks(protocol: int) -> bool:
    """Whether this release understands a host that speaks this protocol."""
    return protocol in UNDERSTOOD


def encode(message: ToHead | ToHost, now_s: float) -> dict[str, Any]:
    """The message as JSON; the clock of its times is at `now_s`."""
    kind: Any = type(message)
    body: dict[str, Any] = _adapter(kind).dump_python(message, mode="json")
    return _with_clock({"kind": kind.__name__, **body}, now_s)


def to_head(body: Mapping[str, Any], now_s: float) -> ToHead | None:
    """The message of a host; None: this release does not know it. `now_s`: of the clock that its times are for."""
    return _decode(_KINDS_TO_HEAD, body, now_s)


def to_host(body: Mapping[str, Any], now_s: float) -> ToHost | None:
    """The message of the head; None: this release does not know it. `now_s`: of the clock that its times are for."""
    return _decode(_KINDS_TO_HOST, body, now_s)


def _decode(kinds: Mapping[str, type[M]], body: Mapping[str, Any], now_s: float) -> M | None:
    kind: Any = kinds.get(str(body.get("kind")))
    if kind is None:
        log.warning("a message of an unknown kind is left out: %.80s", body.get("kind"))
        return None
    try:
        message: M = _adapter(kind).validate_python(_with_clock(body, now_s))
    except (ValidationError, OverflowError) as error:  # the latter: a number that no float holds
        wrong = one_line(error.errors()) if isinstance(error, ValidationError) else str(error)
        log.error("a message %s cannot be read and is left out: %s", kind.__name__, wrong)  # noqa: TRY400
        return None
    return message


def _with_clock(body: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """With the time of a grant as its age, or the age as its time: each is the difference to now."""
    lease = body.get("lease")
    if not isinstance(lease, Mapping) or not isinstance(lease.get("granted_at"), int | float):
        return dict(body)
    return {**body, "lease": {**lease, "granted_at": now_s - lease["granted_at"]}}


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Building one takes milliseconds, using it microseconds."""
    return TypeAdapter(kind)


_KINDS_TO_HEAD: Mapping[str, type[ToHead]] = {each.__name__: each for each in get_args(ToHead)}
_KINDS_TO_HOST: Mapping[str, type[ToHost]] = {each.__name__: each for each in get_args(ToHost)}
