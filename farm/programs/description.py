"""The description of a program that times a model by itself: TOML, checked here, and the command line made of it.

Pure, but for the built-in descriptions, which are read from the files beside this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import PurePosixPath
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal, get_args

from farm.common.errors import Code, UserError
from farm.common.field_errors import field_error
from farm.common.limits import MAX_NUMBER
from farm.common.selector import did_you_mean
from farm.model.specs import Bounds, Name, Seconds, Whole

OutputForm = Literal[
    "json-lines", "benchmark_model", "onnxruntime_perf_test", "executor_runner", "llama-bench", "mnn", "ncnn",
    "qnn-profile",
]  # fmt: skip
Runtime = Literal["litert", "ort", "executorch", "llama.cpp", "mnn", "ncnn", "qnn"]  # those with a built-in description
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
PackagedRuntime = Literal["ort", "litert"]  # those whose library a package of the Python package index brings
MAX_DESCRIPTION_BYTES = 64 << 10
HALF = "half"  # inputs of 0.5, or 1 for whole numbers
PLACES = frozenset({"runtime", "model", "model_folder", "work", "runs"})  # placeholders that farm fills in
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_SETTING = r"^[a-z_]+$"

Word = Annotated[str, Bounds(min_length=1, max_length=4096)]
Command = Annotated[tuple[Word, ...], Bounds(min_length=1, max_length=256)]
FileName = Annotated[str, Bounds(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNumbers:
    """How the numbers that a program computes are compared with a reference."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    file: FileName  # that the program writes into {work}: raw numbers
    reference: Word  # .npy file beside the description
    tolerance: Annotated[Seconds, Bounds(ge=0, le=1)] = 1e-3  # of the largest expected number


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOutputs:
    """A program's outputs in a file, which `farm compare` holds against the other runtime's."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    file: FileName  # that the program writes into {work}: the first output, raw numbers
    type: Literal["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8"] = "float32"
    inputs: Name = HALF  # what all inputs are filled with; outputs for other inputs are not compared


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDescription:
    """A program, how it is called, and how its output becomes samples."""

    name: Name  # of the runtime, as results show it
    command: Command  # words with placeholders; no shell reads them
    output: OutputForm
    version: str = ""
    license: str = ""
    report: tuple[Word, ...] = ()  # a second command, whose output is read in place of the first one's
    placement: tuple[Word, ...] = ()  # a command whose output tells where the work runs; (): the first call's does
    # Setting -> its values that ask for no accelerator. With another one, a call that used none fails.
    cpu: dict[Annotated[str, Bounds(pattern=_SETTING)], tuple[str, ...]] = field(default_factory=dict)
    runs: Annotated[Whole, Bounds(ge=1, le=MAX_NUMBER)] = 20  # timed runs of one call, {runs}
    skip: Annotated[Whole, Bounds(ge=0, le=1000)] = 0  # first runs of a call, left out where each is printed
    limit_s: Annotated[Seconds, Bounds(ge=1, le=3600)] = 120.0  # of one call
    environment: dict[Annotated[str, Bounds(pattern=_VARIABLE)], str] = field(default_factory=dict)
    # Further placeholders with their values; "": must be given.
    settings: dict[Annotated[str, Bounds(pattern=_SETTING)], str] = field(default_factory=dict)
    models: tuple[Word, ...] = ()  # suffixes of model files that it takes; (): any
    files: str = ""  # folder beside the description with the program's files, or one such folder per ABI
    model: str = ""  # model file beside the description
    expected: ExpectedNumbers | None = None
    written: WrittenOutputs | None = None

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the files of a program are on a phone."""

    runtime: str  # folder
    model: str  # file; "": there is none
    work: str  # folder that is empty before each attempt

    def values(self, runs: int) -> dict[str, str]:
        """The placeholders that farm fills in."""
        folder = str(PurePosixPath(self.model).parent) if self.model else ""
        return {
            "runtime": self.runtime, "model": self.model, "model_folder": folder, "work": self.work, "runs": str(runs),
        }  # fmt: skip


def read_description(text: bytes, where: str) -> ProgramDescription:
    """A description in TOML; `where` names it in errors."""
    from farm.common.toml import parse_toml  # not at the top: completion has no use for it

    if len(text) > MAX_DESCRIPTION_BYTES:
        raise program_error(f"{where} is larger than {MAX_DESCRIPTION_BYTES >> 10} KiB", "is it a description?")
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise program_error(f"{where} is no TOML: {error}", "docs/programs.md has an example") from error
    return checked_description(table, where)


def checked_description(table: Mapping[str, Any], where: str) -> ProgramDescription:
    """A description in fields."""
    from pydantic import TypeAdapter, ValidationError

    if "kind" in table:
        raise program_error(f"{where} is a spec file of jobs, no description of a program", "farm submit FILE")
    known = tuple(ProgramDescription.__dataclass_fields__)
    for name in table:
        if name not in known:
            hint = did_you_mean(name, known, f"known: {', '.join(known)}")
            raise program_error(f"{where}: {name!r} is not known", hint)
    try:
        found = TypeAdapter(ProgramDescription).validate_python(dict(table))
    except ValidationError as error:
        place, problem, hint = field_error(error.errors())
        raise program_error(f"{where}: {place} {problem}", hint or "docs/programs.md has every field") from error
    _check_placeholders(found, where)
    return found


def builtin_description(runtime: str) -> tuple[ProgramDescription, bytes]:
    """The description of a known runtime, and its text."""
    if runtime not in RUNTIMES:
        hint = did_you_mean(runtime, RUNTIMES, f"known: {', '.join(RUNTIMES)}; others: farm program run SPEC.toml")
        raise program_error(f"there is no description of a runtime {runtime[:40]!r}", hint)
    text = (files("farm.programs") / "builtin" / f"{runtime}.toml").read_bytes()
    return read_description(text, f"{runtime}.toml"), text


def with_settings(description: ProgramDescription, given: Mapping[str, str]) -> dict[str, str]:
    """The description's settings with the given ones in place of its own."""
    known = tuple(description.settings)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, f"its settings: {', '.join(known) or 'none'}")
            raise program_error(f"{description.name} has no setting {name[:40]!r}", hint)
    values = {**description.settings, **given}
    if missing := [name for name, value in values.items() if not value]:
        raise program_error(f"{description.name} needs a value for {missing[0]}", f"--set {missing[0]}=VALUE")
    return values


def check_model(description: ProgramDescription, model: str) -> None:
    """Whether the program takes a model file of that name; "": there is none."""
    if not model and any("{model" in word for word in (*description.command, *description.report)):
        raise program_error(f"{description.name} needs a model: `model` names no file", "--model FILE")
    if model and description.models and not model.endswith(description.models):
        raise program_error(
            f"{description.name} takes {' or '.join(description.models)} files, not {model}",
            hint="convert the model for that runtime first",
        )


def command_line(description: ProgramDescription, places: Places, runs: int, settings: Mapping[str, str]) -> str:
    """The line for the phone's shell that calls the program once, its own number in {work}/pid.

    The program takes the place of the shell, so that it is what a signal ends. Every word is quoted: nothing that a
    description or a person says is read by a shell.
    """
    return _called(description, description.command, {**settings, **places.values(runs)}, places)


def report_line(description: ProgramDescription, places: Places, runs: int, settings: Mapping[str, str]) -> str:
    """The same for the command whose output is read; "": there is none."""
    words = description.report
    return _called(description, words, {**settings, **places.values(runs)}, places) if words else ""


def placement_line(description: ProgramDescription, places: Places, runs: int, settings: Mapping[str, str]) -> str:
    """The same for the command whose output tells where the work runs; "": there is none."""
    words = description.placement
    return _called(description, words, {**settings, **places.values(runs)}, places) if words else ""


def asks_accelerator(description: ProgramDescription, settings: Mapping[str, str]) -> str:
    """The setting that asks for an accelerator, `gpu=true`; "": none does."""
    given = {name: settings[name] for name in description.cpu if name in settings}
    return next((f"{name}={value}" for name, value in given.items() if value not in description.cpu[name]), "")


def _called(description: ProgramDescription, words: tuple[str, ...], values: Mapping[str, str], places: Places) -> str:
    environment = {"LC_ALL": "C", "LD_LIBRARY_PATH": "{runtime}", **description.environment}
    exports = " ".join(f"{name}={quote(_filled(value, values))}" for name, value in environment.items())
    command = " ".join(quote(_filled(word, values)) for word in words)
    script = f"cd {quote(places.work)} && echo $$ >pid && export {exports} && exec {command} </dev/null"
    return f"exec sh -c {quote(script)}"


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _check_placeholders(description: ProgramDescription, where: str) -> None:
    known = PLACES | description.settings.keys()
    if taken := sorted(PLACES & description.settings.keys()):
        raise program_error(f"{where}: settings.{taken[0]} has a name that farm fills in", "another name")
    if unknown := sorted(description.cpu.keys() - description.settings.keys()):
        raise program_error(f"{where}: cpu names {unknown[0]!r}, which is no setting", "a name of [settings]")
    texts = (*description.command, *description.report, *description.placement, *description.environment.values())
    for name in (found[1] for text in texts for found in _PLACEHOLDER.finditer(text)):
        if name not in known:
            raise program_error(
                f"{where}: nothing fills in the placeholder {{{name}}}",
                did_you_mean(name, tuple(known), f"known: {', '.join(sorted(known))}; others go into [settings]"),
            )


def program_error(message: str, hint: str) -> UserError:
    """The error for a wrong description, or files that are wrong or not for the phone."""
    return UserError(message, Code.BAD_PROGRAM, hint=hint)
