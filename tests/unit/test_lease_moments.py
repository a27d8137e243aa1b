"""A lease is decided, kept, delivered, ended: what happens when something goes wrong in each of these moments."""

import asyncio
import random
from dataclasses import replace

import pytest

from farm.config import UserConfig
from farm.core.device import Life
from farm.core.events import EventLog
from farm.core.requests import Door, LeaseRequest
from farm.core.selector import Selector
from farm.core.sessions import Peer, SessionEnd, SessionOutcome, UnknownMatchKeyError
from farm.leasing import LeasePolicy, Leasing, NoSuchLeaseError, PhoneLostError
from farm.leasing import book as book_module
from farm.leasing import grants as grants_module
from farm.leasing import leases as leases_module
from farm.leasing.sessions import digest
from farm.store import patience as patience_module
from farm.store.store import Store
from farm.store.writer import StoreConflictError
from tests.support.keeping import MemoryKeeper
from tests.support.raw import until
from tests.support.tvm import FakeDevices

ANDROID = LeaseRequest(Selector.parse("android"), "alice", Door.JOB)


class Lab:
    """Leasing over fake phones and a store whose commits may be held back (`keeper.gate`) or refused (`.full`)."""

    def __init__(self, *phones, policy=None):
        self.devices = FakeDevices()
        for phone in phones:
            self.devices.add(phone, "android")
        self.events = EventLog()
        self.keeper = MemoryKeeper()
        self.leasing = Leasing(self.devices, self.events, 5, self.keeper, policy)
        self.got = []

    def ask(self, request=ANDROID):
        return self.leasing.ask(request, self.got.append)

    async def lease(self, request=ANDROID):
        return await self.leasing.acquire(request)

    def why_first(self):
        (waiting,) = self.leasing.waiting(1)
        return self.leasing.why([waiting.id])[waiting.id]

    def told(self):
        return [event.kind for event in self.events.since()]

    def open_rows(self):
        return [(row.device, row.id) for row in self.keeper.open()]


async def settle():
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.fixture
def quick_retry(monkeypatch):
    monkeypatch.setattr(patience_module, "RETRY_S", 0.01)
    monkeypatch.setattr(book_module, "FLUSH_LIMIT_S", 0.05)


async def test_a_lease_is_delivered_once_it_is_kept_and_not_before():
    lab = Lab("a")
    lab.keeper.gate.clear()
    lab.ask()
    await settle()
    assert lab.got == []
    assert lab.told() == []
    assert lab.leasing.holders() == ()
    lab.keeper.gate.set()
    await settle()
    (lease,) = lab.got
    assert lab.open_rows() == [("a", lease.id)]
    assert lab.told() == ["lease.granted"]


async def test_a_request_withdrawn_while_it_is_written_is_ended_at_once_and_never_delivered():
    lab = Lab("a")
    lab.keeper.gate.clear()
    request = lab.ask()
    await settle()
    lab.leasing.withdraw(request)
    lab.leasing.withdraw(request)
    lab.keeper.gate.set()
    await settle()
    assert lab.got == []
    assert lab.open_rows() == []
    assert lab.told() == ["lease.granted", "lease.released"]
    assert (await lab.lease()).device == "a"


async def test_a_request_withdrawn_before_it_is_written_leaves_nothing():
    lab = Lab("a")
    request = lab.ask()
    lab.leasing.withdraw(request)  # the writing has not begun
    await settle()
    assert lab.got == []
    assert lab.keeper.rows == {}
    assert lab.told() == []
    assert (await lab.lease()).device == "a"


async def test_a_waiter_cancelled_while_its_lease_is_written_leaves_the_phone_to_the_next():
    lab = Lab("a")
    lab.keeper.gate.clear()
    waiting = asyncio.ensure_future(lab.lease())
    await settle()
    waiting.cancel()
    lab.ask()
    await settle()
    lab.keeper.gate.set()
    await settle()
    assert waiting.cancelled()
    assert [lease.device for lease in lab.got] == ["a"]
    assert lab.open_rows() == [("a", lab.got[0].id)]


@pytest.mark.parametrize("life", [Life.OFFLINE, Life.RECOVERING, Life.GONE])
async def test_a_phone_lost_while_its_lease_is_written_leaves_the_wish_as_old_as_ever(life):
    lab = Lab("a")
    lab.keeper.gate.clear()
    lab.ask()
    await settle()
    lab.devices.become("a", life, "cable")
    lab.keeper.gate.set()
    await settle()
    assert lab.got == []
    assert lab.open_rows() == []
    (waiting,) = lab.leasing.waiting()
    assert waiting.request == ANDROID
    lab.devices.become("a", Life.READY)
    await settle()
    (lease,) = lab.got
    assert [row.fence for row in lab.keeper.rows.values()] == sorted(row.fence for row in lab.keeper.rows.values())
    assert lab.told() == ["lease.granted", "lease.released", "lease.granted"]
    assert lab.open_rows() == [("a", lease.id)]


async def test_the_daemon_stops_while_a_lease_is_written():
    lab = Lab("a", "b")
    held = await lab.lease()
    lab.keeper.gate.clear()
    lab.ask()
    await settle()
    closing = asyncio.ensure_future(lab.leasing.close())
    await settle()
    lab.keeper.gate.set()
    await closing
    assert lab.got == []
    assert lab.open_rows() == []
    assert {row.reason for row in lab.keeper.rows.values()} == {"the farm is stopping"}
    assert held.id in lab.keeper.rows
    lab.leasing.store_problem(False)  # news that comes late must not grant anything
    await settle()
    assert lab.got == []


async def test_a_full_disk_grants_nothing_and_what_runs_goes_on(quick_retry):
    lab = Lab("a", "b")
    held = await lab.lease()
    lab.keeper.full = True
    lab.leasing.store_problem(True)
    lab.ask()
    await settle()
    assert lab.got == []
    assert len(lab.leasing.waiting()) == 1
    assert [holder.lease.id for holder in lab.leasing.holders()] == [held.id]
    lab.leasing.release(held.id)
    assert lab.leasing.holders() == ()
    tries = lab.keeper.tries
    await until(lambda: lab.keeper.tries > tries + 2)  # the end is tried again and again
    assert lab.open_rows() == [(held.device, held.id)]
    assert lab.told() == ["lease.granted"]
    lab.keeper.full = False
    lab.leasing.store_problem(False)
    await until(lambda: lab.got)
    assert lab.open_rows() == [(lab.got[0].device, lab.got[0].id)]
    assert sorted(lab.told()) == ["lease.granted", "lease.granted", "lease.released"]


async def test_a_grant_that_meets_a_full_disk_is_delivered_when_there_is_room(quick_retry):
    lab = Lab("a")
    lab.keeper.full = True
    lab.ask()
    await until(lambda: lab.keeper.tries > 2)
    lab.leasing.store_problem(True)
    assert lab.got == []
    other = lab.events.publish("device.ready", "b")
    await until(lambda: lab.events.seq >= other.seq)  # a draft that cannot be kept holds nobody back
    lab.keeper.full = False
    lab.leasing.store_problem(False)
    await until(lambda: lab.got)
    assert lab.told()[-1] == "lease.granted"


async def test_withdrawn_while_the_disk_is_full_nothing_is_written_later(quick_retry):
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


async def test_the_next_lease_of_a_phone_is_written_after_the_end_of_the_last(quick_retry):
    lab = Lab("a")
    first = await lab.lease()
    lab.keeper.full = True
    lab.ask()
    lab.leasing.release(first.id)
    await until(lambda: lab.keeper.tries > 3)
    lab.keeper.full = False
    await until(lambda: lab.got)
    assert lab.told() == ["lease.granted", "lease.released", "lease.granted"]


async def test_a_stop_with_a_full_disk_does_not_wait_for_ever(quick_retry):
    lab = Lab("a")
    held = await lab.lease()
    lab.keeper.full = True
    await asyncio.wait_for(lab.leasing.close(), 2)
    assert lab.open_rows() == [("a", held.id)]  # the next start ends it
    assert lab.leasing.holders() == ()


@pytest.mark.parametrize("error", [StoreConflictError("it has an open lease"), ValueError("a bug")])
async def test_a_grant_that_the_store_refuses_is_decided_anew(monkeypatch, caplog, error):
    monkeypatch.setattr(grants_module, "REFUSED_PAUSE_S", 0.01)
    lab = Lab("a", "b")
    lab.keeper.refuses = {"a": error}
    only_a = replace(ANDROID, device="a")
    lab.ask(only_a)
    await until(lambda: lab.keeper.tries > 2)
    assert lab.got == []
    assert (await lab.lease(replace(ANDROID, device="b"))).device == "b"
    assert lab.told() == ["lease.granted"]
    assert caplog.text.count("cannot be written and is given up") == 1  # the others' success makes it no news again
    lab.keeper.refuses = {}
    await until(lambda: len(lab.got) == 1)
    assert lab.got[0].device == "a"


async def test_a_refused_grant_does_not_spin_and_can_be_withdrawn():
    lab = Lab("a")
    lab.keeper.refuses = {"a": StoreConflictError("it has an open lease")}
    request = lab.ask()
    await settle()
    assert lab.keeper.tries == 1
    assert lab.leasing.waiting_count == 0  # until the pause is over
    lab.leasing.withdraw(request)
    lab.keeper.refuses = {}
    assert (await lab.lease()).device == "a"
    assert lab.got == []


async def test_what_the_store_refuses_of_a_lease_keeps_nobody_waiting():
    lab = Lab("a")
    lease = await lab.lease()
    lab.keeper.refuses = {"a": ValueError("a bug")}
    with pytest.raises(NoSuchLeaseError):
        await lab.leasing.extend(lease.id, 60.0)
    lab.keeper.refuses = {}
    assert await lab.leasing.extend(lease.id, 60.0)


async def test_foreign_words_in_a_reason_do_not_keep_a_phone(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    devices = FakeDevices()
    devices.add("a", "android")
    leasing = Leasing(devices, EventLog(store.epoch), store.epoch, store.leases)
    first = await leasing.acquire(ANDROID)
    leasing.release(first.id, "adb said \udcff")
    second = await leasing.acquire(ANDROID)
    assert store.leases.get(first.id).reason == "adb said \\udcff"
    leasing.release(second.id)
    await leasing.close()
    store.close()


# --- restarts -------------------------------------------------------------------------------------------------------


PERSONAL = LeaseRequest(
    Selector.parse("android"), "alice", Door.JOB, longest_s=60.0, traces=True, personal=True, job="j"
)


async def test_a_personal_lease_goes_on_after_a_restart():
    before = Lab("a", "b")
    lease = await before.lease(PERSONAL)
    key = before.leasing.new_match_key(lease.id, single_use=False)
    other = await before.lease()
    await before.leasing.close()
    assert before.open_rows() == [(lease.device, lease.id)]
    assert "lease.revoked" in before.told()
    assert before.keeper.rows[other.id].reason == "the farm is stopping"

    after = Lab()
    after.keeper.rows = {lease.id: before.keeper.rows[lease.id]}
    after.leasing.restore(lease, PERSONAL)
    after.leasing.adopt_match_key(lease.id, digest(key))
    (holder,) = after.leasing.holders()
    assert (holder.lease.id, holder.lease.fence) == (lease.id, lease.fence)
    assert 0 < (holder.expires_at - after.keeper.rows[lease.id].granted_at).total_seconds() <= 61
    after.ask()
    for life in (Life.NEW, Life.IDENTIFYING, Life.STARTING):
        after.devices.add(lease.device, "android", life=life)
    await settle()
    assert len(after.leasing.holders()) == 1
    after.devices.become(lease.device, Life.READY)
    assert after.got == []
    leg = await after.leasing.open(key, None, 1.0, lambda reason: None)
    assert leg.device == lease.device
    after.devices.recover = False
    taken = after.leasing.taken_away(lease.id)
    await asyncio.wait_for(revoke(after, lease.device, leg), 2)
    assert taken.done()
    assert after.devices.broken  # cleaned after a person, whatever ended it
    assert after.got == []
    after.devices.become(lease.device, Life.READY)
    await settle()
    assert after.got[0].device == lease.device


async def revoke(lab, device, leg):
    asyncio.get_running_loop().call_soon(leg.ended, SessionEnd(SessionOutcome.CUT))
    await lab.leasing.revoke(device, "kicked")


async def test_a_restored_lease_whose_phone_does_not_come_back_is_revoked():
    before = Lab("a")
    lease = await before.lease(PERSONAL)
    after = Lab(policy=LeasePolicy(recovery_s=0.02))
    after.devices.add("a", "android", life=Life.GONE)
    after.keeper.rows = dict(before.keeper.rows)
    after.leasing.restore(lease, PERSONAL)
    lost = await asyncio.wait_for(after.leasing.taken_away(lease.id), 2)
    assert isinstance(lost, PhoneLostError)
    await until(lambda: not after.open_rows())
    assert after.told() == ["lease.revoked", "lease.released"]


# --- extend, dirty, quotas ------------------------------------------------------------------------------------------


async def test_extending_is_kept_and_told():
    lab = Lab("a")
    lease = await lab.lease(PERSONAL)
    before = lab.leasing.expires_at(lease.id)
    expires_at = await lab.leasing.extend(lease.id, 600.0)
    assert (expires_at - before).total_seconds() > 500
    assert lab.keeper.rows[lease.id].expires_at == expires_at
    assert abs((lab.leasing.expires_at(lease.id) - expires_at).total_seconds()) < 1
    assert lab.told() == ["lease.granted", "lease.extended"]
    lab.leasing.release(lease.id)
    with pytest.raises(NoSuchLeaseError):
        await lab.leasing.extend(lease.id, 1.0)


async def test_a_lease_that_ends_while_it_is_extended_is_not_extended():
    lab = Lab("a")
    lease = await lab.lease(PERSONAL)
    lab.keeper.gate.clear()
    extending = asyncio.ensure_future(lab.leasing.extend(lease.id, 600.0))
    await settle()
    lab.leasing.release(lease.id)
    lab.keeper.gate.set()
    with pytest.raises(NoSuchLeaseError):
        await extending
    await until(lambda: not lab.open_rows())


@pytest.mark.parametrize(("request_", "dirty"), [(ANDROID, True), (PERSONAL, False)])
async def test_a_phone_with_traces_is_cleaned_before_the_next_user(request_, dirty):
    lab = Lab("a")
    lab.devices.recover = False
    lease = await lab.lease(request_)
    lab.ask()
    lab.leasing.release(lease.id, dirty=dirty)
    await settle()
    assert [name for name, _ in lab.devices.broken] == ["a"]
    assert lab.got == []
    lab.devices.become("a", Life.READY)
    await settle()
    assert len(lab.got) == 1


async def test_a_user_holds_no_more_phones_than_their_quota():
    lab = Lab("a", "b", policy=LeasePolicy(quota=UserConfig(devices=1), users={"ci": UserConfig(devices=2)}))
    first = await lab.lease()
    lab.ask()
    await settle()
    assert lab.got == []
    assert "at most 1" in lab.why_first()
    lab.leasing.release(first.id)
    await until(lambda: len(lab.got) == 1)


async def test_why_many_alike_wait_is_looked_at_once(monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        leases_module, "shortly", lambda allocator, request, now_s: looked_at.append(request) or str(len(looked_at))
    )
    lab = Lab("a")
    await lab.lease()
    alike = [lab.ask(replace(ANDROID, job=f"j{number}")) for number in range(3)]
    other = lab.ask(replace(ANDROID, job="j4", avoid=frozenset({"b"})))
    assert lab.leasing.why([*alike, other, "gone"]) == {**dict.fromkeys(alike, "1"), other: "2", "gone": ""}
    assert len(looked_at) == 2


async def test_a_stock_client_asks_with_no_more_priority_than_it_may():
    lab = Lab(policy=LeasePolicy(quota=UserConfig(priority=3), users={"ci": UserConfig(priority=7)}))
    wishes = [
        asyncio.ensure_future(lab.leasing.request("android", user, priority, Peer("127.0.0.1", 1, user)))
        for user, priority in (("bob", 99), ("ci", 99), ("bob", 2))
    ]
    await settle()
    assert [each.request.priority for each in lab.leasing.waiting()] == [7, 3, 2]
    assert lab.leasing.summary().keys[0].pending == 3
    for wish in wishes:
        wish.cancel()
    await settle()
    assert lab.leasing.summary().keys == ()


async def test_the_key_of_a_lease_is_its_own_answer_until_the_lease_ends():
    lab, peer = Lab("a"), Peer("127.0.0.1", 1, "alice")
    lease = await lab.lease(PERSONAL)
    key = lab.leasing.new_match_key(lease.id, single_use=False)
    assert await lab.leasing.request(key, "alice", 1, peer) == key
    leg = await lab.leasing.open(key, peer, 1.0, lambda reason: None)
    waiting = asyncio.ensure_future(lab.leasing.request(key, "alice", 1, peer))
    await settle()
    assert not waiting.done()
    lab.leasing.release(lease.id)
    leg.ended(SessionEnd(SessionOutcome.CUT))
    for late in (waiting, lab.leasing.request(key, "alice", 1, peer)):
        with pytest.raises(UnknownMatchKeyError):
            await late
    assert lab.leasing.waiting() == ()


async def test_many_may_wait_and_none_of_them_is_a_task():
    lab = Lab()
    tasks = len(asyncio.all_tasks())
    requests = [lab.ask() for _ in range(10_000)]
    assert len(asyncio.all_tasks()) == tasks
    assert lab.leasing.summary().keys[0].pending == 10_000
    for request in requests:
        lab.leasing.withdraw(request)
    assert lab.leasing.waiting() == ()
    assert lab.leasing.summary().keys == ()


# --- against the real store -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_in_a_storm_the_store_never_has_two_holders_of_a_phone_and_every_lease_ends(tmp_path, seed):
    dice = random.Random(seed)
    store = Store.open(tmp_path / "farm.db")
    devices, events = FakeDevices(), EventLog(store.epoch)
    names = ["a", "b", "c"]
    for name in names:
        devices.add(name, "android")
    leasing = Leasing(devices, events, store.epoch, store.leases, LeasePolicy(recovery_s=0.01))
    got, asked = [], []
    for _ in range(400):
        match dice.randrange(6):
            case 0 | 1:
                asked.append(leasing.ask(ANDROID, got.append))
            case 2 if asked:
                leasing.withdraw(asked.pop(dice.randrange(len(asked))))
            case 3 if got:
                leasing.release(got.pop(dice.randrange(len(got))).id)
            case 4:
                devices.become(dice.choice(names), dice.choice([Life.OFFLINE, Life.RECOVERING, Life.READY, Life.READY]))
            case _:
                await asyncio.sleep(dice.choice([0, 0, 0.001]))
    await leasing.close()
    assert store.leases.open() == ()
    told = events.since()
    holder = {}
    for event in told:
        device = event.data.get("device")
        if event.kind == "lease.granted":
            assert device not in holder
            holder[device] = event.subject
        elif event.kind == "lease.released":
            assert holder.pop(device) == event.subject
    assert holder == {}
    assert sum(event.kind == "lease.granted" for event in told) > 10
    assert {lease.id for lease in got} <= {event.subject for event in told if event.kind == "lease.granted"}
    store.close()


async def test_a_restart_in_the_middle_finds_what_was_open(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    devices, events = FakeDevices(), EventLog(store.epoch)
    devices.add("a", "android")
    leasing = Leasing(devices, events, store.epoch, store.leases)
    lease = await leasing.acquire(PERSONAL)
    await leasing.close()
    store.close()
    again = Store.open(tmp_path / "farm.db")
    (record,) = again.leases.open()
    assert (record.id, record.fence, record.device) == (lease.id, lease.fence, "a")
    assert record.expires_at is not None
    devices.become("a", Life.OFFLINE)
    later = Leasing(devices, EventLog(again.epoch), again.epoch, again.leases)
    later.restore(lease, PERSONAL)
    later.release(lease.id)
    await later.close()
    assert again.leases.open() == ()
    again.close()
