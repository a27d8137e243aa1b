"""Lines of a command that goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from farm.adb.shell import MAX_LINE_CHARACTERS, ShellStream


class Said(ShellStream):
    """A stream that has already come."""

    def __init__(self, *chunks: bytes) -> None:
        connection: Any = None
        super().__init__(connection, "S1", None)
        self._said = chunks

    async def _chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._said:
            yield chunk


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [((b"a\r\nb", b"c\nd"), ["a", "bc", "d"]), ((b"\xc3", b"\xa9\n"), ["é"]), ((), [])],
)
async def test_lines(chunks: tuple[bytes, ...], lines: list[str]) -> None:
    assert [line async for line in Said(*chunks).lines()] == lines


async def test_a_line_without_end_comes_in_pieces() -> None:
    chunk = b"x" * 65_536
    pieces = [line async for line in Said(*[chunk] * 64).lines()]
    assert sum(map(len, pieces)) == 64 * len(chunk)
    assert max(map(len, pieces)) <= MAX_LINE_CHARACTERS + len(chunk)
