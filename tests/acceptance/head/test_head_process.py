"""Heads killed, stopped and replaced; the host is the test."""

import signal

import psycopg

from farm.head import orders, wire
from farm.head.messages import HostLeft, Order
from farm.head.takeover import NEVER_HELD
from farm.kinds import KINDS as SPECS
from farm.model.device import Life
from farm.model.job import JobState
from farm.store.server_opening import StoreRole
from farm.store.store import Store
from tests.support.head_processes import QUICK_S, a_host, states


def term_of(lease):
    return lease.fence >> 32


async def test_the_standby_grants_after_the_head_was_killed(heads):
    head = heads.begin()
    async with a_host(heads, "a", "b") as host:
        kept = await (await host.ask("a"))
        standby = heads.begin()
        head.kill()
        waits = await host.ask("a")  # nobody is there to hear of it
        after = await (await host.ask("b"))
        assert term_of(after) > term_of(kept)
        await heads.decides(standby)
        assert not waits.done()
        assert host.held["a"] == kept
        await host.give_back(kept)
        assert term_of(await waits) == term_of(after)


async def test_a_message_that_something_else_wrote_is_left_out_and_the_others_are_read(heads):
    head = heads.begin()
    async with a_host(heads, "a", "b") as host:
        await heads.decides(head)
        heads.damage("INSERT INTO to_head (host, body) VALUES (%s, %s)")
        await (await host.ask("a"))
        heads.damage("INSERT INTO device_state (host, name, body) VALUES ('two', %s, %s)")
        heads.damage("INSERT INTO request (host, id, body) VALUES ('two', %s, %s)")
        heads.damage("INSERT INTO host (name, protocol, advertise) VALUES (%s, 1, %s)")
        head.kill()
        await heads.decides(heads.begin(), "took over: 16 phones and requests, 1 leases")
        await (await host.ask("b"))


async def test_a_lease_that_no_host_has_armed_was_never_held(heads):
    head = heads.begin()
    async with a_host(heads, "a", reads=False) as host:
        waits = await host.ask()
        while not (granted := await host.store.read(host.store.leases.unarmed)):
            await host.listener.wait()
        head.kill()
        await heads.decides(heads.begin(), "took over: 2 phones and requests, 0 leases, 0 jobs")
        host.read_letters()
        assert term_of(await waits) > granted[0].fence >> 32
        assert [each.id for each in host.armed] == [waits.result().id]
        assert host.store.leases.get(granted[0].id).reason == NEVER_HELD


async def test_no_head_hands_out_the_phones_of_a_stopped_host(heads):
    deciding = heads.begin()
    await heads.decides(deciding)
    async with a_host(heads, "a") as host, a_host(heads, "b", name="two") as stopped:
        stopped.reaches.clear()  # it beats no more
        await stopped.store.mailbox.leave(stopped.letter(HostLeft()))
        deciding.kill()
        await heads.decides(heads.begin())
        first, second = await host.ask(), await host.ask()
        assert (await first).device == "a"
        await host.give_back(await first)
        assert (await second).device == "a"


async def test_a_host_that_had_not_armed_its_lease_begins_anew(heads):
    heads.begin()
    async with a_host(heads, "a", reads=False) as host:
        await host.ask()
        while not (granted := await host.store.read(host.store.leases.unarmed)):
            await host.listener.wait()
    async with a_host(heads, "a") as again:
        assert (await (await again.ask())).fence > granted[0].fence
        assert again.store.leases.get(granted[0].id).reason == "one began again before it had it"


async def test_a_head_that_was_stopped_grants_nothing_when_it_wakes_up(heads):
    stopped = heads.begin()
    async with a_host(heads, "a", "b") as host:
        first = await (await host.ask("a"))
        standby = heads.begin()
        stopped.send_signal(signal.SIGSTOP)
        second = await (await host.ask("b"))
        assert term_of(second) > term_of(first)
        stopped.send_signal(signal.SIGCONT)
        await heads.decides(stopped, "this head decides no more")
        await host.give_back(first)
        third = await (await host.ask("a"))
        assert term_of(third) == term_of(second)
        standby.terminate()  # in good order: the one that was stopped has the next term at once
        await host.give_back(third)
        assert term_of(await (await host.ask("a"))) > term_of(third)


async def test_a_host_begins_anew_while_the_head_goes_on(heads):
    heads.begin()
    async with a_host(heads, "a") as host:
        lease = await (await host.ask())
        await host.ask()
        await host.give_back(lease)
    open_leases = [each.id for each in host.armed if each.device in host.held]
    async with a_host(heads, "a") as again:
        for left in open_leases:
            again.held["a"] = next(each for each in host.armed if each.id == left)
            await again.give_back(again.held["a"])
        assert (await (await again.ask())).device == "a"


async def test_a_drain_is_of_one_host_and_outlasts_the_head(heads):
    head = heads.begin()
    async with a_host(heads, "a") as one, a_host(heads, "b", name="two") as two:
        kept = await (await one.ask("a"))
        await one.drain("ann drains it")
        await one.give_back(kept)
        waits = await one.ask("a")
        await two.give_back(await (await two.ask("b")))
        assert not waits.done()
        standby = heads.begin()
        head.kill()
        await heads.decides(standby, "took over: 3 phones and requests")
        await two.give_back(await (await two.ask("b")))
        assert not waits.done()
        await one.drain("")
        assert (await waits).device == "a"


async def test_an_order_of_a_host_is_carried_out_and_answered(heads):
    await heads.decides(heads.begin())  # orders to the head before it are not answered
    async with a_host(heads, "a") as host:
        spec = SPECS["shell"].from_wire({"on": "soc=sm8550", "command": "id"})
        fields = orders.to_wire("submit", {"spec": spec, "user": "ann", "key": "", "must_match": True})
        for order in (Order("o1", "submit", fields), Order("o2", "no_such", {})):
            await host.store.mailbox.send(host.letter(order))
        answers = {answer.order: answer for answer in [await host.answers.get() for _ in range(2)]}
        assert "no order 'no_such'" in answers["o2"].error["message"]
        (submitted,) = orders.answer_from_wire("submit", answers["o1"].value).ids
        while await states(host, [submitted]) != [JobState.DONE]:
            await host.listener.wait()


async def test_a_host_of_another_protocol_is_refused_and_the_others_go_on(heads):
    head = heads.begin(QUICK_S)
    async with a_host(heads, "a", beat_s=QUICK_S) as one, a_host(heads, "b", name="two", beat_s=QUICK_S) as two:
        one.protocol = wire.PROTOCOL + 2
        await heads.decides(head, f"host one (farm of another release) speaks protocol {wire.PROTOCOL + 2}")
        refused, served = await one.ask("a"), await two.ask("b")
        await served
        assert not refused.done()
        one.protocol = wire.PROTOCOL - 1  # of the release before
        await heads.decides(head, "host one and the head understand each other again")
        assert (await refused).device == "a"


async def test_of_two_phones_of_one_name_the_first_is_handed_out_until_it_is_gone(heads):
    head = heads.begin()
    async with a_host(heads, "a") as one, a_host(heads, "a", "b", name="two") as two:
        await heads.decides(head, "host two has a phone named a, and so has host one")
        first = await (await one.ask("a"))
        assert (await (await two.ask("b"))).device == "b"
        assert (list(one.held), list(two.held)) == (["a"], ["b"])
        await one.give_back(first)
        await one.report("a", Life.GONE)
        assert (await (await two.ask("a"))).device == "a"
        assert list(two.held) == ["b", "a"]


async def test_a_row_that_cannot_be_read_is_named_and_read_again(heads):
    with psycopg.connect(heads.url.replace("+psycopg", ""), autocommit=True) as connection:
        Store.open(heads.url, "one", role=StoreRole.HOST).close()  # it makes the tables
        connection.execute("INSERT INTO host (name, protocol, beat_at) VALUES ('two', 1, 'infinity')")
        head = heads.begin()
        await heads.decides(head, "cannot be read from the database: host.beat_at: inf is no time")
        connection.execute("DELETE FROM host WHERE name = 'two'")
        await heads.decides(head)
