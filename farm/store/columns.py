"""Column types that mean the same on SQLite and PostgreSQL.

Text from outside (adb's output, names in a client's request) may hold characters that no database stores: half a
surrogate pair, as Python decodes foreign bytes, or a NUL, which PostgreSQL refuses. The types write both as escapes,
so that no text can keep a change from being written.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Integer,
    String,
    Text,
    TypeDecorator,
    literal,
    select,
    type_coerce,
)
from sqlalchemy.types import NullType, TypeEngine

log = logging.getLogger(__name__)


class StoredValueError(ValueError):
    """The database holds a value that its column never has: something else than farm wrote it.

    `column` is None for a value that was not read as its column.
    """

    def __init__(self, problem: str, value: object, column: Column[Any] | None) -> None:
        super().__init__(problem, value, column)  # all of them: the writer copies errors
        self.value = value
        self.column = column

    def __str__(self) -> str:
        problem = f"{self.value!r:.80} {self.args[0]}"
        return problem if self.column is None else f"{self.column}: {problem}"

    def with_row(self, connection: Connection) -> str:
        """The error, with the primary key of the first row that holds the value."""
        if self.column is None:
            return str(self)
        holds = type_coerce(self.column, NullType()) == literal(self.value)
        row = connection.execute(select(*self.column.table.primary_key).where(holds).limit(1)).mappings().first()
        return f"{self} (row {', '.join(f'{name}={value!r}' for name, value in row.items())})" if row else str(self)


class CheckedType:
    """A type that may meet a value which farm did not write; farm.store.schema sets its column."""

    column: Column[Any] | None = None


_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def storable(text: str) -> str:
    r"""The text with lone surrogates and NULs as their escapes: `\udcff`, `\x00`."""
    return _UNSTORABLE.sub(lambda found: "\\x00" if found[0] == "\0" else f"\\u{ord(found[0]):04x}", text)


class Word(TypeDecorator[str]):
    """Any text, stored as `storable` writes it.

    Texts sort by their bytes everywhere: SQLite's own order, and what prefix ranges over ids need.
    """

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The plain type under it."""
        return dialect.type_descriptor(String(collation="C") if dialect.name == "postgresql" else String())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else storable(value)


class EnumText(Word):
    """A member of a StrEnum, stored as its value."""

    cache_ok = True

    def __init__(self, choices: type[StrEnum]) -> None:
        super().__init__()
        self.choices = choices
        self._members = {each.value: each for each in choices}  # looked up for each row; calling a StrEnum is slow

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To the database. Comparisons may bind other text too."""
        return super().process_bind_param(None if value is None else str(value), dialect)

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:  # noqa: ARG002
        """From the database."""
        return None if value is None else self._members.get(value) or self.choices(value)


class Flag(TypeDecorator[bool]):
    """A bool stored as 0 or 1."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else int(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> bool | None:  # noqa: ARG002
        """From the database."""
        return None if value is None else bool(value)


def utc_time(seconds: float, column: Column[Any] | None = None) -> datetime:
    """The time stored as seconds since 1970 (in that column).

    Raises:
        StoredValueError: it is no number, or no calendar has it.
    """
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise StoredValueError(f"is no time: {error}", seconds, column) from error


def serial_number() -> TypeEngine[int]:
    """A 64-bit number; `INTEGER` on SQLite, where only that spelling makes the primary key the row's own address."""
    return BigInteger().with_variant(Integer, "sqlite")


class UtcTime(CheckedType, TypeDecorator[datetime]):
    """An aware datetime as seconds since 1970; microseconds survive the round trip."""

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
        return None if value is None else utc_time(value, self.column)


class StrictJson(CheckedType, TypeDecorator[Any]):
    """JSON as text, read as `build` of the parsed value. None is NULL; a value that JSON does not know is refused."""

    impl = Text
    cache_ok = True

    def __init__(self, build: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.build = build

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else as_json(value, allow_nan=False, default=_plain)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """From the database."""
        if value is None:
            return None
        try:
            parsed: Any = [] if value == "[]" else json.loads(value)  # most lists are empty, of 100,000 jobs too
            return self.build(parsed) if self.build else parsed
        except (ValueError, TypeError, RecursionError) as error:
            raise StoredValueError(f"is not the JSON of its column: {error}", value, self.column) from error


def json_object(value: Any) -> dict[str, Any]:
    """The value of a column that holds JSON objects.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, dict):
        raise TypeError("it is no object")
    return value


class ObjectJson(StrictJson):
    """A JSON object of one host for others. One that cannot be read is empty, and logged: the other rows are read."""

    cache_ok = True

    def __init__(self) -> None:
        super().__init__(json_object)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """From the database."""
        try:
            return super().process_result_value(value, dialect)
        except StoredValueError as error:
            log.warning("a stored object is not used: %s", error)
            return {}


class RecordJson(StrictJson):
    """A dataclass as JSON. One that cannot be read any more (another release wrote it) is None, and logged."""

    cache_ok = True

    def __init__(self, record: type[Any]) -> None:
        super().__init__(TypeAdapter(record).validate_python)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else as_json(asdict(value), default=_plain)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """From the database."""
        try:
            return super().process_result_value(value, dialect)
        except ValueError as error:
            log.warning("a stored record is not used: %s", error)
            return None


class LooseJson(StrictJson):
    """JSON in which unknown values become their text: an event's data must never keep its change from being stored."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else as_json(dict(value), default=str)


def _plain(value: object) -> object:
    """Mappings and sets as JSON knows them."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def as_json(value: Any, **options: Any) -> str:
    """Compact JSON; inside it a text's escape needs its backslash escaped in turn. NUL is always an escape there."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, **options)
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)
