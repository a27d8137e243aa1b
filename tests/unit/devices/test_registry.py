"""Records, names and keys: what a device is called, and what outlives a restart."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from farm.common.errors import Code, HostError, UserError
from farm.common.selector import Selector
from farm.devices.identity.naming_rules import AdoptRule
from farm.devices.registry import Aliases, DeviceRegistry, with_labels
from farm.model.device import DeviceView, Life
from farm.model.health import Health
from farm.model.identity import DeviceIdentity, Gpu, Soc
from farm.store.devices import DeviceRecord
from farm.store.writer import StoreWriteError
from tests.support.errors import raises_code

PIXEL = DeviceIdentity(
    hardware_serial="HW1", vendor="Google", model="Pixel 7", soc=Soc("GS201"), gpu=Gpu("mali", "Mali-G710")
)
AT = datetime(2026, 11, 2, 12, tzinfo=UTC)


def table(*records, host=""):
    """What a registry only reads."""
    return SimpleNamespace(all=lambda: records, host=host)


def of_google(**options):
    return (AdoptRule(options.pop("selector", "vendor=google"), **options),)


@pytest.fixture
async def kept(store):
    """A registry over a store: `registry, stored = await kept(record)`; `stored()` are the records by serial."""
    registries = []

    async def made(*records, rules=()):
        for record in records:
            await store.devices.save(record)
        registries.append(DeviceRegistry(store.devices, rules))
        return registries[-1], lambda: {record.serial: record for record in store.devices.all()}

    yield made
    for registry in registries:
        await registry.close()


def test_a_phone_nobody_adopted_is_named_by_what_it_is():
    registry = DeviceRegistry(table(), ())
    assert registry.name_for("R5CT", None, ()) == "r5ct"
    assert registry.name_for("R5CT", PIXEL, ()) == "pixel-7"
    assert registry.name_for("R5CT", PIXEL, {"pixel-7"}) == "pixel-7-2"
    registry.set_aliases({"pixel-7": Selector.parse("gpu=mali-g710")})
    assert registry.name_for("R5CT", PIXEL, ()) == "pixel-7-2"


def test_hosts_of_a_lab_name_phones_of_one_model_apart():
    one, two = (DeviceRegistry(table(host=name), of_google()) for name in ("lab1", "lab2"))
    names = [registry.name_for("R5CT", PIXEL, ()) for registry in (one, two)]
    assert names == ["pixel-7-lab1", "pixel-7-lab2"]
    record = two.adopted_by_rule("R5CT", PIXEL, ())
    assert record.name == names[1]


def test_the_label_host_is_the_host_s_in_a_lab_whatever_was_set_by_hand():
    record = DeviceRecord("R5CT", "phone", adopted=True, labels={"host": "rack", "shelf": "3"})
    alone, other = DeviceRegistry(table(record), ()), DeviceRegistry(table(record, host="Lab2"), ())
    other.set_aliases({"mine": Selector.parse("host=lab2,shelf=3"), "theirs": Selector.parse("host=lab1")})
    _, labels, aliases = other.called("R5CT", "phone", PIXEL, adopted=True)
    assert labels["host"] == "lab2"
    assert ("mine" in aliases, "theirs" in aliases) == (True, False)
    assert alone.called("R5CT", "phone", PIXEL, adopted=True)[1]["host"] == "rack"
    with pytest.raises(UserError, match="farm sets the label host itself"):
        other.edited(record, (), labels={"host": "lab1"})


def test_a_rule_may_be_for_one_host():
    rule = AdoptRule("vendor=google,host=lab2")
    hosts = (DeviceRegistry(table(host=name), (rule,)) for name in ("", "lab1", "lab2"))
    adopted = [registry.adopted_by_rule("R5CT", PIXEL, ()) for registry in hosts]
    assert [record is not None for record in adopted] == [False, False, True]


def test_a_rule_names_and_pools_once():
    registry = DeviceRegistry(table(), (AdoptRule("vendor=google", pool="Desk", name="{soc}-{serial}"),))
    record = registry.adopted_by_rule("R5CT", PIXEL, ())
    assert record == DeviceRecord("R5CT", "gs201-r5ct", "HW1", "desk", adopted=True)
    assert registry.adopted_by_rule("R5CT", DeviceIdentity(vendor="LG"), ()) is None


def test_a_network_phones_address_is_no_name_to_keep():
    known = DeviceRecord("10.0.0.7:5555", "10.0.0.7-5555", address="10.0.0.7:5555")
    record = DeviceRegistry(table(known), of_google()).adopted_by_rule("10.0.0.7:5555", PIXEL, ())
    assert (record.name, record.address) == ("pixel-7", "10.0.0.7:5555")


def test_hand_set_labels_and_aliases_count():
    registry = DeviceRegistry(table(DeviceRecord("R5CT", "left", pool="desk", adopted=True, labels={"rack": "3"})), ())
    registry.set_aliases({"fast": Selector.parse("rack=3"), "slow": Selector.parse("rack=4")})
    pool, labels, aliases = registry.called("R5CT", "left", PIXEL, adopted=True)
    assert pool == "desk"
    assert labels["rack"] == "3"
    assert ("fast" in aliases, "slow" in aliases) == (True, False)


def test_who_is_not_adopted_answers_to_no_key():
    registry = DeviceRegistry(table(), ())
    registry.set_aliases({"fast": Selector.parse("gpu=mali-g710")})
    _, labels, aliases = registry.called("R5CT", "pixel-7", PIXEL, adopted=False)
    assert (aliases, labels["gpu"]) == ((), "mali-g710")


@pytest.mark.parametrize("wanted", ["::", "..-.", "bad name!", "Taken", "fast"])
def test_a_name_that_cannot_be(wanted):
    registry = DeviceRegistry(table(), ())
    registry.set_aliases({"fast": Selector.parse("rack=3")})
    with pytest.raises(UserError, match="taken" if wanted.isalpha() else "cannot be a name") as caught:
        registry.checked_name(wanted, {"taken"})
    assert caught.value.hint


async def test_what_is_believed_is_kept_and_replaces(kept):
    registry, stored = await kept(DeviceRecord("old", "left"))
    registry.save_soon(DeviceRecord("new", "left"), instead_of="old")
    assert (registry.get("old"), registry.get("new").name) == (None, "left")
    await registry.close()
    assert set(stored()) == {"new"}


async def test_an_adoption_on_a_full_disk_is_stored_when_there_is_room(kept, disk):
    registry, stored = await kept(rules=of_google())
    disk.full = True
    adopted = registry.identified("R5CT", PIXEL, ())
    registry.remember_health("R5CT", Health(uptime_s=1.0), AT)
    await asyncio.sleep(0)
    assert (adopted.adopted, stored(), disk.refused) == (True, {}, 1)
    disk.full = False
    registry._writes.on_store_problem(False)
    await registry.close()
    assert (stored()["R5CT"].adopted, stored()["R5CT"].health) == (True, Health(uptime_s=1.0))


async def test_a_save_is_believed_at_once_and_taken_back_when_refused(kept, disk):
    registry, _ = await kept(DeviceRecord("s", "left"))
    seen, disk.full = [], True
    with pytest.raises(HostError):
        await registry.save(DeviceRecord("s", "right"), lambda: seen.append(registry.get("s").name))
    assert (seen, registry.get("s").name) == (["right", "left"], "left")
    with pytest.raises(HostError):
        await registry.save(DeviceRecord("new", "other"))
    assert registry.get("new") is None


async def test_what_a_phone_is_and_its_last_health_are_kept(kept):
    registry, stored = await kept(DeviceRecord("s", "left", adopted=True), DeviceRecord("t", "right"))
    assert registry.identified("s", PIXEL, ()) is not None
    assert registry.identified("t", PIXEL, ()) is None  # not adopted; known by its address or a label
    for serial in ("s", "stranger"):
        registry.remember_health(serial, Health(uptime_s=1.0), AT)
    registry.remember_health("s", Health(uptime_s=2.0), AT + timedelta(seconds=200), 300.0)
    await registry.close()
    assert [(each.identity, each.hardware_serial) for each in stored().values()] == [(PIXEL, "HW1")] * 2
    assert (stored()["s"].health, stored()["s"].health_at) == (Health(uptime_s=1.0), AT)
    registry.remember_health("s", Health(uptime_s=3.0), AT + timedelta(seconds=200))
    await registry.close()
    assert stored()["s"].health == Health(uptime_s=3.0)


async def test_a_refused_order_does_not_take_back_what_was_found_out(kept, disk):
    registry, _ = await kept(DeviceRecord("s", "left", adopted=True))
    disk.full = True
    believed = iter((lambda: registry.identified("s", PIXEL, ()), lambda: None))
    with pytest.raises(HostError):
        await registry.save(DeviceRecord("s", "right", adopted=True), lambda: next(believed)() and None)
    assert (registry.get("s").name, registry.get("s").identity) == ("left", PIXEL)
    disk.full = False
    registry._writes.on_store_problem(False)


async def test_what_is_kept_late_is_the_newest(kept):
    registry, stored = await kept(DeviceRecord("s", "left"))
    for number in range(3):
        registry.save_soon(DeviceRecord("s", "left", f"HW{number}"))  # written in a task, after the next line
    assert len(asyncio.all_tasks()) == 2  # one for a device
    await registry.save(DeviceRecord("s", "right", "HW2"))
    await registry.close()
    assert stored()["s"].name == "right"


@pytest.mark.parametrize(
    ("key", "value", "said", "hint"),
    [
        ("soc", "sm8650", "farm sets the label soc itself", "another key"),
        ("Name", "x", "farm sets the label name itself", "--name"),
        ("pool", "x", "farm sets the label pool itself", "--pool"),
        ("!!", "x", "'!!' cannot be the key of a label", "use letters"),
        ("rack", "::", "'::' cannot be the value of label rack", "use letters"),
        ("rack", "a,b", "'a,b' cannot be the value of label rack: it has ','", "use letters"),
        ("rack", "x" * 97, "cannot be the value of label rack", "at most 96 characters"),
        ("schränk", "3", "it has 'ä'", "use letters"),
    ],
)
def test_a_label_that_is_not_for_people(key, value, said, hint):
    with pytest.raises(UserError, match=said) as caught:
        with_labels(DeviceRecord("s", "left"), {key: value})
    assert hint in caught.value.hint


def test_labels_change_and_go():
    record = with_labels(DeviceRecord("s", "left", labels={"rack": "3", "soc": "old"}), {"Desk": "A 1", "rack": ""})
    assert record.labels == {"soc": "old", "desk": "a-1"}
    assert with_labels(record, {"soc": ""}).labels == {"desk": "a-1"}  # one of an older farm can be removed


@pytest.mark.parametrize("pool", ["::", "a,b", "büro", "pool=lab", "x" * 97])
def test_what_cannot_be_a_pool(pool):
    with pytest.raises(UserError, match="cannot be a pool"):
        DeviceRegistry(table(), ()).edited(DeviceRecord("s", "left"), (), pool=pool)


async def test_a_record_that_is_being_stored_does_not_come_back_when_it_is_forgotten(kept):
    registry, stored = await kept(DeviceRecord("R5CT", "left", adopted=True))
    registry.save_soon(DeviceRecord("R5CT", "left", pool="desk", adopted=True))
    await registry.forget("R5CT")
    await registry.close()
    assert (registry.records(), stored()) == ((), {})


async def test_a_record_that_the_store_keeps_is_not_forgotten(kept, disk):
    registry, _ = await kept(DeviceRecord("R5CT", "left", adopted=True))
    disk.full = True
    with pytest.raises(StoreWriteError):
        await registry.forget("R5CT")
    assert [each.serial for each in registry.records()] == ["R5CT"]


# --- keys


class Fleet:
    """Remembers the keys it was told."""

    def __init__(self):
        self.told = {}

    def views(self):
        return (DeviceView("pixel", "S1", Life.READY, aliases=("android", "pixel", *self.told)),)

    def set_aliases(self, aliases):
        self.told = {name: str(selector) for name, selector in aliases.items()}


@pytest.fixture
async def keys(store):
    """A function that makes keys of stored and configured ones, and the fleet that is told."""

    async def made(stored=None, configured=None):
        for name, selector in (stored or {}).items():
            await store.aliases.save(name, selector)
        fleet = Fleet()
        return Aliases(fleet, store.aliases, configured or {}), fleet

    return made


async def test_a_kept_key_beats_a_configured_one(keys):
    aliases, fleet = await keys({"board": "soc=b"}, {"board": "soc=a", "Big One": "soc=c"})
    assert fleet.told == {"board": "soc=b", "big-one": "soc=c"}
    await aliases.remove("board")
    assert fleet.told == {"board": "soc=a", "big-one": "soc=c"}
    with pytest.raises(UserError, match="was not set"):
        await aliases.remove("board")


async def test_a_key_is_kept_and_told(keys, store):
    aliases, fleet = await keys()
    assert await aliases.set("My Board", "soc=SM8650") == "my-board"
    assert fleet.told == store.aliases.all() == {"my-board": "soc=sm8650"}


@pytest.mark.parametrize("name", ["android", "Pixel", "!!!", "a,b", "büro", "x" * 97])
async def test_a_key_that_phones_have_by_themselves_or_that_cannot_be_one_is_refused(keys, store, name):
    aliases, fleet = await keys()
    with pytest.raises(UserError):
        await aliases.set(name, "soc=sm8650")
    with raises_code(Code.BAD_SELECTOR):
        await aliases.set("board", "soc==")
    assert fleet.told == store.aliases.all() == {}


async def test_what_cannot_be_kept_is_taken_back(keys, disk):
    aliases, fleet = await keys(configured={"board": "soc=a"})
    disk.full = True
    with pytest.raises(HostError):
        await aliases.set("board", "soc=b")
    assert fleet.told == {"board": "soc=a"}


async def test_keys_of_other_hosts_are_taken_up_and_none_is_taken_back(keys, store):
    aliases, fleet = await keys({"old": "soc=a"})
    await store.aliases.forget("old")
    await store.aliases.save("board", "soc=b")  # another host did that
    await aliases.reread()
    assert fleet.told == {"board": "soc=b"}
    await asyncio.gather(aliases.set("mine", "soc=c"), aliases.reread())
    assert fleet.told == {"board": "soc=b", "mine": "soc=c"}
