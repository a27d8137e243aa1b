"""Phones handed out per second by the tracker, each grant committed to the database first, beside the stock tracker.

Both are asked by the stock client's own functions, over one connection that waits for each answer; ours also by several
connections at once. Ours decides, writes lease and event, and answers; the stock tracker pops a list.

Both are measured in turns, so that whatever else the host does falls on both. The goal is about grants per second,
which is totals; the medians beside it say what a grant costs when nothing comes between. Processor time, of all threads
of the farm and of the client, is given as a multiple of a bare exchange (PING) with the same farm in the same round.
"""

# ruff: noqa: SLF001 (the stock client offers no other way to its socket)

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Context, Figure, percentile, under
from tests.support.tvm import DoorProcess, farm_door, stock_tracker

PHONES = 200  # a large lab; each is granted once
ROUNDS = 5  # stock and farm, one after the other
STOCK_SERVERS = 15  # of a round; each costs the stock tracker 88 ms twice
CLIENTS = 8
GOAL_FACTOR = 50
BARE = 1000  # exchanges
GOAL_CPU = 25  # times a bare exchange


def run(context: Context) -> list[Figure]:
    """All figures."""
    stock_ms: list[float] = []
    ours_ms: list[float] = []
    factors: list[float] = []  # of each round's medians
    farm_cpu: list[float] = []  # of each round: a grant's processor time, times that of a bare exchange
    all_cpu: list[float] = []  # the same with the client's
    grant_cpu_ms: list[float] = []
    together_s = 0.0
    for number in range(ROUNDS):
        context.say(f"round {number + 1}: stock tracker, {STOCK_SERVERS} servers register, each is asked for")
        with stock_tracker() as port, offered(port, STOCK_SERVERS):
            stock = granted_ms(port, "board", STOCK_SERVERS)
        context.say(f"round {number + 1}: farm, {PHONES} phones, one connection, then {CLIENTS} at once")
        with lab(context.folder / f"alone-{number}") as door:
            before = cpu_s(door)
            exchanges(door.port, BARE)
            between = cpu_s(door)
            ours = granted_ms(door.port, "android", PHONES)
            after = cpu_s(door)
        bare = [1e3 * (till - since) / BARE for since, till in zip(before, between, strict=True)]
        grant = [1e3 * (till - since) / PHONES for since, till in zip(between, after, strict=True)]
        with lab(context.folder / f"together-{number}") as door:
            together_s += granted_together_s(door.port, "android", PHONES, CLIENTS)
        grant_cpu_ms.append(grant[0])
        farm_cpu.append(grant[0] / bare[0])
        all_cpu.append(sum(grant) / sum(bare))
        factors.append(statistics.median(stock) / statistics.median(ours))
        stock_ms += stock
        ours_ms += ours
    per_s, stock_per_s = 1e3 / statistics.mean(ours_ms), 1e3 / statistics.mean(stock_ms)
    factor = per_s / stock_per_s
    goal, kept = f"at least {GOAL_FACTOR}", factor >= GOAL_FACTOR
    cpu = statistics.median(farm_cpu)
    return [
        Figure("grants, one connection, all rounds", per_s, "1/s", stock_per_s),
        Figure("times the stock tracker, grants per second", factor, "", None, goal, kept),
        Figure("times the stock tracker, medians of a round, median of rounds", statistics.median(factors), ""),
        Figure("times the stock tracker, medians of a round, worst round", min(factors), ""),
        Figure("one grant, median", statistics.median(ours_ms), "ms", statistics.median(stock_ms)),
        Figure("one grant, 99th percentile", percentile(ours_ms, 99), "ms", percentile(stock_ms, 99)),
        Figure("one grant, processor time of the farm", statistics.median(grant_cpu_ms), "ms"),
        under("one grant, processor time of the farm, times a bare exchange", cpu, "", GOAL_CPU),
        Figure("one grant, processor time of farm and client, times a bare exchange", statistics.median(all_cpu), ""),
        Figure(f"grants, {CLIENTS} connections at once", ROUNDS * PHONES / together_s, "1/s"),
    ]


@contextlib.contextmanager
def offered(port: int, count: int) -> Iterator[None]:
    """`count` servers register as stock servers do, and stay connected: a stock tracker forgets those that leave."""
    from tvm import rpc
    from tvm.rpc import base

    with contextlib.ExitStack() as stack:
        for number in range(count):
            server = rpc.connect_tracker("127.0.0.1", port)
            stack.callback(server.close)
            base.sendjson(server._sock, [base.TrackerCode.PUT, "board", (9090 + number, f"board:{number}"), None])
            if base.recvjson(server._sock) != base.TrackerCode.SUCCESS:
                raise AssertionError("PUT was refused")
        yield


def granted_ms(port: int, key: str, count: int) -> list[float]:
    """How long each of `count` requests took, one after the other."""
    from tvm import rpc
    from tvm.rpc import base

    client = rpc.connect_tracker("127.0.0.1", port)
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        base.sendjson(client._sock, [base.TrackerCode.REQUEST, key, "", 1])
        answer = base.recvjson(client._sock)
        times.append(1e3 * (time.perf_counter() - begun))
        if answer[0] != base.TrackerCode.SUCCESS:
            raise AssertionError(f"REQUEST was refused: {answer}")
    client.close()
    return times


def granted_together_s(port: int, key: str, count: int, clients: int) -> float:
    """Seconds until `clients` connections have been given `count` phones together."""
    begun = time.perf_counter()
    threads = [threading.Thread(target=granted_ms, args=(port, key, count // clients)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def exchanges(port: int, count: int) -> None:
    """`count` bare exchanges over one connection."""
    from tvm import rpc
    from tvm.rpc import base

    client = rpc.connect_tracker("127.0.0.1", port)
    for _ in range(count):
        base.sendjson(client._sock, [base.TrackerCode.PING])
        base.recvjson(client._sock)
    client.close()


def cpu_s(door: DoorProcess) -> tuple[float, float]:
    """Processor time so far of the farm and of this client."""
    return door.state("cpu")["cpu_s"], time.process_time()


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[DoorProcess]:
    """A door with its phones and a new database."""
    folder.mkdir()
    with farm_door(*(f"phone-{number}:1:secret" for number in range(PHONES)), store=folder) as door:
        yield door
