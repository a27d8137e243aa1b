"""A large lab's devices and queued jobs, for benchmarks of its head."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from farm.head import wire
from farm.head.messages import DeviceChanged
from farm.model.device import DeviceState, Life
from farm.model.job import Job
from farm.store.mailbox import Letter
from farm.store.server_opening import StoreRole
from farm.store.store import Store

AT_ONCE = 1_000  # jobs of one submit
USERS = 50


def device(number: int) -> DeviceState:
    """A ready phone; several share each of its keys and labels."""
    name = f"device-{number:04}"
    aliases = ("android", f"gpu-{number % 12}", f"soc-{number % 40}", name)
    labels = {"batch": f"{number % 20}"}
    return DeviceState(name, name, Life.READY, adopted=True, aliases=aliases, labels=labels)


def selector(chance: random.Random, devices: int) -> str:
    """The selector of a job: any phone, those of a kind, or one."""
    number = chance.randrange(devices)
    return chance.choice(
        ["android", f"gpu-{number % 12}", f"soc-{number % 40}", f"batch={number % 20}", f"device-{number:04}"]
    )


def jobs(count: int, devices: int, chance: random.Random) -> Iterator[Job]:
    """So many queued ones of `USERS` users."""
    for number in range(count):
        on = selector(chance, devices)
        spec = {"kind": "shell", "on": on, "command": "id", "timeout_s": 600.0}
        yield Job(f"job-{number:06}", "shell", f"user-{number % USERS}", spec, on, datetime.now(UTC))


async def fill(url: str, queued: Sequence[Job], host: str = "", devices: Sequence[DeviceState] = ()) -> None:
    """Write jobs, and the devices of a host, into the database of a lab without a head."""
    store = Store.open(url, host or "one", role=StoreRole.HOST)
    try:
        for first in range(0, len(queued), AT_ONCE):
            await store.jobs.add(queued[first : first + AT_ONCE])
        for state in devices:
            letter = Letter(host, wire.encode(DeviceChanged(state), time.monotonic()))
            await store.mailbox.device_changed(state.name, letter)
    finally:
        store.close()
