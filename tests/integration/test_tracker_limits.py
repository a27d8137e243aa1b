"""What the stock tracker dies of: a rush of clients, no descriptors, keys that nobody has."""

import asyncio
import itertools
import socket
import time

import pytest

from farm.model.sessions import Peer
from farm.tvm_server import listener, wire
from farm.tvm_server.connection import ConnectionLimits
from farm.tvm_server.listener import MIN_OF_USER
from tests.support.raw import RawTracker, encode_message
from tests.support.tvm import farm_door
from tests.support.waiting import HANG_S, until

CLIENTS = 200
FEW_FILES = 400  # descriptors of the starved door
UNKNOWN_KEYS = 2_500  # the benchmark does 100,000
ALLOWED_GROWTH_BYTES = 3 << 19  # of a process that Python's allocator has already warmed up


def greet(sock):
    sock.sendall(wire.encode_magic())
    return sock.recv(4, socket.MSG_WAITALL)


def refused(sock):
    """Whether the other end closes it without a word."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def ask(sock):
    sock.sendall(encode_message(wire.TrackerCode.PING))
    return sock.recv(len(wire.encode_json(0)), socket.MSG_WAITALL)


async def test_200_clients_at_once_are_all_served():
    with farm_door() as door:

        async def one():
            client = await RawTracker.connect(door.port)
            try:
                return await client.ask(wire.TrackerCode.PING)
            finally:
                client.close()

        assert await asyncio.gather(*(one() for _ in range(CLIENTS))) == [0] * CLIENTS


async def test_clients_that_connect_leave_the_loop_to_sessions_after_a_few():
    queued = listener.bind("127.0.0.1", 0)
    clients = [socket.create_connection(queued.getsockname()) for _ in range(CLIENTS)]
    taken, in_a_turn = [], []
    acceptor = listener.Acceptor(taken.append)
    acceptor.take(queued)
    while len(taken) < CLIENTS:
        before = len(taken)
        await asyncio.sleep(0)
        in_a_turn.append(len(taken) - before)
    acceptor.stop()
    for each in (*clients, *taken):
        each.close()
    assert max(in_a_turn) <= 8, "each takes 0.04 ms, and both ways of a session's call wait for a turn"


def test_a_port_without_descriptors_rests_and_comes_back():
    window_s = 1.0
    with farm_door(files=FEW_FILES) as door:
        old = socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S)
        assert greet(old) == wire.encode_magic()
        before = door.state("hog")["cpu_s"]
        new = [socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S) for _ in range(CLIENTS)]
        try:
            time.sleep(window_s)  # the observation itself: how much a starved door burns
            assert door.state()["cpu_s"] - before < 0.3 * window_s
            assert ask(old) == wire.encode_json(0)
            door.state("unhog")
            assert [greet(client) for client in new[-10:]] == [wire.encode_magic()] * 10
        finally:
            for client in (old, *new):
                client.close()


def test_of_more_clients_than_descriptors_a_users_share_is_served_and_the_others_are_told():
    with farm_door(files=FEW_FILES) as door:
        clients = [socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S) for _ in range(2 * FEW_FILES)]
        try:
            assert greet(clients[-1]) == wire.encode_magic()
            assert refused(clients[0])  # the oldest that has said nothing
        finally:
            for client in clients:
                client.close()
        while door.state()["open"]:
            pass
        with socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S) as client:
            assert greet(client) == wire.encode_magic()


class Crowd:
    """A listener that takes clients for `users` in turn, and the connections that it serves."""

    def __init__(self, monkeypatch, connections, *users):
        self.users = itertools.cycle(users)
        monkeypatch.setattr(listener, "peer_of", lambda _: (Peer("127.0.0.1", 1, next(self.users)), None))
        self.clients, self.served, self.problems = [], [], []
        limits = ConnectionLimits(connections=connections)
        self.door = listener.Listener(limits, tracker=self.serve, session=self.serve, on_problem=self.problems.append)
        self.door.take(listener.bind("127.0.0.1", 0))

    def serve(self, sock, peer, first, closed):
        self.served.append((sock, closed))

    def come(self):
        client = socket.create_connection(("127.0.0.1", self.door.port), timeout=HANG_S)
        client.sendall(wire.encode_magic())
        self.clients.append(client)
        return client

    def end_one(self):
        sock, closed = self.served.pop()
        sock.close()
        closed()

    async def serves(self, count):
        await until(lambda: len(self.served) == count)


@pytest.fixture
async def crowd(monkeypatch):
    made = []
    yield lambda *given: made.append(Crowd(monkeypatch, *given)) or made[-1]
    for each in made:
        each.door.stop()
        for sock in (*each.clients, *(sock for sock, _ in each.served)):
            sock.close()


async def test_all_users_together_are_served_in_turn(crowd):
    many = crowd(2 * MIN_OF_USER, *"abcd")
    for _ in range(2 * MIN_OF_USER + 2):
        many.come()
    await until(lambda: many.door._acceptor._held and len(many.served) == many.door.open)
    assert many.door.open <= 2 * MIN_OF_USER + 1  # one more may be taken before their bytes are read
    for _ in range(2):
        many.end_one()
    await many.serves(2 * MIN_OF_USER)
    assert many.problems == []


async def test_a_user_with_a_full_share_is_refused_with_one_message_until_one_ends(crowd):
    anns = crowd(4 * MIN_OF_USER, "ann")
    for _ in range(MIN_OF_USER):
        anns.come()
    await anns.serves(MIN_OF_USER)
    for _ in range(2):
        assert await asyncio.to_thread(refused, anns.come())
    assert anns.problems == [anns.door.problem]
    assert anns.door.problem.startswith(f"ann: more than {MIN_OF_USER} connections")
    anns.users = itertools.cycle(["bob"])
    anns.come()
    await anns.serves(MIN_OF_USER + 1)
    anns.served.reverse()
    anns.end_one()
    assert anns.problems[1:] == [anns.door.problem] == [""]


async def test_a_flood_of_refused_connections_is_a_line_and_then_a_count(crowd, caplog):
    flood = crowd(4 * MIN_OF_USER, "10.0.0.7")
    for turn in range(5):  # one ends, two come: one of them is refused, each time again
        for _ in range(MIN_OF_USER - len(flood.served)):
            flood.come()
        await flood.serves(MIN_OF_USER)
        assert await asyncio.to_thread(refused, flood.come()), turn
        flood.end_one()
    assert [record.message for record in caplog.records] == [
        f"10.0.0.7: more than {MIN_OF_USER} connections at once to the TVM port"
    ]


async def test_further_refusals_are_counted_until_there_are_none(monkeypatch, caplog):
    monkeypatch.setattr(listener, "QUIET_S", 0.0)
    log_refused = listener.refusal_log()
    for _ in range(3):
        log_refused("ann", "too many")
    log_refused("bob", "too many")
    assert [record.message for record in caplog.records] == ["ann: too many", "bob: too many"]
    await until(lambda: len(caplog.records) == 3)
    assert caplog.records[-1].message == "ann: too many (2 more connections in 0 s)"
    for _ in range(3):
        await asyncio.sleep(0)
    log_refused("ann", "too many")  # a new period begins
    assert caplog.records[-1].message == "ann: too many"


def test_clients_that_a_starved_port_cannot_serve_are_told_after_a_while():
    with farm_door(files=FEW_FILES, shed_after_s=0.3) as door:
        door.state("hog")
        with socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S) as client:
            assert client.recv(1) == b""
        door.state("unhog")
        with socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S) as client:
            assert greet(client) == wire.encode_magic()


async def test_unknown_keys_cost_nothing():
    with farm_door() as door:

        async def ask(first, count):
            for number in range(first, first + count):
                client = await RawTracker.connect(door.port)
                await client.send(encode_message(wire.TrackerRequest(f"unknown-{number}", "", 1)))
                client.close()

        async def settled():
            while any((state := door.state())[each] for each in ("open", "waiting", "keys")):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            return state["rss_bytes"]

        await ask(0, UNKNOWN_KEYS // 5)
        before = await settled()
        await ask(UNKNOWN_KEYS, UNKNOWN_KEYS)
        assert await settled() - before < ALLOWED_GROWTH_BYTES
