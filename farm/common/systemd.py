"""Messages to systemd (readiness, status, keep-alives while all of the process makes progress), lines for its journal.

sd_notify without libsystemd: one datagram per message to the socket that `$NOTIFY_SOCKET` names.

Protocol: man 3 sd_notify, "Variable assignments". Every message is best effort: a manager that does not listen is no
reason not to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass

from farm.common.phone_text import PlainFormatter

EXTEND_EVERY_S = 5.0
EXTEND_BY_S = 30.0  # several times the rhythm: a busy disk may delay a message
EXTEND_LIMIT_S = 3600.0  # a migration of a database of many GB takes minutes; one that hangs must not last forever
# Of the journal, by the least level of logging that has it: sd-daemon(3).
PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}
DEBUG_PRIORITY = 7
MAX_USEC_DIGITS = 18  # 30,000 years
MAX_STATUS_CHARACTERS = 200  # of the one line that `systemctl status` shows


class Notifier:
    """The way to the service manager; does nothing when none listens."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        """`address`: a path, or `@NAME` for an abstract socket; "" for none. `watchdog_s`: see `watchdog_s`."""
        self._status = ""
        self._socket: socket.socket | None = None
        self.watchdog_s = watchdog_s if address else None
        """Seconds without a keep-alive after which the manager ends this process; None when it does not watch."""
        if not address.startswith(("/", "@")):
            return
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)  # a manager that does not read must not stop us

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Notifier:
        """As the manager asked for it; its variables are taken out, so that no child speaks for this process."""
        address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = pid in ("", str(os.getpid()))
        watched = ours and usec.isdecimal() and len(usec) <= MAX_USEC_DIGITS and int(usec) > 0
        return cls(address, int(usec) / 1e6 if watched else None)

    @property
    def listens(self) -> bool:
        """Whether there is a manager to speak to."""
        return self._socket is not None

    def ready(self, status: str) -> None:
        """The process serves, for the first time or after `reloading`."""
        self._status = status
        self._send("READY=1", _status_line(status))

    def reloading(self) -> None:
        """The configuration is being read; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The process ends on purpose."""
        self._send("STOPPING=1", _status_line("stopping"))

    def keep_alive(self) -> None:
        """The process makes progress."""
        self._send("WATCHDOG=1")

    def status(self, status: str) -> None:
        """One line for `systemctl status`; sent only when it changes."""
        if status != self._status:
            self._status = status
            self._send(_status_line(status))

    @contextlib.contextmanager
    def extending(self, *, every_s: float = EXTEND_EVERY_S, by_s: float = EXTEND_BY_S) -> Iterator[None]:
        """Ask for more time to start while the block keeps the event loop busy (a migration), for an hour at most."""
        done = threading.Event()
        until = time.monotonic() + EXTEND_LIMIT_S

        def ask() -> None:
            while time.monotonic() < until:
                self._send(f"EXTEND_TIMEOUT_USEC={by_s * 1e6:.0f}")
                if done.wait(every_s):
                    return

        thread = threading.Thread(target=ask, name="notify", daemon=True)
        if self.listens:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if self.listens:
                thread.join()

    def close(self) -> None:
        """Send nothing any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)


def _status_line(status: str) -> str:
    """The status as one assignment: a line feed would begin another."""
    return f"STATUS={' '.join(status.split())[:MAX_STATUS_CHARACTERS]}"


KEEP_ALIVES = 3  # per watchdog time: two may be late or lost
CHECK_EVERY_S = 5.0  # at least: the status line is as old as this

log = logging.getLogger("farm")


@dataclass(frozen=True, slots=True)
class ProgressCheck:
    """A component that must make progress."""

    component: str
    silent_s: Callable[[], float]  # time since it reported
    limit_s: float  # the longest silence of a component that works


class Watchdog:
    """Feeds the manager's watchdog and keeps its status line."""

    def __init__(self, notifier: Notifier, checks: Sequence[ProgressCheck], status: Callable[[], str]) -> None:
        self._notifier = notifier
        self._checks = checks
        self._status = status
        self._reported: tuple[str, ...] = ()
        watchdog_s = notifier.watchdog_s
        self.every_s = CHECK_EVERY_S if watchdog_s is None else min(CHECK_EVERY_S, watchdog_s / KEEP_ALIVES)

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(self.every_s)

    def check(self) -> bool:
        """Check once, and send a keep-alive if every component makes progress; returns whether all do."""
        stuck = tuple(
            f"{each.component} has not moved for {silent_s:.0f} s (at most {each.limit_s:g} s)"
            for each in self._checks
            if (silent_s := each.silent_s()) > each.limit_s
        )
        if stuck != self._reported:
            self._reported = stuck
            for line in stuck:
                log.error("%s: no keep-alive for systemd until it does", line)
        if stuck:
            self._notifier.status(f"stuck: {'; '.join(stuck)}")
            return False
        self._notifier.status(self._status())
        if self._notifier.watchdog_s is not None:
            self._notifier.keep_alive()
        return True


class JournalFormatter(PlainFormatter):
    """Lines for systemd's journal, which has the time: each begins with its priority (sd-daemon(3))."""

    def format(self, record: logging.LogRecord) -> str:
        """As `PlainFormatter`, with `<N>` before each line."""
        level = next((number for least, number in PRIORITIES.items() if record.levelno >= least), DEBUG_PRIORITY)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).split("\n"))


def journal_reads() -> bool:
    """Whether standard error is the journal's. A child may have inherited the variable without that stream."""
    try:
        there = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{there.st_dev}:{there.st_ino}"


def error_mark() -> str:
    """The priority before each line of an error, for the journal only."""
    return f"<{PRIORITIES[logging.ERROR]}>" if journal_reads() else ""
