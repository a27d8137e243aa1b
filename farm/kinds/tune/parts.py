"""The worker's side of keeping a search's records at another host, too: a lost host costs half a minute of trials.

A thread of its own sends the lines that were appended to the folder since the last part (`farm.compiler.record_parts`):
the search itself may compute for half a minute. The next attempt, at any host, begins with all parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from farm.common.durations import many
from farm.common.errors import FarmError
from farm.compiler.record_files import RecordFolder
from farm.compiler.record_parts import FolderParts, read_parts
from farm.tuning.phone_speed import SCALE_FILE
from farm.worker.channel import DaemonChannel

FIRST_S = 2.0  # from the search's begin to the first part
KEEP_EVERY_S = 15.0  # the second copy of a part takes seconds: at most 30 s of trials are lost with a host
MAX_COST = 20.0  # the pause after a part is at least so many times its duration: a slow disk is not kept busy
MAX_PARTS = 200  # then all records become one part again: the attempt's row names each part


class PartKeeper:
    """Keeps a folder's parts from `begin` to `end`. Only the search's thread calls these two."""

    def __init__(self, folder: Path, daemon: DaemonChannel) -> None:
        self._folder = folder
        self._daemon = daemon
        self._parts = FolderParts(folder, (SCALE_FILE,))
        self._count = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin: from now on the search only appends to the folder. Harmless when repeated."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tuning: parts", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Keep the last part: the search is over."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            with suppress(FarmError):  # the daemon is gone
                self.keep()

    def keep(self) -> None:
        """Keep the records since the last part; after a failure the next part has them too."""
        try:
            if self._count == MAX_PARTS:
                self._parts, self._count = FolderParts(self._folder, (SCALE_FILE,)), 0
            if part := self._parts.next():
                artifact = self._daemon.put_artifact(part)
                self._daemon.call("records.part", artifact=artifact, first=self._count == 0)
                self._parts.taken()
                self._count += 1
        except (FarmError, OSError) as error:
            self._daemon.log(f"the records so far are on this host only: {error}", "warning")

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._over.wait(wait_s):
            began_s = time.monotonic()
            try:
                self.keep()
            except FarmError:  # the daemon is gone: this worker ends
                return
            wait_s = max(KEEP_EVERY_S, MAX_COST * (time.monotonic() - began_s))


@contextmanager
def kept_in_parts(wanted: bool, folder: Path, daemon: DaemonChannel) -> Iterator[Callable[[], None]]:
    """While a search runs there; the search calls the yielded function often."""
    if not wanted:
        yield lambda: None
        return
    keeper = PartKeeper(folder, daemon)
    try:
        yield keeper.begin
    finally:
        keeper.end()


def take_up(parts: Sequence[str], folder: Path, daemon: DaemonChannel) -> None:
    """Merge the parts that an attempt at another host kept into the folder."""
    if not parts:
        return
    try:
        found, others = read_parts(daemon.artifact(each) for each in parts)
    except FarmError as error:
        daemon.log(f"the trials of an earlier attempt on another host cannot be read: {error.message}", "warning")
        return
    for line in found.problems("the records of an earlier attempt"):
        daemon.log(line, "warning")
    with RecordFolder(folder) as there:
        if more := there.add(found.set):
            daemon.log(f"took up {many(more, 'trial')} that an earlier attempt measured on another host")
    if (scale := others.get(SCALE_FILE)) is not None and not (folder / SCALE_FILE).exists():
        (folder / SCALE_FILE).write_bytes(scale)
