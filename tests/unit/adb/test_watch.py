import asyncio
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.client import AdbClient
from farm.adb.devices import AdbState
from farm.adb.errors import AdbVersionClash
from farm.adb.watch import DeviceWatcher
from farm.adb.watch_policy import (
    Load,
    NetworkAction,
    NetworkPhone,
    Outage,
    Remedy,
    ServerEvidence,
    WatchPolicy,
    judge,
    network_address,
)
from farm.common.durations import BackOff
from farm.common.errors import UserError
from tests.support.waiting import HANG_S
from tests.unit.adb.fake_server import okay, says
from tests.unit.adb.watching import watching

FAST = WatchPolicy(
    server=BackOff(0.01, 0.05),
    network=BackOff(0.01, 0.05),
    tick_s=0.02,
    probe_every_s=0.05,
    probe_timeout_s=0.1,
    trip_timeout_s=0.1,
)
LINE = "FAKE1                  device product:p model:m device:d transport_id:{}\n"
WIFI = "10.0.0.7:5555"
NONE, CONNECT, RECONNECT = NetworkAction.NONE, NetworkAction.CONNECT, NetworkAction.RECONNECT


async def test_plug_and_unplug(server, client):
    async with watching(client, FAST) as (_, seen):
        await seen.until(lambda: len(seen.snapshots) == 1)
        server.set_devices("")
        await seen.until(lambda: len(seen.snapshots) == 2)
        assert [[device.serial for device in snapshot] for snapshot in seen.snapshots] == [["FAKE1"], []]
        assert seen.news == []


async def test_lists_that_come_late_are_not_believed(server, client):
    """With many phones coming at once the stream still tells of fewer when the server already lists them all."""
    read = asyncio.Event()

    async def lag(reader, writer):
        writer.write(b"OKAY")
        for _ in range(20):
            writer.write(b"0000")
            await writer.drain()
            await asyncio.sleep(0.001)  # so that they do not arrive as one
        read.set()
        await reader.read()

    server.services["host:track-devices-l"] = lag
    async with watching(client, FAST) as (_, seen):
        await asyncio.wait_for(read.wait(), HANG_S)
        server.set_devices(LINE.format(2))
        await seen.until(lambda: len(seen.snapshots) == 2)
        assert [[device.transport_id for device in snapshot] for snapshot in seen.snapshots] == [[1], [2]]


async def test_a_killed_server_is_told_once_and_survived(server, client):
    async with watching(client, FAST) as (watcher, seen):
        await seen.until(lambda: len(seen.snapshots) == 1)
        for _ in range(3):
            server.drop_connections()
            await seen.until(lambda: watcher.devices == ())
            await seen.until(lambda: bool(watcher.devices))
        assert seen.kinds == ["adb.lost", "adb.back"]


async def test_a_server_that_is_not_there_yet(server):
    absent = AdbClient(server.socket + ".later")
    async with watching(absent, FAST) as (_, seen):
        await seen.until(lambda: seen.kinds == ["adb.lost"])
        later = await asyncio.start_unix_server(server.serve, absent.address.path)
        try:
            await seen.until(lambda: bool(seen.snapshots and seen.snapshots[-1]))
            assert seen.kinds == ["adb.lost", "adb.back"]
        finally:
            later.close()
            server.drop_connections()


@pytest.mark.parametrize(("leases", "told", "said"), [(0, "adb.lost", "hangs"), (1, "adb.hangs", "1 leased phone")])
async def test_a_wedged_server_is_noticed_though_its_stream_stays(server, client, leases, told, said):
    """What is known of phones still holds while leases hang on the server: it is left alone."""
    async with watching(client, FAST) as (watcher, seen):
        watcher.load = lambda: Load(leases=leases)
        await seen.until(lambda: len(seen.snapshots) == 1)
        server.silent = True
        await seen.until(lambda: seen.kinds == [told])
        assert said in seen.news[0].message
        assert bool(watcher.devices) == bool(leases)
        server.silent = False
        if not leases:
            server.drop_connections()
        await seen.until(lambda: seen.kinds == [told, "adb.back"])
        await seen.until(lambda: bool(watcher.devices))


async def test_an_answer_now_does_not_excuse_a_server_that_failed_since(server, client):
    watcher = DeviceWatcher(client, policy=FAST)
    began_s = time.monotonic()
    assert await watcher.did_its_part(began_s)
    server.silent = True
    assert await asyncio.gather(*[watcher.did_its_part(began_s) for _ in range(3)]) == [False] * 3
    assert watcher.failure == "the adb server does not answer"
    server.silent = False
    assert not await watcher.did_its_part(began_s)
    assert watcher.failure == ""
    assert await watcher.did_its_part(time.monotonic())
    assert server.spoken.count("host:devices-l") == 4


async def test_a_list_proves_nothing_while_no_phone_answers(server, client):
    """Dead transports behind a server that lists them: every round trip times out, the list comes at once."""
    server.set_devices(LINE.format(1) + LINE.format(2).replace("FAKE1", "FAKE2"))
    for serial in ("FAKE1", "FAKE2"):
        server.services[f"host-serial:{serial}:features"] = says(okay("shell_v2"))
        server.services[f"host:transport:{serial}"] = says(b"", hangs=True)
    quick = replace(FAST, trip_timeout_s=0.05, life_s=0.0)
    asked = DeviceWatcher(client, policy=quick)
    assert not await asked.did_its_part(time.monotonic())
    assert asked.failure == "the adb server lists 2 phones and none of them answers"
    async with watching(client, quick) as (_, seen):
        await seen.until(lambda: "adb.lost" in seen.kinds)
        assert "not one of them answers" in seen.news[0].message


async def test_another_version_is_told_once_with_its_owner(server, client):
    server.version = 40
    async with watching(client, FAST, own_version=41) as (watcher, seen):
        await seen.until(lambda: len(seen.snapshots) == 1)
        server.drop_connections()
        await seen.until(lambda: watcher.devices == ())
        await seen.until(lambda: bool(watcher.devices))
        (clash,) = [news.error for news in seen.news if news.kind == "adb.clash"]
        assert isinstance(clash, AdbVersionClash)
        assert "has version 40, farm's adb program has 41; the server is pid" in clash.message
        assert "use one adb program for both" in clash.hint


async def test_a_new_transport_drops_what_was_known_of_the_phone(server, client):
    async with watching(client, FAST) as (_, seen):
        await seen.until(lambda: len(seen.snapshots) == 1)
        assert "shell_v2" in await client.features("FAKE1")
        server.features = "cmd"
        server.set_devices(LINE.format(2))
        await seen.until(lambda: len(seen.snapshots) == 2)
        assert await client.features("FAKE1") == {"cmd"}


def network_phone(server, *, refusals):
    """A phone that refuses so many times, then is connected and listed; gives the list of attempts."""
    tries = []

    async def answer(_, writer):
        tries.append(WIFI)
        words = f"failed to connect to '{WIFI}': Connection refused"
        if len(tries) > refusals:
            words = f"connected to {WIFI}"
            server.set_devices(f"{WIFI}          device product:p model:m device:d transport_id:9\n")
        writer.write(okay(words))

    server.services[f"host:connect:{WIFI}"] = answer
    return tries


async def test_a_network_phone_is_tried_for_ever_and_told_once(server, client):
    tries = network_phone(server, refusals=3)
    async with watching(client, FAST) as (watcher, seen):
        assert watcher.add_network("10.0.0.7") == WIFI
        await seen.until(lambda: "network.back" in seen.kinds)
        await seen.until(lambda: [d.serial for d in watcher.devices or ()] == [WIFI])
        assert seen.kinds == ["network.lost", "network.back"]
        assert len(tries) == 4
        watcher.remove_network("10.0.0.7")
        watcher.remove_network("10.0.0.7")
        assert seen.kinds[2:] == ["network.removed"]


async def test_a_network_phone_that_a_request_waits_for_is_tried_sooner(server, client):
    network_phone(server, refusals=1)
    asked = set()
    patient = replace(FAST, network=BackOff(1e6, 1e6), wanted_every_s=0.01)
    async with watching(client, patient) as (watcher, seen):
        watcher.wanted = lambda address: not asked.add(address)
        watcher.add_network("10.0.0.7")
        await seen.until(lambda: "network.back" in seen.kinds)
    assert asked == {WIFI}


async def test_a_network_phone_is_tried_again_whatever_went_wrong(client):
    tries, again = [], asyncio.Event()

    async def connect(address):
        tries.append(address)
        if len(tries) == 2:
            again.set()
        raise OSError("Too many open files")

    client.connect = connect
    async with watching(client, FAST) as (watcher, seen):
        watcher.add_network("10.0.0.7")
        await seen.until(lambda: "network.lost" in seen.kinds)
        await asyncio.wait_for(again.wait(), HANG_S)
        assert [each.error.evidence for each in seen.news if each.error] == ["Too many open files"]


WELL = ServerEvidence(lists_lost=0, usable=3, trips_lost=0, silent_s=99.0, dead_s=0.0, leases=0, replaced=0)


@pytest.mark.parametrize(
    ("change", "remedy", "words"),
    [
        ({}, Remedy.WAIT, ""),
        ({"lists_lost": 1}, Remedy.WAIT, ""),  # one may drown
        ({"lists_lost": 2}, Remedy.REPLACE, "answers nothing"),
        ({"lists_lost": 9, "silent_s": 3.0}, Remedy.REPORT, "it is slow"),  # sessions run through it
        ({"lists_lost": 2, "silent_s": 3.0}, Remedy.WAIT, ""),
        ({"lists_lost": 2, "leases": 2, "dead_s": 8.0}, Remedy.REPORT, "2 leased phones .* for 22 s more"),
        ({"lists_lost": 9, "leases": 2, "dead_s": 30.0}, Remedy.REPLACE, "answers nothing"),  # they are dead anyway
        ({"lists_lost": 2, "replaced": 6}, Remedy.REPORT, "replaced 6 times within an hour"),
        ({"trips_lost": 2}, Remedy.WAIT, ""),
        ({"trips_lost": 3}, Remedy.REPLACE, "3 phones and not one"),
        ({"trips_lost": 3, "usable": 1}, Remedy.WAIT, ""),  # one silent phone is that phone's matter
        ({"trips_lost": 3, "silent_s": 1.0}, Remedy.WAIT, ""),
        ({"trips_lost": 9, "leases": 1, "dead_s": 29.0}, Remedy.REPORT, "for 1 s more"),
    ],
)
def test_when_the_server_is_dead_enough(change, remedy, words):
    told, why = judge(replace(WELL, **change), WatchPolicy())
    assert told is remedy
    assert re.search(words, why) if words else not why


@given(
    st.builds(
        ServerEvidence,
        lists_lost=st.integers(0, 20), usable=st.integers(0, 5), trips_lost=st.integers(0, 20),
        silent_s=st.floats(0, 100), dead_s=st.floats(0, 100), leases=st.integers(0, 5), replaced=st.integers(0, 9),
    )
)  # fmt: skip
def test_it_is_never_replaced_over_living_sessions_nor_without_end(seen):
    policy = WatchPolicy()
    remedy, why = judge(seen, policy)
    if remedy is Remedy.REPLACE:
        assert seen.silent_s >= policy.life_s
        assert not seen.leases or seen.dead_s >= policy.hurt_after_s
        assert seen.replaced < policy.replacements
    assert bool(why) == (remedy is not Remedy.WAIT)


@given(failures=st.integers(1, 10_000))
def test_delays_grow_to_their_limit(failures):
    back_off = BackOff(0.05, 5.0)
    assert 0.05 <= back_off.delay_s(failures) <= back_off.delay_s(failures + 1) <= 5.0


def test_the_first_failure_of_a_kind_is_news_repeats_are_noise():
    outage, told = Outage(), []
    for kind in ("gone", "gone", "hangs", "hangs", "gone"):
        outage, news = outage.failed(kind)
        told.append(news)
    assert told == [True, False, True, False, True]


POLICY = WatchPolicy()


def test_adbs_own_retries_are_left_alone_until_it_gives_up_and_one_attempt_is_made_at_a_time():
    phone = NetworkPhone(WIFI)
    for at_s, wanted in ((0.0, NONE), (69.0, NONE), (70.0, RECONNECT), (200.0, NONE)):
        phone, action = phone.step(AdbState.OFFLINE, at_s, POLICY)
        assert action is wanted
    phone, news = phone.on_attempt("", 201.0, POLICY)
    assert not news
    phone, action = phone.step(AdbState.DEVICE, 202.0, POLICY)
    assert (action, phone.offline_since) == (NONE, None)


@pytest.mark.parametrize("listed_first", [False, True], ids=["attempt", "list"])
def test_a_network_phone_is_back_when_it_is_listed_whether_its_attempt_has_ended_or_not(listed_first):
    phone, _ = NetworkPhone(WIFI).step(None, 0.0, POLICY)
    phone, news = phone.on_attempt("refused", 0.1, POLICY)
    assert news
    phone, action = phone.step(None, 10.0, POLICY)
    assert action is CONNECT
    if not listed_first:
        phone, _ = phone.on_attempt("", 10.1, POLICY)
    phone, action = phone.step(AdbState.DEVICE, 10.2, POLICY)
    assert action is NetworkAction.REPORT_BACK
    if listed_first:
        phone, _ = phone.on_attempt("", 10.3, POLICY)
    assert phone.step(AdbState.DEVICE, 10.4, POLICY) == (replace(phone, next_try_at=10.4), NONE)


@pytest.mark.parametrize("failures", [1, 4, 20])
def test_who_waits_for_a_network_phone_shortens_its_pause_and_not_adbs_own(failures):
    phone = NetworkPhone(WIFI)
    for _ in range(failures):
        phone, _ = phone.step(None, phone.next_try_at, POLICY)
        phone, _ = phone.on_attempt("refused", phone.next_try_at, POLICY)
    due = min(phone.next_try_at, phone.tried_at + POLICY.wanted_every_s)
    for listed, at_s, wanted, action in (
        (None, due - 0.1, True, NONE),
        (None, due, True, CONNECT),
        (None, due, False, CONNECT if due == phone.next_try_at else NONE),
        (AdbState.OFFLINE, due, True, NONE),
    ):
        assert phone.step(listed, at_s, POLICY, wanted=wanted)[1] is action


@given(st.lists(st.tuples(st.sampled_from([None, *AdbState]), st.booleans(), st.floats(0.01, 100)), max_size=60))
def test_a_network_phone_is_never_given_up_and_never_tried_twice_at_once(story):
    phone, now, under_way = NetworkPhone(WIFI), 0.0, False
    for listed, fails, pause in story:
        now += pause
        phone, action = phone.step(listed, now, POLICY)
        if action in {CONNECT, RECONNECT}:
            assert not under_way
            under_way = True
        if under_way and pause > 1:
            phone, _ = phone.on_attempt("refused" if fails else "", now, POLICY)
            under_way = False
    if under_way:
        phone, _ = phone.on_attempt("refused", now, POLICY)
    assert phone.step(None, now + POLICY.network.limit_s, POLICY)[1] is CONNECT


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.7", WIFI),
        (" phone.lan:4444 ", "phone.lan:4444"),
        ("[fe80::1]", "[fe80::1]:5555"),
        ("[::1]:7", "[::1]:7"),
    ],
)
def test_addresses(text, address):
    assert network_address(text) == address


IMPOSSIBLE = ["", ":5555", "a b:1", "host:0", "host:65536", "host:x", "fe80::1", "host:", "\0", "a\0b:1", "\x1b[31m:1"]


@pytest.mark.parametrize("text", [*IMPOSSIBLE, "h" * 300, "host:" + "9" * 5000, "[x]", "host:٣"])
def test_impossible_addresses(text):
    with pytest.raises(UserError, match="network phone"):
        network_address(text)
