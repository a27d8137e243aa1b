"""The mailboxes between hosts and a head apart, on a server: in order, once, together with what they report."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import insert, select

from farm.common.errors import Code
from farm.store import mailbox
from farm.store.database import Database
from farm.store.engine import server_engine
from farm.store.mailbox import Letter, WakeUpListener, WakeUps
from farm.store.schema import device_state, request, to_head, to_host
from farm.store.server_opening import StoreRole
from farm.store.store import Store
from farm.store.writer import Writer
from tests.support.errors import raises_code
from tests.unit.store.values import NOW, lease

ONE, TWO = "one", "two words \u00e9"


def letter(text, host=ONE):
    return Letter(host, {"kind": text})


def kinds(letters):
    return [each.body["kind"] for each in letters]


@pytest.fixture
def store(tables):
    opened = Store.open(tables.as_new())
    yield opened
    opened.close()


def rows(store, table):
    with store.database.reading() as connection:
        return [tuple(row) for row in connection.execute(select(table)).all()]


async def test_letters_are_taken_once_and_in_order(store):
    box = store.mailbox
    await box.send(letter("a"), letter("b"))
    await box.send(letter("c", TWO))
    await box.send(letter("d"))
    assert [(each.host, each.body["kind"]) for each in await box.take_all()] == [
        (ONE, "a"), (ONE, "b"), (TWO, "c"), (ONE, "d")
    ]  # fmt: skip
    assert await box.take_all() == ()


async def test_the_next_commit_deletes_the_letters_that_were_taken(store):
    box = store.mailbox
    await box.send_to_hosts([Letter(ONE, {"kind": "first"}), Letter(TWO, {"kind": "second"})])
    assert [kinds(await box.take(ONE)) for _ in range(2)] == [["first"], []]
    assert len(rows(store, to_host)) == 2
    with raises_code(Code.STORE_CONFLICT):  # the deletion is lost with a write that is refused
        await store.database.execute(insert(to_host).values(id=None, host=ONE, body={}))
    assert kinds(await box.take(ONE)) == []  # it is asked for again
    await box.send(letter("anything"))
    assert [name for _, name, _ in rows(store, to_host)] == [TWO]


async def test_letters_of_a_cancelled_take_are_taken_by_the_next(store):
    await store.mailbox.send_to_hosts([letter("first")])
    taking = asyncio.ensure_future(store.mailbox.take(ONE))
    await asyncio.sleep(0)  # it has asked a thread
    taking.cancel()
    await asyncio.wait((taking,))
    assert taking.cancelled()
    await store.mailbox.send(letter("anything"))
    assert kinds(await store.mailbox.take(ONE)) == ["first"]


async def test_a_failed_deletion_of_letters_spares_the_write_that_it_went_with(store):
    store.database.writer.delete_read(to_head, "", [1 << 63])  # no number of a letter
    await store.mailbox.send(letter("kept"))
    assert kinds(await store.mailbox.take_all()) == ["kept"]


async def test_a_letter_that_is_no_json_has_one_clear_error(store):
    with raises_code(Code.STORE_CONFLICT, match="refused a write"):
        await store.mailbox.send(Letter(ONE, {"kind": "of a phone", "celsius": float("nan")}))


async def test_a_process_whose_name_another_one_has_taken_gets_no_letters(store, new_database):
    url = new_database()
    before = Store.open(url, ONE, role=StoreRole.HOST)
    now = Store.open(url, ONE, role=StoreRole.HOST)
    try:
        await now.mailbox.begin(letter("began"), 1)
        await now.mailbox.send_to_hosts([letter("granted")])
        assert await before.mailbox.take(ONE) == ()
        assert kinds(await now.mailbox.take(ONE)) == ["granted"]
    finally:
        now.close()
        before.close()


async def test_a_full_mailbox_is_taken_in_parts(store, monkeypatch):
    monkeypatch.setattr(mailbox, "MOST_AT_ONCE", 3)
    await store.mailbox.send(*[letter(str(n)) for n in range(7)])
    taken = [kinds(await store.mailbox.take_all()) for _ in range(4)]
    assert taken == [["0", "1", "2"], ["3", "4", "5"], ["6"], []]


async def test_a_host_takes_its_own_letters(store):
    await store.mailbox.send_to_hosts([letter("a"), letter("b", TWO), letter("c")])
    assert kinds(await store.mailbox.take(ONE)) == ["a", "c"]
    assert kinds(await store.mailbox.take(TWO)) == ["b"]


async def test_nothing_is_lost_while_others_write(new_database):
    """A writer that took its number early and commits late is read, too."""
    url = new_database()
    store = Store.open(url)
    writers = [Database(server_engine(url), Writer(server_engine(url))) for _ in range(3)]
    boxes = [mailbox.Mailbox(each) for each in writers]
    try:
        sending = asyncio.gather(*(send_all(box, f"h{n}") for n, box in enumerate(boxes)))
        got = {f"h{n}": [] for n in range(3)}
        while not sending.done() or (found := await store.mailbox.take_all()):
            for each in await store.mailbox.take_all() if not sending.done() else found:
                got[each.host].append(each.body["kind"])
            await asyncio.sleep(0)
        assert got == {host: [str(n) for n in range(100)] for host in got}
    finally:
        for each in writers:
            each.close()
            each.engine.dispose()
        store.close()


async def send_all(box, host):
    for n in range(100):
        await box.send(letter(str(n), host))


async def test_what_a_host_has_stands_in_rows(store):
    box = store.mailbox
    await box.device_changed("a", letter("ready"))
    await box.device_changed("a", letter("gone"))
    await box.device_changed("b", letter("ready"))
    await box.device_forgotten("b", letter("forgotten"))
    await box.request_added("r1", letter("wanted"))
    await box.request_added("r2", letter("wanted too"))
    await box.request_withdrawn("r1", letter("not wanted"))
    assert rows(store, device_state) == [(ONE, "a", {"kind": "gone"})]
    assert [(name, body) for _, name, _, body in rows(store, request)] == [("r2", {"kind": "wanted too"})]
    said = ["ready", "gone", "ready", "forgotten", "wanted", "wanted too", "not wanted"]
    assert kinds(await box.take_all()) == said


async def test_what_is_refused_sends_no_letter(store):
    await store.mailbox.request_added("r1", letter("wanted"))
    with raises_code(Code.STORE_CONFLICT):
        await store.mailbox.request_added("r1", letter("wanted again"))
    await store.leases.grant(lease(1, "a"))
    with raises_code(Code.STORE_CONFLICT):  # it has an open lease
        await store.leases.grant(lease(2, "a"), letter=letter("granted"))
    assert kinds(await store.mailbox.take_all()) == ["wanted"]
    assert await store.mailbox.take(ONE) == ()


async def test_a_host_that_begins_anew_has_no_requests_and_no_letters(store):
    await store.mailbox.request_added("r1", letter("wanted"))
    await store.mailbox.request_added("r2", letter("wanted", TWO))
    await store.mailbox.send_to_hosts([letter("granted"), letter("granted", TWO)])
    await store.mailbox.begin(letter("began"), 1)
    assert [name for _, name, _, _ in rows(store, request)] == ["r2"]
    assert await store.mailbox.take(ONE) == ()
    assert len(await store.mailbox.take(TWO)) == 1
    assert kinds(await store.mailbox.take_all()) == ["wanted", "wanted", "began"]


async def test_a_host_has_its_beat_and_its_drain_until_it_begins_anew(store):
    await store.mailbox.begin(letter("began"), 1, "1.0")
    (row,) = await store.mailbox.look_at_hosts()
    assert (row.name, row.protocol, row.drained, row.version) == (ONE, 1, "", "1.0")
    await store.mailbox.drain("ann drains it", letter("drained"))
    await store.mailbox.beat(ONE, 2)
    (later,) = await store.mailbox.look_at_hosts()
    assert later.beat_at > row.beat_at
    assert (later.protocol, later.drained) == (2, "ann drains it")
    await store.mailbox.begin(letter("began"), 2)
    assert (await store.mailbox.look_at_hosts())[0].drained == ""
    assert kinds(await store.mailbox.take_all()) == ["began", "drained", "began"]


async def test_a_lease_is_held_once_its_host_has_armed_it(store):
    box, leases = store.mailbox, store.leases
    await box.request_added("r1", letter("wanted"))
    await leases.grant(lease(1, "a"), letter=letter("granted"))
    granted = leases.get("l1")
    assert (granted.host, granted.armed_at) == (ONE, None)
    assert kinds(await box.take(ONE)) == ["granted"]
    assert await leases.arm("l1", NOW, "r1", letter("armed"))
    assert leases.get("l1").armed_at == NOW
    assert rows(store, request) == []
    assert not await leases.arm("l1", NOW, "r1", letter("armed again"))
    assert not await leases.end_unarmed("l1", ended_at=NOW, reason="nobody came")
    assert kinds(await box.take_all()) == ["wanted", "armed"]
    await leases.extend("l1", NOW + timedelta(hours=1), letter=letter("extended"))
    await leases.keep_slot("l1", kept=True, letter=letter("kept"))
    assert leases.get("l1").slot
    assert await leases.end("l1", ended_at=NOW, reason="over", held_s=1.0, letter=letter("ended"))
    assert not await leases.end("l1", ended_at=NOW, reason="over", held_s=1.0, letter=letter("ended again"))
    assert kinds(await box.take_all()) == ["extended", "kept", "ended"]


async def test_a_lease_that_ended_before_is_not_armed(store):
    await store.leases.grant(lease(1, "a"), letter=letter("granted"))
    assert await store.leases.end_unarmed("l1", ended_at=NOW, reason="another head took over")
    assert not await store.leases.arm("l1", NOW, "r1", letter("armed"))
    assert await store.mailbox.take_all() == ()
    await store.leases.grant(lease(2, "a"))  # the phone is free


async def test_a_lease_is_armed_or_ended_whoever_comes_first(store):
    for fence in range(1, 21):
        await store.leases.grant(lease(fence, f"p{fence}"), letter=letter("granted"))
        armed, ended = await asyncio.gather(
            store.leases.arm(f"l{fence}", NOW, "", letter("armed")),
            store.leases.end_unarmed(f"l{fence}", ended_at=NOW, reason="taken over"),
        )
        assert armed is not ended


async def test_wake_ups_are_heard_at_once(store, monkeypatch):
    monkeypatch.setattr(mailbox, "POLL_S", 60.0)
    listener, wake_ups = WakeUpListener(store.database, ONE), WakeUps(store.database)
    try:
        for _ in range(3):
            waiting = asyncio.ensure_future(listener.wait())
            while not waiting.done():  # until it listens, they are lost
                wake_ups.wake(ONE)
                await asyncio.wait((waiting,), timeout=0.05)
            await waiting
    finally:
        listener._stop.set()
        wake_ups.wake(ONE)  # it waits POLL_S otherwise
        await asyncio.gather(listener.close(), wake_ups.close())


async def test_while_an_answer_is_due_a_host_looks_without_a_wake_up(store, monkeypatch):
    monkeypatch.setattr(mailbox, "EXPECTED_S", 60.0)
    listener = WakeUpListener(store.database, ONE)
    try:
        assert await listener.wait() == 0.0  # it has begun
        listener.expect()
        within_s = await listener.wait()
        assert within_s == 60.0
        taking = asyncio.ensure_future(store.mailbox.take(ONE, within_s))
        await store.mailbox.send_to_hosts([letter("granted")])
        assert kinds(await taking) == ["granted"]
    finally:
        await listener.close()


async def test_a_look_for_letters_that_do_not_come_ends(store):
    assert await store.mailbox.take(ONE, 0.01) == ()
    assert await store.mailbox.take_all(0.01, 0.001) == ()


async def test_a_host_says_where_others_dial_it(store):
    await store.mailbox.begin(letter("began"), 1)
    (before,) = await store.mailbox.hosts()
    assert (before.address, before.certificate, before.removed_at) == ("", "", None)
    await store.mailbox.publish(ONE, "192.0.2.1:9194", "PEM", {"10.0.0.0/8": "lab1:9190"})
    await store.mailbox.begin(letter("began"), 1)
    (after,) = await store.mailbox.hosts()
    assert (after.address, after.certificate) == ("192.0.2.1:9194", "PEM")
    assert after.advertise == {"10.0.0.0/8": "lab1:9190"}


async def test_without_wake_ups_the_mailbox_is_looked_into_all_the_same(store, monkeypatch):
    monkeypatch.setattr(mailbox, "POLL_S", 0.01)
    listener = WakeUpListener(store.database, ONE)
    try:
        for _ in range(3):
            await listener.wait()
    finally:
        await listener.close()


async def test_who_listens_goes_on_after_its_connection_was_cut(store, monkeypatch):
    monkeypatch.setattr(mailbox, "POLL_S", 0.05)
    listener = WakeUpListener(store.database, ONE)

    def cut(connection):
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN %%'"
        return connection.exec_driver_sql(query).scalar_one()

    try:
        for _ in range(2):
            while not await store.database.write(cut):
                await listener.wait()
        await listener.wait()
    finally:
        await listener.close()
