"""What TVM's exceptions say, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from farm.core.errors import HostError, ModelError

EVIDENCE_CHARS = 2000
_FROM_PHONE = "Error caught from RPC call:"


class NoTvmError(HostError):
    """There is no TVM here."""

    code = "no_tvm"


class TvmCrashedError(ModelError):
    """TVM crashed."""

    code = "tvm_crashed"


def first_line(error: BaseException) -> str:
    """The line of an error that says most: TVM puts C++ frames before and after its message.

    What failed on a phone follows a line that says only that: `RPCError: Error caught from RPC call:`.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].endswith(_FROM_PHONE):
        del lines[0]
    return lines[0][:500] if lines else type(error).__name__


def end_of(error: BaseException) -> str:
    """The end of what an error says, as evidence: TVM's messages may have thousands of lines."""
    return str(error)[-EVIDENCE_CHARS:]


def frames(error: BaseException) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name and the local variables of each function that an error went through, the innermost last.

    For front ends that do not say at which operator they failed.
    """
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_name, trace.tb_frame.f_locals
        trace = trace.tb_next
