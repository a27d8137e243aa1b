"""`farm gate` in a process of its own, and a virtual farm behind it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.forked_processes import popen
from tests.support.tvm import ROOT, environment
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until


class Gate:
    """A gate that may be stopped, killed and started again."""

    def __init__(self, folder: Path, *, port: int = 0, wait_s: float = 120.0) -> None:
        self.socket = folder / "gate.sock"
        self.log = folder / "gate.log"
        self._port = port
        self._wait_s = wait_s
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log_text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def start(self) -> None:
        """Start it and wait until it listens."""
        before = self.log_text.count("are served on") if self.log.exists() else 0
        command = [sys.executable, "-m", "farm", "gate", "--die-with-parent", "--socket", str(self.socket)]
        command += ["--port", str(self._port), "--wait-s", str(self._wait_s)]
        with self.log.open("ab") as out:
            process = self.process = popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(), cwd=ROOT
            )
        until(lambda: self.log_text.count("are served on") > before or process.poll() is not None)
        assert process.poll() is None, self.log_text

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(HANG_S)

    def stop(self) -> int:
        """SIGTERM; returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(HANG_S)


@contextlib.contextmanager
def running_gate(folder: Path, *, port: int = 0, wait_s: float = 120.0) -> Iterator[Gate]:
    """A gate with its socket in `folder`, which must be short (unix sockets have 107 characters)."""
    gate = Gate(folder, port=port, wait_s=wait_s)
    gate.start()
    try:
        yield gate
    finally:
        if gate.process is not None and gate.process.poll() is None:
            gate.stop()
