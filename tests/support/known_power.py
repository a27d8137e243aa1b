"""A power meter of a virtual phone: `python known_power.py PID` prints `seconds,watts` lines.

The phone draws 1 W, and 2 W more for each processor that its TVM server keeps busy; PID is its init on this host.
"""

import sys
import time
from pathlib import Path

IDLE_W, BUSY_W = 1.0, 2.0
PERIOD_S = 0.02
SETTLED_S = 2.0  # a process is another program for a moment, until it executes its own


class Servers:
    """The processes of the server, found once each: to look at all of /proc takes longer than a period."""

    def __init__(self, phone):
        self._phone = phone
        self._seen = {}  # process -> when it was first looked at
        self._own = set()

    def busy_s(self):
        """Seconds of processors that they have had so far."""
        now_s = time.time()
        for folder in Path("/proc").iterdir():
            name = folder.name
            if not name.isdigit() or now_s - self._seen.setdefault(name, now_s) > SETTLED_S:
                continue
            if self._is_own(folder):
                self._own.add(name)
        return sum(map(_busy_s, self._own))

    def _is_own(self, folder):
        try:
            return b"tvm_rpc" in (folder / "cmdline").read_bytes() and self._is_phones(folder)
        except OSError:  # it ended meanwhile
            return False

    def _is_phones(self, folder):
        """Whether one of its ancestors is the phone's init."""
        parent = _parent(folder)
        while parent > 1 and parent != self._phone:
            parent = _parent(Path(f"/proc/{parent}"))
        return parent == self._phone


def _parent(folder):
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _busy_s(process):
    try:
        return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{process}/task").glob("*/schedstat")) / 1e9
    except OSError:
        return 0.0


def main():
    """Print until killed."""
    servers = Servers(int(sys.argv[1]))
    then_s, then_busy_s = time.time(), servers.busy_s()
    while True:
        time.sleep(PERIOD_S)
        now_s, now_busy_s = time.time(), servers.busy_s()
        watts = IDLE_W + BUSY_W * max(now_busy_s - then_busy_s, 0.0) / (now_s - then_s)
        print(f"{now_s:.6f},{watts:.6f}", flush=True)
        then_s, then_busy_s = now_s, now_busy_s


if __name__ == "__main__":
    main()
