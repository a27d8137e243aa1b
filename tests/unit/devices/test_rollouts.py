"""What a rollout makes of the library: a bundle whose manifest became unreadable is refused, not forgotten."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from farm.bundle.library import BundleLibrary
from farm.bundle.rollout_rules import RolloutConfig
from farm.common.errors import FarmError
from farm.common.events import EventLog
from farm.devices.rollouts import Rollouts
from farm.jobs.config import ToolchainConfig
from farm.jobs.toolchains import Toolchains
from farm.model.device import MEANING, Life
from farm.store.writer import StoreWriteError
from tests.support.fake_phone import StubAgent
from tests.support.waiting import until
from tests.unit.bundle.elves import ANDROID_BUNDLE, write_folder
from tests.unit.bundle.test_library import golden


class Farm(Rollouts):
    """Rollouts over a library with the bundle `old`, which every phone has proven, and a fleet of these phones."""

    def __init__(self, store, folder, *names, toolchain="", soak_s=0.0):
        self.folder, self.events, self.held = folder, EventLog(), {}
        self.library = BundleLibrary(folder / "bundles")
        self.old = self._added("old")
        configured = {"paired": ToolchainConfig("/usr/bin/python3", toolchain)} if toolchain else {}
        toolchains = Toolchains(configured, store.toolchains, EventLog(), self.library)
        config = RolloutConfig(soak_s=soak_s)
        super().__init__(toolchains.for_abi, self.library.list, store.rollouts, self.events, config)
        self.phones = {
            name: StubAgent(name, name, identity=None, proven=self.old.hash, bundle=self.old.hash) for name in names
        }
        self.follow(
            SimpleNamespace(
                agents=self.phones, in_hands=lambda _: False,
                device_views=SimpleNamespace(keep_from_leases=lambda kept: None),
                recovery=SimpleNamespace(holder=lambda name: self.held.get(name, "")),
            )
        )  # fmt: skip

    def _added(self, name):
        folder = write_folder(self.folder / name, ANDROID_BUNDLE)
        (folder / "notes").write_text(name)
        return self.library.add(folder, name=name, compile_golden=golden)

    async def candidate(self):
        """A newer bundle for the same phones."""
        await self.refresh()
        assert self.state(self.old)["state"] == "current"
        new = self._added("new")
        await self.refresh(new.hash)
        assert self.state(new)["state"] == "candidate"
        return new

    def waits(self, new):
        return {row["device"]: row["waits"] for row in self.state(new)["trying"]}


@pytest.mark.parametrize("toolchain", ["", "new"])
async def test_a_candidate_that_became_unreadable_is_refused_with_the_reason(store, tmp_path, toolchain):
    farm = Farm(store, tmp_path, "one", toolchain=toolchain)
    new = farm._added("new")
    await farm.refresh()
    assert farm.state(new)["state"] == "candidate"
    (new.path.parent / "manifest.json").write_text("{")
    await farm.refresh()
    listed = farm.library.list()[-1]
    assert (listed.hash, farm.state(listed)["state"]) == (new.hash, "damaged")
    assert "manifest.json is damaged" in farm.state(listed)["reason"]
    refused_row = {"state": "refused", "reason": listed.damage, "phones": 0, "of": 0, "trying": []}
    assert farm.state(new) == refused_row
    assert farm.states()["damaged"] == 1
    (refused,) = (each for each in farm.events.since(0) if each.kind == "bundle.refused")
    assert refused.data["reason"] == listed.damage


async def test_a_damaged_row_begins_the_rollout_anew(store, tmp_path):
    empty = {"previous": "", "candidate": "", "wanted": "", "refused": {}, "trials": {}}
    await store.rollouts.save("x86_64", "linux", {"current": "a" * 64, **empty})
    await store.database.execute(text("""update rollout set trials = '{"a": {"b": 1}}'"""))
    rollouts = Rollouts(lambda *_: None, tuple, store.rollouts, EventLog(), RolloutConfig())
    await rollouts.refresh()
    assert rollouts._groups == {}


async def test_a_library_that_cannot_be_read_is_read_again(store, monkeypatch):
    monkeypatch.setattr("farm.devices.rollouts.STEP_EVERY_S", 0.001)
    tries, stepped = [], asyncio.Event()

    def stored():
        tries.append(1)
        if len(tries) == 1:
            raise PermissionError("bundles")
        return ()

    rollouts = Rollouts(lambda *_: None, stored, store.rollouts, EventLog(), RolloutConfig())
    rollouts.step = stepped.set
    running = asyncio.create_task(rollouts.run())
    await until(stepped.is_set)
    assert len(tries) == 2
    running.cancel()


async def test_a_candidate_names_the_phone_that_tries_it_and_a_promotion_those_that_will_take_it(store, tmp_path):
    farm = Farm(store, tmp_path, "one", "two", soak_s=3600.0)
    farm.held = {"two": "ann"}
    new = await farm.candidate()
    assert farm.state(new)["trying"] == []
    farm.step()
    (row,) = farm.state(new)["trying"]
    assert datetime.fromisoformat(row.pop("since")) <= datetime.now(UTC)
    assert farm.waits(new) == {"one": "3600 s without a failure"}
    one = farm.phones["one"]
    ready, one.state = one.state, replace(one.state, life=Life.CHECKING, bundle=new.hash)
    assert farm.waits(new) == {"one": MEANING[Life.CHECKING]}
    one.assigned = new.hash
    farm.trial_failed(one, "its cable", at_fault=False)
    farm.held["one"], one.state = "bob", ready
    farm.step()
    waits = farm.waits(new)
    assert waits.pop("one").startswith("another try at ")
    assert waits == {"two": "the end of its lease"}
    assert await farm.promote(new) == 2
    assert farm.state(new)["trying"] == []


async def test_an_order_that_cannot_be_stored_changes_nothing(store, disk, tmp_path):
    farm = Farm(store, tmp_path, "one")
    new = await farm.candidate()
    disk.full = True
    with pytest.raises(StoreWriteError):
        await farm.promote(new)
    with pytest.raises(StoreWriteError):
        await farm.roll_back(new, "ana")
    assert [farm.state(each)["state"] for each in (farm.old, new)] == ["current", "candidate"]


async def test_an_order_says_that_a_toolchain_names_a_bundle_that_is_not_there(store, tmp_path):
    farm = Farm(store, tmp_path, toolchain="nosuch")
    for order in (farm.promote(farm.old), farm.roll_back(farm.old, "ana")):
        with pytest.raises(FarmError, match="nosuch"):
            await order
