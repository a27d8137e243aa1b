"""Orders and questions of a host to a head apart, as JSON: the name of a method of `Head`, its fields and its answer.

The types of the method say what its fields and its answer are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from farm.common.errors import FarmError, ProtocolError, error_from_wire, error_to_wire
from farm.common.field_errors import one_line
from farm.head.head import Head
from farm.head.messages import Order, OrderAnswer
from farm.model.specs import JobSpec, Kinds, spec_from_wire

QUESTIONS = frozenset(
    {"check", "settle", "is_live", "waits", "why", "explain", "explain_job", "waiting", "reservations"}
)
METHODS = QUESTIONS | {"submit", "cancel", "hold", "resume", "reserve", "remove_reservation"}

SAME_RELEASE = "bring heads and hosts to one release: farm host list"

log = logging.getLogger(__name__)


def to_wire(method: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a call as JSON."""
    return {name: _dumped(method, name, value) for name, value in fields.items()}


def answer_from_wire(method: str, value: Any) -> Any:
    """What the method returned.

    Raises:
        ProtocolError: the head is of a release that answers otherwise.
    """
    try:
        return _adapter(method, "return").validate_python(value)
    except ValidationError as error:
        wrong = one_line(error.errors())
        raise ProtocolError(f"the head's answer to {method} cannot be read: {wrong}", hint=SAME_RELEASE) from error


async def perform(head: Head, kinds: Kinds, order: Order) -> OrderAnswer:
    """Carry an order out; whatever happens, it has an answer."""
    try:
        if order.method not in METHODS:
            raise ProtocolError(f"this head knows no order {order.method!r}", hint="update the head first, then hosts")
        fields = {name: _loaded(order.method, kinds, name, value) for name, value in order.fields.items()}
        value = await getattr(head, order.method)(**fields)
        return OrderAnswer(order.id, _adapter(order.method, "return").dump_python(value, mode="json"))
    except FarmError as error:
        return OrderAnswer(order.id, error=error_to_wire(error))
    except Exception as error:
        log.exception("order %s failed inside farm", order.method)
        return OrderAnswer(order.id, error=error_to_wire(error))


def _dumped(method: str, name: str, value: Any) -> Any:
    kind = _types(method)[name]
    if kind is FarmError:
        return error_to_wire(value)
    return value.to_wire() if kind is JobSpec else _adapter(method, name).dump_python(value, mode="json")


def _loaded(method: str, kinds: Kinds, name: str, value: Any) -> Any:
    kind = _types(method).get(name)
    if kind is None or name == "return":
        raise ProtocolError(f"{method} has no field {name!r}")
    if kind is FarmError:
        return error_from_wire(value)
    if kind is JobSpec:
        return spec_from_wire(kinds, value)
    try:
        return _adapter(method, name).validate_python(value)
    except ValidationError as error:
        wrong = one_line(error.errors())
        raise ProtocolError(f"{method}: {name} cannot be read: {wrong}", hint=SAME_RELEASE) from error


@lru_cache(maxsize=64)
def _types(method: str) -> Mapping[str, Any]:
    return get_type_hints(getattr(Head, method))


@lru_cache(maxsize=128)
def _adapter(method: str, name: str) -> TypeAdapter[Any]:
    """Building one takes milliseconds, using it microseconds."""
    return TypeAdapter(_types(method)[name])
