"""The reference as Markdown, made of the code: commands, specs, configuration, verbs, events, errors, metrics.

Nothing is started and nothing is asked: the command line is walked, dataclasses and calls are read in their sources.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import io
import json
import pkgutil
import re
import sys
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from farm.devices.thermal import thermal_rules

if TYPE_CHECKING:
    from farm.model.specs import JobSpec, SpecField

ROOT = Path(__file__).parents[2]
# Tables whose values are None where the class says nothing: what holds then.
EFFECTIVE = {"heat.hard": "HARD", "heat.bench": "BENCH", "heat.tune": "TUNE", "heat.end_leases": "END_LEASES"}


JSON_TYPES = {
    "integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "array": "list",
    "object": "table",
}  # fmt: skip


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [columns, tuple("---" for _ in columns), *(tuple(map(cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Text that cannot leave its cell."""
    return " ".join(text.split()).replace("|", "\\|")


def plain(text: str) -> str:
    """Text in which nothing is markup, but what stands in backquotes."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\[\]<>*_])", r"\\\1", part) for part in parts)


# --- commands -------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, `farm device list` and so on, with its click object."""
    import typer

    from farm.cli.main import app

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "list_commands"):
            yield name, command
            return
        context = command.make_context(name, [], resilient_parsing=True)
        if command.invoke_without_command or name == "farm":
            yield name, command
        for each in command.list_commands(context):
            yield from walk(f"{name} {each}", command.get_command(context, each))

    yield from walk("farm", typer.main.get_command(app))


def options_of(name: str, command: Any) -> list[tuple[str, str]]:
    """How each argument and option is written, and what it does."""
    context = command.make_context(name, [], resilient_parsing=True)
    records = ((each, each.get_help_record(context)) for each in command.params)
    return [record for each, record in records if record is not None and not getattr(each, "hidden", False)]


def cli() -> str:
    """The page of commands: a heading each."""
    from farm.cli.main import EXAMPLES

    parts = []
    for name, command in commands():
        words = [each.strip() for each in re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))]
        title = "Options of every command" if name == "farm" else f"`{name}`"
        parts.append(f"## {title}\n\n" + "\n\n".join(plain(" ".join(each.split())) for each in words))
        parts += [f"`{written}`\n: {plain(' '.join(what.split()))}" for written, what in options_of(name, command)]
        if examples := EXAMPLES.get(name.removeprefix("farm ")):
            parts.append("\n".join(("```console", *examples, "```")))
    return "\n\n".join(parts)


# --- specs of jobs --------------------------------------------------------------------------------------------------


def specs() -> str:
    """The page of specs: the fields of all jobs, of those with a model, and of each kind what it has beside them."""
    from farm.kinds import KINDS
    from farm.model.specs import JobSpec, ModelSpec

    columns = ("field", "value", "default", "what")
    shared = _field_rows(JobSpec)
    with_model = [row for row in _field_rows(ModelSpec) if row not in shared]
    models = ", ".join(f"`{name}`" for name, cls in KINDS.items() if issubclass(cls, ModelSpec))
    parts = [
        "## All kinds\n\n" + table(columns, shared),
        f"## With a model: {models}\n\n" + table(columns, with_model),
    ]
    for name, cls in KINDS.items():
        own = [row for row in _field_rows(cls) if row not in (*shared, *with_model)]
        parts.append(f"## `{name}`\n\n{plain(' '.join((cls.__doc__ or '').split()))}\n\n" + table(columns, own))
    return "\n\n".join(parts)


def _field_rows(cls: type[JobSpec]) -> list[tuple[str, ...]]:
    from farm.model.specs import fields_of

    rows = []
    for each in fields_of(cls).values():
        missing = each.default is dataclasses.MISSING
        default = "must be given" if missing else "none" if each.default == () else written_value(each.default)
        rows.append((f"`{each.name}`", _values_of(each), default, plain(each.help.text)))
    return rows


def _values_of(field: SpecField) -> str:
    """What a field may be, with its bounds."""
    if field.artifact is not None:
        return "file"
    schema = TypeAdapter(field.type).json_schema()
    return " or ".join(_value_words(each) for each in schema.get("anyOf", [schema]) if each.get("type") != "null")


def _value_words(schema: Mapping[str, Any]) -> str:
    if words := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{each}`" for each in words)
    bounds = [f"{schema[name]:,.10g}" for name in ("minimum", "maximum") if name in schema]
    if "maxLength" in schema:
        bounds = [f"of at most {schema['maxLength']:,} characters"]
    if "maxItems" in schema:
        bounds = [f"of at most {schema['maxItems']:,}"]
    return " ".join(filter(None, (JSON_TYPES[schema["type"]], " to ".join(bounds))))


# --- configuration --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the configuration."""

    table: str  # "" at the top
    name: str
    default: str
    meaning: str

    @property
    def path(self) -> str:
        """As a person names it."""
        return f"{self.table}.{self.name}" if self.table else self.name


def fields_of(cls: type) -> dict[str, str]:
    """What comments say of a dataclass's own and inherited fields."""
    said: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            said |= _comments(base)
    return said


def _comments(cls: type) -> dict[str, str]:
    source = inspect.getsource(cls)
    at = {
        token.start[0]: (token.string.lstrip("# "), token.line.strip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa")
    }
    said = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        line, above = node.lineno, []
        while line - 1 in at and at[line - 1][1]:
            line -= 1
            above.insert(0, at[line][0])
        behind = [at[each][0] for each in range(node.lineno, (node.end_lineno or node.lineno) + 1) if each in at]
        said[node.target.id] = " ".join([*above, *behind])
    return said


def config_keys(cls: type | None = None, where: str = "") -> Iterator[Key]:
    """Every key, in the order of the code; `NAME` stands where a name of one's own goes."""
    from farm.config import FarmConfig

    cls = cls or FarmConfig
    if where.startswith("heat.model.NAME."):  # the same tables again
        return
    said, hints = fields_of(cls), typing.get_type_hints(cls)
    nested = []
    for each in dataclasses.fields(cls):
        hint = hints[each.name]
        inner = next((a for a in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(a)), None)
        if inner is None:
            yield Key(where, each.name, _default(where, each), said.get(each.name, ""))
            continue
        path = f"{where}.{each.name}".lstrip(".")
        if inner is not hint:
            path = f"{path}[]" if typing.get_origin(hint) is tuple else f"{path}.NAME"
        nested.append((inner, path))
    for inner, path in nested:
        yield from config_keys(inner, path)


def _default(where: str, each: dataclasses.Field[Any]) -> str:
    if where in EFFECTIVE:
        value = getattr(thermal_rules, EFFECTIVE[where])
        value = getattr(value, each.name)
    elif each.default is not dataclasses.MISSING:
        value = each.default
    elif each.default_factory is not dataclasses.MISSING:
        value = each.default_factory()
    else:
        return "must be given"
    return "the daemon's own" if value == sys.executable else written_value(value)


def written_value(value: object) -> str:
    """A default as the reference writes it."""
    if value is None or value == Path():
        return "none"
    if isinstance(value, int | float):
        return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value:g}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    if isinstance(value, Mapping):
        return "none"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def config() -> str:
    """The page of configuration keys: a heading for each table."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for each in config_keys():
        tables.setdefault(each.table, []).append((f"`{each.name}`", each.default, plain(each.meaning)))
    parts = []
    for where, rows in tables.items():
        title = f"`[[{where[:-2]}]]`" if where.endswith("[]") else f"`[{where}]`" if where else "At the top"
        parts.append(f"## {title}\n\n" + table(("key", "default", "what"), rows))
    return "\n\n".join(parts)


# --- verbs of the control socket --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verb:
    """One verb as it is registered."""

    kind: str
    role: str
    fields: str
    meaning: str


def sources(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    """Every module below folders of `farm/`."""
    for folder in folders:
        base = ROOT / "farm" / folder
        for path in sorted(base.rglob("*.py")):
            yield path, ast.parse(path.read_text("utf-8"))


def verbs() -> list[Verb]:
    """Every verb, by name."""
    found = []
    for _, module in sources("builders", "control", "daemon", "kinds"):
        for method in (each for each in ast.walk(module) if isinstance(each, ast.AsyncFunctionDef)):
            for mark in (each for each in method.decorator_list if isinstance(each, ast.Call)):
                if _name(mark.func) == "verb" and len(mark.args) > 1:  # a worker's verb has no role
                    kind, role = ast.literal_eval(mark.args[0]), ast.unparse(mark.args[1]).removeprefix("Role.")
                    meaning = (ast.get_docstring(method) or "").split("\n\n")[0]
                    found.append(Verb(kind, role.lower(), _verb_fields(method.args), meaning))
    return sorted(found, key=lambda each: each.kind)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _verb_fields(parameters: ast.arguments) -> str:
    """The fields of a verb, which are its method's parameters; `?`: may be left out."""
    optional: list[ast.expr | None] = [
        *[None] * (len(parameters.args) - len(parameters.defaults)),
        *parameters.defaults,
    ]
    given = zip([*parameters.args, *parameters.kwonlyargs], [*optional, *parameters.kw_defaults], strict=True)
    fields = [(each.arg, default) for each, default in given if each.annotation and each.arg != "call"]
    return " ".join(name if default is None else f"{name}?" for name, default in fields)


def control() -> str:
    """The page of verbs."""
    rows = [
        (f"`{each.kind}`", each.role, f"`{each.fields}`" if each.fields else "", plain(each.meaning))
        for each in verbs()
    ]
    return table(("verb", "least role", "fields", "what"), rows)


# --- events and errors ----------------------------------------------------------------------------------------------


def events() -> str:
    """The page of events."""
    from farm.model.event_kinds import KINDS

    rows = [
        (f"`{each.kind}`", each.subject, plain(each.meaning) + ("" if each.kept else " (not kept)"),
         " ".join(f"`{name}`" for name in each.data))
        for each in KINDS.values()
    ]  # fmt: skip
    return table(("kind", "subject", "what has happened", "data"), rows)


def errors() -> list[tuple[str, str, int, str]]:
    """Code, fault, exit code and meaning of every error, without the classes in what imports TVM."""
    import farm
    from farm.common.errors import Code, ExitCode, FarmError, Fault

    left_out = (
        "builders",
        "worker",
        "tuning",
        "compiler",
        "simulation",
        "store.migrations",
        "client.tuning",
        "__main__",
    )
    for found in pkgutil.walk_packages(farm.__path__, "farm."):
        name = found.name.removeprefix("farm.")
        if not name.startswith(left_out) and not name.endswith(".worker") and name != "kinds.tune.run":
            importlib.import_module(found.name)

    def below(cls: type[Any]) -> Iterator[type[Any]]:
        yield cls
        for each in cls.__subclasses__():
            yield from below(each)

    usual = {Fault.USER: ExitCode.USAGE}
    codes = {
        each.value: (each.fault.value, each.exit_code or usual.get(each.fault, ExitCode.FAILED), each.meaning)
        for each in Code
    }
    for cls in below(FarmError):
        if cls.__module__.startswith("farm."):
            codes.setdefault(str(cls.code), (cls.fault.value, cls.exit_code, (cls.__doc__ or "").split("\n\n")[0]))
    return [(code, *codes[code]) for code in sorted(codes)]


def error_codes() -> str:
    """The page of error codes."""
    rows = [(f"`{code}`", fault, str(exit_code), plain(meaning)) for code, fault, exit_code, meaning in errors()]
    return table(("code", "fault", "exit code", "what"), rows)


# --- metrics and measured faults ------------------------------------------------------------------------------------


def metrics() -> str:
    """The catalogue of metrics: a heading for each group."""
    from farm.metrics.catalogue import GROUPS

    parts = []
    for title, group in GROUPS.items():
        rows = [
            (f"`{each.shown}`", str(each.kind), ", ".join(f"`{label}`" for label in each.labels), plain(each.meaning))
            for each in group
        ]
        parts.append(f"### {title}\n\n" + table(("metric", "type", "labels", "meaning"), rows))
    return "\n".join(parts)


def faults() -> str:
    """The measured faults of virtual phones (docs/faults.json)."""
    columns = ("fault", "detected as", "by", "noticed, s", "actions", "ended by", "back, s", "goal, s", "others")
    return table(columns, [_fault(row) for row in json.loads((ROOT / "docs" / "faults.json").read_text("utf-8"))])


def _fault(row: Mapping[str, Any]) -> tuple[str, ...]:
    others = "every phone" if row["whole_farm"] else "spared" if row["spared"] else "HURT"
    return (
        row["fault"],
        row["detected"].partition(":")[0] or "(nothing to detect)",
        row["noticed_by"],
        _seconds(row["noticed_s"]),
        ", ".join(row["actions"]) or "none",
        row["ended_by"] or "itself",
        _seconds(row["back_s"]) + (" **WRONG**" if row["wrong"] else ""),
        _seconds(row["goal_s"] or None),
        others,
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


PARTS: Mapping[str, types.FunctionType] = {
    "cli": cli, "specs": specs, "config": config, "control": control, "events": events, "errors": error_codes,
    "metrics": metrics, "faults": faults,
}  # fmt: skip
