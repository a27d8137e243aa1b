"""The records of outputs, and how a number is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from farm.common.errors import Code, UserError
from farm.measure.series import MAX_S, MIN_S

SHOWN_CHARS = 80
EVIDENCE_CHARS = 2000
DECIMAL_COMMA = "does the program write a decimal comma? farm sets LC_ALL=C; it must not choose another locale"
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

unreadable_output = partial(UserError, code=Code.PROGRAM_UNREADABLE)


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What one call of a program printed. A phone with an old adbd has all of it in `stdout`."""

    stdout: str
    stderr: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines of both, stripped."""
        return [line.strip() for text in (self.stdout, self.stderr) for line in text.splitlines()]

    @property
    def end(self) -> str:
        """The end of what it printed, as evidence."""
        return (self.stdout.strip() or self.stderr.strip())[-EVIDENCE_CHARS:]


@dataclass(frozen=True, slots=True)
class ProgramSamples:
    """The times of one call, in order, in seconds of one run."""

    seconds: tuple[float, ...]
    runs: int  # averaged into each of them; 0: the program does not say


def read_time(text: str, unit_s: float, line: str) -> float:
    """A time that a program printed, in seconds; `line` is where.

    Raises:
        UserError: it is no number, or no time that anything takes.
    """
    if not _NUMBER.fullmatch(text):
        raise unreadable_output(
            f"{text[:SHOWN_CHARS]!r} is no number, in the line {line[:SHOWN_CHARS]!r}",
            hint=DECIMAL_COMMA if "," in text else "call it by hand",
        )
    seconds = float(text) * unit_s
    if not MIN_S <= seconds <= MAX_S:
        raise unreadable_output(
            f"{text[:SHOWN_CHARS]} is no time that a run takes, in the line {line[:SHOWN_CHARS]!r}",
            hint="more runs, if the program rounds to 0",
        )
    return seconds


def read_count(text: str, line: str) -> int:
    """A number of runs.

    Raises:
        UserError: it is none, or 0.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) == 0:
        raise unreadable_output(f"{text[:SHOWN_CHARS]!r} is no number of runs, in the line {line[:SHOWN_CHARS]!r}")
    return int(text)


def missing_line(wanted: str, output: ProgramOutput) -> UserError:
    """The error for an output without the line that has the times."""
    if not output.end:
        return unreadable_output(
            "the program printed nothing", hint="call it by hand; does it print to a file? Then `report` reads it"
        )
    return unreadable_output(
        f"the program printed no line {wanted!r}",
        hint="is it the program that the description's `output` names? The evidence is the end of what it printed",
        evidence=output.end,
    )
