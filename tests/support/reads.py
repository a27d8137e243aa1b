"""What stands in for a table reads where it is asked to, as SQLite does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ReadsHere:
    """A table's `read` and `in_thread`."""

    async def read(self, read: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
        """Call it."""
        return read(*arguments, **fields)

    in_thread = read
