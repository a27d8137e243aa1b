"""Reads one TOML file that somebody wrote: whatever it is, it is read in little time and memory, or refused."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 1_000_000  # a lab's file has some kB
MAX_DOTS = 64  # of one line, outside of texts and comments; tomllib's time grows with the square of a key's parts
_TEXTS = re.compile(r"""\"(?:\\.|[^"\\])*\"|'[^']*'|#.*""")


class NotReadableError(ValueError):
    """The message goes on where `cannot read FILE: ` ends."""


def read_toml(path: Path) -> dict[str, Any]:
    """The file's content.

    Raises:
        OSError: it cannot be opened or read.
        NotReadableError: it is no file, too large, no text, or no TOML.
    """
    try:
        text = _read(path).decode()
        if any(_TEXTS.sub("", line).count(".") > MAX_DOTS for line in text.splitlines()):
            raise NotReadableError(f"a line has more than {MAX_DOTS} dots")
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise NotReadableError("it is no text") from error
    except NotReadableError:
        raise
    except ValueError as error:  # of tomllib, and of numbers with thousands of digits
        raise NotReadableError(f"it is not valid TOML: {error}") from error
    except RecursionError as error:
        raise NotReadableError("it is not valid TOML: brackets in brackets in brackets") from error


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a fifo that nobody writes blocks for ever
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotReadableError("it is no regular file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise NotReadableError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    return data
