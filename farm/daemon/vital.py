"""What systemd is told of the daemon: its one line, and which parts must move beside the event loop.

The scheduler and the allocator move when no look at the clock that they asked for is long overdue. The adb watcher
moves when it has come round lately: each of its calls to an adb server is bounded and a call that timed out is a round
too, so a wedged adb server does not end the daemon. The store's thread moves when no commit takes longer than all its
timeouts together; a database that is in trouble ends nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from farm.core.device import DeviceView
from farm.daemon.memory import Memory
from farm.daemon.phones import Phones
from farm.daemon.sharing import Sharing
from farm.watchdog import Pulse

# The watcher's longest way round is a new adb key (30 s) and a start of the server (15 s); every call is bounded.
WATCHER_LIMIT_S = 90.0
STORE_LIMIT_S = 120.0  # connecting may take 10 s, a lock 5 s, a statement on the server 30 s
SCHEDULER_LIMIT_S = 30.0  # a look at the clock is taken in the moment it is due, or is lost


def pulses(memory: Memory, phones: Phones, sharing: Sharing) -> tuple[Pulse, ...]:
    """The parts that must move."""
    return (
        Pulse("the adb watcher", lambda: time.monotonic() - phones.watcher.moved_at, WATCHER_LIMIT_S),
        Pulse("the scheduler", sharing.dispatcher.behind_s, SCHEDULER_LIMIT_S),
        Pulse("the allocator", sharing.leasing.behind_s, SCHEDULER_LIMIT_S),
        Pulse("the store", memory.store.database.writer.silent_s, STORE_LIMIT_S),
    )


def status_line(views: Sequence[DeviceView], *, leased: int, sessions: int, waiting: int) -> str:
    """What `systemctl status farm` shows."""
    adopted = [view for view in views if view.adopted]
    lives = Counter(view.life for view in adopted)
    phones = ", ".join(f"{count} {life}" for life, count in sorted(lives.items())) or "none adopted"
    return f"phones: {phones}; {leased} leased, {sessions} sessions, {waiting} requests waiting"


def status_of(phones: Phones, sharing: Sharing) -> str:
    """The same, as things are now."""
    return status_line(
        phones.fleet.views(),
        leased=len(sharing.leasing.holders()),
        sessions=sharing.door.sessions,
        waiting=sharing.leasing.waiting_count,
    )
