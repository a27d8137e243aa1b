"""`farm` commands with the standard streams of a test's choice: closed, full, without a reader, a terminal.

`run_farm` is for tests that want a command's answer, and may be called by several threads at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import forked_processes
from tests.support.terminal import Terminal
from tests.support.waiting import HANG_S

CLOSED, FULL, LEFT, KEPT = "closed", "full", "left", "kept"  # what a stream is
_NAMES = ("stdin", "stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Streams:
    """What a command writes to; stdin is closed with `stdin`."""

    stdout: str = KEPT
    stderr: str = KEPT
    stdin: str = KEPT
    columns: int = 0  # of a terminal in place of all three; 0: none


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a command."""

    code: int
    out: str  # of a terminal: all of it
    err: str


class ForkedCommands:
    """Runs commands one after the other."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`folder` is where commands run; `environ` is added to their environment."""
        self._environ = {**os.environ, "LANG": "C.UTF-8", **environ}
        for name in ("COLUMNS", "NO_COLOR", "ANDROID_SERIAL"):
            self._environ.pop(name, None)
        self._folder = folder

    def run(self, words: Sequence[str], streams: Streams, **environ: str) -> Ended:
        """Run `farm` with `words`; one that does not end is killed."""
        command = [sys.executable, "-m", "farm", *words]
        env = {**self._environ, **environ}
        if streams.columns:
            with Terminal(command, size=(24, streams.columns), environ=env, folder=self._folder) as terminal:
                return Ended(terminal.ends(), terminal.raw, "")
        kinds = [getattr(streams, name) for name in _NAMES]
        closed = [number for number, kind in enumerate(kinds) if kind == CLOSED]
        with ExitStack() as stack:
            ends = {name: _end(stack, name, kind) for name, kind in zip(_NAMES, kinds, strict=True)}
            done = forked_processes.run(
                command, timeout_s=HANG_S, closed=closed, env=env, cwd=self._folder, errors="replace", **ends
            )
        return Ended(done.returncode, done.stdout or "", done.stderr or "")


def _end(stack: ExitStack, name: str, kind: str) -> Any:
    """The stream as `subprocess` takes it."""
    match kind:
        case "full":
            return stack.enter_context(Path("/dev/full").open("wb"))
        case "left":
            reader, writer = os.pipe()
            os.close(reader)
            return stack.enter_context(os.fdopen(writer, "wb"))
        case "kept" if name != "stdin":
            return subprocess.PIPE
    return subprocess.DEVNULL


def run_farm(
    *words: str | os.PathLike[str], environ: Mapping[str, str], folder: Path | None = None, timeout_s: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """`farm` with `words` in this environment, as `subprocess.run` of a new interpreter would return it."""
    return forked_processes.run(
        [sys.executable, "-m", "farm", *words],
        timeout_s=timeout_s, env=environ, cwd=folder, stdin=subprocess.DEVNULL, errors="replace",
    )  # fmt: skip
