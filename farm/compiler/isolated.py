"""Forked processes: work in one of its own, so that a crash of TVM, or damage to its objects, stays there."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable

from farm.compiler.tvm_errors import TvmCrashedError
from farm.core.error_wire import error_from_wire, error_to_wire
from farm.core.errors import FarmError

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit at once if it already has."""
    libc = ctypes.CDLL(None)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(1)


def isolated(work: Callable[[], None], doing: str) -> None:
    """Call `work` in a child process and wait for it. What it leaves behind must be files.

    Raises:
        FarmError: what `work` raised.
        TvmCrashedError: the child died; the message says of which signal, while `doing` what.
    """
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        os._exit(_in_child(work, said))
    os.close(said)
    with os.fdopen(heard, "rb") as pipe:
        words = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise TvmCrashedError(f"TVM crashed ({name}) while {doing}", hint="another target, precision or TVM version")
    if words:
        raise error_from_wire(json.loads(words))
    if status:
        raise TvmCrashedError(f"the process that was {doing} ended with code {os.waitstatus_to_exitcode(status)}")


def _in_child(work: Callable[[], None], pipe: int) -> int:
    try:
        work()
    except FarmError as error:
        os.write(pipe, json.dumps(error_to_wire(error)).encode())
        return 1
    except BaseException as error:  # noqa: BLE001 - nothing may return into the parent's code
        os.write(pipe, json.dumps(error_to_wire(TvmCrashedError(f"{type(error).__name__}: {error}"))).encode())
        return 1
    return 0
