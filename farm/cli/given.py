"""What commands are given, looked at before the work begins: where to run, which file to write, is it a package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.core.errors import UserError
from farm.core.limits import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY
from farm.core.selector import HOST


def is_package(path: Path) -> bool:
    """Whether a file is a package (.farm.tar), by its beginning."""
    from farm.compiler.package import is_package

    return is_package(path)


def phones_only(on: str, command: str) -> None:
    """Refuse this machine in place of phones.

    Raises:
        UserError: it is asked for.
    """
    if on == HOST:
        raise UserError(
            f"farm {command} runs on phones, not on this host",
            hint="`farm run` and `farm tune` take --on host; `farm demo --stay` starts virtual phones",
        )


QUEUEING = {
    "devices": (1, "all"), "priority": (DEFAULT_PRIORITY,), "deadline_s": (None,), "after": ((),), "hold": (False,),
    "max_attempts": (DEFAULT_MAX_ATTEMPTS,), "detach": (False,), "timeout_s": (None,),
}  # fmt: skip
_OPTIONS = {"deadline_s": "deadline", "max_attempts": "max-attempts", "timeout_s": "timeout"}


def nothing_is_queued(options: Mapping[str, Any]) -> None:
    """Refuse options of jobs where the work is done here: whatever is not at its default.

    Raises:
        UserError: some are given.
    """
    moved = [name for name, value in options.items() if value not in QUEUEING.get(name, (value,))]
    named = ", ".join(f"--{_OPTIONS.get(name, name)}" for name in moved)
    if named:
        raise UserError(f"{named}: on this host nothing is queued, and there is one of it", hint=f"leave out {named}")


def writable(path: Path | None) -> None:
    """Refuse a file that could not be written at the end of the work.

    Raises:
        UserError: it could not.
    """
    from farm.client.files import check_writable

    if path is not None:
        check_writable(path)
