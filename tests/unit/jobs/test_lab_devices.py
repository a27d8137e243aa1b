"""The devices of other hosts: read while a pool is there, decoded when they change."""

from farm.common.errors import HostError
from farm.head import wire
from farm.head.messages import DeviceChanged
from farm.jobs import lab_devices
from farm.jobs.lab_devices import LabDevices
from farm.model.device import DeviceState, Life
from tests.support.waiting import until


def body(name, life=Life.READY):
    return wire.encode(DeviceChanged(DeviceState(name, f"serial-{name}", life, adopted=True)), 0.0)


async def test_what_other_hosts_say_is_followed_while_somebody_wants_to_know(monkeypatch):
    monkeypatch.setattr(lab_devices, "READ_EVERY_S", 0.005)
    rows, calls, reads = {"a": body("a")}, [], []

    async def read():
        reads.append(len(reads))
        if rows is None:
            raise HostError("the database is away")
        return dict(rows)

    devices = LabDevices(read)
    assert devices.states() == ()
    stop = devices.subscribe(lambda: calls.append(1))
    await until(lambda: calls)
    assert [(each.name, each.life) for each in devices.states()] == [("a", Life.READY)]
    seen = len(reads)
    await until(lambda: len(reads) > seen + 2)
    assert len(calls) == 1  # nothing is different
    rows |= {"a": body("a", Life.RECOVERING), "b": body("b")}
    await until(lambda: len(calls) == 2)
    assert {each.name: each.life for each in devices.states()} == {"a": Life.RECOVERING, "b": Life.READY}
    rows.pop("a")
    await until(lambda: len(calls) == 3)
    assert [each.name for each in devices.states()] == ["b"]
    kept, rows = rows, None
    seen = len(reads)
    await until(lambda: len(reads) > seen + 2)
    rows = kept
    assert [each.name for each in devices.states()] == ["b"]
    stop()
    assert devices.states() == ()
    devices.subscribe(lambda: calls.append(1))()  # at once after the end of the one before, and it ends too
    stop = devices.subscribe(lambda: calls.append(1))
    await until(lambda: len(calls) == 4)
    stop()


async def test_the_only_host_reads_nothing():
    devices = LabDevices()
    devices.subscribe(lambda: None)()
    assert devices.states() == ()
