"""Some hosts of a lab in a process of their own: each arms its leases and runs jobs that only take time.

`python -m benchmarks.lab_hosts URL FIRST HOSTS PHONES JOB_S`: `HOSTS` hosts, the first of number `FIRST`, of `PHONES`
phones each, whose jobs last `JOB_S` seconds on average, until standard input ends. They share connections to the
database, as 50 processes would not fit on one machine. Then it prints one line of JSON:
`{"ended": [[seconds, gap], ...]}`, for each end of a lease that was followed by another: when (monotonic), and how
long after the commit of the end the next lease of that phone was armed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence

from benchmarks import lab_load
from farm.head import messages as m
from farm.head import wire
from farm.model.job import Attempt, Job
from farm.model.requests import Lease
from farm.store.server_opening import StoreRole
from farm.store.store import Store
from tests.support.lab_host import LabHost


class TimedHost(LabHost):
    """A host whose jobs last, and that notes how soon each phone is leased again."""

    def __init__(self, store: Store, number: int, phones: int, job_s: float) -> None:
        states = [lab_load.device(number * phones + each) for each in range(phones)]
        super().__init__("", f"host-{number:02}", *(each.name for each in states), store=store)
        self.states = {each.name: each for each in states}
        self.busy = True
        self.gaps: list[tuple[float, float]] = []
        self._job_s = job_s
        self._chance = random.Random(number)
        self._ended_s: dict[str, float] = {}  # by device, until it is leased again

    async def report_all(self) -> None:
        """Tell the head of every phone, at once."""
        told = [
            self.store.mailbox.device_changed(name, self.letter(m.DeviceChanged(state)))
            for name, state in self.states.items()
        ]
        await asyncio.gather(*told)

    async def _read(self, within_s: float) -> None:
        """Act upon all letters at once: those about one lease come one after the other."""
        letters = await self.store.mailbox.take(self.name, within_s)
        await asyncio.gather(*(self._receive(wire.to_host(each.body, time.monotonic())) for each in letters))

    async def give_back(self, lease: Lease) -> None:
        await super().give_back(lease)
        self._ended_s[lease.device] = time.monotonic()

    def run(self, job: Job, attempt: Attempt, lease: Lease) -> None:
        super().run(job, attempt, lease)
        if (ended_s := self._ended_s.pop(lease.device, None)) is not None:
            self.gaps.append((ended_s, time.monotonic() - ended_s))
        asyncio.get_running_loop().call_later(self._job_s * self._chance.uniform(0.75, 1.25), self._over[job.id].set)


async def serve(url: str, first: int, hosts: int, phones: int, job_s: float) -> None:
    """Run the hosts until standard input ends."""
    store = Store.open(url, f"hosts-{first}", role=StoreRole.HOST)
    every = [TimedHost(store, number, phones, job_s) for number in range(first, first + hosts)]
    for host in every:
        names, host.devices = host.devices, ()
        await host.begin()
        host.devices = names
        await host.report_all()
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"ended": [gap for host in every for gap in host.gaps]}), flush=True)


def main(arguments: Sequence[str]) -> None:
    """Read the arguments."""
    url, first, hosts, phones, job_s = arguments
    asyncio.run(serve(url, int(first), int(hosts), int(phones), float(job_s)))


if __name__ == "__main__":
    main(sys.argv[1:])
