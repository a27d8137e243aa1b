"""What every command shares: the way to the daemon, `--json`, tables, and how an error leaves the process."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.core.durations import format_duration
from farm.core.errors import FarmError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from farm.control.client import ControlClient

# Control characters but the tab, what breaks lines or turns their direction, and halves of characters.
_STEERS = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def connect() -> ControlClient:
    """A client of the daemon.

    Raises:
        DaemonUnreachableError: at the first call, when nobody answers.
        UserError: the address or the key of a remote one is none.
    """
    from farm.control.address import find
    from farm.control.client import ControlClient

    return ControlClient(find())


def call(kind: str, **fields: Any) -> dict[str, Any]:
    """One request, one answer."""
    with connect() as client:
        return client.call(kind, **fields)


def act(kind: str, done: str, *, json: bool, **fields: Any) -> None:
    """One request, and its answer: as JSON, or as `done`, a format of its fields."""
    answer = call(kind, **fields)
    if json:
        print_json(answer)
    else:
        tell(done.format(**answer))


def write_file(path: Path, data: bytes) -> None:
    """What a command was told to write.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", hint="name a file in a folder that is there and yours"
        ) from error


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def print_json_line(value: object) -> None:
    """One JSON document as one line of a stream."""
    sys.stdout.write(json.dumps(value, default=_plain) + "\n")
    sys.stdout.flush()


def shown(text: str) -> str:
    r"""The text with escapes (`\x1b`, `\n`) where it would steer a terminal: names and notes are anybody's words."""
    return _STEERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns without borders: easy on eyes, grep and awk. Nothing is cut; long cells widen the column."""
    cells = [[shown(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    for row in [list(columns), *cells]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def when(at: datetime) -> str:
    """A moment as people read it, and how far it is."""
    moment, now = at.astimezone(), datetime.now().astimezone()
    clock = f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M}"
    return f"{clock} (in {format_duration((moment - now).total_seconds())})"


def local_time(text: str | None, *, to: str = "seconds") -> str:
    """A moment (ISO 8601) in this host's local time, "-" for none; `to` is isoformat's `timespec`."""
    return datetime.fromisoformat(text).astimezone().replace(tzinfo=None).isoformat(" ", to) if text else "-"


def tell(text: str = "") -> None:
    """A line of a command's answer, on stdout."""
    sys.stdout.write(shown(text) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for people, on stderr so that stdout stays data."""
    sys.stderr.write(shown(text) + "\n")
    sys.stderr.flush()


def report(error: FarmError) -> int:
    """Print an error as one line and its hint as another; returns the exit code."""
    say(f"error: {error.message}")
    if said := error.evidence.strip().splitlines():
        line = said[-1] if said[0].startswith("Traceback ") else said[0]  # what a traceback comes to is its last line
        say(f"  said: {line.strip()[:300]}")
    if error.hint:
        say(f"  hint: {error.hint}")
    return error.exit_code


def _plain(value: object) -> str:
    """What JSON has no form for: times as ISO 8601, paths and the like as their text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def step_of(event: Mapping[str, Any]) -> str:
    """A `device.*` event as words: the new state, and why or how far."""
    step, data = event["kind"].removeprefix("device."), event["data"]
    if step == "pushing":
        return f"pushing {data['sent_bytes'] / max(1, data['total_bytes']):.0%}"
    return f"{step}: {data['reason']}" if data.get("reason") else step
