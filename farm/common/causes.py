"""The cause of a fault or a wait: one line for people, whatever a phone or a tool said at length. Pure.

Records of faults and reasons have three texts: `cause` (one line), `evidence` (details and figures, "" if none) and
`hint` (one next step). `fold` keeps the first within its bound; `fold_cause` does so where a record is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_CAUSE_CHARS = 60  # fits a table's column and a heading
_FORMER_NAMES = ("what", "sentence", "reason")


def brief(text: str) -> str:
    """The first clause of a text, in at most `MAX_CAUSE_CHARS` characters."""
    line = " ".join(text.split(";", 1)[0].split()) or " ".join(text.replace(";", " ").split())
    if len(line) <= MAX_CAUSE_CHARS:
        return line
    cut = line[: MAX_CAUSE_CHARS - 1]
    return f"{cut.rpartition(' ')[0] or cut}…" if line[len(cut)] != " " else f"{cut}…"


def fold(cause: str, evidence: str = "") -> tuple[str, str]:
    """A cause of one short line, and its evidence, which keeps a longer cause whole."""
    short = brief(cause)
    whole = "" if short == cause or cause.strip() in evidence else cause.strip()
    return short, "\n".join(filter(None, (whole, evidence)))


def cause_of(wire: Mapping[str, Any]) -> str:
    """The cause in a record as JSON, also of a daemon or a result of before this version."""
    return str(next((wire[name] for name in ("cause", *_FORMER_NAMES) if wire.get(name)), ""))


def fold_cause(record: Any) -> None:
    """Fold the `cause` and `evidence` of a frozen record, in its `__post_init__`."""
    for name, text in zip(("cause", "evidence"), fold(record.cause, record.evidence), strict=True):
        object.__setattr__(record, name, text)
