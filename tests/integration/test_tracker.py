"""The tracker over real sockets, with clients that do what stock ones never would."""

import asyncio
import json
import socket
import struct

import pytest

from farm.common.errors import Code
from farm.config import ExternalConfig
from farm.model.device import Life, Service
from farm.tvm_server import wire
from farm.tvm_server.connection import MESSAGES_PER_TURN, RECEIVE_BYTES, ConnectionLimits
from farm.tvm_server.listener import bind
from farm.tvm_server.tracker import TrackerConnection
from farm.tvm_server.wire import TrackerCode
from tests.support.errors import raises_code
from tests.support.local_head import requests_of
from tests.support.raw import RawTracker, encode_message
from tests.support.tvm_port import TvmPort
from tests.support.waiting import HANG_S, until


async def until_closed(client):
    try:
        while True:
            await client.event()
    except EOFError:
        return


async def test_every_message_is_answered():
    async with TvmPort() as lab:
        client = await lab.client()
        assert await client.ask(TrackerCode.PING) == 0
        assert await client.ask(TrackerCode.STOP) == -1
        assert await client.ask(TrackerCode.STOP) == -1
        assert await client.ask(TrackerCode.GET_PENDING_MATCHKEYS) == []
        assert await client.ask(TrackerCode.SUMMARY) == [0, {"queue_info": {}, "server_info": []}]
        assert await client.ask(wire.UpdateInfo("board", None, 9090)) == 0
        assert await client.ask(wire.Put("board", 9090, "board:0.5", None)) == 0
        assert await client.ask(TrackerCode.GET_PENDING_MATCHKEYS) == ["board:0.5"]
        assert await client.summary() == {
            "queue_info": {"board": {"free": 1, "pending": 0}},
            "server_info": [{"key": "server:board", "addr": ["127.0.0.1", 9090]}],
        }
        assert await client.ask(wire.TrackerRequest("board", "", 1)) == [0, ["127.0.0.1", 9090, "board:0.5"]]
        assert await client.ask(TrackerCode.GET_PENDING_MATCHKEYS) == []


async def test_messages_byte_by_byte_and_all_at_once_get_the_same_answers():
    stream = wire.encode_magic() + b"".join(
        encode_message(message)
        for message in (TrackerCode.PING, TrackerCode.STOP, TrackerCode.PING, TrackerCode.GET_PENDING_MATCHKEYS)
    )
    async with TvmPort() as lab:
        for size in (1, len(stream)):
            client = await lab.client(greet=False)
            for start in range(0, len(stream), size):
                await client.send(stream[start : start + size])
            assert await client.event() == wire.TrackerHello()
            assert [await client.answer() for _ in range(4)] == [0, -1, 0, []]


async def test_a_farm_phone_has_a_row_per_alias_and_is_free_under_each():
    async with TvmPort() as lab:
        lab.devices.add("pixel", "android", "adreno-740")
        lab.devices.add("other", "android", service=Service.MAINTENANCE)
        lab.devices.add("lost", "android", life=Life.OFFLINE)
        client = await lab.client()
        summary = await client.summary()
        assert [row["key"] for row in summary["server_info"]] == ["server:android", "server:adreno-740", "server:pixel"]
        assert {tuple(row["addr"]) for row in summary["server_info"]} == {("127.0.0.1", lab.door.port)}
        code, (address, port, match_key) = await client.ask(wire.TrackerRequest("adreno-740", "", 1))
        assert (code, address, port) == (0, "127.0.0.1", lab.door.port)
        assert match_key.startswith("adreno-740:")
        assert len(match_key.partition(":")[2]) == 32
        assert set((await client.summary())["queue_info"]) == {"android", "adreno-740", "pixel"}
        assert lab.queue("android") == {"free": 0, "pending": 0}


async def test_the_address_can_be_another_for_some_clients():
    async with TvmPort(advertise={"10.0.0.0/8": "wrong", "127.0.0.0/8": "lab.example:9999"}) as lab:
        lab.devices.add("pixel")
        client = await lab.client()
        code, (address, port, _) = await client.ask(wire.TrackerRequest("pixel", "", 1))
        assert (code, address, port) == (0, "lab.example", 9999)


async def test_a_waiting_client_that_dies_is_withdrawn_at_once():
    async with TvmPort() as lab:
        for leave in (RawTracker.close, RawTracker.reset):
            client = await lab.client()
            await client.send(encode_message(wire.TrackerRequest("nobody-has-this", "", 1)))
            await until(lambda: lab.queue("nobody-has-this") == {"free": 0, "pending": 1})
            leave(client)
            await until(lambda: lab.queue("nobody-has-this") is None)
        assert not requests_of(lab.leasing).waiting()


async def test_a_phone_goes_to_the_living_client_not_to_the_dead_one():
    async with TvmPort() as lab:
        dead, alive = await lab.client(), await lab.client()
        await dead.send(encode_message(wire.TrackerRequest("pixel", "", 9)))
        await until(lambda: lab.queue("pixel") == {"free": 0, "pending": 1})
        await alive.send(encode_message(wire.TrackerRequest("pixel", "", 1)))
        await until(lambda: lab.queue("pixel") == {"free": 0, "pending": 2})
        dead.close()
        await until(lambda: lab.queue("pixel") == {"free": 0, "pending": 1})
        lab.devices.add("pixel")
        assert (await alive.answer())[0] == 0


async def test_higher_priority_is_served_first():
    async with TvmPort() as lab:
        low, high = await lab.client(), await lab.client()
        await low.send(encode_message(wire.TrackerRequest("pixel", "", 1)))
        await until(lambda: lab.queue("pixel") == {"free": 0, "pending": 1})
        await high.send(encode_message(wire.TrackerRequest("pixel", "", 2)))
        await until(lambda: lab.queue("pixel") == {"free": 0, "pending": 2})
        lab.devices.add("pixel")
        assert (await high.answer())[0] == 0
        assert lab.queue("pixel") == {"free": 0, "pending": 1}


async def test_nonsense_is_answered_and_at_last_cut_off():
    async with TvmPort(limits=ConnectionLimits(invalid_messages=5)) as lab:
        client = await lab.client()
        await client.send(wire.encode_json([4, "a b", "", 1]))
        code, reason = await client.answer()
        assert code == -1
        assert "key" in reason
        # The stock tracker's SUMMARY breaks for everybody after this one.
        await client.send(wire.encode_json([5, {"key": 5}]))
        assert await client.answer() == -1
        await client.send(struct.pack("<i", 2) + b"\xff\xfe")
        assert (await client.answer())[0] == -1
        assert await client.ask(TrackerCode.PING) == 0
        await client.send(wire.encode_json([99]) * 2)
        assert (await client.answer())[0] == -1
        assert (await client.answer())[0] == -1
        with pytest.raises(EOFError):
            await client.event()
        assert await (await lab.client()).summary() == {"queue_info": {}, "server_info": []}


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<ii", wire.TRACKER_MAGIC, -1),
        struct.pack("<ii", wire.TRACKER_MAGIC, wire.MAX_TRACKER_MESSAGE_BYTES + 1),
        b"\0\0",
    ],
)
async def test_garbage_closes_only_its_own_connection(stream):
    async with TvmPort(limits=ConnectionLimits(handshake_s=0.5)) as lab:
        client = await lab.client(greet=False)
        await client.send(stream)
        await until_closed(client)
        assert await (await lab.client()).ask(TrackerCode.PING) == 0


async def test_silence_before_inside_and_after_a_message_is_limited_but_waiting_is_not():
    async with TvmPort(limits=ConnectionLimits(handshake_s=0.5, message_s=0.5, idle_s=0.5)) as lab:
        silent = await lab.client(greet=False)
        halfway = await lab.client()
        await halfway.send(encode_message(TrackerCode.PING)[:-1])
        idle = await lab.client()
        waiting = await lab.client()
        await waiting.send(encode_message(wire.TrackerRequest("pixel", "", 1)))
        server = await lab.client()
        assert await server.ask(wire.Put("board", 9090, "board:0.5", None)) == 0
        for client in (silent, halfway, idle):
            with pytest.raises(EOFError):
                await client.event()
        lab.devices.add("pixel")
        assert (await waiting.answer())[0] == 0
        assert await server.ask(TrackerCode.GET_PENDING_MATCHKEYS) == ["board:0.5"]


async def test_the_number_of_waiting_requests_is_limited():
    async with TvmPort(limits=ConnectionLimits(waiting=3, waiting_per_connection=2)) as lab:
        first, second = await lab.client(), await lab.client()
        for _ in range(3):
            await first.send(encode_message(wire.TrackerRequest("pixel", "", 1)))
        assert (await first.answer())[0] == -1
        for _ in range(2):
            await second.send(encode_message(wire.TrackerRequest("pixel", "", 1)))
        assert (await second.answer())[0] == -1
        first.close()
        await until(lambda: lab.queue("pixel") == {"free": 0, "pending": 1})
        assert lab.door.tracker.waiting == 1


async def test_a_client_that_never_reads_is_cut_off():
    async with TvmPort(limits=ConnectionLimits(message_s=0.1)) as lab:
        for number in range(200):
            lab.devices.add(f"phone-{number}", "android")
        client, other = await lab.client(), await lab.client()
        flood = asyncio.create_task(client.send(encode_message(TrackerCode.SUMMARY) * 2_000_000))
        assert await other.ask(TrackerCode.PING) == 0  # served while the other's answers wait for a reader
        held = []
        while not flood.done():
            held.append(lab.door.tracker.held.taken)
            await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await flood
        one_answer = len(json.dumps(lab.door.summary()))
        assert max(held, default=0) <= RECEIVE_BYTES + wire.MAX_TRACKER_MESSAGE_BYTES + one_answer
        assert await other.ask(TrackerCode.PING) == 0


async def test_a_client_that_reads_nothing_of_its_only_answer_is_cut_off():
    async with TvmPort(limits=ConnectionLimits(message_s=0.1)) as lab:
        await lab.client()
        (connection,) = lab.door.tracker._connections
        connection.send(bytes(1 << 24))  # more than the kernel takes
        await until(lambda: connection.closed)


async def test_a_slow_reader_gets_every_answer():
    async with TvmPort() as lab:
        for number in range(50):
            lab.devices.add(f"phone-{number}", "android")
        client = await lab.client()
        flood = asyncio.create_task(client.send(encode_message(TrackerCode.SUMMARY) * 1000))
        answers = [await client.answer() for _ in range(1000)]
        await flood
        assert len(answers[0][1]["server_info"]) == 100
        assert answers.count(answers[0]) == 1000


async def test_answers_keep_the_order_of_their_questions():
    async with TvmPort() as lab:
        client = await lab.client()
        await client.send(
            b"".join(
                encode_message(message)
                for message in (
                    TrackerCode.PING,
                    TrackerCode.SUMMARY,
                    wire.Put("board", 9090, "board:1", None),
                    TrackerCode.SUMMARY,
                    TrackerCode.GET_PENDING_MATCHKEYS,
                    *[TrackerCode.PING] * 3 * MESSAGES_PER_TURN,
                    TrackerCode.STOP,
                )
            )
        )
        assert await client.answer() == 0
        assert (await client.answer())[1]["queue_info"] == {}
        assert await client.answer() == 0
        assert (await client.answer())[1]["queue_info"] == {"board": {"free": 1, "pending": 0}}
        assert await client.answer() == ["board:1"]
        assert [await client.answer() for _ in range(3 * MESSAGES_PER_TURN + 1)] == [0] * 3 * MESSAGES_PER_TURN + [-1]


async def test_who_sends_without_end_has_a_few_messages_handled_before_others_have_their_turn(monkeypatch):
    async with TvmPort() as lab:
        greedy, other = await lab.client(), await lab.client()
        served = []
        handle = TrackerConnection._handle

        def watched(connection, event):
            served.append(connection.peer.port)
            handle(connection, event)

        monkeypatch.setattr(TrackerConnection, "_handle", watched)
        greedy_port, other_port = (client.sock.getsockname()[1] for client in (greedy, other))
        greedy.sock.send(encode_message(TrackerCode.PING) * 500)
        other.sock.send(encode_message(TrackerCode.PING))
        assert [await greedy.answer() for _ in range(500)] == [0] * 500
        assert served.count(greedy_port) == 500
        assert served.index(other_port) <= 2 * MESSAGES_PER_TURN


async def test_what_cannot_be_handled_yet_stays_in_the_kernel():
    async with TvmPort() as lab:
        client = await lab.client()
        (connection,) = lab.door.tracker._connections
        held = []
        flood = asyncio.create_task(client.send(encode_message(TrackerCode.PING) * 50_000))
        for _ in range(50_000):
            assert await client.answer() == 0
            held.append(connection.unhandled_bytes)
        await flood
        assert max(held) <= RECEIVE_BYTES + wire.MAX_TRACKER_MESSAGE_BYTES


async def test_one_summary_is_made_for_everybody_who_asks_in_one_turn_of_the_loop(monkeypatch):
    async with TvmPort() as lab:
        clients = [await lab.client() for _ in range(20)]
        made = []
        summary = lab.leasing.tvm.summary
        monkeypatch.setattr(lab.leasing.tvm, "summary", lambda: made.append(1) or summary())
        for client in clients:
            client.sock.send(encode_message(TrackerCode.SUMMARY))
        assert [(await client.answer())[0] for client in clients] == [0] * 20
        assert len(made) == 1


async def test_unfinished_messages_of_all_clients_have_a_common_limit():
    length, limit = 40_000, 100_000
    async with TvmPort(limits=ConnectionLimits(held_bytes=limit)) as lab:
        clients = [await lab.client() for _ in range(6)]
        for client in clients:
            await client.send(struct.pack("<i", length) + b" " * (length - 10))
        await until(lambda: len(lab.door.tracker._connections) == 2)
        for client in clients[:4]:  # the oldest of those that hold the same
            with pytest.raises(EOFError):
                await client.event()
        assert await (await lab.client()).ask(TrackerCode.PING) == 0
        await clients[4].send(b" " * 10)
        assert (await clients[4].answer())[0] == -1
        clients[5].close()
        await until(lambda: lab.door.tracker.held.taken == 0)


async def test_unread_answers_of_all_clients_have_a_common_limit():
    limit, clients = 150_000, 10
    async with TvmPort(limits=ConnectionLimits(held_bytes=limit, message_s=10 * HANG_S)) as lab:
        for number in range(1000):
            lab.devices.add(f"phone-{number}", "android")
        for _ in range(clients):
            client = await lab.client()
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            await client.send(encode_message(TrackerCode.SUMMARY) * 200)  # more answers than the kernel takes
        await until(lambda: len(lab.door.tracker._connections) < clients)
        assert await (await lab.client()).ask(TrackerCode.PING) == 0
        assert lab.door.tracker.held.taken <= limit


async def test_more_connections_than_allowed_wait_their_turn():
    async with TvmPort(limits=ConnectionLimits(connections=3)) as lab:
        clients = [await lab.client() for _ in range(3)]
        late = await lab.client(greet=False)
        await late.send(wire.encode_magic())
        assert await clients[0].ask(TrackerCode.PING) == 0
        assert late.parser.next_event() is None
        clients[1].close()
        assert await late.event() == wire.TrackerHello()


# --- servers that register themselves -----------------------------------------------------------------------------


async def test_a_server_leaves_nothing_behind_when_its_connection_ends():
    async with TvmPort() as lab:
        for registers in (True, False):
            server = await lab.client()
            if registers:
                assert await server.ask(wire.UpdateInfo("board", None, 9090)) == 0
            assert await server.ask(wire.Put("board", 9090, "board:0.5", None)) == 0
            server.close()
            await until(lambda: lab.queue("board") is None)
        assert lab.door.summary() == {"queue_info": {}, "server_info": []}


async def test_a_waiting_client_gets_the_server_that_comes():
    async with TvmPort() as lab:
        client, server = await lab.client(), await lab.client()
        await client.send(encode_message(wire.TrackerRequest("board", "", 1)))
        await until(lambda: lab.queue("board") == {"free": 0, "pending": 1})
        assert await server.ask(wire.Put("board", 9090, "board:0.5", None)) == 0
        assert await client.answer() == [0, ["127.0.0.1", 9090, "board:0.5"]]
        assert await server.ask(TrackerCode.GET_PENDING_MATCHKEYS) == []
        assert not requests_of(lab.leasing).waiting()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (ExternalConfig(allow=("10.0.0.0/8",)), wire.Put("board", 9090, "board:1", None)),
        (ExternalConfig(), wire.Put("board", 9090, "board:1", "10.1.1.1")),
        (ExternalConfig(), wire.UpdateInfo("board", "board.example", 9090)),
        (ExternalConfig(), wire.Put("android", 9090, "android:1", None)),
        (ExternalConfig(), wire.UpdateInfo("Android", None, 9090)),
    ],
)
async def test_a_refused_registration_gets_a_message(policy, message):
    async with TvmPort(external=policy) as lab:
        lab.devices.add("pixel", "android")
        server = await lab.client()
        assert await server.ask(message) == -1
        assert all(row["device"] == "pixel" for row in (await server.summary())["server_info"])


async def test_custom_addresses_and_shared_keys_can_be_allowed():
    policy = ExternalConfig(custom_addresses=("10.0.0.0/8", "board.example"), join=("android",))
    async with TvmPort(external=policy) as lab:
        lab.devices.add("pixel", "android")
        server, client = await lab.client(), await lab.client()
        assert await server.ask(wire.Put("board", 9090, "board:1", "10.1.1.1")) == 0
        assert await server.ask(wire.Put("android", 9091, "android:1", "board.example")) == 0
        assert await client.ask(wire.TrackerRequest("android", "", 1)) == [0, ["board.example", 9091, "android:1"]]
        assert (await client.ask(wire.TrackerRequest("android", "", 1)))[1][1] == lab.door.port


async def test_a_silent_server_is_not_handed_out_until_it_speaks():
    async with TvmPort(limits=ConnectionLimits(silent_s=0.05)) as lab:
        server, client = await lab.client(), await lab.client()
        assert await server.ask(wire.Put("board", 9090, "board:1", None)) == 0
        await until(lambda: (lab.queue("board") or {}).get("free", 0) == 0)
        await client.send(encode_message(wire.TrackerRequest("board", "", 1)))
        await until(lambda: lab.queue("board") == {"free": 0, "pending": 1})
        assert await server.ask(TrackerCode.GET_PENDING_MATCHKEYS) == []
        assert await client.answer() == [0, ["127.0.0.1", 9090, "board:1"]]


async def test_a_server_whose_offers_are_refused_for_ever_is_cut_off():
    async with TvmPort(
        limits=ConnectionLimits(invalid_messages=3), external=ExternalConfig(allow=("10.0.0.0/8",))
    ) as lab:
        server = await lab.client()
        for _ in range(3):
            assert await server.ask(wire.Put("board", 9090, "board:1", None)) == -1
        with pytest.raises(EOFError):
            await server.event()


async def test_a_taken_port_is_named():
    async with TvmPort() as lab:
        with raises_code(Code.PORT_TAKEN, match=str(lab.door.port)) as caught:
            bind("127.0.0.1", lab.door.port)
        assert "ss -ltnp" in caught.value.hint


async def test_stopping_ends_waiting_requests_and_connections():
    lab = TvmPort()
    async with lab:
        client = await lab.client()
        await client.send(encode_message(wire.TrackerRequest("pixel", "", 1)))
        await until(lambda: lab.queue("pixel") == {"free": 0, "pending": 1})
        await lab.door.stop()
        with pytest.raises(EOFError):
            await client.event()
        assert not requests_of(lab.leasing).waiting()
