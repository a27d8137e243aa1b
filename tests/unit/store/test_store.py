"""The store as its callers see it: what survives a restart, and a writer that nobody's mistake stops."""

import asyncio
import multiprocessing
import os
import signal
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
from tests.support.waiting import HANG_S, until
from tests.unit.store.values import busy_writer

PIXEL = DeviceIdentity(
    hardware_serial="HW1", vendor="Google", model="Pixel 7", abis=("arm64-v8a",), cpu=(CpuCluster(4, "Cortex-A55"),),
    soc=Soc("GS201", confidence=Confidence.CERTAIN, candidates=("GS201",)), gpu=Gpu("mali", "Mali-G710", 7),
    targets={"cpu": {"kind": "llvm", "num-cores": 4}, "opencl": "tag"}, raw={"ro.hardware": "gs201"},
)  # fmt: skip
HEALTH = Health(
    boot_id="b", battery=Battery(percent=80, powered_by=("usb",)), throttle=ThrottleStatus.LIGHT,
    temperatures=(Temperature("skin", 31.5, SensorGroup.SKIN, "zone"),), cpu=(ClusterReading((0, 1), khz=1000),),
)  # fmt: skip


async def test_devices_and_aliases_survive_a_restart(opened, where):
    at = datetime(2026, 11, 2, 12, tzinfo=UTC)
    pixel = DeviceRecord(
        "X1", "pixel-7", pool="lab", adopted=True, service="maintenance", ordered_by="ann", ordered_at=at,
        labels={"rack": "3"}, address="10.0.0.2:5555", identity=PIXEL, health=HEALTH, health_at=at,
    )  # fmt: skip
    store = opened(where)
    await store.devices.save(DeviceRecord("X1", "phone"))
    await store.devices.save(pixel)
    await store.devices.save(DeviceRecord("X2", "other"))
    await store.devices.forget("X2")
    await store.devices.save(DeviceRecord("X3", "strange", health=replace(HEALTH, boot_id="b\udcff")))  # no stored word
    await store.aliases.save("board", "soc=sm8550")
    await store.aliases.save("board", "soc=sm8650")
    epoch = store.epoch
    store.close()
    store = opened(where)
    kept, strange = store.devices.all()
    assert (store.epoch, kept) == (epoch + 1, pixel)
    assert (strange.health.battery, strange.identity) == (HEALTH.battery, None)
    assert store.aliases.all() == {"board": "soc=sm8650"}
    assert [await store.aliases.forget("board") for _ in range(2)] == [True, False]


async def test_a_read_that_outlives_its_store_leaves_no_connection(store):
    reads, closed, used = threading.Event(), threading.Event(), []

    def read():
        with store.database.reading() as connection:
            used.append(connection.connection.dbapi_connection)
            reads.set()
            assert closed.wait(HANG_S)

    reading = asyncio.ensure_future(store.in_thread(read))
    await until(reads.is_set)
    store.close()
    closed.set()
    await reading
    with pytest.raises(Exception, match="closed"):
        used[0].execute("SELECT 1")


async def test_an_identity_of_another_release_is_as_none(store, caplog):
    await store.devices.save(DeviceRecord("X1", "pixel-7", identity=DeviceIdentity(vendor="Google")))
    for text in ('{"soc": 7}', "[]", "nonsense"):
        await store.database.execute(update(device).values(identity=literal_column(f"'{text}'")))
        (record,) = store.devices.all()
        assert record.identity is None
        assert "a stored record is not used" in caplog.text
        caplog.clear()


async def test_a_refused_write_spares_the_others_of_its_commit(store):
    """Two phones cannot have one name."""
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

    with pytest.raises(ZeroDivisionError):
        await store.database.writer.write(mistake)
    async with busy_writer(store.database) as under_way:
        queued = asyncio.create_task(store.devices.save(DeviceRecord("X1", "never")))
        await asyncio.sleep(0)  # until its write is in the queue
        for each in (under_way, queued):
            each.cancel()
        await asyncio.gather(queued, return_exceptions=True)
        assert queued.cancelled()
        assert not under_way.done()  # it may have been written: whoever waits must not be told before that is known
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


def test_kill_9_loses_nothing_that_was_answered(tmp_path, opened):
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
    assert answered <= len(opened(tmp_path / "farm.db").devices.all()) <= answered + 1


def test_a_second_daemon_is_told_who_is_there(tmp_path):
    lock = StateFolderLock(tmp_path)
    with raises_code(Code.STATE_FOLDER_IN_USE, match=str(os.getpid())):
        StateFolderLock(tmp_path)
    lock.close()
    StateFolderLock(tmp_path).close()
