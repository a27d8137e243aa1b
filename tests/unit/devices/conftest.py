"""A store in a folder, its disk, and fleets without phones."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from farm.adb.client import AdbClient
from farm.adb.watch_policy import network_address
from farm.bundle.rollout_rules import RolloutConfig
from farm.common.events import EventLog
from farm.devices.fleet import Fleet, FleetConfig
from farm.devices.rollouts import Rollouts
from tests.support.fake_phone import for_ever
from tests.support.full_disk import FullDisk


@pytest.fixture
def disk(store):
    return FullDisk(store)


class NoPhones:
    """An adb server that lists no phone; a test may list some, and say whether any of them `answers`."""

    server_lost = False
    failure = ""
    devices, answers = (), True

    run = for_ever

    async def did_its_part(self, since_s):
        return True

    async def reaches_any(self, phones):
        return self.answers

    async def snapshots(self):
        yield self.devices
        await for_ever()

    def __init__(self):
        self.network = set()

    def add_network(self, address):
        self.network.add(serial := network_address(address))
        return serial

    def remove_network(self, address):
        self.network.remove(address)


@pytest.fixture
def quiet_fleet(store):
    """`async with quiet_fleet(*records)`: a fleet that runs and remembers these devices; adb lists none.

    `bundles`: the library, which may change.
    """

    @asynccontextmanager
    async def made(*records, events=None, config=None, client=None, bundles=()):
        for record in records:
            await store.devices.save(record)
        rollouts = Rollouts(
            lambda *_: next(iter(bundles), None), lambda: tuple(bundles), store.rollouts, EventLog(), RolloutConfig()
        )
        fleet = Fleet(
            client or AdbClient("tcp:5038"), NoPhones(), rollouts, None, store.devices, events or EventLog(),
            config or FleetConfig(), recoveries=store.recoveries, batteries=store.batteries,
        )  # fmt: skip
        loaded = asyncio.Event()
        fleet.subscribe(lambda _: loaded.set())  # run() loads every record in one go
        running = asyncio.create_task(fleet.run())
        await loaded.wait()
        try:
            yield fleet
        finally:
            await asyncio.sleep(0)  # what was begun is begun
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return made
