"""Column types that mean the same on SQLite and PostgreSQL.

What the world says (adb's words, names in a client's request) may hold what no database keeps: half a surrogate pair,
as Python reads foreign bytes, or a NUL, which PostgreSQL refuses. Both are written as their escapes here, so that no
text can keep a change from being written.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Dialect, Double, Integer, String, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

_UNKEPT = re.compile("[\0\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def keepable(text: str) -> str:
    r"""The text with lone surrogates and NULs as their escapes: `\udcff`, `\x00`."""
    return _UNKEPT.sub(lambda found: "\\x00" if found[0] == "\0" else f"\\u{ord(found[0]):04x}", text)


class Word(TypeDecorator[str]):
    """Any text, kept as `keepable` writes it.

    Texts sort by their bytes everywhere: SQLite's own order, and what prefix ranges over ids need.
    """

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The plain type under it."""
        return dialect.type_descriptor(String(collation="C") if dialect.name == "postgresql" else String())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else keepable(value)


def utc_time(seconds: float) -> datetime:
    """The time kept as seconds since 1970.

    Raises:
        ValueError: no calendar has it (OverflowError, OSError: nor the host's C library; TypeError: it is no number).
    """
    return datetime.fromtimestamp(seconds, UTC)


def serial_number() -> TypeEngine[int]:
    """A 64-bit number; `INTEGER` on SQLite, where only that spelling makes the primary key the row's own address."""
    return BigInteger().with_variant(Integer, "sqlite")


def yes_or_no(column: str, name: str) -> CheckConstraint:
    """A flag kept as 0 or 1."""
    return CheckConstraint(f"{column} IN (0, 1)", name=name)


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime as seconds since 1970; microseconds survive the way there and back."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> float | None:  # noqa: ARG002
        """To the database.

        Raises:
            ValueError: the time has no zone.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.timestamp()

    def process_result_value(self, value: float | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """From the database."""
        return None if value is None else utc_time(value)


class StrictJson(TypeDecorator[Any]):
    """JSON as text; what JSON cannot say is refused. None is NULL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else _as_json(value, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """From the database."""
        return None if value is None else json.loads(value)


class LooseJson(StrictJson):
    """JSON in which foreign values stand as their text: what is told in an event must never stop its change."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else _as_json(value, default=str)


def _as_json(value: Any, **options: Any) -> str:
    """Compact JSON; inside it a text's escape needs its backslash escaped in turn. NUL is always an escape there."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, **options)
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)
