"""Verbs: what people, workers and other hosts of a lab may ask a daemon for, each declared at the method that answers.

A verb is an async method marked with `verb`. Its parameters are the fields of a request, checked by their types
(pydantic) before it is called; a parameter `call` gets the request itself, `**facts` all further fields. It returns
JSON. Roles, limits, the audit log, the host that answers and the documents follow from the declaration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from farm.common.errors import UserError
from farm.common.field_errors import field_error
from farm.common.files import SHA256_FORM

Method = TypeVar("Method", bound=Callable[..., Any])
MAX_COUNT = 2**63 - 1  # a database's integer, a file's offset
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Sha256 = Annotated[str, Field(pattern=SHA256_FORM)]
WORKER = 0  # the role of an attempt's worker, which its token admits
CALL = "call"
# Subjects that one host of a lab has: it answers requests about them, wherever they come in.
OF_ONE_HOST = frozenset({"device", "lease", "host"})


@dataclass(frozen=True, slots=True)
class Verb:
    """What a caller may ask for."""

    kind: str
    role: int = WORKER  # the least role of its callers
    # The field of the request, else of its answer, that names what the call is about, or a function of the request's.
    subject: str | Callable[[Mapping[str, Any]], object] = ""
    order: tuple[str, ...] = ()  # fields with choices and names, never free text: the audit log has their values
    stream: bool = False  # lasts as long as what it follows
    changes: bool = True  # False: only refusals of it are worth a row of the audit log; a viewer's verb changes nothing
    frame: bool = False  # a request has a raw frame: of other requests it would only fill memory

    def subject_in(self, fields: Mapping[str, Any]) -> object:
        """What a request or an answer with these fields is about; None: they do not say."""
        if callable(self.subject):
            return self.subject(fields)
        return fields.get(self.subject) if self.subject else None

    def host_subject(self, fields: Mapping[str, Any]) -> str:
        """The phone, lease or host that a request is about; "": every host can answer it."""
        found = self.subject_in(fields) if callable(self.subject) or self.subject in OF_ONE_HOST else ""
        return found if isinstance(found, str) else ""


class FieldError(UserError):
    """A verb's field is missing, unknown or impossible."""

    def __init__(self, kind: str, field: str, problem: str, *, hint: str) -> None:
        super().__init__(f"{kind}: {field} {problem}", hint=hint)
        self.field = field
        self.problem = problem


_VERBS: dict[Callable[..., Any], Verb] = {}


def verb(kind: str, role: int = WORKER, **declared: Any) -> Callable[[Method], Method]:
    """Makes a method the verb `kind`, for callers of at least `role`; `declared`: further fields of `Verb`."""

    def mark(method: Method) -> Method:
        _VERBS[method] = Verb(kind, role, **declared)
        return method

    return mark


def verbs_of(owner: Any) -> dict[Verb, Callable[..., Any]]:
    """The verbs among an object's methods; a method that overrides a verb is that verb."""
    return {declared: getattr(owner, name) for name, declared in _declared(owner.__class__).items()}


def arguments(
    method: Callable[..., Any], kind: str, fields: Mapping[str, Any], call: object = None, *, strict: bool = False
) -> dict[str, Any]:
    """The arguments of a verb's method for a request; `strict`: no text is taken for a number.

    Raises:
        FieldError: a field is missing, unknown or of the wrong type.
    """
    form, takes_call = _form(getattr(method, "__func__", method))
    try:
        checked = dict(form.model_validate(dict(fields), strict=strict))
    except ValidationError as error:
        field, problem, hint = field_error(error.errors())
        raise FieldError(kind, field, problem, hint=hint) from error
    return checked | {CALL: call} if takes_call else checked


@cache
def _declared(owner: type) -> Mapping[str, Verb]:
    found = [(name, each) for base in reversed(owner.__mro__) for name, each in vars(base).items()]
    return {name: _VERBS[each] for name, each in found if inspect.isfunction(each) and each in _VERBS}


@cache
def _form(function: Callable[..., Any]) -> tuple[type[BaseModel], bool]:
    """What checks a verb's fields, and whether the verb takes the call. Making one costs a millisecond."""
    types = get_type_hints(function, include_extras=True)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name not in ("self", CALL)]
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    fields: dict[str, Any] = {
        each.name: (types[each.name], ... if each.default is each.empty else each.default) for each in named
    }
    extra = ConfigDict(extra="forbid" if named == parameters else "allow")
    return create_model(function.__name__, __config__=extra, **fields), CALL in types
