"""Runs `farm.worker.local` in a process that has TVM, and reads what it says."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.core.errors import HostError, ModelError


class NoTvmError(HostError):
    """There is no TVM here."""

    code = "no_tvm"


class LocalCrashError(ModelError):
    """TVM crashed."""

    code = "tvm_crashed"


def cache_folder() -> Path:
    """Where commands without a daemon keep compiled libraries."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "farm" / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def with_tvm(do: str, doing: str, request: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """The result of one piece of `farm.worker.local`'s work.

    Args:
        do: which.
        doing: what it is called in an error: "compiling net.onnx".
        request: what it is told.
        scratch: a folder that it may fill.

    Raises:
        FarmError: what it raised.
        NoTvmError: no interpreter with TVM is known.
        LocalCrashError: it died.
    """
    asked, answer, noise = (scratch / name for name in ("request.json", "reply.json", "said.txt"))
    asked.write_text(json.dumps({"do": do, "scratch": str(scratch), **request}))
    with noise.open("wb") as said:
        done = subprocess.run(
            [python_with_tvm(), "-m", "farm.worker.local", str(asked), str(answer)],
            stdout=said, stderr=said, env={**os.environ, "PYTHONWARNINGS": "ignore"}, check=False,
        )  # fmt: skip
    if not answer.is_file():
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        raise LocalCrashError(
            f"TVM crashed ({how}) while {doing}",
            hint="another target, precision or TVM version; the evidence is in --json",
            evidence=noise.read_text(errors="replace")[-2000:],
        )
    reply = json.loads(answer.read_text())
    if "error" in reply:
        from farm.core.error_wire import error_from_wire

        raise error_from_wire(reply["error"])
    result: dict[str, Any] = reply["result"]
    return result


def python_with_tvm() -> str:
    """This interpreter when it has TVM, else that of the default toolchain.

    Raises:
        NoTvmError: neither has.
    """
    if importlib.util.find_spec("tvm") is not None:
        return sys.executable
    from farm.config import load

    configured = load(None).toolchain["default"].python
    if configured != sys.executable:
        return configured
    raise NoTvmError("there is no TVM beside this farm", hint=f"{sys.executable} -m pip install 'farm[tvm]'")


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for one piece of work."""
    return tempfile.TemporaryDirectory(prefix="farm-")
