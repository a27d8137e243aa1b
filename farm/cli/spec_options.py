"""The options of a command, made of the spec of its kind, which declares names, types, bounds, defaults and help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from farm.cli import complete, work
from farm.common.durations import format_duration, parse_duration, within
from farm.common.errors import UserError
from farm.common.limits import CORES_FORM, MAX_CORES
from farm.compiler.shape_option import parse_dtypes, parse_shapes
from farm.model.specs import Bounds, JobSpec, SpecField, fields_of


def thread_counts(text: str | None) -> tuple[int, ...]:
    """The numbers of `--threads`.

    Raises:
        UserError: one is none, or out of range.
    """
    found = tuple(dict.fromkeys((text or "").split(",") if text else ()))
    for each in found:
        if not each.isascii() or not each.isdigit() or not 1 <= int(each[:9]) <= MAX_CORES:
            raise UserError(
                f"--threads {each[:40]!r} is no number of threads", hint=f"1 to {MAX_CORES}; several: 1,2,4"
            )
    return tuple(map(int, found))


def core_choices(text: str | None) -> tuple[str, ...]:
    """The choices of `--cores`.

    Raises:
        UserError: one is none.
    """
    found = tuple(dict.fromkeys(text.lower().split(",") if text else ()))
    for each in found:
        if not re.fullmatch(CORES_FORM, each):
            raise UserError(
                f"--cores {each[:40]!r} names no cores", hint="big, little, or a mask as 0xf0; several: big,0x1"
            )
    return found


def with_one_placement(fields: Mapping[str, Any], asked: str) -> dict[str, Any]:
    """The same, with one number of threads and one choice of cores, or None.

    Raises:
        UserError: there are several.
    """
    for name in ("threads", "cores"):
        if len(fields[name]) > 1:
            raise UserError(f"{asked} takes one value of --{name}", hint="several are compared by farm sweep")
    return {**fields, **{name: fields[name][0] if fields[name] else None for name in ("threads", "cores")}}


# How people write the values of some fields: the option's type, what stands behind it in the help, and its reader.
FORMS: Mapping[str, tuple[Any, str | None, Callable[[Any], Any]]] = {
    "selector": (str, "SELECTOR", str),
    "devices": (str, "N|all", work.device_count),
    "duration": (str, "DURATION", parse_duration),
    "timeout": (str | None, "DURATION", lambda given: given and parse_duration(given)),
    "deadline": (str | None, "TIME", work.deadline_s),
    "job": (list[str] | None, "JOB", lambda given: tuple(given or ())),
    "shapes": (list[str] | None, "SHAPE", lambda given: parse_shapes(given or ())),
    "dtypes": (list[str] | None, "DTYPE", lambda given: parse_dtypes(given or ())),
    "settings": (list[str] | None, "NAME=VALUE", work.settings),
    "threads": (str | None, "N[,N...]", thread_counts),
    "cores": (str | None, "CORES[,...]", core_choices),
    "level": (str | None, "LEVEL", lambda given: given),
    "text": (str | None, None, lambda given: given),
}

LAST = ("detach", "json")  # in the help


def spec_options(
    spec: type[JobSpec], *, leave_out: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `spec`; it gets their values as `fields`.

    Args:
        spec: of the command's kind.
        leave_out: fields that the command reads in another way.
        defaults: of the command, in place of the spec's.
    """
    declared = [each for each in fields_of(spec).values() if each.help.option and each.name not in leave_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = {
            name: each.replace(annotation=hints[name])
            for name, each in inspect.signature(command).parameters.items()
            if name != "fields"
        }
        read = {each.name: each for each in declared if each.name not in own}
        options = {name: _parameter(each, defaults) for name, each in read.items()}

        arguments = {name: each for name, each in own.items() if _is_argument(each)}
        on = {name: each for name, each in options.items() if name == "on"}
        last = {name: own.pop(name) for name in LAST if name in own}
        ordered = [
            *arguments.values(),
            *(
                each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for name, each in {**on, **own, **options, **last}.items()
                if name not in arguments
            ),
        ]
        signature = inspect.Signature(ordered)

        @wraps(command)
        def run(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            fields = {name: _read(each, given.pop(name)) for name, each in read.items()}
            command(fields=fields, **given)

        setattr(run, "__signature__", signature)  # noqa: B010 - mypy knows no such attribute
        run.__annotations__ = {each.name: each.annotation for each in ordered}
        del run.__wrapped__  # its signature would be read instead
        return run

    return decorate


def _parameter(field: SpecField, defaults: Mapping[str, Any]) -> inspect.Parameter:
    form, metavar = _form(field)
    bounds = {name: value for name, value in zip(("min", "max"), _bounds(field.type), strict=True) if value is not None}
    option = typer.Option(
        flag_of(field),
        help=field.help.text,
        rich_help_panel=field.help.group or None,
        metavar=metavar,
        show_default=field.default not in (None, MISSING),
        autocompletion=getattr(complete, field.help.complete) if field.help.complete else None,
        **(bounds if form in (int, float, int | None, float | None) else {}),
    )
    default = defaults.get(field.name, field.default)
    if field.help.form == "devices":
        default = str(default)
    elif field.help.form == "duration":
        default = format_duration(default)
    elif field.help.form and default is not MISSING:
        default = None  # the spec's, in a form that users do not write
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[form, option],
    )


def _form(field: SpecField) -> tuple[Any, str | None]:
    if field.help.form:
        form, metavar, _ = FORMS[field.help.form]
        return form, metavar
    if field.artifact is not None:
        return Path | None, "FILE"
    return _plain_type(field.type), None


def _plain_type(declared: Any) -> Any:
    """The type without its bounds."""
    if get_origin(declared) is Annotated:
        return _plain_type(get_args(declared)[0])
    if get_origin(declared) in (Union, UnionType):
        inner = [_plain_type(each) for each in get_args(declared)]
        return Union[tuple(inner)]  # noqa: UP007 - of a tuple
    return declared


def _bounds(declared: Any) -> tuple[Any, Any]:
    least = most = None
    if get_origin(declared) is Annotated:
        inner, *marks = get_args(declared)
        least, most = _bounds(inner)
        for mark in marks:
            if isinstance(mark, Bounds):
                least = least if mark.ge is None else mark.ge
                most = most if mark.le is None else mark.le
    elif get_origin(declared) in (Union, UnionType):
        return next((found for each in get_args(declared) if (found := _bounds(each)) != (None, None)), (None, None))
    return least, most


def _read(field: SpecField, given: Any) -> Any:
    value = FORMS[field.help.form][2](given) if field.help.form else given
    if field.help.form in ("duration", "timeout", "deadline") and value is not None:
        within(flag_of(field), given, value, *_bounds(field.type))
    return value


def flag_of(field: SpecField) -> str:
    """The option of a field, as people type it."""
    return field.help.flag or f"--{_plain_name(field.name)}"


def _plain_name(name: str) -> str:
    return name.removesuffix("_s").replace("_", "-")


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(
        isinstance(mark, typer.models.ArgumentInfo) for mark in getattr(parameter.annotation, "__metadata__", ())
    )
