"""A lease is decided, kept, delivered, ended: what happens when something goes wrong in each of these moments."""

import asyncio
import time
from dataclasses import replace

import pytest

from farm.common.errors import Code, FarmError
from farm.model.device import Life
from farm.model.requests import NoSuchLeaseError
from farm.store.store import Store
from tests.support.leasing_lab import ANDROID, Lab, settle
from tests.support.local_head import store_problem
from tests.support.virtual_time import virtual_time
from tests.support.waiting import HANG_S, until


@pytest.fixture
async def lab():
    return Lab("a")


@pytest.mark.parametrize("begun", [True, False])
async def test_a_request_withdrawn_while_it_is_written_or_before_is_never_delivered(lab, begun):
    with lab.slow_store():
        request = lab.ask()
        if begun:
            await settle()
        lab.leasing.withdraw(request)
        lab.leasing.withdraw(request)
    await settle()
    assert (lab.got, lab.open_rows()) == ([], [])
    assert (len(lab.keeper.rows), lab.told()) == ((1, ["lease.granted", "lease.released"]) if begun else (0, []))
    assert (await lab.lease()).device == "a"


@pytest.mark.parametrize("life", [Life.OFFLINE, Life.RECOVERING, Life.GONE])
async def test_a_phone_lost_while_its_lease_is_written_leaves_the_request_as_old_as_ever(lab, life):
    with lab.slow_store():
        lab.ask()
        await settle()
        lab.devices.become("a", life, "cable")
    await settle()
    assert (lab.got, lab.open_rows(), lab.waiting()) == ([], [], [ANDROID])
    lab.devices.become("a", Life.READY)
    await settle()
    (lease,) = lab.got
    fences = [row.fence for row in lab.keeper.rows.values()]
    assert fences == sorted(fences)
    assert lab.told() == ["lease.granted", "lease.released", "lease.granted"]
    assert lab.open_rows() == [("a", lease.id)]


async def test_the_daemon_stops_while_a_lease_is_written():
    lab = Lab("a", "b")
    held = await lab.lease()
    with lab.slow_store():
        lab.ask()
        await settle()
        closing = asyncio.ensure_future(lab.leasing.close())
        await settle()
    await closing
    assert (lab.got, lab.open_rows()) == ([], [])
    assert {row.reason for row in lab.keeper.rows.values()} == {"the farm is stopping"}
    assert held.id in lab.keeper.rows
    store_problem(lab.leasing, failing=False)  # news that comes late must not grant anything
    await settle()
    assert lab.got == []


@virtual_time
async def test_a_full_disk_grants_nothing_and_what_runs_goes_on():
    lab = Lab("a", "b")
    held = await lab.lease()
    lab.keeper.full = True
    store_problem(lab.leasing, failing=True)
    lab.ask()
    await settle()
    assert (lab.got, len(lab.waiting())) == ([], 1)
    assert [holder.lease.id for holder in lab.holders()] == [held.id]
    lab.leasing.release(held.id)
    assert lab.holders() == ()
    tries = lab.keeper.tries
    await until(lambda: lab.keeper.tries > tries + 2)  # the end is tried again and again
    assert lab.open_rows() == [(held.device, held.id)]
    assert lab.told() == ["lease.granted"]
    lab.keeper.full = False
    store_problem(lab.leasing, failing=False)
    await until(lambda: lab.got)
    assert lab.open_rows() == [(lab.got[0].device, lab.got[0].id)]
    assert sorted(lab.told()) == ["lease.granted", "lease.granted", "lease.released"]


@virtual_time
async def test_a_grant_that_meets_a_full_disk_is_delivered_when_there_is_space():
    lab = Lab("a")
    lab.keeper.full = True
    lab.ask()
    await until(lambda: lab.keeper.tries > 2)
    store_problem(lab.leasing, failing=True)
    assert lab.got == []
    other = lab.events.publish("device.ready", "b")
    await until(lambda: lab.events.seq >= other.seq)  # a draft that cannot be kept holds nobody back
    lab.keeper.full = False
    store_problem(lab.leasing, failing=False)
    await until(lambda: lab.got)
    assert lab.told()[-1] == "lease.granted"


@virtual_time
async def test_withdrawn_while_the_disk_is_full_nothing_is_written_later():
    lab = Lab("a")
    lab.keeper.full = True
    request = lab.ask()
    await until(lambda: lab.keeper.tries > 1)
    for _ in range(50):  # in whatever moment of the retry it comes
        await asyncio.sleep(0)
    lab.leasing.withdraw(request)
    lab.keeper.full = False
    lab.ask()
    await until(lambda: lab.got)
    assert [device for device, _ in lab.open_rows()] == ["a"]


@virtual_time
async def test_the_next_lease_of_a_phone_is_written_after_the_end_of_the_last():
    lab = Lab("a")
    first = await lab.lease()
    lab.keeper.full = True
    lab.ask()
    lab.leasing.release(first.id)
    await until(lambda: lab.keeper.tries > 3)
    lab.keeper.full = False
    await until(lambda: lab.got)
    assert lab.told() == ["lease.granted", "lease.released", "lease.granted"]


@virtual_time
async def test_a_stop_with_a_full_disk_does_not_wait_for_ever():
    lab = Lab("a")
    held = await lab.lease()
    lab.keeper.full = True
    await asyncio.wait_for(lab.leasing.close(), HANG_S)
    assert lab.open_rows() == [("a", held.id)]  # the next start ends it
    assert lab.holders() == ()


@virtual_time
@pytest.mark.parametrize("error", [FarmError("it has an open lease", Code.STORE_CONFLICT), ValueError("a bug")])
async def test_a_grant_that_the_store_refuses_is_decided_anew(caplog, error):
    lab = Lab("a", "b")
    lab.keeper.refuses = {"a": error}
    lab.ask(replace(ANDROID, device="a"))
    await until(lambda: lab.keeper.tries > 2)
    assert lab.got == []
    assert (await lab.lease(device="b")).device == "b"
    assert lab.told() == ["lease.granted"]
    assert (
        caplog.text.count("was refused by the store and is dropped") == 1
    )  # the others' success makes it no news again
    lab.keeper.refuses = {}
    await until(lambda: len(lab.got) == 1)
    assert lab.got[0].device == "a"


async def test_a_refused_grant_does_not_spin_and_can_be_withdrawn(lab):
    lab.keeper.refuses = {"a": FarmError("it has an open lease", Code.STORE_CONFLICT)}
    request = lab.ask()
    await settle()
    assert (lab.keeper.tries, lab.requests.depth.total()) == (1, 0)  # until the pause is over
    lab.leasing.withdraw(request)
    lab.keeper.refuses = {}
    assert (await lab.lease()).device == "a"
    assert lab.got == []


async def test_what_the_store_refuses_of_a_lease_keeps_nobody_waiting(lab):
    lease = await lab.lease()
    lab.keeper.refuses = {"a": ValueError("a bug")}
    with pytest.raises(NoSuchLeaseError):
        await lab.leasing.extend(lease.id, 60.0)
    lab.keeper.refuses = {}
    assert await lab.leasing.extend(lease.id, 60.0)


async def test_foreign_words_in_a_reason_do_not_keep_a_phone(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    lab = Lab("a", table=store.leases)
    first = await lab.lease()
    lab.leasing.release(first.id, "adb said \udcff")
    await lab.lease()
    assert store.leases.get(first.id).reason == "adb said \\udcff"
    await lab.leasing.close()
    store.close()


@virtual_time
async def test_a_host_whose_workers_stand_is_tried_by_one_until_one_goes_on():
    lab, worker = Lab("a", "b"), replace(ANDROID, worker=True)
    lab.requests.workers_stand("", "no job runs: its disk is full")
    lab.requests.workers_stand("", "no job runs: its disk is full")  # of an attempt that ran beside the first
    requests = [lab.ask(worker) for _ in range(2)]
    await lab.lease()
    assert lab.got == []
    assert lab.why(requests[0]) == "no job runs: its disk is full"
    await until(lambda: lab.got)
    assert time.monotonic() == pytest.approx(1001.0, abs=0.5)
    lab.requests.workers_stand("", "no job runs: its disk is full")
    lab.leasing.release(lab.got.pop().id, "")
    await until(lambda: lab.got)
    assert time.monotonic() == pytest.approx(1003.0, abs=0.5)
    lab.requests.workers_go_on("")
