"""Rows and mailboxes between hosts and a head apart, on a server: in order, once, together with what they report."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import insert, select, update

from farm.common.errors import Code
from farm.store import mailbox
from farm.store.database import Database
from farm.store.engine import server_engine
from farm.store.mailbox import Letter, WakeUpListener, WakeUps
from farm.store.schema import device_state, request, to_head, to_host
from farm.store.server_opening import StoreRole
from farm.store.writer import Writer
from tests.support.errors import raises_code
from tests.unit.store.values import NOW, lease

ONE, TWO = "one", "two words \u00e9"


def letter(text, host=ONE):
    return Letter(host, {"kind": text})


def kinds(letters):
    return [each.body["kind"] for each in letters]


@pytest.fixture
def store(server_store):
    return server_store


@pytest.fixture
def box(store):
    return store.mailbox


def rows(store, table):
    with store.database.reading() as connection:
        return [tuple(row) for row in connection.execute(select(table)).all()]


async def test_letters_are_taken_once_in_order_and_in_parts(box, numbers):
    numbers(mailbox, MAX_AT_ONCE=3)
    await box.send(letter("a"), letter("b"))
    await box.send(letter("c", TWO))
    await box.send(letter("d"))
    taken = [[(each.host, each.body["kind"]) for each in await box.take_all()] for _ in range(3)]
    assert taken == [[(ONE, "a"), (ONE, "b"), (TWO, "c")], [(ONE, "d")], []]


async def test_a_host_takes_its_own_letters(box):
    await box.send_to_hosts([letter("a"), letter("b", TWO), letter("c")])
    assert [kinds(await box.take(host)) for host in (ONE, TWO, ONE)] == [["a", "c"], ["b"], []]


async def test_the_next_commit_deletes_the_letters_that_were_taken(store, box):
    await box.send_to_hosts([letter("first"), letter("second", TWO)])
    assert [kinds(await box.take(ONE)) for _ in range(2)] == [["first"], []]
    assert len(rows(store, to_host)) == 2
    with raises_code(Code.STORE_CONFLICT):  # the deletion is lost with a write that is refused
        await store.database.execute(insert(to_host).values(id=None, host=ONE, body={}))
    assert kinds(await box.take(ONE)) == []  # it is asked for again
    await box.send(letter("anything"))
    assert [name for _, name, _ in rows(store, to_host)] == [TWO]


async def test_letters_of_a_cancelled_take_are_taken_by_the_next(box):
    await box.send_to_hosts([letter("first")])
    taking = asyncio.ensure_future(box.take(ONE))
    await asyncio.sleep(0)  # it has asked a thread
    taking.cancel()
    await asyncio.wait((taking,))
    assert taking.cancelled()
    await box.send(letter("anything"))
    assert kinds(await box.take(ONE)) == ["first"]


async def test_a_failed_deletion_of_letters_spares_the_write_that_it_went_with(store, box):
    store.database.writer.delete_letters(to_head, "", [1 << 63])  # no number of a letter
    await box.send(letter("kept"))
    assert kinds(await box.take_all()) == ["kept"]


async def test_a_letter_that_is_no_json_has_one_clear_error(box):
    with raises_code(Code.STORE_CONFLICT, match="refused a write"):
        await box.send(Letter(ONE, {"kind": "of a phone", "celsius": float("nan")}))


async def test_a_process_whose_name_another_one_has_taken_gets_no_letters(opened, new_database):
    url = new_database()
    before, now = (opened(url, ONE, role=StoreRole.HOST).mailbox for _ in range(2))
    await now.begin(letter("began"), 1)
    await now.send_to_hosts([letter("granted")])
    assert await before.take(ONE) == ()
    assert kinds(await now.take(ONE)) == ["granted"]


async def test_nothing_is_lost_while_others_write(opened, new_database):
    """A writer that took its number early and commits late is read, too."""
    url = new_database()
    store = opened(url)
    writers = [Database(server_engine(url), Writer(server_engine(url))) for _ in range(3)]

    async def send_all(database, host):
        for n in range(100):
            await mailbox.Mailbox(database).send(letter(str(n), host))

    try:
        sending = asyncio.gather(*(send_all(each, f"h{n}") for n, each in enumerate(writers)))
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


async def test_what_a_host_has_stands_in_rows(store, box):
    await box.device_changed("a", letter("ready"))
    await box.device_changed("a", letter("gone"))
    await box.device_changed("b", letter("ready"))
    await box.device_forgotten("b", letter("forgotten"))
    await box.request_added("r1", letter("wanted"))
    await box.request_added("r2", letter("wanted too"))
    await box.request_withdrawn("r1", letter("not wanted"))
    assert [row[:-1] for row in rows(store, device_state)] == [(ONE, "a", {"kind": "gone"})]
    assert [(name, body) for _, name, _, body, _ in rows(store, request)] == [("r2", {"kind": "wanted too"})]
    assert kinds(await box.take_all()) == ["gone", "forgotten", "wanted too", "not wanted"]
    assert await box.take_all() == ()
    new_head = mailbox.Mailbox(store.database)
    assert kinds(await new_head.take_all()) == ["gone", "forgotten", "wanted too", "not wanted"]
    await box.device_changed("a", letter("ready"))
    assert [kinds(await each.take_all()) for each in (box, new_head)] == [["ready"], ["ready"]]
    box.seen = mailbox.NOTHING  # to look whether it knows all
    assert kinds(await box.take_all()) == ["wanted too", "ready"]


async def test_a_row_is_read_once_whenever_its_transaction_began_and_was_committed(store, box):
    def write(connection, name):
        values = f"'{ONE}', '{name}', '{{\"kind\": \"{name}\"}}', pg_current_xact_id()::text::bigint"
        connection.exec_driver_sql(f"INSERT INTO device_state (host, name, body, changed) VALUES ({values})")

    engine = store.database.engine
    with engine.connect() as early, engine.connect() as late:
        write(early, "early")
        write(late, "late")
        await box.device_changed("a", letter("a"))
        late.commit()
        assert kinds(await box.take_all()) == ["late", "a"]
        await box.device_changed("b", letter("b"))
        assert [kinds(await box.take_all()) for _ in range(2)] == [["b"], []]
        early.commit()
        assert [kinds(await box.take_all()) for _ in range(2)] == [["early"], []]


async def test_rows_and_letters_are_read_in_the_order_in_which_they_were_written(box, numbers):
    numbers(mailbox, MAX_AT_ONCE=2)
    await box.device_changed("a", letter("of before"))
    await box.begin(letter("began"), 1)
    await box.device_changed("a", letter("starting"))
    await box.send(letter("lease ended"))
    await box.request_added("r1", letter("wanted"))
    assert kinds(await box.take_all()) == ["began", "lease ended"]  # there may be more letters
    assert kinds(await box.take_all()) == ["starting", "wanted"]
    await box.device_changed("a", letter("ready"))
    await box.send(letter("asked"))
    await box.device_changed("b", letter("ready"))
    assert kinds(await box.take_all()) == ["ready", "asked", "ready"]


async def test_rows_of_a_restored_database_are_of_before(opened, new_database):
    url = new_database()
    store = opened(url)
    await store.mailbox.device_changed("a", letter("ready"))
    await store.mailbox.request_added("r1", letter("wanted"))
    for table in (device_state, request):
        await store.database.execute(update(table).values(changed=1 << 60))
    again = opened(url, TWO, role=StoreRole.HOST)
    assert {row[-1] for table in (device_state, request) for row in rows(again, table)} == {1}
    assert sorted(kinds(await again.mailbox.take_all())) == ["ready", "wanted"]
    assert await again.mailbox.take_all() == ()


async def test_what_is_refused_sends_no_letter(store, box):
    await box.request_added("r1", letter("wanted"))
    with raises_code(Code.STORE_CONFLICT):
        await box.request_added("r1", letter("wanted again"))
    await store.leases.grant(lease(1, "a"))
    with raises_code(Code.STORE_CONFLICT):  # it has an open lease
        await store.leases.grant(lease(2, "a"), letter=letter("granted"))
    assert kinds(await box.take_all()) == ["wanted"]
    assert await box.take(ONE) == ()


async def test_a_host_that_begins_anew_has_no_requests_letters_and_drain_but_its_address(store, box):
    await box.begin(letter("began"), 1, "1.0")
    (row,) = await box.look_at_hosts()
    assert (row.name, row.protocol, row.drained, row.version) == (ONE, 1, "", "1.0")
    assert (row.address, row.certificate, row.removed_at) == ("", "", None)
    await box.drain("ann drains it", letter("drained"))
    await box.beat(ONE, 2)
    (later,) = await box.look_at_hosts()
    assert later.beat_at > row.beat_at
    assert (later.protocol, later.drained) == (2, "ann drains it")
    await box.publish(ONE, "192.0.2.1:9194", "PEM", {"10.0.0.0/8": "lab1:9190"})
    for host in (ONE, TWO):
        await box.request_added(f"r of {host}", letter("wanted", host))
    await box.send_to_hosts([letter("granted"), letter("granted", TWO)])
    await box.begin(letter("began"), 1)
    assert [name for _, name, *_ in rows(store, request)] == [f"r of {TWO}"]
    assert [len(await box.take(host)) for host in (ONE, TWO)] == [0, 1]
    (again,) = await box.hosts()
    assert (again.drained, again.address, again.certificate) == ("", "192.0.2.1:9194", "PEM")
    assert again.advertise == {"10.0.0.0/8": "lab1:9190"}
    assert kinds(await box.take_all()) == ["began", "drained", "wanted", "began"]


async def test_a_lease_is_held_once_its_host_has_armed_it(store, box):
    leases = store.leases
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
    assert kinds(await box.take_all()) == ["armed"]
    await leases.extend("l1", NOW + timedelta(hours=1), letter=letter("extended"))
    await leases.keep_slot("l1", kept=True, letter=letter("kept"))
    assert leases.get("l1").slot
    assert await leases.end("l1", ended_at=NOW, reason="over", held_s=1.0, letter=letter("ended"))
    assert not await leases.end("l1", ended_at=NOW, reason="over", held_s=1.0, letter=letter("ended again"))
    assert kinds(await box.take_all()) == ["extended", "kept", "ended"]


async def test_a_lease_is_armed_or_ended_whoever_comes_first(store, box):
    await store.leases.grant(lease(1, "a"), letter=letter("granted"))
    assert await store.leases.end_unarmed("l1", ended_at=NOW, reason="another head took over")
    assert not await store.leases.arm("l1", NOW, "r1", letter("armed"))
    assert await box.take_all() == ()
    await store.leases.grant(lease(21, "a"))  # the phone is free
    for fence in range(2, 21):
        await store.leases.grant(lease(fence, f"p{fence}"), letter=letter("granted"))
        armed, ended = await asyncio.gather(
            store.leases.arm(f"l{fence}", NOW, "", letter("armed")),
            store.leases.end_unarmed(f"l{fence}", ended_at=NOW, reason="taken over"),
        )
        assert armed is not ended


async def test_wake_ups_are_heard_at_once(store, numbers):
    numbers(mailbox, POLL_S=60.0)
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


async def test_while_an_answer_is_due_a_host_looks_without_a_wake_up(store, box, numbers):
    numbers(mailbox, EXPECTED_S=60.0)
    listener = WakeUpListener(store.database, ONE)
    assert await listener.wait() == 0.0  # it has begun
    listener.expect()
    within_s = await listener.wait()
    assert within_s == 60.0
    taking = asyncio.ensure_future(box.take(ONE, within_s))
    await box.send_to_hosts([letter("granted")])
    assert kinds(await taking) == ["granted"]
    await listener.close()
    assert await box.take(ONE, 0.01) == ()  # a look for letters that do not come ends
    assert await box.take_all(0.01, 0.001) == ()


async def test_who_listens_goes_on_without_wake_ups_and_after_its_connection_was_cut(store, numbers):
    numbers(mailbox, POLL_S=0.05)

    def cut(connection):
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN %%'"
        return connection.exec_driver_sql(query).scalar_one()

    listener = WakeUpListener(store.database, ONE)
    try:
        for _ in range(2):
            while not await store.database.write(cut):
                await listener.wait()
        await listener.wait()
    finally:
        await listener.close()
