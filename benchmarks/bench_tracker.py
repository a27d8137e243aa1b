"""The farm's tracker beside the stock one, both asked by the unmodified client code of the installed wheel."""

# ruff: noqa: SLF001 (the stock client offers no other way to its socket)

from __future__ import annotations

import contextlib
import json
import resource
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable

import psutil

from benchmarks.harness import Context, Figure, cpu_percent, under
from farm.adb.program import port_holder
from farm.tvm_server.external_rules import MAX_OFFERS, MAX_OFFERS_PER_CONNECTION
from farm.tvm_server.wire import TRACKER_MAGIC
from tests.support.tvm import farm_door, stock_tracker

EXCHANGES = 300  # of ours; the stock tracker needs 88 ms for each
STOCK_EXCHANGES = 15
CYCLES = 1500
STOCK_CYCLES = 15
CLIENTS = 200
CLIENT_PATIENCE_S = 5.0  # a client that waits this long for an answer counts as refused
FLOODERS = 100  # clients that send SUMMARY without end and never read
FLOOD_MESSAGES = 20_000  # of each, as far as the kernel takes them
FLOOD_EXCHANGES = 5
FLOOD_LIMIT_MS = 100.0
CLOSING_LIMIT_MS = 200.0
UNKNOWN_KEYS = 100_000
STOCK_UNKNOWN_KEYS = 10_000  # it keeps them all; the growth is scaled
KEYS_PER_CONNECTION = 50
FLAT_BYTES = 2 << 20  # growth that still counts as flat: the allocator's own fluctuation
STARVED_FILES = 64
STARVED_WINDOW_S = 1.0
RECOVERY_LIMIT_S = 10.0
GOAL_FACTOR = 50


def run(context: Context) -> list[Figure]:
    """All figures; the stock tracker first."""
    context.say("stock tracker: exchanges and cycles")
    with stock_tracker() as port:
        stock_exchange_ms = exchange_ms(port, STOCK_EXCHANGES)
        stock_cycles = cycles_per_s(port, STOCK_CYCLES)
    context.say("farm: exchanges and cycles")
    with farm_door() as door:
        ours_ms = exchange_ms(door.port, EXCHANGES)
        cycles = cycles_per_s(door.port, CYCLES)
        context.say(f"farm: {CLIENTS} clients at once")
        refused = refused_of(CLIENTS, door.port)
        context.say(f"farm: {FLOODERS} clients that never read")
        flooded_ms = flooded_exchange_ms(door.port)
        context.say(f"farm: {MAX_OFFERS} offers")
        closing_ms = offers_closed_ms(door.port)
        context.say(f"farm: {UNKNOWN_KEYS} requests for unknown keys")
        ask_unknown(door.port, 0, UNKNOWN_KEYS // 10)
        growth = unknown_growth(door.pid, door.port, UNKNOWN_KEYS, lambda: door.state()["waiting"] == 0)
    context.say(f"stock tracker: {CLIENTS} clients at once, unknown keys")
    with stock_tracker() as port:
        stock_refused = refused_of(CLIENTS, port)
    with stock_tracker() as port:
        pid = listener_pid(port)
        ask_unknown(port, 0, 500)
        stock_growth = unknown_growth(pid, port, STOCK_UNKNOWN_KEYS) * (UNKNOWN_KEYS / STOCK_UNKNOWN_KEYS)
    context.say("descriptor exhaustion")
    with farm_door() as door:
        resource.prlimit(door.pid, resource.RLIMIT_NOFILE, (STARVED_FILES, STARVED_FILES))
        load, back_s = starve(door.pid, door.port)
    with stock_tracker() as port:
        pid = listener_pid(port)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (STARVED_FILES, STARVED_FILES))
        stock_load, stock_back_s = starve(pid, port)
    faster, more = f"{GOAL_FACTOR} times faster than stock", f"{GOAL_FACTOR} times stock"
    unknown = f"memory growth, {UNKNOWN_KEYS} unknown keys"
    alive = f"alive ({RECOVERY_LIMIT_S:g} means never)"
    fast, many = ours_ms * GOAL_FACTOR <= stock_exchange_ms, cycles >= GOAL_FACTOR * stock_cycles
    flat, lives = growth < FLAT_BYTES, back_s < RECOVERY_LIMIT_S
    return [
        Figure("one exchange, unmodified client", ours_ms, "ms", stock_exchange_ms, faster, fast),
        Figure("put+request cycles, unmodified clients", cycles, "1/s", stock_cycles, more, many),
        Figure(f"refused of {CLIENTS} clients at once", refused, "clients", stock_refused, "0", refused == 0),
        under(f"one new client's exchange, {FLOODERS} SUMMARY floods", flooded_ms, "ms", FLOOD_LIMIT_MS),
        under(f"closing {MAX_OFFERS} offers", closing_ms, "ms", CLOSING_LIMIT_MS),
        Figure(unknown, growth / 2**20, "MiB", stock_growth / 2**20, "flat (under 2 MiB)", flat),
        under("load while out of descriptors", load, "% of a core", 10, stock_load),
        Figure("back after descriptor exhaustion", back_s, "s", stock_back_s, alive, lives),
    ]


def exchange_ms(port: int, count: int) -> float:
    """Median of a SUMMARY by the stock client."""
    from tvm import rpc

    tracker = rpc.connect_tracker("127.0.0.1", port)
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        tracker.summary()
        times.append(time.perf_counter() - begun)
    tracker.close()
    return 1e3 * statistics.median(times)


def cycles_per_s(port: int, count: int) -> float:
    """A server offers itself, a client takes it: over and over, with the stock functions of both."""
    from tvm import rpc
    from tvm.rpc import base

    server, client = rpc.connect_tracker("127.0.0.1", port), rpc.connect_tracker("127.0.0.1", port)
    begun = time.perf_counter()
    for number in range(count):
        key = f"board:{number}"
        base.sendjson(server._sock, [base.TrackerCode.PUT, "board", (9090, key), None])
        if base.recvjson(server._sock) != base.TrackerCode.SUCCESS:
            raise AssertionError("PUT was refused")
        base.sendjson(client._sock, [base.TrackerCode.REQUEST, "board", "", 1])
        if base.recvjson(client._sock)[1][2] != key:
            raise AssertionError("another server was handed out")
    seconds = time.perf_counter() - begun
    server.close()
    client.close()
    return count / seconds


def refused_of(count: int, port: int) -> int:
    """How many of `count` simultaneous clients get no answer in time."""
    from tvm.rpc import base

    gate = threading.Barrier(count)
    served: list[int] = []

    def one() -> None:
        gate.wait()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=CLIENT_PATIENCE_S) as sock:
                sock.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
                base.recvall(sock, 4)
                base.sendjson(sock, [base.TrackerCode.SUMMARY])
                served.append(base.recvjson(sock)[0])
        except OSError:
            pass  # counted by its absence

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count - len(served)


def tracker_frame(message: object) -> bytes:
    """One message in one piece."""
    body = json.dumps(message).encode()
    return struct.pack("<i", len(body)) + body


def new_client_ms(port: int) -> float:
    """Connect, greet and PING."""
    from tvm.rpc import base

    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60.0) as sock:
        sock.sendall(struct.pack("<i", TRACKER_MAGIC) + tracker_frame([1]))
        base.recvall(sock, len(struct.pack("<i", TRACKER_MAGIC) + tracker_frame(0)))
    return 1e3 * (time.perf_counter() - begun)


def flooded_exchange_ms(port: int) -> float:
    """The slowest of a few new clients while others flood."""
    floods = []
    with contextlib.ExitStack() as stack:
        for _ in range(FLOODERS):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
            floods.append(sock)
        for sock in floods:
            sock.send(struct.pack("<i", TRACKER_MAGIC) + tracker_frame([6]) * FLOOD_MESSAGES)
        return max(new_client_ms(port) for _ in range(FLOOD_EXCHANGES))


def offers_closed_ms(port: int) -> float:
    """From closing connections with as many offers as there may be, newest first, until a new client is served."""
    from tvm.rpc import base

    with contextlib.ExitStack() as stack:
        for number in range(MAX_OFFERS // MAX_OFFERS_PER_CONNECTION):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60.0))
            offers = [[3, "flood", [9, f"flood:{number}-{index}"], None] for index in range(MAX_OFFERS_PER_CONNECTION)]
            sock.sendall(struct.pack("<i", TRACKER_MAGIC) + b"".join(map(tracker_frame, offers)))
            answers = struct.pack("<i", TRACKER_MAGIC) + len(offers) * tracker_frame(0)
            if base.recvall(sock, len(answers)) != answers:
                raise AssertionError("an offer was refused")
        begun = time.perf_counter()
    new_client_ms(port)
    return 1e3 * (time.perf_counter() - begun)


def ask_unknown(port: int, first: int, count: int) -> None:
    """`count` requests for keys that nobody has, by clients that leave without waiting."""
    from tvm.rpc import base

    for start in range(first, first + count, KEYS_PER_CONNECTION):
        with socket.create_connection(("127.0.0.1", port), timeout=CLIENT_PATIENCE_S) as sock:
            sock.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            base.recvall(sock, 4)
            for number in range(start, start + KEYS_PER_CONNECTION):
                base.sendjson(sock, [base.TrackerCode.REQUEST, f"unknown-{number}", "", 1])
            # An answer to this says that the requests before it were read.
            base.sendjson(sock, [base.TrackerCode.PING])
            base.recvjson(sock)


def unknown_growth(pid: int, port: int, count: int, settled: Callable[[], bool] = lambda: True) -> int:
    """Resident bytes that `count` unknown keys leave behind in process `pid`."""
    process = psutil.Process(pid)
    before = process.memory_info().rss
    ask_unknown(port, 1_000_000, count)
    while not settled():
        time.sleep(0.05)
    grown: int = process.memory_info().rss - before
    return max(0, grown)


def starve(pid: int, port: int) -> tuple[float, float]:
    """Percent of a core while out of descriptors, and seconds until a client is served once they are back."""
    clients = [socket.socket() for _ in range(STARVED_FILES + 20)]
    for client in clients:
        client.setblocking(False)  # a stock tracker's short queue would let connect wait forever ...
        client.connect_ex(("127.0.0.1", port))
        time.sleep(0.01)  # ... and needs this to take one after the other
    time.sleep(0.2)
    (load,) = cpu_percent([psutil.Process(pid)], STARVED_WINDOW_S)
    for client in clients:
        client.close()
    begun = time.perf_counter()
    while (waited_s := time.perf_counter() - begun) < RECOVERY_LIMIT_S:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as sock:
                sock.sendall(struct.pack("<i", 0x2F271))
                if len(sock.recv(4)) == 4:
                    return load, time.perf_counter() - begun
        except OSError:
            time.sleep(0.05)
    return load, waited_s


def listener_pid(port: int) -> int:
    """Who listens on `port`: the stock tracker serves from a grandchild.

    Raises:
        LookupError: nobody does.
    """
    holder = port_holder(port)
    if holder is None or holder.pid is None:
        raise LookupError(f"nobody listens on port {port}")
    return holder.pid
