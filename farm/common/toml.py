"""Reads the TOML files of users in bounded time. Every fault of the text is a ValueError."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_DOTS = 64  # of one line, outside of texts and comments; tomllib's time grows with the square of a key's parts
_TEXTS = re.compile(r"""\"(?:\\.|[^"\\])*\"|'[^']*'|#.*""")


def parse_toml(data: bytes) -> dict[str, Any]:
    """The table of a TOML file.

    Raises:
        tomllib.TOMLDecodeError: it is no TOML; the message names the place.
        ValueError: it is no text, or too much of something.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is no text") from error
    if any(_TEXTS.sub("", line).count(".") > MAX_DOTS for line in text.splitlines()):
        raise ValueError(f"a line has more than {MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise ValueError(f"it is not valid TOML: {error}") from error
    except RecursionError as error:
        raise ValueError("it is not valid TOML: brackets in brackets in brackets") from error
