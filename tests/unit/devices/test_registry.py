"""Records and names: what a device is called, and what outlives a restart."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from farm.common.errors import HostError, UserError
from farm.common.selector import Selector
from farm.devices.identity.naming_rules import AdoptRule
from farm.devices.registry import DeviceRegistry, with_labels
from farm.model.health import Health
from farm.model.identity import DeviceIdentity, Gpu, Soc
from farm.store import database
from farm.store.devices import DeviceRecord
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.support.waiting import until

PIXEL = DeviceIdentity(
    hardware_serial="HW1", vendor="Google", model="Pixel 7", soc=Soc("GS201"), gpu=Gpu("mali", "Mali-G710")
)


class Table:
    """A store in memory."""

    def __init__(self, *records, host=""):
        self.host = host
        self.kept = {record.serial: record for record in records}
        self.full = False
        self.refused = 0

    def all(self):
        return tuple(self.kept.values())

    async def save(self, record):
        await self.replace((record.serial,), (record,))

    async def forget(self, serial):
        await self.replace((serial,), ())

    async def replace(self, serials, records):
        if self.full:
            self.refused += 1
            raise StoreWriteError("disk full")
        for serial in serials:
            self.kept.pop(serial, None)
        self.kept |= {record.serial: record for record in records}


def test_a_phone_nobody_adopted_is_named_by_what_it_is():
    registry = DeviceRegistry(Table(), ())
    assert registry.name_for("R5CT", None, ()) == "r5ct"
    assert registry.name_for("R5CT", PIXEL, ()) == "pixel-7"
    assert registry.name_for("R5CT", PIXEL, {"pixel-7"}) == "pixel-7-2"
    registry.set_aliases({"pixel-7": Selector.parse("gpu=mali-g710")})
    assert registry.name_for("R5CT", PIXEL, ()) == "pixel-7-2"


def test_hosts_of_a_lab_name_phones_of_one_model_apart():
    one, two = (DeviceRegistry(Table(host=name), (AdoptRule("vendor=google"),)) for name in ("lab1", "lab2"))
    names = [registry.name_for("R5CT", PIXEL, ()) for registry in (one, two)]
    assert names == ["pixel-7-lab1", "pixel-7-lab2"]
    record = two.adopted_by_rule("R5CT", PIXEL, ())
    assert record is not None
    assert record.name == names[1]


def test_the_label_host_is_the_host_s_in_a_lab_whatever_was_set_by_hand():
    record = DeviceRecord("R5CT", "phone", adopted=True, labels={"host": "rack", "shelf": "3"})
    alone, other = DeviceRegistry(Table(record), ()), DeviceRegistry(Table(record, host="Lab2"), ())
    other.set_aliases({"mine": Selector.parse("host=lab2,shelf=3"), "theirs": Selector.parse("host=lab1")})
    _, labels, aliases = other.called("R5CT", "phone", PIXEL, adopted=True)
    assert labels["host"] == "lab2"
    assert "mine" in aliases
    assert "theirs" not in aliases
    assert alone.called("R5CT", "phone", PIXEL, adopted=True)[1]["host"] == "rack"
    with pytest.raises(UserError, match="farm sets the label host itself"):
        other.edited(record, (), labels={"host": "lab1"})


def test_a_rule_may_be_for_one_host():
    rule = AdoptRule("vendor=google,host=lab2")
    hosts = (DeviceRegistry(Table(host=name), (rule,)) for name in ("", "lab1", "lab2"))
    adopted = [registry.adopted_by_rule("R5CT", PIXEL, ()) for registry in hosts]
    assert [record is not None for record in adopted] == [False, False, True]


def test_a_rule_names_and_pools_once():
    registry = DeviceRegistry(Table(), (AdoptRule("vendor=google", pool="Desk", name="{soc}-{serial}"),))
    record = registry.adopted_by_rule("R5CT", PIXEL, ())
    assert record == DeviceRecord("R5CT", "gs201-r5ct", "HW1", "desk", adopted=True)
    assert registry.adopted_by_rule("R5CT", DeviceIdentity(vendor="LG"), ()) is None


async def test_a_network_phones_address_is_no_name_to_keep():
    table = Table(DeviceRecord("10.0.0.7:5555", "10.0.0.7-5555", address="10.0.0.7:5555"))
    registry = DeviceRegistry(table, (AdoptRule("vendor=google"),))
    record = registry.adopted_by_rule("10.0.0.7:5555", PIXEL, ())
    assert record is not None
    assert (record.name, record.address) == ("pixel-7", "10.0.0.7:5555")


def test_hand_set_labels_and_aliases_count():
    registry = DeviceRegistry(Table(DeviceRecord("R5CT", "left", pool="desk", adopted=True, labels={"rack": "3"})), ())
    registry.set_aliases({"fast": Selector.parse("rack=3"), "slow": Selector.parse("rack=4")})
    pool, labels, aliases = registry.called("R5CT", "left", PIXEL, adopted=True)
    assert pool == "desk"
    assert labels["rack"] == "3"
    assert "fast" in aliases
    assert "slow" not in aliases


def test_who_is_not_adopted_answers_to_no_key():
    registry = DeviceRegistry(Table(), ())
    registry.set_aliases({"fast": Selector.parse("gpu=mali-g710")})
    _, labels, aliases = registry.called("R5CT", "pixel-7", PIXEL, adopted=False)
    assert (aliases, labels["gpu"]) == ((), "mali-g710")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("::", "cannot be a name"),
        ("..-.", "cannot be a name"),
        ("bad name!", "cannot be a name"),
        ("Taken", "taken"),
        ("fast", "taken"),
    ],
)
def test_a_name_that_cannot_be(wanted, said):
    registry = DeviceRegistry(Table(), ())
    registry.set_aliases({"fast": Selector.parse("rack=3")})
    with pytest.raises(UserError, match=said) as caught:
        registry.checked_name(wanted, {"taken"})
    assert caught.value.hint


async def test_what_is_believed_is_kept_and_replaces():
    table = Table(DeviceRecord("old", "left"))
    registry = DeviceRegistry(table, ())
    registry.save_soon(DeviceRecord("new", "left"), instead_of="old")
    assert registry.get("old") is None
    assert registry.get("new") is not None
    await registry.close()
    assert set(table.kept) == {"new"}


async def test_a_refused_save_changes_nothing():
    table = Table(DeviceRecord("s", "left"))
    registry = DeviceRegistry(table, ())
    table.full = True
    with pytest.raises(HostError):
        await registry.save(DeviceRecord("s", "right"))
    kept = registry.get("s")
    assert kept is not None
    assert kept.name == "left"


async def test_an_adoption_on_a_full_disk_is_stored_when_there_is_room(monkeypatch):
    monkeypatch.setattr(database, "RETRY_S", 0.001)
    table = Table()
    registry = DeviceRegistry(table, (AdoptRule("vendor=google"),))
    table.full = True
    adopted = registry.identified("R5CT", PIXEL, ())
    registry.remember_health("R5CT", Health(uptime_s=1.0), datetime(2026, 11, 2, 12, tzinfo=UTC))
    await until(lambda: table.refused > 2)
    assert adopted is not None
    assert table.kept == {}
    table.full = False
    await registry.close()
    assert table.kept["R5CT"].adopted
    assert table.kept["R5CT"].health == Health(uptime_s=1.0)


async def test_a_disk_that_stays_full_does_not_keep_the_registry_from_closing(monkeypatch, caplog):
    monkeypatch.setattr(database, "FLUSH_LIMIT_S", 0.01)
    table = Table()
    table.full = True
    registry = DeviceRegistry(table, ())
    for number in range(3):  # one task and at most two writes for a device
        registry.save_soon(DeviceRecord("s", "left", f"HW{number}"))
    assert len(asyncio.all_tasks()) == 2
    await registry.close()
    assert "not done before the end: store s" in caplog.text


async def test_a_save_is_believed_at_once_and_taken_back_when_refused():
    table, seen = Table(DeviceRecord("s", "left")), []
    registry = DeviceRegistry(table, ())
    table.full = True

    def believed():
        record = registry.get("s")
        seen.append(record and record.name)

    with pytest.raises(HostError):
        await registry.save(DeviceRecord("s", "right"), believed)
    assert seen == ["right", "left"]
    with pytest.raises(HostError):
        await registry.save(DeviceRecord("new", "other"))
    assert registry.get("new") is None


async def test_what_a_phone_is_and_its_last_health_are_kept():
    table = Table(DeviceRecord("s", "left", adopted=True), DeviceRecord("t", "right"))
    registry = DeviceRegistry(table, ())
    assert registry.identified("s", PIXEL, ()) is not None
    assert registry.identified("t", PIXEL, ()) is None  # not adopted; known by its address or a label
    at = datetime(2026, 11, 2, 12, tzinfo=UTC)
    for serial in ("s", "stranger"):
        registry.remember_health(serial, Health(uptime_s=1.0), at)
    registry.remember_health("s", Health(uptime_s=2.0), at + timedelta(seconds=200), 300.0)
    await registry.close()
    assert [(each.identity, each.hardware_serial) for each in table.kept.values()] == [(PIXEL, "HW1")] * 2
    assert (table.kept["s"].health, table.kept["s"].health_at) == (Health(uptime_s=1.0), at)
    registry.remember_health("s", Health(uptime_s=3.0), at + timedelta(seconds=200))
    await registry.close()
    assert table.kept["s"].health == Health(uptime_s=3.0)


async def test_a_refused_order_does_not_take_back_what_was_found_out():
    table = Table(DeviceRecord("s", "left", adopted=True))
    registry = DeviceRegistry(table, ())
    table.full = True
    believed = iter((lambda: registry.identified("s", PIXEL, ()), lambda: None))
    with pytest.raises(HostError):
        await registry.save(DeviceRecord("s", "right", adopted=True), lambda: next(believed)() and None)
    kept = registry.get("s")
    await registry.close()
    assert kept is not None
    assert (kept.name, kept.identity) == ("left", PIXEL)


async def test_what_is_kept_late_is_the_newest():
    table = Table(DeviceRecord("s", "left"))
    registry = DeviceRegistry(table, ())
    registry.save_soon(DeviceRecord("s", "left", "HW1"))  # written in a task, after the next line
    await registry.save(DeviceRecord("s", "right", "HW1"))
    await registry.close()
    assert table.kept["s"].name == "right"


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
        DeviceRegistry(Table(), ()).edited(DeviceRecord("s", "left"), (), pool=pool)


async def test_a_record_that_is_being_stored_does_not_come_back_when_it_is_forgotten(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    registry = DeviceRegistry(store.devices, ())
    await registry.save(DeviceRecord("R5CT", "left", adopted=True))
    registry.save_soon(DeviceRecord("R5CT", "left", pool="desk", adopted=True))
    await registry.forget("R5CT")
    await registry.close()
    assert (registry.records(), store.devices.all()) == ((), ())
    store.close()


async def test_a_record_that_the_store_keeps_is_not_forgotten():
    registry = DeviceRegistry(table := Table(DeviceRecord("R5CT", "left", adopted=True)), ())
    table.full = True
    with pytest.raises(StoreWriteError):
        await registry.forget("R5CT")
    assert [each.serial for each in registry.records()] == ["R5CT"]
