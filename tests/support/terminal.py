"""A command at a pseudo-terminal: what it has written, its size, its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.forked_processes import popen
from tests.support.waiting import HANG_S

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78]")


class Terminal:
    """A process whose stdin, stdout and stderr are one pseudo-terminal."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (24, 80),
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`size`: rows and columns. `folder`: where it runs; None: as this process."""
        self._master, slave = os.openpty()
        self.resize(*size, tell=False)
        env = {**os.environ, "TERM": "xterm-256color", **(environ or {})}
        env.pop("COLUMNS", None)
        self.process = popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=folder, start_new_session=True
        )
        os.close(slave)
        self._written = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def resize(self, rows: int, columns: int, *, tell: bool = True) -> None:
        """Another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def hang_up(self) -> None:
        """Close the terminal."""
        with contextlib.suppress(OSError):
            os.close(self._master)

    def read(self, until: Callable[[str], object]) -> str:
        """What was written since the last call, without escapes, once `until` holds of it."""
        deadline = time.monotonic() + HANG_S
        while not until(seen := _ESCAPES.sub("", self._written)):
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen within {HANG_S:g} s: {seen[-3000:]!r}")
            if not select.select([self._master], [], [], 0.1)[0]:
                continue
            try:
                self._written += os.read(self._master, 65536).decode(errors="replace")
            except OSError as error:  # the other side has ended
                seen = _ESCAPES.sub("", self._written)
                if until(seen):
                    break
                raise AssertionError(f"it ended without it: {seen[-3000:]!r}") from error
        self._written = ""
        return seen

    def shows(self, text: str) -> str:
        """Return when `text` was written; what was, up to then."""
        return self.read(lambda seen: text in seen)

    def ends(self) -> int:
        """Its exit code, once it has ended; what it still writes is read meanwhile."""
        deadline = time.monotonic() + HANG_S
        while (code := self.process.poll()) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"it has not ended: {self._written[-3000:]!r}")
            with contextlib.suppress(OSError):
                if select.select([self._master], [], [], 0.05)[0]:
                    self._written += os.read(self._master, 65536).decode(errors="replace")
        with contextlib.suppress(OSError):
            while select.select([self._master], [], [], 0.05)[0]:
                self._written += os.read(self._master, 65536).decode(errors="replace")
        return code

    @property
    def raw(self) -> str:
        """What was written since the last `read`, with its escapes."""
        return self._written
