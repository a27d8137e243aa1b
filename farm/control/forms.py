"""Verbs and their forms: a verb's fields, stated once and checked before anything happens; kinds of fields."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from farm.control.callers import Role
from farm.control.router import Answer
from farm.control.server import ControlCall, ControlServer, Handler
from farm.core.errors import UserError
from farm.core.field_errors import SHA256_FORM, field_error

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
_VERBS: dict[Callable[..., Any], tuple[str, Role]] = {}
MAX_COUNT = 2**63 - 1  # a database's integer, a file's offset
MAX_PATH_BYTES = 4095  # PATH_MAX without its NUL (limits.h)
MAX_NAME_BYTES = 255  # NAME_MAX


def _possible(path: str) -> str:
    """A path that the host's file system could have.

    Raises:
        UserError: it could not.
    """
    named = os.fsencode(path) if path.isprintable() else b"\0"
    if b"\0" in named:
        raise UserError("a path has no control characters", hint="write it as `ls` shows it")
    longest = max(named.split(b"/"), key=len)
    if len(named) > MAX_PATH_BYTES or len(longest) > MAX_NAME_BYTES:
        raise UserError(
            f"the path {path[:40]}... is too long",
            hint=f"at most {MAX_NAME_BYTES} bytes between two slashes, {MAX_PATH_BYTES} in all",
        )
    return path


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
HostPath = Annotated[str, AfterValidator(_possible)]  # on the daemon's host; "" passes
Sha256 = Annotated[str, Field(pattern=SHA256_FORM)]


@dataclass_transform(frozen_default=True)
def form(fields: type[T]) -> type[T]:
    """A class of a verb's fields: frozen, checked, and without any but these."""
    # Of what class it is, pydantic's own annotation forgets.
    return dataclass(fields, frozen=True, slots=True, config=ConfigDict(extra="forbid"))  # type: ignore[return-value]


@form
class Nothing:
    """A verb without fields."""


@form
class OneDevice:
    """A device by name or serial."""

    device: str


class FieldError(UserError):
    """A verb's field is missing, unknown or impossible."""

    def __init__(self, kind: str, field: str, said: str, *, hint: str) -> None:
        super().__init__(f"{kind}: {field} {said}", hint=hint)
        self.field = field
        self.said = said


def read_fields(call: ControlCall, fields: type[T]) -> T:
    """The request's fields, as a form.

    Raises:
        FieldError: one is missing, unknown or of the wrong type; the message names it.
    """
    try:
        return TypeAdapter(fields).validate_python(dict(call.fields))
    except ValidationError as error:
        where, said, hint = field_error(error.errors())
        raise FieldError(call.request.kind, where, said, hint=hint) from error


def verb(kind: str, role: Role) -> Callable[[Method], Method]:
    """Makes a method of `Verbs` the verb `kind`, for callers of at least `role`.

    It takes the checked fields, whose form its first parameter names (none: a verb without fields), and the call if it
    has a parameter for that.
    """

    def marked(method: Method) -> Method:
        _VERBS[method] = kind, role
        return method

    return marked


class Verbs:
    """Some of the daemon's verbs: methods that are marked with `verb`."""

    def register(self, server: ControlServer) -> None:
        """Add them to the door."""
        for name, method in inspect.getmembers(type(self), inspect.isfunction):
            if method in _VERBS:
                kind, role = _VERBS[method]
                server.register(kind, handler(getattr(self, name)), role)


def handler(method: Callable[..., Any]) -> Handler:
    """A verb's method as the door calls it."""
    wanted = [kind for name, kind in get_type_hints(method).items() if name != "return"]
    fields = next((kind for kind in wanted if kind is not ControlCall), Nothing)

    async def handle(call: ControlCall) -> Mapping[str, Any] | Answer:
        checked = read_fields(call, fields)
        answer: Mapping[str, Any] | Answer = await method(
            *(call if kind is ControlCall else checked for kind in wanted)
        )
        return answer

    return handle
