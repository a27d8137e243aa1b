"""`farm serve` or `farm head` as a process of its own; for the demo and tests."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

from farm.common.errors import HostError

STOP_TIMEOUT_S = 20.0  # a daemon ends sessions, workers and its adb server


class FarmProcess:
    """A `farm` command that serves. It ends with the thread that starts it; it may be killed and started again."""

    wrapper: tuple[str, ...] = ()  # a command ahead of it, such as env or setpriv

    def __init__(self, log: Path, *words: str) -> None:
        """`words`: the command's name and options."""
        self.log = log
        self.process: Popen[bytes] | None = None
        self._words = words
        self._began = 0  # where the latest start's messages begin in the log

    def launch(self) -> Popen[bytes]:
        """Start it; its messages go to the end of its log."""
        command = [*self.wrapper, sys.executable, "-P", "-m", "farm", *self._words, "--die-with-parent"]
        with self.log.open("ab") as out:
            self._began = out.tell()
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

    def start_error(self, what: str, limit_s: float) -> HostError:
        """Why it does not answer so long after `launch`: its own words, if it has ended."""
        said = self.log.read_bytes()[self._began :].decode("utf-8", "replace").splitlines()
        last = "".join(said[-1:])
        if self.runs:
            busy = "this host may be busy: end other work, then start it again"
            return HostError(f"{what} did not answer within {limit_s:g} s", hint=busy, evidence=last)
        words = {kind: text for kind, mark, text in (line.strip().partition(": ") for line in said) if mark}
        if "error" not in words:
            return HostError(f"{what} ended while it was starting ({self.wait()})", evidence=last)
        said_so, hint = words.get("evidence", ""), words.get("hint", "")
        return HostError(f"{what} did not start: {words['error']}", evidence=said_so, hint=hint)

    def log_end(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])
