import asyncio
import multiprocessing
import os
import signal
import sqlite3
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import event, insert, literal_column, update

from farm.common.errors import Code
from farm.model.health import Battery, ClusterReading, Health, SensorGroup, Temperature, ThrottleStatus
from farm.model.identity import Confidence, CpuCluster, DeviceIdentity, Gpu, Soc
from farm.store.devices import DeviceRecord
from farm.store.files import StateFolderLock
from farm.store.schema import device, nominal
from farm.store.store import Store
from farm.store.writer import StoreWriteError
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S

PIXEL = DeviceIdentity(
    hardware_serial="HW1", vendor="Google", model="Pixel 7", abis=("arm64-v8a",), cpu=(CpuCluster(4, "Cortex-A55"),),
    soc=Soc("GS201", confidence=Confidence.CERTAIN, candidates=("GS201",)), gpu=Gpu("mali", "Mali-G710", 7),
    targets={"cpu": {"kind": "llvm", "num-cores": 4}, "opencl": "tag"}, raw={"ro.hardware": "gs201"},
)  # fmt: skip


def test_every_start_is_a_new_epoch(where):
    epochs = []
    for _ in range(3):
        store = Store.open(where)
        epochs.append(store.epoch)
        store.close()
    assert epochs == [1, 2, 3]


async def test_devices_and_aliases_survive_a_restart(where):
    pixel = DeviceRecord(
        "X1", "pixel-7", pool="lab", adopted=True, service="maintenance", ordered_by="ann",
        ordered_at=datetime(2026, 11, 2, 12, tzinfo=UTC), labels={"rack": "3"}, address="10.0.0.2:5555",
    )  # fmt: skip
    store = Store.open(where)
    await store.devices.save(DeviceRecord("X1", "phone"))
    await store.devices.save(pixel)
    await store.devices.save(DeviceRecord("X2", "other"))
    await store.devices.forget("X2")
    await store.aliases.save("board", "soc=sm8550")
    await store.aliases.save("board", "soc=sm8650")
    store.close()
    store = Store.open(where)
    assert store.devices.all() == (pixel,)
    assert store.aliases.all() == {"board": "soc=sm8650"}
    assert await store.aliases.forget("board") is True
    assert await store.aliases.forget("board") is False
    store.close()


async def test_the_identity_and_last_health_of_a_phone_survive_a_restart(where):
    health = Health(
        boot_id="b\udcff", battery=Battery(percent=80, powered_by=("usb",)), throttle=ThrottleStatus.LIGHT,
        temperatures=(Temperature("skin", 31.5, SensorGroup.SKIN, "zone"),), cpu=(ClusterReading((0, 1), khz=1000),),
    )  # fmt: skip
    known = DeviceRecord(
        "X1", "pixel-7", identity=PIXEL, health=replace(health, boot_id="b"),
        health_at=datetime(2026, 11, 2, 12, tzinfo=UTC),
    )  # fmt: skip
    store = Store.open(where)
    await store.devices.save(known)
    await store.devices.save(DeviceRecord("X2", "strange", health=health))  # words that no database stores
    store.close()
    store = Store.open(where)
    kept, strange = store.devices.all()
    assert kept == known
    assert (strange.health.battery, strange.identity) == (health.battery, None)
    store.close()


async def test_an_identity_of_another_release_is_as_none(store, caplog):
    await store.devices.save(DeviceRecord("X1", "pixel-7", identity=DeviceIdentity(vendor="Google")))
    for text in ('{"soc": 7}', "[]", "nonsense"):
        await store.database.execute(update(device).values(identity=literal_column(f"'{text}'")))
        (record,) = store.devices.all()
        assert record.identity is None
        assert "a stored record is not used" in caplog.text
        caplog.clear()


async def test_two_phones_cannot_have_one_name(store):
    await store.devices.save(DeviceRecord("X1", "pixel"))
    with raises_code(Code.STORE_CONFLICT):
        await store.devices.save(DeviceRecord("X2", "pixel"))
    assert [record.serial for record in store.devices.all()] == ["X1"]


async def test_a_refused_write_spares_the_others_of_its_commit(store):
    await store.devices.save(DeviceRecord("X1", "pixel"))
    names = [f"phone-{i}" for i in range(50)]
    writes = [store.devices.save(DeviceRecord(f"S{name}", name)) for name in names]
    results = await asyncio.gather(*writes, store.devices.save(DeviceRecord("X2", "pixel")), return_exceptions=True)
    assert [getattr(result, "code", result) for result in results] == [None] * 50 + [Code.STORE_CONFLICT]
    assert len(store.devices.all()) == 51


@pytest.mark.parametrize("value", ["fast", [1.0], 10**400])
async def test_a_value_of_another_type_is_refused_and_not_tried_again(store, value):
    write = insert(nominal).values(device="pixel", epoch="e", kernel="k", reference_s=value, at=datetime.now(UTC))
    with raises_code(Code.STORE_CONFLICT):
        await store.database.execute(write)


async def test_the_writer_survives_its_callers_mistakes_and_their_leaving(store):
    def mistake(connection):
        raise ZeroDivisionError

    def slow(connection):
        began.set()
        assert go_on.wait(HANG_S)

    began, go_on = threading.Event(), threading.Event()
    with pytest.raises(ZeroDivisionError):
        await store.database.writer.write(mistake)
    under_way = asyncio.create_task(store.database.writer.write(slow))
    await asyncio.to_thread(began.wait, 10)
    queued = asyncio.create_task(store.devices.save(DeviceRecord("X1", "never")))
    await asyncio.sleep(0)  # until its write is in the queue
    for each in (under_way, queued):
        each.cancel()
    await asyncio.gather(queued, return_exceptions=True)
    assert queued.cancelled()
    assert not under_way.done()  # it may have been written: whoever waits must not be told before that is known
    go_on.set()
    await asyncio.gather(under_way, return_exceptions=True)
    assert under_way.cancelled()
    async with asyncio.timeout(HANG_S):
        await store.devices.save(DeviceRecord("X2", "pixel"))
    assert [record.serial for record in store.devices.all()] == ["X2"]


async def test_a_bug_in_a_commit_fails_it_and_no_other(store, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(store.database.writer._engine, "connect", None)
        with pytest.raises(StoreWriteError, match="could not be written") as caught:
            await store.devices.save(DeviceRecord("X1", "pixel"))
    assert "TypeError" in caught.value.evidence
    await store.devices.save(DeviceRecord("X1", "pixel"))
    assert len(store.devices.all()) == 1


async def test_a_write_alone_needs_no_savepoint(store):
    executed = []
    engine = store.database.writer._engine
    event.listen(engine, "before_cursor_execute", lambda *given: executed.append(given[2].split()[0]))
    await store.devices.save(DeviceRecord("X1", "pixel"))
    assert "INSERT" in executed
    assert not {"SAVEPOINT", "RELEASE"} & set(executed)


def _write_until_killed(path, pipe):
    async def work():
        store = Store.open(path)
        for number in range(1_000_000):
            await store.devices.save(DeviceRecord(f"S{number}", f"phone-{number}"))
            os.write(pipe, b".")

    asyncio.run(work())


def test_kill_9_loses_nothing_that_was_answered(tmp_path):
    read, write = os.pipe()
    writer = multiprocessing.get_context("fork").Process(target=_write_until_killed, args=(tmp_path / "farm.db", write))
    writer.start()
    answered = 0
    while answered < 100:
        answered += len(os.read(read, 10))
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    os.close(write)
    while more := os.read(read, 4096):
        answered += len(more)
    os.close(read)
    store = Store.open(tmp_path / "farm.db")
    kept = len(store.devices.all())
    store.close()
    assert answered <= kept <= answered + 1


@pytest.mark.parametrize("damage", [b"not a database at all, but text" * 400, None])
def test_a_damaged_file_is_refused_with_the_way_out(tmp_path, damage):
    path = tmp_path / "farm.db"
    if damage is None:
        Store.open(path).close()
        content = bytearray(path.read_bytes())
        content[4096:] = os.urandom(len(content) - 4096)
        path.write_bytes(content)
    else:
        path.write_bytes(damage)
    with raises_code(Code.DATABASE_UNUSABLE) as caught:
        Store.open(path)
    assert str(path) in caught.value.message
    assert "backup" in caught.value.hint


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "farm.db"
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE name = 'schema_version'")
    connection.close()
    with raises_code(Code.DATABASE_UNUSABLE, match="99"):
        Store.open(path)


def test_a_second_daemon_is_told_who_is_there(tmp_path):
    lock = StateFolderLock(tmp_path)
    with raises_code(Code.STATE_FOLDER_IN_USE, match=str(os.getpid())):
        StateFolderLock(tmp_path)
    lock.close()
    StateFolderLock(tmp_path).close()
