"""Hosts that are lost, slow, drained or removed, and what becomes of their jobs."""

import asyncio

import psycopg
import pytest

from farm.common.errors import Code, HostError, UserError
from farm.head import wire
from farm.head.beats import LOST_AFTER
from farm.model.job import AttemptState, JobState
from farm.simulation.postgres import new_server
from farm.store import server_opening
from farm.store.mailbox import HostRemovedError, Letter
from farm.store.server_opening import StoreRole
from farm.store.store import Store
from farm.store.writer import DatabaseLostError
from tests.support import postgres
from tests.support.head_processes import QUICK_S, Heads, a_host, events_of, ordered, submit, until


@pytest.mark.parametrize("takeover", [False, True])
async def test_the_jobs_of_a_silent_host_go_on_elsewhere_and_have_one_result(heads, takeover):
    head = heads.begin(QUICK_S)
    async with (
        a_host(heads, "a", "c", "d", beat_s=QUICK_S) as one,
        a_host(heads, "b", name="two", beat_s=QUICK_S) as two,
    ):
        one.busy = True
        with_client, others = await (await one.ask("c")), await (await two.ask("b"))
        await submit(two, "soc=sm8550")
        await until(one, lambda: len(one.ran) == 1)
        (begun,) = one.ran
        one.reaches.clear()
        await submit(two, "soc=sm8550")  # on the third phone of the first host, which never learns of it
        await until(two, lambda: two.store.leases.unarmed())
        (unarmed,) = two.store.leases.unarmed()
        await until(two, lambda: two.store.leases.get(unarmed.id).ended_at is not None)
        assert two.store.leases.get(unarmed.id).reason == "host one was lost before it had it"
        await two.give_back(others)
        await until(two, lambda: not two.store.jobs.live())
        jobs = two.store.jobs.page()
        assert {each.state for each in jobs} == {JobState.DONE}
        assert {two.store.jobs.result(each.id)["done"] for each in jobs} == {"two"}
        again = two.store.jobs.get(begun.partition(".")[0])
        assert (again.attempts, again.uncounted, again.avoid) == (2, 0, frozenset())  # a line that may be tried again
        lost, done = two.store.jobs.attempts(again.id)
        assert (lost.id, lost.state, lost.error["code"]) == (begun, AttemptState.FAILED, Code.HOST_LOST)
        assert (done.device, done.state) == ("b", AttemptState.DONE)
        if takeover:
            head.kill()
            await heads.decides(heads.begin(QUICK_S))
        one.reaches.set()
        await until(one, lambda: one.too_late)  # nobody told it to end but the head
        assert one.too_late == [begun]
        assert (await (await one.ask("a"))).device == "a"
        assert one.held["c"] == with_client
        assert one.store.leases.get(with_client.id).ended_at is None
        assert two.store.jobs.result(again.id)["done"] == "two"
        if not takeover:
            await until(one, lambda: events_of(one) == ["host.lost", "host.back"])


@pytest.mark.parametrize("takeover", [False, True])
async def test_a_job_that_is_cancelled_while_its_host_is_being_lost_runs_nowhere_again(heads, takeover):
    head = heads.begin(QUICK_S)
    async with a_host(heads, "a", beat_s=QUICK_S) as one, a_host(heads, "b", name="two", beat_s=QUICK_S) as two:
        one.busy = True
        kept = await (await two.ask("b"))
        await submit(two, "soc=sm8550")
        await until(one, lambda: one.ran)
        one.reaches.clear()
        [running] = two.store.jobs.live()
        await ordered(two, "cancel", job_ids=(running.id,), error=UserError("ann cancels it"))
        if takeover:
            await until(two, lambda: heads.rows("SELECT id FROM to_host WHERE host = 'one' AND body ~ 'StopAttempt'"))
            head.kill()
            heads.begin(QUICK_S)
        await two.give_back(kept)
        await until(two, lambda: not two.store.jobs.live())
        ended = two.store.jobs.get(running.id)
        assert (ended.state, ended.error["message"], ended.attempts) == (JobState.CANCELLED, "ann cancels it", 1)
        assert two.ran == []
        one.reaches.set()
        await until(one, lambda: one.too_late)  # its end of the attempt comes too late


async def test_a_grant_under_way_when_its_host_is_drained_holds_and_no_other_follows(heads):
    heads.begin()
    async with a_host(heads, "a", "b", reads=False) as host:
        granted = await host.ask("a")
        await until(host, host.store.leases.unarmed)
        await host.drain("ann drains it")
        waits = await host.ask("a"), await host.ask("b")
        host.read_letters()
        await host.give_back(await granted)
        await ordered(host, "reservations")  # all letters before it are read
        assert [each.done() for each in waits] == [False, False]
        await host.drain("")
        assert [(await each).device for each in waits] == ["a", "b"]


async def test_what_a_lost_host_asks_for_costs_no_phone_and_waits_again_when_it_is_back(heads):
    head = heads.begin(QUICK_S)
    async with a_host(heads, "a", beat_s=QUICK_S) as one, a_host(heads, name="two", beat_s=QUICK_S) as two:
        held = await (await one.ask("a"))
        await two.ask("a")  # first in line
        await until(one, lambda: two.beaten > 2)
        two.reaches.clear()
        waits = await one.ask("a")
        await heads.decides(head, "host two has not been heard of")
        await one.give_back(held)
        held = await waits
        two.reaches.set()
        await heads.decides(head, "host two is back")
        await one.give_back(held)
        await until(one, lambda: len(one.armed) == 3)


async def test_what_a_removed_host_had_ends_and_its_jobs_go_on_elsewhere(heads):
    head = heads.begin(QUICK_S)
    async with (
        a_host(heads, "a", "c", beat_s=QUICK_S) as one,
        a_host(heads, "b", name="two", beat_s=QUICK_S) as two,
    ):
        one.busy = True
        with_client, others = await (await one.ask("c")), await (await two.ask("b"))
        await submit(two, "soc=sm8550")
        await until(one, lambda: one.ran)
        one.reaches.clear()
        head.kill()  # the next one finds the removal in the host's row
        with psycopg.connect(heads.url.replace("+psycopg", "")) as connection:
            connection.execute("UPDATE host SET removed_at = 1 WHERE name = 'one'")
        await heads.decides(heads.begin(QUICK_S))
        await two.give_back(others)
        await until(two, lambda: not two.store.jobs.live())
        (done,) = two.store.jobs.page()
        assert (done.state, two.store.jobs.result(done.id)["done"]) == (JobState.DONE, "two")
        assert two.store.jobs.attempts(done.id)[0].error["code"] == Code.HOST_LOST
        await until(two, lambda: "host.removed" in events_of(two))
        assert two.store.leases.get(with_client.id).reason == "host one was removed from the lab"
        assert [each.name for each in await two.store.mailbox.look_at_hosts()] == ["two"]
        with pytest.raises(HostRemovedError):
            await one.store.mailbox.beat("one", 1)


async def test_a_name_of_a_running_host_is_refused_to_another_daemon(heads, tmp_path):
    def start(folder, name="one"):
        (tmp_path / folder).mkdir(exist_ok=True)
        return Store.open(heads.url, name, state_dir=tmp_path / folder, role=StoreRole.HOST)

    first = await asyncio.to_thread(start, "first")
    await first.mailbox.begin(Letter("one", {}), wire.PROTOCOL)
    with pytest.raises(HostError, match="another daemon is host one of this lab") as refused:
        await asyncio.to_thread(start, "other")
    assert "[lab] host" in refused.value.hint
    for folder, name in (("first", "one"), ("other", "two")):  # killed and started again; with a name of its own
        (await asyncio.to_thread(start, folder, name)).close()
    first.close()


async def test_a_host_that_was_cut_off_writes_nothing_once_another_daemon_has_its_name(heads, tmp_path, monkeypatch):
    def start(folder):
        (tmp_path / folder).mkdir()
        return Store.open(heads.url, "one", state_dir=tmp_path / folder, role=StoreRole.HOST)

    monkeypatch.setattr(server_opening, "NAMESAKE_S", 0.0)  # as long as the first is cut off
    first = await asyncio.to_thread(start, "first")
    await first.mailbox.begin(Letter("one", {}), wire.PROTOCOL)
    other = await asyncio.to_thread(start, "other")
    await other.mailbox.begin(Letter("one", {}), wire.PROTOCOL)
    writes = [first.mailbox.send(Letter("one", {"n": number})) for number in range(3)]
    for refused in await asyncio.gather(*writes, return_exceptions=True):
        assert isinstance(refused, DatabaseLostError)
    with pytest.raises(DatabaseLostError, match="daemon has begun under this one's name"):
        await first.mailbox.beat("one", wire.PROTOCOL)
    await other.mailbox.beat("one", wire.PROTOCOL)
    assert first.problem == ""  # the database itself is well
    for store in (first, other):
        store.close()


async def test_while_the_database_is_away_no_host_is_lost():
    postgres.need()
    with new_server() as database:
        heads = Heads(postgres.new_database(database.url))
        try:
            head = heads.begin(QUICK_S)
            await heads.decides(head)
            async with a_host(heads, "a", beat_s=QUICK_S) as host:
                host.busy = True
                await submit(host, "a")
                await until(host, lambda: len(host.ran) == 1)
                heads.rows(  # with a transaction's number of before, as another server may give it
                    "INSERT INTO device_state (host, name, body) "
                    """SELECT host, 'b', replace(body, '"a"', '"b"') FROM device_state RETURNING name"""
                )
                database.stop()
                while host.beaten_in_vain < 6 * LOST_AFTER:
                    await host.listener.wait()
                database.start()
                beaten = host.beaten
                await until(host, lambda: host.beaten > beaten + 3 * LOST_AFTER)
                host.end_attempts()
                await until(host, lambda: not host.store.jobs.live())
                (done,) = host.store.jobs.page()
                assert (done.state, done.attempts) == (JobState.DONE, 1)
                assert events_of(host) == []
                assert (await (await host.ask("b"))).device == "b"
        finally:
            heads.close()
