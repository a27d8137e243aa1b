"""What this terminal can show: characters beyond ASCII, colour, its size."""

from __future__ import annotations

import locale
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 20  # columns; below this nothing can be told, so it is told as if there were so many


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters for plots, from low to high."""

    steps: str  # heights of a cell, the lowest first
    full: str
    rest: str  # of a bar that is not full
    line: str
    rise: str  # of a curve that falls in steps
    middle: str
    dot: str
    more: str  # where something was cut off


UNICODE = Glyphs(steps="▁▂▃▄▅▆▇█", full="█", rest="░", line="─", rise="│", middle="●", dot="●", more="…")
ASCII = Glyphs(steps="_.-=+*%#", full="#", rest=".", line="-", rise="|", middle="o", dot="*", more="~")


def glyphs_for(encoding: str) -> Glyphs:
    """Those that the encoding of the terminal has."""
    try:
        f"{UNICODE.steps}{UNICODE.rest}{UNICODE.line}{UNICODE.rise}{UNICODE.middle}{UNICODE.more}".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def glyphs(stream: TextIO | None = None) -> Glyphs:
    """Those that `stream` (stdout by default) can show, by the locale: Python writes UTF-8 even where it says C."""
    to = stream or sys.stdout
    if locale_is_plain(os.environ):
        return ASCII
    return glyphs_for(getattr(to, "encoding", None) or locale.getpreferredencoding(do_setlocale=False))


def locale_is_plain(environ: Mapping[str, str]) -> bool:
    """Whether the locale promises ASCII only: C or POSIX by name, or another without a UTF-8 in it."""
    named = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "")
    _, dot, charset = named.partition(".")
    if dot:
        return charset.lower().replace("-", "") != "utf8"
    return named in ("C", "POSIX")


def columns(stream: TextIO | None = None) -> int:
    """Width of the terminal, 80 where there is none; `$COLUMNS` goes first."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return max(NARROWEST, int(given))
    try:
        return max(NARROWEST, os.get_terminal_size((stream or sys.stdout).fileno()).columns)
    except (OSError, ValueError):
        return max(NARROWEST, shutil.get_terminal_size().columns)


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Whether lines that overwrite themselves would be garbage there."""
    return environ.get("TERM", "") in ("dumb", "unknown")


def lively(stream: TextIO) -> bool:
    """Whether things may move on it: it is a terminal that can."""
    return stream.isatty() and not is_dumb(os.environ)


def console(stream: TextIO) -> Console:
    """A rich console that writes there; it honours NO_COLOR, and draws no emoji or markup of other people's words."""
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=False)
