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
    words = cut if line[len(cut)] == " " else cut.rpartition(" ")[0]
    return f"{words if len(words) > MAX_CAUSE_CHARS // 2 else cut}…"  # a long last word is cut, not left out


def fold(cause: str, evidence: str = "") -> tuple[str, str]:
    """A cause of one short line, and its evidence: what of the cause is not in that line comes first."""
    short = brief(cause)
    head, _, rest = cause.partition(";")
    more = rest.strip() if short == " ".join(head.split()) else cause.strip()
    return short, "\n".join(filter(None, ("" if more in evidence else more, evidence)))


def cause_of(wire: Mapping[str, Any]) -> str:
    """The cause in a record as JSON, also of a daemon or a result of before this version."""
    return str(next((wire[name] for name in ("cause", *_FORMER_NAMES) if wire.get(name)), ""))


def fold_cause(record: Any, name: str = "cause") -> None:
    """Fold the cause, the field `name`, and the `evidence` of a frozen record, in its `__post_init__`."""
    cause, evidence = fold(getattr(record, name), record.evidence)
    object.__setattr__(record, name, cause)
    object.__setattr__(record, "evidence", evidence)
