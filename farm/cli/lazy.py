"""The tree of commands, each imported when it is asked for: `farm status` does not pay for `farm tune`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

# What stands behind an option whose own name would say nothing: `--on SELECTOR`.
VALUES = {
    "on": "SELECTOR", "duration": "DURATION", "timeout": "DURATION", "last": "DURATION", "every": "DURATION",
    "deadline": "TIME", "since": "TIME", "until": "TIME", "after": "JOB", "devices": "N|all", "inputs": "FILE",
    "output": "FILE", "out": "FILE", "to": "FILE", "plot": "FILE", "records": "FILE", "records_b": "FILE",
    "labels": "FILE", "config": "FILE", "rename": "NAME", "label": "KEY=VALUE", "socket": "PATH", "only": "WORDS",
}  # fmt: skip
TEXTS = frozenset({"StringParamType", "TyperPath", "Path"})
NUMBERS = frozenset({"IntParamType", "IntRange", "FloatParamType", "FloatRange"})
Sections = Mapping[str, Mapping[str, tuple[str, str]]]  # heading -> command -> its module in farm.cli, what it is for


class Commands(MutableMapping[str, Any]):
    """Click commands by name; a module is imported when its command is looked up.

    A module has either `app`, a group, or a function of its own name, the command.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        """`modules`: name of a command -> name of its module in farm.cli."""
        self._modules = dict(modules)
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._modules[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._modules.setdefault(name, "")
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._modules[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._modules  # Mapping's own would import it

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _load(name: str, module_name: str) -> Any:
    from farm.cli.examples import EXAMPLES

    module = importlib.import_module(f"farm.cli.{module_name}")
    parent = typer.Typer(add_completion=False, rich_markup_mode=None)
    parent.callback()(_nothing)  # a command that is alone would take its parent's place
    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name, no_args_is_help=module.app.registered_callback is None)
    else:
        parent.command(name)(getattr(module, module_name))
    commands: dict[str, Any] = getattr(get_command(parent), "commands")  # noqa: B009 (typer's name for its type varies)
    command = commands[name]
    for path, each in ((name, command), *((f"{name} {verb}", it) for verb, it in commands_of(command).items())):
        each.short_help = " ".join((each.help or "").partition("\n\n")[0].split())  # whole: typer cuts it at 80 columns
        for parameter in each.params:
            _name_plainly(parameter)
        if path in EXAMPLES:
            each.epilog = "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])
    return command


def _name_plainly(parameter: Any) -> None:
    """`--on SELECTOR` and `MODEL` as everybody writes them: typer would print `--on <str>` and `{model}`."""
    plain = (parameter.name or "").upper()
    if parameter.metavar is not None or not plain:
        return
    if parameter.param_type_name == "argument":
        named = plain + ("..." if parameter.nargs == -1 else "")
        parameter.metavar = named if parameter.required else f"[{named}]"
        parameter.make_metavar = partial(_as_it_is, parameter.metavar)
    elif type(parameter.type).__name__ in TEXTS and not parameter.is_flag:
        parameter.metavar = VALUES.get(parameter.name, plain)
    elif type(parameter.type).__name__ in NUMBERS and not parameter.count:
        parameter.metavar = "N"


def _as_it_is(metavar: str, *_: object, **__: object) -> str:
    return metavar


def commands_of(command: Any) -> Mapping[str, Any]:
    """A group's commands by name; none of a command that is no group."""
    found: Mapping[str, Any] = getattr(command, "commands", {})
    return found


def _nothing() -> None:
    return


def group_of(sections: Sections) -> type[TyperGroup]:
    """A group whose help shows its commands by section, without importing them."""

    class LazyGroup(TyperGroup):
        """The commands of `sections`."""

        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for parameter in self.params:
                _name_plainly(parameter)
            self.commands = Commands({name: told[0] for some in sections.values() for name, told in some.items()})

        def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (the base has it)
            """One list per section."""
            width = max(map(len, self.commands))
            for heading, some in sections.items():
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(width), told[1]) for name, told in some.items()])

    return LazyGroup
