"""Runs work that needs TVM and no daemon in a process that has TVM."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farm.common.errors import FarmError
from farm.common.install import cache_home, pip_install
from farm.compiler.tvm_errors import no_tvm_error, tvm_crash_error

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning|Iteration)\b")  # a traceback's last line


def cache_folder() -> Path:
    """Where commands without a daemon keep compiled libraries."""
    folder = cache_home() / "farm" / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def with_tvm(
    do: str,
    doing: str,
    request: Mapping[str, Any],
    scratch: Path,
    *,
    module: str = "farm.worker.local",
    on_line: Callable[[str], None] | None = None,
    after_crash: str = "another target, precision or TVM version; the evidence is in --json",
) -> dict[str, Any]:
    """The result of one piece of work in a process that has TVM. An interrupt ends that process, too.

    Args:
        do: the name of the piece.
        doing: the work's name in an error: "compiling net.onnx".
        request: its input.
        scratch: a folder that it may fill.
        module: takes the paths of a request and of a reply, and does it.
        on_line: called with each line that it prints on stdout.
        after_crash: what to do when TVM crashed.

    Raises:
        FarmError: what it raised, or it failed unexpectedly.
        HostError: no interpreter with TVM is known.
        ModelError: a signal ended it.
    """
    asked, answer, log = (scratch / name for name in ("request.json", "reply.json", "log.txt"))
    asked.write_text(json.dumps({"do": do, "scratch": str(scratch), **request}))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python_with_tvm(), "-P", "-m", module, str(asked), str(answer)],
            stdout=subprocess.PIPE if on_line else output, stderr=output, text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        try:
            if on_line is not None and process.stdout is not None:
                for line in process.stdout:
                    on_line(line)
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
    reply = _reply(answer)
    if reply is None:
        raise _died(process.returncode, doing, log.read_text(errors="replace"), after_crash)
    if "error" in reply:
        from farm.common.errors import error_from_wire

        raise error_from_wire(reply["error"])
    result: dict[str, Any] = reply["result"]
    return result


def _reply(answer: Path) -> dict[str, Any] | None:
    """None: it is missing or incomplete."""
    try:
        reply = json.loads(answer.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return reply if isinstance(reply, dict) else None


def _died(code: int, doing: str, output: str, after_crash: str) -> FarmError:
    if code < 0:
        return tvm_crash_error(
            f"TVM crashed ({signal.Signals(-code).name}) while {doing}", hint=after_crash, evidence=output[-2000:]
        )
    lines = output.splitlines()
    raised = [line for line in lines if _RAISED.match(line)]
    last = (raised or [line for line in lines if line.strip()] or [f"exit code {code}"])[-1].strip()
    return FarmError(
        f"internal error of farm while {doing}: {last[:300]}",
        hint="please report it; the evidence is in --json",
        evidence=output[-2000:],
    )


def python_with_tvm() -> str:
    """This interpreter when it has TVM, else that of the default toolchain.

    Raises:
        HostError: neither has.
    """
    if importlib.util.find_spec("tvm") is not None:
        return sys.executable
    from farm.config import load

    configured = load(None).toolchain["default"].python
    if configured != sys.executable:
        return configured
    raise no_tvm_error("there is no TVM beside this farm", hint=pip_install("tvm", sys.executable))


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for one piece of work."""
    return tempfile.TemporaryDirectory(prefix="farm-")
