"""What TVM's exceptions say, for people."""

from __future__ import annotations

from farm.core.errors import ModelError


class TvmCrashedError(ModelError):
    """TVM crashed."""

    code = "tvm_crashed"


def first_line(error: BaseException) -> str:
    """The line of an error that says most: TVM puts C++ frames before and after its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
