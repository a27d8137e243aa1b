"""Heads in processes of their own over a real PostgreSQL, killed and stopped; the host is the test."""

import asyncio
import itertools
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import psycopg
import pytest

from benchmarks.lab_judge import RULES
from farm.common.errors import Code, HostError
from farm.head import orders, wire
from farm.head.beats import LOST_AFTER
from farm.head.messages import HostLeft, Order
from farm.head.takeover import NEVER_HELD
from farm.kinds import KINDS as SPECS
from farm.model.device import Life
from farm.model.identity import DeviceIdentity
from farm.model.job import AttemptState, JobState
from farm.simulation.postgres import new_server
from farm.store import server_opening
from farm.store.mailbox import HostRemovedError, Letter
from farm.store.server_opening import StoreRole
from farm.store.store import Store
from farm.store.writer import NameTakenError
from tests.support import postgres
from tests.support.forked_processes import popen
from tests.support.lab_host import LabHost
from tests.support.whole_lab import OVERLAPS
from tests.unit.store.values import job

HEAD = """
import asyncio, logging, signal, sys
from farm.head import beats
from farm.head.model import LeasePolicy
from farm.head.process import HeadProcess, HeadSettings
from farm.kinds import KINDS
from farm.store import term

term.TERM_S, term.RENEWED_EVERY_S = 3.0, 0.3
beats.BEAT_EVERY_S = float(sys.argv[2])
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = HeadSettings(LeasePolicy(), keep_days=90.0, max_mb=2000, audit_days=365.0)
    await HeadProcess(sys.argv[1], settings, KINDS).run(stop)

asyncio.run(main())
"""
QUICK_S = 0.5  # between beats
DEEP = f'{{"kind": {"[" * 3000 + "]" * 3000}}}'
HUGE = f'{{"kind": "LeaseRestored", "lease": {{"granted_at": {"9" * 400}}}}}'
DAMAGED = ("", "{", "[]", DEEP, HUGE, HUGE.replace("9", "9" * 20), '{"kind": "DeviceChanged", "state": []}')
NUMBERS = itertools.count()
TO_VERSION_11 = (  # what farm.store.migrations.v12_lab has added
    "DROP TABLE artifact_copy, shared_bundle, host_token",
    "ALTER TABLE host DROP advertise, DROP address, DROP certificate, DROP version, DROP role, DROP removed_at",
    "ALTER TABLE host ALTER beat_at SET NOT NULL",
    "ALTER TABLE lease DROP holder_host, DROP match_sha256",
    "UPDATE meta SET value = 11 WHERE name = 'schema_version'",
)


class Heads:
    """Processes that are heads or wait to be."""

    def __init__(self, url):
        self.url = url
        self.all = []

    def begin(self, beat_s=2.0):
        command = [sys.executable, "-c", HEAD, self.url, str(beat_s)]
        self.all.append(popen(command, stdout=subprocess.PIPE, text=True))
        return self.all[-1]

    async def decides(self, head, said="this head decides, in term"):
        """Wait until that one does; what it said."""

        def read():
            for line in head.stdout:
                if said in line:
                    return line
            raise AssertionError(f"the head ended with {head.wait()}")

        return await asyncio.to_thread(read)

    def damage(self, row):
        """Write damaged messages into the rows of this INSERT."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            connection.cursor().executemany(row, [(str(number), body) for number, body in enumerate(DAMAGED)])

    def close(self):
        for each in self.all:
            each.send_signal(signal.SIGCONT)
            each.kill()
            each.communicate()


@pytest.fixture(scope="module")
def server():
    if why := postgres.missing():
        pytest.skip(why)
    with postgres.running_server() as url:
        yield url


@pytest.fixture
def heads(server):
    heads = Heads(postgres.new_database(server))
    yield heads
    heads.close()
    rules = {**RULES, "overlapping leases that were held": OVERLAPS}
    del rules["an attempt has not ended"], rules["an attempt ended without an event"]  # a `LabHost` has no events
    with psycopg.connect(heads.url.replace("+psycopg", "")) as connection:
        found = {what: connection.execute(query).fetchall() for what, query in rules.items()}
    assert {what: rows for what, rows in found.items() if rows} == {}


@asynccontextmanager
async def a_host(heads, *devices, name="one", reads=True, beat_s=2.0):
    host = LabHost(heads.url, name, *devices)
    host.beat_s = beat_s
    await host.begin(reads=reads)
    try:
        async with asyncio.timeout(90):
            yield host
    finally:
        await host.close()
    for device in devices:  # in the order in which they were armed
        fences = [lease.fence for lease in host.armed if lease.device == device]
        assert fences == sorted(set(fences))


def term_of(lease):
    return lease.fence >> 32


async def test_requests_of_a_host_get_its_phones_in_turn(heads):
    heads.begin()
    async with a_host(heads, "a") as host:
        first, second = await host.ask(), await host.ask()
        lease = await first
        assert not second.done()
        await host.give_back(lease)
        assert (await second).fence > lease.fence


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
        await heads.decides(heads.begin(), "took over: 9 phones, 7 requests, 1 leases")
        await (await host.ask("b"))


async def test_a_lease_that_no_host_has_armed_was_never_held(heads):
    head = heads.begin()
    async with a_host(heads, "a", reads=False) as host:
        waits = await host.ask()
        while not (granted := await host.store.read(host.store.leases.unarmed)):
            await host.wake_ups.wait()
        head.kill()
        await heads.decides(heads.begin(), "took over: 1 phones, 1 requests, 0 leases, 0 jobs")
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
            await host.wake_ups.wait()
    async with a_host(heads, "a") as again:
        assert (await (await again.ask())).fence > granted[0].fence
        assert again.store.leases.get(granted[0].id).reason == "one began anew before it had it"


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
        await heads.decides(standby, "took over: 2 phones, 1 requests")
        await two.give_back(await (await two.ask("b")))
        assert not waits.done()
        await one.drain("")
        assert (await waits).device == "a"


@pytest.mark.parametrize("claims", [True, False])
async def test_an_order_of_a_host_is_carried_out_and_answered(heads, claims):
    await heads.decides(heads.begin())  # orders to the head before it are not answered
    async with a_host(heads, "a") as host:
        host.claims = claims
        spec = SPECS["shell"].from_wire({"on": "soc=sm8550", "command": "id"})
        fields = orders.to_wire("submit", {"spec": spec, "user": "ann", "key": "", "must_match": True})
        for order in (Order("o1", "submit", fields), Order("o2", "no_such", {})):
            await host.store.mailbox.send(host.letter(order))
        answers = {answer.order: answer for answer in [await host.answers.get() for _ in range(2)]}
        assert "no order 'no_such'" in answers["o2"].error["message"]
        (submitted,) = orders.answer_from_wire("submit", answers["o1"].value).ids
        while await states(host, [submitted]) != [JobState.DONE]:
            await host.wake_ups.wait()


async def test_each_job_is_done_once_however_often_the_head_is_killed(heads):
    names = [f"j{number}" for number in range(20)]
    store = await asyncio.to_thread(Store.open, heads.url)
    await store.jobs.add([job(name, spec={"command": "id", "timeout_s": 60.0}) for name in names])
    await asyncio.to_thread(store.close)
    deciding, standby = heads.begin(), heads.begin()
    async with a_host(heads, "a", "b") as host:
        for done in (3, 8):
            while sum(state is JobState.DONE for state in await states(host, names)) < done:
                await host.wake_ups.wait()
            deciding.kill()
            deciding, standby = standby, heads.begin()
        while set(await states(host, names)) != {JobState.DONE}:
            await host.wake_ups.wait()
        assert len(await host.store.read(host.store.jobs.attempts_of, names)) == len(names)
        standby.kill()


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
        assert (again.attempts, again.uncounted, again.avoid) == (2, 1, frozenset())
        lost, done = two.store.jobs.attempts(again.id)
        assert (lost.id, lost.state, lost.error["code"]) == (begun, AttemptState.INTERRUPTED, Code.HOST_LOST)
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


async def test_a_lab_of_the_schema_before_is_upgraded_under_a_host_that_goes_on(heads, monkeypatch):
    head = heads.begin(QUICK_S)
    async with a_host(heads, "a", beat_s=QUICK_S) as host:
        kept = await (await host.ask("a"))
        await submit(host, "soc=sm8550")  # waits for that phone
        (queued,) = host.store.jobs.live()
        head.kill()
        host.reaches.clear()
        with psycopg.connect(heads.url.replace("+psycopg", "")) as connection:
            for change in TO_VERSION_11:
                connection.execute(change)
        upgraded = heads.begin(QUICK_S)  # heads first: this one brings the tables up to date
        await heads.decides(upgraded, "took over: 1 phones, 0 requests, 1 leases, 1 jobs")
        host.reaches.set()
        await host.give_back(kept)
        await until(host, lambda: not host.store.jobs.live())
        assert host.store.jobs.get(queued.id).state is JobState.DONE
        monkeypatch.setattr("farm.store.opening.SCHEMA_VERSION", 11)
        with pytest.raises(HostError, match="of a newer farm; this farm knows 11"):
            await asyncio.to_thread(Store.open, heads.url, "two", role=StoreRole.HOST)


async def test_of_two_phones_of_one_name_the_first_is_handed_out(heads):
    head = heads.begin()
    async with a_host(heads, "a") as one, a_host(heads, "a", "b", name="two") as two:
        await heads.decides(head, "host two has a phone named a, and so has host one")
        assert (await (await one.ask("a"))).device == "a"
        assert (await (await two.ask("b"))).device == "b"
        assert (list(one.held), list(two.held)) == (["a"], ["b"])


async def test_a_phone_that_two_hosts_have_is_handed_out_by_the_first_until_it_is_gone_there(heads):
    await heads.decides(heads.begin())
    phone = DeviceIdentity(hardware_serial="R3CN30ABCDE", vendor="acme", model="one", abi="arm64-v8a")
    async with a_host(heads, name="one") as one, a_host(heads, name="two") as two:
        await one.report("a", identity=phone)
        await two.report("b", identity=phone)
        first, second = await one.ask(), await one.ask()
        for each in (first, second):
            assert (await each).device == "a"
            await one.give_back(await each)
        await one.report("a", Life.GONE, identity=phone)
        assert (await (await two.ask())).device == "b"


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
        assert isinstance(refused, NameTakenError)
    with pytest.raises(NameTakenError, match="daemon has begun under this one's name"):
        await first.mailbox.beat("one", wire.PROTOCOL)
    await other.mailbox.beat("one", wire.PROTOCOL)
    assert first.problem == ""  # the database itself is well
    for store in (first, other):
        store.close()


async def test_a_host_that_is_merely_slow_is_not_lost(heads):
    await heads.decides(heads.begin(1.0))
    async with a_host(heads, "a", beat_s=1.6) as host:
        host.busy = True
        await submit(host, "a")
        await until(host, lambda: host.beaten == 8)
        host.end_attempts()
        await until(host, lambda: not host.store.jobs.live())
        (done,) = host.store.jobs.page()
        assert (done.state, done.attempts) == (JobState.DONE, 1)
        assert events_of(host) == []


async def test_while_the_database_is_away_no_host_is_lost():
    if why := postgres.missing():
        pytest.skip(why)
    with new_server() as database:
        heads = Heads(postgres.new_database(database.url))
        try:
            head = heads.begin(QUICK_S)
            await heads.decides(head)
            async with a_host(heads, "a", beat_s=QUICK_S) as host:
                host.busy = True
                await submit(host, "a")
                await until(host, lambda: len(host.ran) == 1)
                database.stop()
                while host.beaten_in_vain < 6 * LOST_AFTER:
                    await host.wake_ups.wait()
                database.start()
                beaten = host.beaten
                await until(host, lambda: host.beaten > beaten + 3 * LOST_AFTER)
                host.end_attempts()
                await until(host, lambda: not host.store.jobs.live())
                (done,) = host.store.jobs.page()
                assert (done.state, done.attempts) == (JobState.DONE, 1)
                assert events_of(host) == []
        finally:
            heads.close()


async def submit(host, on):
    """A job, by an order of that host."""
    spec = SPECS["shell"].from_wire({"on": on, "command": "id", "max_attempts": 2})
    fields = orders.to_wire("submit", {"spec": spec, "user": "ann", "key": "", "must_match": True})
    await host.store.mailbox.send(host.letter(Order(f"order-{next(NUMBERS)}", "submit", fields)))
    answer = await host.answers.get()
    assert answer.error is None


async def until(host, holds):
    """Look at each wake-up of the host, and twice a second."""
    while not await asyncio.to_thread(holds):
        await host.wake_ups.wait()


def events_of(host):
    """What happened to hosts."""
    return [each.kind for each in host.store.events.since(0) if each.kind.startswith("host.")]


async def states(host, names):
    return [each.state for each in await host.store.read(host.store.jobs.several, names)]


async def test_a_row_that_cannot_be_read_is_named_and_read_again(heads):
    with psycopg.connect(heads.url.replace("+psycopg", ""), autocommit=True) as connection:
        Store.open(heads.url, "one", role=StoreRole.HOST).close()  # it makes the tables
        connection.execute("INSERT INTO host (name, protocol, beat_at) VALUES ('two', 1, 'infinity')")
        head = heads.begin()
        await heads.decides(head, "cannot be read from the database: host.beat_at: inf is no time")
        connection.execute("DELETE FROM host WHERE name = 'two'")
        await heads.decides(head)
