"""Errors that are told apart by their code."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from farm.common.errors import Code, FarmError


@contextmanager
def raises_code(code: Code, match: str | None = None) -> Iterator[pytest.ExceptionInfo[FarmError]]:
    """The block raises a farm error with that code, and a message that matches."""
    with pytest.raises(FarmError, match=match) as caught:
        yield caught
    assert caught.value.code == code
