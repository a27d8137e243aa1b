"""`farm serve` or `farm head` as a process of its own; for the demo and tests."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

STOP_TIMEOUT_S = 20.0  # a daemon ends sessions, workers and its adb server


class FarmProcess:
    """A `farm` command that serves. It ends with the thread that starts it; it may be killed and started again."""

    wrapper: tuple[str, ...] = ()  # a command ahead of it, such as env or setpriv

    def __init__(self, log: Path, *words: str) -> None:
        """`words`: the command's name and options."""
        self.log = log
        self.process: Popen[bytes] | None = None
        self._words = words

    def launch(self) -> Popen[bytes]:
        """Start it; its messages go to the end of its log."""
        command = [*self.wrapper, sys.executable, "-P", "-m", "farm", *self._words, "--die-with-parent"]
        with self.log.open("ab") as out:
            self.process = Popen(command, stdout=out, stderr=out, stdin=DEVNULL)
        return self.process

    @property
    def runs(self) -> bool:
        """Whether it has been started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, as by a power cut or the OOM killer."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def wait(self) -> str:
        """Wait for its end; returns its exit code or signal in words."""
        code = 0 if self.process is None else self.process.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if it has not ended in time."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except TimeoutExpired:
            self.kill()

    def log_end(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])
