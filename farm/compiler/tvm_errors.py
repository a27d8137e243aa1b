"""TVM's failures: short messages and evidence from its exceptions, and crashes, which a child process keeps apart."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from farm.common.errors import Code, FarmError, HostError, ModelError, error_from_wire, error_to_wire

EVIDENCE_CHARS = 2000
_FROM_PHONE = "Error caught from RPC call:"


no_tvm_error = partial(HostError, code=Code.NO_TVM)


tvm_crash_error = partial(ModelError, code=Code.TVM_CRASHED)


def first_line(error: BaseException) -> str:
    """The most useful line of an error: TVM puts C++ frames before and after its message.

    An error of a phone follows a line that has only `RPCError: Error caught from RPC call:`.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].endswith(_FROM_PHONE):
        del lines[0]
    return lines[0][:500] if lines else type(error).__name__


def end_of(error: BaseException) -> str:
    """The end of an error's text, as evidence: TVM's messages may have thousands of lines."""
    return str(error)[-EVIDENCE_CHARS:]


def frames(error: BaseException) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name and the local variables of each function that an error went through, the innermost last.

    For front ends whose errors do not name the operator.
    """
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_name, trace.tb_frame.f_locals
        trace = trace.tb_next


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit at once if it already has."""
    libc = ctypes.CDLL(None)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(1)


def run_in_child(work: Callable[[], None], doing: str, hint: str) -> None:
    """Call `work` in a child process and wait for it. Its results must be files. `hint`: for a crash.

    Raises:
        FarmError: what `work` raised.
        ModelError: the child died; the message says of which signal, while `doing` what.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os._exit(_in_child(work, write_end))
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        error = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise tvm_crash_error(f"TVM crashed ({name}) while {doing}", hint=hint)
    if error:
        raise error_from_wire(json.loads(error))
    if status:
        raise tvm_crash_error(f"the process that was {doing} ended with code {os.waitstatus_to_exitcode(status)}")


def _in_child(work: Callable[[], None], pipe: int) -> int:
    try:
        work()
    except FarmError as error:
        os.write(pipe, json.dumps(error_to_wire(error)).encode())
        return 1
    except BaseException as error:  # noqa: BLE001 - nothing may return into the parent's code
        os.write(pipe, json.dumps(error_to_wire(tvm_crash_error(f"{type(error).__name__}: {error}"))).encode())
        return 1
    return 0
