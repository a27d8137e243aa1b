r"""The output of commands: `emit()` an answer as JSON or as lines, tables, errors, files.

A command asks the daemon (farm.cli.connection) and gives its answer to `emit(answer, lines, json=json)`: with --json
the answer is printed as one document, else `lines`, which are made only then; `table()` gives the lines of a table.
Data goes to stdout (`print_line`, `print_json`), everything else to stderr (`print_note`, `print_error`). Stdout that
cannot be written (a full disk, a closed pipe) ends the command by an OutputError; what stderr cannot take is dropped.

Names, notes and commands are other people's words: each line is printed with escapes (`\x1b`, `\n`) in place of what
would steer a terminal. Beside this module: what the terminal can show (terminal), plots in characters and a tuning
curve as SVG (plots), events of jobs as lines (job_events).
"""

from __future__ import annotations

import io
import json as json_
import os
import select
import sys
from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from farm.common import phone_text
from farm.common.durations import format_duration
from farm.common.errors import FarmError, HostError, UserError
from farm.common.tones import tone
from farm.measure.conditions import reasons_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

LONG_CELL_CHARS = 24  # of a cell that wants no room of other columns
OLD = " ago"  # the last characters of an old reading
MIN_CELL_CHARS = 10  # of a cell that is cut to the width of a terminal
_PAINTED = ("STATE", "VERDICT", "SERVICE", "TEMP", "BATTERY")  # columns whose words have colours
# By tone: a style of rich, and the number of an escape sequence.
_STYLES = {
    "good": ("green", 32), "busy": ("cyan", 36), "going": ("blue", 34), "hold": ("magenta", 35),
    "warm": ("yellow", 33), "warn": ("yellow", 33), "bad": ("red", 31), "poor": ("red", 31), "off": ("dim", 2),
}  # fmt: skip


class OutputError(HostError):
    """Stdout cannot be written."""

    code = "output_failed"


class OutputFile(io.FileIO):
    """The file below stdout or stderr; it also waits for a full pipe that another process made non-blocking."""

    def write(self, data: Any, /) -> int:
        """Write, as FileIO does.

        Raises:
            OutputError: stdout cannot be written; `__cause__` is the OSError. Of stderr the data is dropped.
        """
        try:
            while (written := super().write(data)) is None:
                select.select((), (self,), ())
        except OSError as error:
            if self.fileno() == sys.stderr.fileno():
                return memoryview(data).nbytes
            raise OutputError(
                f"cannot write to stdout: {error.strerror}", hint="the command may have been carried out all the same"
            ) from error
        return written


def guard_streams() -> None:
    """Put an OutputFile below stdout and stderr; streams that were closed at the start become /dev/null.

    Of a closed stdout it is opened for reading, so that a write fails as it should.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or (name == "stdin" and stream is not None):
            continue  # a test's, or in order
        if stream is None:
            file = os.open(os.devnull, flags)  # the lowest free number, which is its own
            os.set_inheritable(file, True)
            stream = os.fdopen(file, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False)
        if name != "stdin":
            raw = io.BufferedWriter(OutputFile(stream.fileno(), "w", closefd=False))
            stream = io.TextIOWrapper(
                raw, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )  # fmt: skip
        setattr(sys, name, stream)


def emit(document: Mapping[str, Any], text: str | Iterable[str], *, json: bool) -> None:
    """Print a command's answer: `document` as JSON, or `text`, one or more lines, for people."""
    if json:
        print_json(document)
        return
    for line in (text,) if isinstance(text, str) else text:
        print_line(line)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON document on stdout: always an object, so that fields can join it."""
    sys.stdout.write(json_.dumps(value, indent=2, default=_plain) + "\n")


def print_json_line(value: Mapping[str, Any]) -> None:
    """One JSON document as one line of a stream."""
    sys.stdout.write(json_.dumps(value, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> str:
    """JSON of other values: times as ISO 8601, paths and the like as their text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def escaped(text: str) -> str:
    r"""The text with escapes (`\x1b`, `\n`) in place of what a terminal obeys, but for tabs."""
    return phone_text.escaped(text).replace("\n", "\\n")


def print_line(text: str = "") -> None:
    """A line of a command's answer, on stdout."""
    painted = text.painted if isinstance(text, PaintedLine) and colours(sys.stdout, os.environ) else escaped(text)
    sys.stdout.write(painted + "\n")
    sys.stdout.flush()


def print_note(text: str) -> None:
    """A line about the work, on stderr so that stdout stays data."""
    sys.stderr.write(escaped(text) + "\n")
    sys.stderr.flush()


def print_error(error: FarmError, *, whole: bool = False) -> int:
    """Print an error as one line and its hint as another; returns the exit code.

    Of the evidence one line is printed, with `whole` all of it.
    """
    mark = ""
    if "JOURNAL_STREAM" in os.environ:  # a service's process; commands do without the import
        from farm.common.systemd import error_mark

        mark = error_mark()
    print_note(f"{mark}error: {error.message}")
    if evidence := error.evidence.strip().splitlines():
        # a traceback's last line says what
        line = evidence[-1] if evidence[0].startswith("Traceback ") else evidence[0]
        shown = line.strip()[:300]
        if whole and len(evidence) > 1:
            for each in ("evidence:", *(f"  {line}" for line in evidence)):
                print_note(f"{mark}  {each}")
        elif shown not in error.message and not shown.endswith(error.message):
            print_note(f"{mark}  evidence: {shown}")
    if error.hint:
        print_note(f"{mark}  hint: {error.hint}")
    return error.exit_code


class PaintedLine(str):
    """A line of a table, and the same with colours for a terminal."""

    __slots__ = ("painted",)
    painted: str


def colours(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether `stream` is a terminal that shows colours, and its user wants them (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") not in ("dumb", "unknown")


def painted(word: str) -> str:
    """A state or a verdict in its colour, an old reading in grey; the word says the same without it."""
    _, number = _STYLES.get("off" if word.endswith(OLD) else tone(word.rstrip("*"), ""), ("", 0))
    return f"\x1b[{number}m{word}\x1b[0m" if number else word


def style_of(word: str) -> str:
    """A state's style of rich; "" where it has none."""
    return _STYLES.get(tone(word, ""), ("", 0))[0]


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    none: str = "",
    width: int | None = None,
    spare: Sequence[str] = (),
    below: str = "",
) -> Iterator[str]:
    """Aligned columns without borders: easy on eyes, grep and awk.

    At a terminal the widest cells are cut until a line fits; elsewhere nothing is cut. The first column, which names
    the row, is whole. States and verdicts have colours at a terminal.

    Args:
        columns: headings.
        rows: cells.
        none: the sentence that stands in place of a table without rows; "": the heading alone.
        width: of the lines; None: the terminal's.
        spare: columns that a narrow terminal leaves out, the first one first.
        below: the column whose cells, where lines have no room for them, stand whole on indented lines below.
    """
    cells = [list(columns), *([escaped(str(cell)) for cell in row] for row in rows)]
    if none and len(cells) == 1:
        yield none
        return
    if width is None and sys.stdout.isatty():
        from farm.cli.output.terminal import columns as terminal_columns

        width = terminal_columns()
    natural_widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    notes = [""] * len(cells)
    if width is not None and below in columns and sum(natural_widths) + 2 * len(columns) - 2 > width:
        place = columns.index(below)
        notes = ["", *("" if row[place] == "-" else row[place] for row in cells[1:])]
        cells = [row[:place] + row[place + 1 :] for row in cells]
        columns = cells[0]
        del natural_widths[place]
    if width is not None and (kept := columns_that_fit(columns, natural_widths, width, spare)) != list(columns):
        places = [at for at, name in enumerate(columns) if name in kept]
        cells = [[row[at] for at in places] for row in cells]
        columns, natural_widths = kept, [natural_widths[at] for at in places]
    widths = natural_widths if width is None else fitted(natural_widths, list(map(len, columns)), width)
    for at, row in enumerate(cells):
        shown = [shortened(cell, limit) for cell, limit in zip(row, widths, strict=True)]
        padded = [cell.ljust(limit) for cell, limit in zip(shown, widths, strict=True)]
        line = PaintedLine("  ".join(padded).rstrip())
        line.painted = "  ".join(
            pad.replace(cell, painted(cell), 1) if at and name in _PAINTED else pad
            for name, cell, pad in zip(columns, shown, padded, strict=True)
        ).rstrip()
        yield line
        if width is not None:
            # Commands in a note are copied: `power-cycle` stays whole.
            yield from wrap(notes[at], width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def columns_that_fit(columns: Sequence[str], widths: Sequence[int], width: int, spare: Sequence[str]) -> list[str]:
    """Columns without those of `spare`, in that order, for which lines of `width` have no room. Pure."""
    needs = {name: min(each, max(len(name), LONG_CELL_CHARS)) + 2 for name, each in zip(columns, widths, strict=True)}
    for name in spare:
        if sum(needs.values()) - 2 > width:
            needs.pop(name, None)
    return list(needs)


def fitted(widths: Sequence[int], titles: Sequence[int], width: int) -> list[int]:
    """Widths of columns that fit into lines of `width`: the widest one but the first shrinks. Pure.

    No column becomes narrower than its title, or than `MIN_CELL_CHARS`.
    """
    fit = list(widths)
    while sum(fit) + 2 * (len(fit) - 1) > width:
        able = [at for at in range(1, len(fit)) if fit[at] > max(titles[at], MIN_CELL_CHARS)]
        if not able:
            break
        fit[max(able, key=lambda at: (fit[at], at))] -= 1
    return fit


def shortened(text: str, width: int) -> str:
    """The text in at most `width` characters: cut behind a word, where one ends near, with an ellipsis."""
    if len(text) <= width:
        return text
    cut = text[: width - 1]
    words = cut.rpartition(" ")[0].rstrip(" ,:(")
    return f"{words if len(words) * 3 > len(cut) * 2 else cut.rstrip()}…"


def side_by_side(cells: Sequence[str], width: int | None = None) -> Iterator[str]:
    """Indented lines of cells in as many aligned columns as fit, read from top to bottom.

    Args:
        cells: short texts.
        width: of the lines; None: the terminal's.
    """
    from farm.cli.output.terminal import columns as terminal_columns

    each = max(map(len, cells), default=0) + 2
    rows = -(-len(cells) // max(1, (width or terminal_columns()) // each))
    for row in range(rows):
        yield "".join(f"  {cell:<{each - 2}}" for cell in cells[row::rows]).rstrip()


def paragraph(sentences: Iterable[str], width: int = 80) -> Iterator[str]:
    """Lines of whole sentences, as many in each as fit."""
    line = ""
    for sentence in filter(None, sentences):
        if line and len(line) + 1 + len(sentence) > width:
            yield line
            line = ""
        line = f"{line} {sentence}".lstrip()
    if line:
        yield line


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], **shape: Any) -> None:
    """Print a table; `shape`: the other arguments of `table`."""
    for line in table(columns, rows, **shape):
        print_line(line)


def fold_reasons(reasons: Iterable[Mapping[str, Any]], *, why: bool) -> list[str]:
    """The causes of a verdict; with `why` their evidence, without it only the gravest, and how many more there are."""
    causes = [
        f"{each.cause} ({each.evidence})" if why and each.evidence else each.cause for each in reasons_of(reasons)
    ]
    if why or len(causes) < 2:
        return causes
    more = len(causes) - 1
    return [f"{causes[0]} ({more} more reason{'s' * (more > 1)}: --why)"]


def print_remarks(remarks: Iterable[tuple[str, str]]) -> None:
    """Print (device, sentence) below a table: each sentence once, behind all devices that it is about."""
    devices: dict[str, list[str]] = {}
    for device, sentence in remarks:
        devices.setdefault(sentence, []).append(device)
    for sentence, names in devices.items():
        print_line(f"  {', '.join(names)}: {sentence}")


def print_unlike(found: Iterable[Sequence[str]]) -> None:
    """Warn of differences between A and B, sentences for each phone; those that several have once."""
    for what in dict.fromkeys("; ".join(each) for each in found if each):
        print_note(f"warning: A and B do not compute the same, which their times do not tell: {what}")


def now_of(answer: Mapping[str, Any]) -> datetime:
    """The time of an answer by its daemon's clock; an older daemon's is taken for this host's."""
    return datetime.fromisoformat(told) if (told := answer.get("now")) else datetime.now(UTC)


def when(at: datetime, now: datetime) -> str:
    """A moment as people read it, and how far it is from `now` by the farm's clock, of which `at` is too."""
    moment, now = at.astimezone(), now.astimezone()
    clock = f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M}"
    return f"{clock} (in {format_duration((moment - now).total_seconds())})"


def local_time(text: str | None, *, to: str = "seconds") -> str:
    """A moment (ISO 8601) in this host's local time, "-" for none; `to` is isoformat's `timespec`."""
    return datetime.fromisoformat(text).astimezone().replace(tzinfo=None).isoformat(" ", to) if text else "-"


def device_step(event: Mapping[str, Any]) -> str:
    """A `device.*` event as words: the new state, and why or how far."""
    step, data = event["kind"].removeprefix("device."), event["data"]
    if step == "pushing":
        return f"pushing {data['sent_bytes'] / max(1, data['total_bytes']):.0%}"
    return f"{step}: {data['reason']}" if data.get("reason") else step


def write_file(path: Path, data: bytes) -> None:
    """Write an output file of a command.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", hint="name a file in a folder that exists and is yours"
        ) from error
