"""What the stock tracker dies of: a rush of clients, no descriptors, keys that nobody has."""

import asyncio
import socket
import time

from farm.tracker import wire
from farm.tracker.listener import SHED_AFTER_S
from tests.support.raw import RawTracker
from tests.support.tvm import farm_door

CLIENTS = 200
FEW_FILES = 400  # descriptors of the starved door
UNKNOWN_KEYS = 5_000  # the benchmark does 100,000
ALLOWED_GROWTH_BYTES = 3 << 20  # of a process that Python's allocator has already warmed up


def greet(sock: socket.socket) -> bytes:
    sock.sendall(wire.encode_magic())
    return sock.recv(4, socket.MSG_WAITALL)


def ask(sock: socket.socket) -> bytes:
    sock.sendall(wire.encode_message(wire.Ping()))
    return sock.recv(len(wire.encode_json(0)), socket.MSG_WAITALL)


async def test_200_clients_at_once_are_all_served():
    with farm_door() as door:

        async def one() -> object:
            client = await RawTracker.connect(door.port)
            try:
                return await client.ask(wire.Ping())
            finally:
                client.close()

        assert await asyncio.gather(*(one() for _ in range(CLIENTS))) == [0] * CLIENTS


def test_a_door_without_descriptors_rests_and_comes_back():
    window_s = 1.0
    with farm_door(files=FEW_FILES) as door:
        old = socket.create_connection(("127.0.0.1", door.port), timeout=20)
        assert greet(old) == wire.encode_magic()
        before = door.state("hog")["cpu_s"]
        new = [socket.create_connection(("127.0.0.1", door.port), timeout=20) for _ in range(CLIENTS)]
        try:
            time.sleep(window_s)  # the observation itself: how much a starved door burns
            assert door.state()["cpu_s"] - before < 0.3 * window_s
            assert ask(old) == wire.encode_json(0)
            door.state("unhog")
            assert [greet(client) for client in new[:10]] == [wire.encode_magic()] * 10
        finally:
            for client in (old, *new):
                client.close()


def test_more_clients_than_descriptors_are_served_in_turn():
    with farm_door(files=FEW_FILES) as door:
        clients = [socket.create_connection(("127.0.0.1", door.port), timeout=20) for _ in range(2 * FEW_FILES)]
        try:
            assert greet(clients[0]) == wire.encode_magic()
            for client in clients[:-1]:
                client.close()
            assert greet(clients[-1]) == wire.encode_magic()
        finally:
            for client in clients:
                client.close()


def test_clients_that_a_starved_door_cannot_serve_are_told_after_a_while():
    with farm_door(files=FEW_FILES) as door:
        door.state("hog")
        with socket.create_connection(("127.0.0.1", door.port), timeout=SHED_AFTER_S + 10) as client:
            assert client.recv(1) == b""
        door.state("unhog")
        with socket.create_connection(("127.0.0.1", door.port), timeout=20) as client:
            assert greet(client) == wire.encode_magic()


async def test_unknown_keys_cost_nothing():
    with farm_door() as door:

        async def ask(first: int, count: int) -> None:
            for number in range(first, first + count):
                client = await RawTracker.connect(door.port)
                await client.send(wire.encode_message(wire.Request(f"unknown-{number}", "", 1)))
                client.close()

        async def settled() -> float:
            while (state := door.state())["open"] or state["waiting"]:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            assert state["keys"] == 0
            return state["rss_bytes"]

        await ask(0, UNKNOWN_KEYS // 5)
        before = await settled()
        await ask(UNKNOWN_KEYS, UNKNOWN_KEYS)
        assert await settled() - before < ALLOWED_GROWTH_BYTES
