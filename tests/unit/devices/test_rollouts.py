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
from farm.devices import rollouts as rollouts_module
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.rollouts import Rollouts
from farm.jobs.config import ToolchainConfig
from farm.jobs.toolchains import Toolchains
from farm.model.device import MEANING, Life
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.support.waiting import HANG_S
from tests.unit.bundle.elves import ANDROID_BUNDLE, write_folder
from tests.unit.bundle.test_library import golden


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    yield store
    store.close()


def library_with_a_newer_folder(tmp_path):
    """A library with the bundle `old`, and a folder of another one for the same phones."""
    library = BundleLibrary(tmp_path / "bundles")
    old = library.add(write_folder(tmp_path / "old", ANDROID_BUNDLE), name="old", compile_golden=golden)
    newer = write_folder(tmp_path / "new", ANDROID_BUNDLE)
    (newer / "notes").write_text("newer")
    return library, old, newer


@pytest.mark.parametrize("by_toolchain", [False, True])
async def test_a_candidate_that_became_unreadable_is_refused_with_the_reason(store, tmp_path, by_toolchain):
    library, old, newer = library_with_a_newer_folder(tmp_path)
    new = library.add(newer, name="new", compile_golden=golden)
    configured = {"paired": ToolchainConfig("/usr/bin/python3", "new")} if by_toolchain else {}
    toolchains = Toolchains(configured, store.toolchains, EventLog(), library)
    events = EventLog()
    rollouts = Rollouts(toolchains.for_abi, library.list, store.rollouts, events, RolloutConfig())
    phone = SimpleNamespace(serial="S1", name="one", state=LifecycleState(proven=old.hash), identity=None)
    rollouts.follow(SimpleNamespace(agents={"S1": phone}, in_hands=lambda _: False))
    await rollouts.refresh()
    assert rollouts.state(new)["state"] == "candidate"
    (new.path.parent / "manifest.json").write_text("{")
    await rollouts.refresh()
    listed = library.list()[-1]
    assert (listed.hash, rollouts.state(listed)["state"]) == (new.hash, "damaged")
    assert "manifest.json is damaged" in rollouts.state(listed)["reason"]
    refused_row = {"state": "refused", "reason": listed.damage, "phones": 0, "of": 0, "trying": []}
    assert rollouts.state(new) == refused_row
    assert rollouts.states()["damaged"] == 1
    (refused,) = (each for each in events.since(0) if each.kind == "bundle.refused")
    assert refused.data["reason"] == listed.damage


async def test_a_damaged_row_begins_the_rollout_anew(store):
    empty = {"previous": "", "candidate": "", "wanted": "", "refused": {}, "trials": {}}
    await store.rollouts.save("x86_64", "linux", {"current": "a" * 64, **empty})
    await store.database.execute(text("""update rollout set trials = '{"a": {"b": 1}}'"""))
    rollouts = Rollouts(lambda *_: None, tuple, store.rollouts, EventLog(), RolloutConfig())
    await rollouts.refresh()
    assert rollouts._groups == {}


async def test_a_library_that_cannot_be_read_is_read_again(store, monkeypatch):
    monkeypatch.setattr(rollouts_module, "STEP_EVERY_S", 0.001)
    tries, stepped = [], asyncio.Event()

    def stored():
        tries.append(1)
        if len(tries) == 1:
            raise PermissionError("bundles")
        return ()

    rollouts = Rollouts(lambda *_: None, stored, store.rollouts, EventLog(), RolloutConfig())
    monkeypatch.setattr(rollouts, "step", stepped.set)
    running = asyncio.create_task(rollouts.run())
    try:
        async with asyncio.timeout(HANG_S):
            await stepped.wait()
        assert len(tries) == 2
    finally:
        running.cancel()


class KeepsNothing:
    """Stands in for `DeviceViews`."""

    def keep_from_leases(self, kept):
        self.kept = kept


async def test_a_candidate_names_the_phone_that_tries_it_and_a_promotion_those_that_will_take_it(store, tmp_path):
    library, old, newer = library_with_a_newer_folder(tmp_path)
    toolchains = Toolchains({}, store.toolchains, EventLog(), library)
    rollouts = Rollouts(toolchains.for_abi, library.list, store.rollouts, EventLog(), RolloutConfig(soak_s=3600.0))
    ready = LifecycleState(life=Life.READY, adopted=True, identified=True, proven=old.hash, bundle=old.hash)
    phones = {
        name: SimpleNamespace(
            serial=name, name=name, state=ready, identity=None, assigned="", since=datetime.now(UTC),
            on_event=lambda event: None,
        )
        for name in ("one", "two")
    }  # fmt: skip
    held = {"two": "ann"}
    fleet = SimpleNamespace(
        agents=phones, in_hands=lambda _: False, device_views=KeepsNothing(),
        recovery=SimpleNamespace(holder=lambda name: held.get(name, "")),
    )  # fmt: skip
    rollouts.follow(fleet)
    await rollouts.refresh()
    assert rollouts.state(old)["state"] == "current"
    new = library.add(newer, name="new", compile_golden=golden)
    await rollouts.refresh(new.hash)
    assert rollouts.state(new)["trying"] == []
    rollouts.step()
    (row,) = rollouts.state(new)["trying"]
    assert row["device"] == "one"
    assert datetime.fromisoformat(row["since"]) <= datetime.now(UTC)
    assert row["waits"] == "3600 s without a failure"
    phones["one"].state = replace(ready, life=Life.CHECKING, bundle=new.hash)
    assert rollouts.state(new)["trying"][0]["waits"] == MEANING[Life.CHECKING]
    phones["one"].assigned = new.hash
    rollouts.trial_failed(phones["one"], "its cable", at_fault=False)
    held |= {"one": "bob"}
    phones["one"].state = ready
    rollouts.step()
    rows = {row["device"]: row["waits"] for row in rollouts.state(new)["trying"]}
    assert rows.pop("two") == "the end of its lease"
    assert rows.pop("one").startswith("another try at ")
    assert not rows
    assert await rollouts.promote(new) == 2
    assert rollouts.state(new)["trying"] == []


async def test_an_order_that_cannot_be_stored_changes_nothing(store, tmp_path, monkeypatch):
    library, old, newer = library_with_a_newer_folder(tmp_path)
    toolchains = Toolchains({}, store.toolchains, EventLog(), library)
    rollouts = Rollouts(toolchains.for_abi, library.list, store.rollouts, EventLog(), RolloutConfig())
    phone = SimpleNamespace(serial="S1", name="one", state=LifecycleState(proven=old.hash), identity=None)
    rollouts.follow(SimpleNamespace(agents={"S1": phone}, in_hands=lambda _: False))
    await rollouts.refresh()
    new = library.add(newer, name="new", compile_golden=golden)
    await rollouts.refresh(new.hash)

    async def full(*_):
        raise StoreWriteError("the disk is full")

    monkeypatch.setattr(store.rollouts, "save", full)
    with pytest.raises(StoreWriteError):
        await rollouts.promote(new)
    with pytest.raises(StoreWriteError):
        await rollouts.roll_back(new, "ana")
    assert [rollouts.state(each)["state"] for each in (old, new)] == ["current", "candidate"]


async def test_an_order_says_that_a_toolchain_names_a_bundle_that_is_not_there(store, tmp_path):
    library, old, _ = library_with_a_newer_folder(tmp_path)
    configured = {"paired": ToolchainConfig("/usr/bin/python3", "nosuch")}
    toolchains = Toolchains(configured, store.toolchains, EventLog(), library)
    rollouts = Rollouts(toolchains.for_abi, library.list, store.rollouts, EventLog(), RolloutConfig())
    rollouts.follow(SimpleNamespace(agents={}, in_hands=lambda _: False))
    for order in (rollouts.promote(old), rollouts.roll_back(old, "ana")):
        with pytest.raises(FarmError, match="nosuch"):
            await order
