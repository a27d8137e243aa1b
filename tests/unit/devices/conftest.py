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
from farm.store.store import Store
from tests.support.fake_phone import for_ever
from tests.support.full_disk import FullDisk


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    yield store
    store.close()


@pytest.fixture
def disk(store):
    return FullDisk(store)


class NoPhones:
    """An adb server that lists no phone."""

    server_lost = False
    failure = ""

    run = for_ever

    async def snapshots(self):
        yield ()
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
    """`async with quiet_fleet(*records)`: a fleet that runs and remembers these devices; adb lists none."""

    @asynccontextmanager
    async def made(*records, events=None, config=None, client=None):
        for record in records:
            await store.devices.save(record)
        rollouts = Rollouts(lambda *_: None, tuple, store.rollouts, EventLog(), RolloutConfig())
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
