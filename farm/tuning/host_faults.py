"""Lacks of a host that keep candidates from being built or records from being stored: no candidate's fault."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from farm.common.errors import HostError
from farm.common.os_errors import free_in, hint_for, host_errno


class CannotBuildError(HostError):
    """This host cannot build candidates now."""

    code = "cannot_build"


@contextlib.contextmanager
def host_errors_reported(folder: Path) -> Iterator[None]:
    """Turn a host's lack of resources while `folder` is written into a HostError with a hint."""
    try:
        yield
    except (OSError, HostError) as error:
        number = host_errno(error)
        if not number or isinstance(error, CannotBuildError):
            raise
        message = f"cannot keep tuning records in {folder} ({free_in(folder)}): {os.strerror(number)}"
        raise HostError(message, hint=_hint(number)) from error


def cannot_build_error(number: int, folder: Path) -> CannotBuildError:
    """The error of a host on which errno `number` came up when a candidate was built in `folder`."""
    message = f"this host cannot build candidates in {folder} ({free_in(folder)}): {os.strerror(number)}"
    return CannotBuildError(message, hint=_hint(number))


def _hint(number: int) -> str:
    return f"{hint_for(number)}; what was measured is kept, and no candidate counts as failed"
