"""The manual page, made of the tree of commands: roff (man(7)) for `man`, from the same words as `--help`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from farm import __version__
from farm.cli.examples import EXAMPLES
from farm.cli.lazy import Sections, commands_of

WRITTEN = "2026-11-22"  # man(7) wants a date; one that is always today's would make every page another
SUMMARY = "Android phones on a Linux host as a measurement lab for ML compilers"
DESCRIPTION = """\
farm serve finds phones through adb, pushes a TVM runtime to them, supervises their RPC servers, checks their numbers,
and hands them out: to unmodified TVM clients through its own RPC tracker, and to jobs that run a model, tune its
operators on many phones at once, measure it with a certificate, or tell which of two builds is faster.

All other commands ask the daemon through its control socket. Those that print data take --json; errors are one line on
stderr, with a hint below it."""
EXIT_STATUS = (
    ("0", "It is done."),
    ("1", "The work failed."),
    ("2", "Wrong usage or bad input; a name that does not exist."),
    ("3", "No phone matches, or not now."),
    ("4", "The daemon cannot be reached."),
    ("5", "Not allowed, or over a quota."),
    ("130", "Ctrl-C, SIGTERM or SIGHUP ended the command."),
)
ENVIRONMENT = (
    ("FARM_SOCKET", "The daemon's control socket."),
    ("FARM_CONFIG", "The configuration file of farm serve and farm doctor."),
    ("FARM_SECTION__KEY", "A key of the configuration: FARM_TVM__PORT=9200 is port in [tvm]."),
    ("NO_COLOR", "Not empty: no colours."),
    ("COLUMNS", "How wide lines may be."),
)
FILES = (
    ("/etc/farm/farm.toml", "The configuration; everything has a default."),
    ("/run/farm/control.sock", "The control socket of a daemon that root runs; else below $XDG_RUNTIME_DIR/farm."),
    ("/var/lib/farm", "Its state; of another user's daemon ~/.local/state/farm."),
)


def page(command: Any, sections: Sections, *, only: Sequence[str] = ()) -> str:
    """The page as roff.

    Args:
        command: the whole tree.
        sections: its commands by heading.
        only: a command's path (`("job", "list")`): a page about it and what is below it; empty: about all.

    Raises:
        KeyError: there is no such command.
    """
    title = "-".join(("farm", *only)).upper()
    lines = [
        '.\\" Made by `farm man --roff`. Change the commands, not this file.',
        f'.TH "{title}" "1" "{WRITTEN}" "farm {__version__}" "User Commands"',
        ".nh",
        ".ad l",
    ]
    if only:
        found = command
        for name in only:
            found = commands_of(found)[name]
        lines += [".SH NAME", f"{_text('-'.join(('farm', *only)))} \\- {_text(_first(found))}", ".SH SYNOPSIS"]
        lines += [".nf", _text(_usage(found, only)), ".fi", ".SH DESCRIPTION", *_about(found, tuple(only), own=True)]
        for name, each in commands_of(found).items():
            lines += [f'.SH "{_text(" ".join((*only, name))).upper()}"', *_about(each, (*only, name))]
    else:
        lines += [".SH NAME", f"farm \\- {_text(SUMMARY)}", ".SH SYNOPSIS", ".B farm"]
        lines += ["[OPTIONS] COMMAND [ARGUMENTS]", ".SH DESCRIPTION"]
        lines += [*_paragraphs(DESCRIPTION), ".SH OPTIONS", *_parameters(command)]
        for heading, some in sections.items():
            lines += [f'.SH "{_text(heading).upper()}"']
            for name in some:
                lines += _command(commands_of(command)[name], (name,))
        for head, rows in (("EXIT STATUS", EXIT_STATUS), ("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
            lines += [
                f'.SH "{head}"',
                *(line for row in rows for line in (".TP", f".B {_text(row[0])}", _text(row[1]))),
            ]
        lines += [".SH SEE ALSO", ".BR adb (1)"]
    return "\n".join(lines) + "\n"


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    yield f'.SS "{_text(_usage(command, path))}"'
    yield from _about(command, path, own=True)
    for name, each in commands_of(command).items():
        yield from _command(each, (*path, name))


def _about(command: Any, path: tuple[str, ...], *, own: bool = False) -> Iterator[str]:
    """What it does, its parameters, its examples."""
    if not own:
        yield from (".nf", f".B {_text(_usage(command, path))}", ".fi", ".PP")
    yield from _paragraphs(inspect.cleandoc(command.help or ""))
    yield from _parameters(command)
    if examples := EXAMPLES.get(" ".join(path)):
        yield from (".PP", "Examples:", ".PP", ".nf", ".RS 4", *map(_text, examples), ".RE", ".fi")


def _usage(command: Any, path: Sequence[str]) -> str:
    words = ["farm", *path]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    words += [f"{each.opts[0]} {_metavar(each)}" for each in options if each.required]
    if any(not each.required for each in options):
        words.append("[OPTIONS]")
    for each in command.params:
        if each.param_type_name == "argument":
            name = (each.metavar or each.name or "").strip("[]{}.").upper() + ("..." if each.nargs == -1 else "")
            words.append(name if each.required else f"[{name}]")
    if commands_of(command):
        words.append("COMMAND")
    return " ".join(words)


def _parameters(command: Any) -> Iterator[str]:
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        if each.param_type_name == "argument":
            head = f".I {_text((each.metavar or each.name or '').strip('[]{}.').upper())}"
        else:
            names = ", ".join(f"\\fB{_text(name)}\\fR" for name in (*each.opts, *each.secondary_opts))
            value = "" if each.is_flag or each.count else f" \\fI{_text(_metavar(each))}\\fR"
            head = names + value
        told = " ".join((getattr(each, "help", None) or "").split())
        if each.param_type_name == "option" and each.show_default and not each.is_flag and _has_default(each):
            told += f" Default: {_plain(each.default)}."
        yield from (".TP", head, _text(told or "-"))


def _has_default(option: Any) -> bool:
    return option.default not in (None, "", ()) and not callable(option.default)


def _plain(value: object) -> str:
    return str(getattr(value, "value", value))


def _metavar(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    choices = getattr(option.type, "choices", None)
    return "|".join(_plain(each) for each in choices) if choices else (option.name or "value").upper()


def _first(command: Any) -> str:
    """The first sentence of its help."""
    text = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s", text, maxsplit=1)[0].rstrip(".:")


def _paragraphs(text: str) -> Iterator[str]:
    for index, paragraph in enumerate(part for part in text.split("\n\n") if part.strip()):
        if index:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """Plain text as roff takes it: nothing in it is a request or an escape."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    plain = plain.replace("`", "\\(ga").replace("'", "\\(aq").replace('"', "\\(dq")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain
