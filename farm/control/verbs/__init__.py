"""The verbs of the control channel, a module for each subject, and their common parts.

A verb is a method of a `VerbGroup`, marked with `verb`. Its parameters are the fields of the request, checked by their
types before it is called (pydantic); a parameter of type `ControlCall` gets the request itself. It returns JSON.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, create_model

from farm.common.errors import UserError
from farm.common.field_errors import field_error
from farm.common.files import SHA256_FORM
from farm.control.callers import Role
from farm.control.router import Answer
from farm.control.server import ControlCall, ControlServer, Handler

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
    encoded = os.fsencode(path) if path.isprintable() else b"\0"
    if b"\0" in encoded:
        raise UserError("a path has no control characters", hint="write it as `ls` shows it")
    longest = max(encoded.split(b"/"), key=len)
    if len(encoded) > MAX_PATH_BYTES or len(longest) > MAX_NAME_BYTES:
        raise UserError(
            f"the path {path[:40]}... is too long",
            hint=f"at most {MAX_NAME_BYTES} bytes between two slashes, {MAX_PATH_BYTES} in all",
        )
    return path


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
HostPath = Annotated[str, AfterValidator(_possible)]  # on the daemon's host; "" passes
Sha256 = Annotated[str, Field(pattern=SHA256_FORM)]


def json_of(record: object, *names: str) -> dict[str, Any]:
    """These attributes of a record as JSON: times in ISO 8601, enums by their values."""
    return {name: _json(getattr(record, name)) for name in names}


def _json(value: object) -> object:
    if value is None or type(value) in (str, int, float, bool):  # most values; a status has thousands
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


class FieldError(UserError):
    """A verb's field is missing, unknown or impossible."""

    def __init__(self, kind: str, field: str, problem: str, *, hint: str) -> None:
        super().__init__(f"{kind}: {field} {problem}", hint=hint)
        self.field = field
        self.problem = problem


def verb(kind: str, role: Role) -> Callable[[Method], Method]:
    """Makes a method of `VerbGroup` the verb `kind`, for callers of at least `role`."""

    def marked(method: Method) -> Method:
        _VERBS[method] = kind, role
        return method

    return marked


class VerbGroup:
    """Some of the daemon's verbs: methods that are marked with `verb`."""

    def register(self, server: ControlServer) -> None:
        """Add them to the control channel."""
        for name, method in inspect.getmembers(type(self), inspect.isfunction):
            if method in _VERBS:
                kind, role = _VERBS[method]
                server.register(kind, handler(getattr(self, name)), role)


def handler(method: Callable[..., Any]) -> Handler:
    """A verb's method as the control channel calls it.

    The handler raises FieldError for a field that is missing, unknown or of the wrong type.
    """
    types = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    call_parameters = []
    for name, parameter in inspect.signature(method).parameters.items():
        if types[name] is ControlCall:
            call_parameters.append(name)
        else:
            fields[name] = (types[name], ... if parameter.default is parameter.empty else parameter.default)
    form = create_model(method.__name__, __config__=ConfigDict(extra="forbid"), **fields)

    async def handle(call: ControlCall) -> Mapping[str, Any] | Answer:
        try:
            checked = form.model_validate(dict(call.fields))
        except ValidationError as error:
            field, problem, hint = field_error(error.errors())
            raise FieldError(call.request.kind, field, problem, hint=hint) from error
        answer: Mapping[str, Any] | Answer = await method(**dict(checked), **dict.fromkeys(call_parameters, call))
        return answer

    return handle
