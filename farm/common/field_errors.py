"""Errors about one value among many, in farm's words: pydantic's own speak of its insides.

Takes the list that `ValidationError.errors()` returns, so that importing this costs nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from farm.common.durations import BadTimeError, parse_duration
from farm.common.files import SHA256_FORM
from farm.common.limits import CORES_FORM

SHOWN_CHARS = 80
_EMPTY = "'', "
KEY_FORM = r"^[\x21-\x7e]*$"
FORMS = {
    SHA256_FORM: "must be a SHA-256, 64 hexadecimal digits",
    CORES_FORM: "must be big, little, or a mask with cores such as 0xf0",
    KEY_FORM: "must be printable ASCII without spaces",
}

# What pydantic appends to the path of a value that may be one of several types.
_UNION_ARM = re.compile(r"constrained-\w+|\w+\[.*\]|int|float|str|bool|none")

_WORDS: Mapping[str, str] = {
    "missing": "is missing",
    "unexpected_keyword_argument": "is not known here",
    "extra_forbidden": "is not known here",
    "bool": "must be true or false",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a number",
    "string": "must be a text",
    "path": "must be a path",
    "tuple": "must be a list",
    "list": "must be a list",
    "dict": "must be a table",
    "mapping": "must be a table",
    "dataclass": "must be a table",
}


def field_error(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Where the first mistake is ("user.bob.jobs"), what it is, and a hint ("" if there is none to give).

    A wrong value is named before a missing one: people see what they wrote.
    """
    first = next((each for each in errors if each["type"] != "missing"), errors[0])
    path = _path(first)
    alternatives = dict.fromkeys(_words(each) for each in errors if _path(each) == path)
    problem = " or ".join([*alternatives][:1] + [each.removeprefix("must be ") for each in [*alternatives][1:]])
    given = first["input"]
    if given != given:  # NaN is beyond every bound
        problem = _WORDS["float"]
    if first["type"] not in ("missing", "unexpected_keyword_argument", "extra_forbidden"):
        problem += f" (got {str(given)[:SHOWN_CHARS]!r})" if isinstance(given, str) else f" (got {_short(given)})"
    return ".".join(map(str, path)), problem, _nearest(first) or _hint(path, given)


def one_line(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first mistake in what another process sent: "leases.0.fence must be a whole number (got 'x')"."""
    where, problem, _ = field_error(errors)
    return f"{where} {problem}".strip()


def _path(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    path: tuple[str | int, ...] = tuple(error["loc"])
    return path[:-1] if len(path) > 1 and isinstance(path[-1], str) and _UNION_ARM.fullmatch(path[-1]) else path


def _words(error: Mapping[str, Any]) -> str:
    kind, facts = str(error["type"]), error.get("ctx", {})
    match kind:
        case "greater_than_equal":
            return f"must be {_number(facts['ge'])} or more"
        case "greater_than":
            return f"must be more than {_number(facts['gt'])}"
        case "less_than_equal":
            return f"must be {_number(facts['le'])} or less"
        case "less_than":
            return f"must be less than {_number(facts['lt'])}"
        case "string_too_short":
            return "must not be empty" if facts["min_length"] == 1 else f"needs {facts['min_length']} characters"
        case "string_too_long":
            return f"must have at most {facts['max_length']} characters"
        case "too_short" | "too_long":
            least = kind == "too_short"
            return f"must have at {'least' if least else 'most'} {facts['min_length' if least else 'max_length']} items"
        case "string_pattern_mismatch":
            return FORMS.get(facts["pattern"], "has characters that are not taken here")
        case "literal_error" | "enum":  # an empty text stands for "not given"
            return f"must be {str(facts['expected']).replace(_EMPTY, '')}"
    known = _WORDS.get(kind) or _WORDS.get(kind.partition("_")[0])
    return known or str(error["msg"])


def _nearest(error: Mapping[str, Any]) -> str:
    """People write `clok-held`."""
    expected, given = str(error.get("ctx", {}).get("expected", "")), error["input"]
    if error["type"] not in ("literal_error", "enum") or not isinstance(given, str):
        return ""
    near = difflib.get_close_matches(given, re.findall(r"'([^']+)'", expected), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _hint(path: tuple[str | int, ...], given: object) -> str:
    """People write `timeout_s = "10m"`."""
    name = str(path[-1]) if path else ""
    if not name.endswith("_s") or not isinstance(given, str):
        return ""
    try:
        return f"it is in seconds: {_number(parse_duration(given))}"
    except BadTimeError:
        return "it is in seconds, a number"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _short(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
