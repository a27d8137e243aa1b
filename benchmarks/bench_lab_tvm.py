"""A stock client and a phone on another host: its answer, opening a session, and throughput beside the direct way.

Two hosts with a real head over PostgreSQL. The same client asks the phone's own host and the other one in turns, so
that whatever else the machine does falls on both.
"""

from __future__ import annotations

import statistics
import time
from typing import Any
from unittest import mock

from benchmarks.bench_gate import Way
from benchmarks.harness import Context, Figure, under, until
from tests.support.whole_farm import phones
from tests.support.whole_lab import LISTEN, whole_lab

ROUNDS = 8
GOAL_MS = 25.0
GOAL_SHARE = 0.8
FREE_LIMIT_S = 60.0


def run(context: Context) -> list[Figure]:
    """Medians of opening, the best throughput of each way."""
    with whole_lab() as lab:
        lab.head()
        context.say("two hosts begin, one with a phone")
        entrance = lab.host("one", "galaxy-s9", config=LISTEN)
        home = lab.host("two", "galaxy-a55", config=LISTEN)
        key = phones(home)[0].name
        context.say(f"{ROUNDS} sessions by each host in turns")
        return _figures(*_in_turns(key, home.tracker(), entrance.tracker()))


def _figures(direct: _Door, relayed: _Door) -> list[Figure]:
    up, down = relayed.way.up_mb_s, relayed.way.down_mb_s
    share = f"at least {100 * GOAL_SHARE:g} % of direct"
    return [
        under("session opened, phone on another host (stock: direct)", relayed.open_ms, "ms", GOAL_MS, direct.open_ms),
        Figure("request answered: granted over PostgreSQL", relayed.answer_ms, "ms", direct.answer_ms),
        Figure("round trip, relayed (stock: direct)", relayed.way.read_ms, "ms", direct.way.read_ms),
        Figure("upload", up, "MB/s", direct.way.up_mb_s, share, up >= GOAL_SHARE * direct.way.up_mb_s),
        Figure("download", down, "MB/s", direct.way.down_mb_s, share, down >= GOAL_SHARE * direct.way.down_mb_s),
    ]


class _Door:
    """One host's TVM port, and what was measured through it."""

    def __init__(self, address: tuple[str, int]) -> None:
        from tvm import rpc

        self.tracker: Any = rpc.connect_tracker(*address)
        self.way = Way()
        self._answered_s: list[float] = []
        self._opened_s: list[float] = []

    @property
    def answer_ms(self) -> float:
        """From the request to the tracker's answer, which has the phone's address and match key."""
        return 1e3 * statistics.median(self._answered_s)

    @property
    def open_ms(self) -> float:
        """From that answer to the open session."""
        return 1e3 * statistics.median(self._opened_s)

    def measure(self, key: str) -> None:
        """One session."""
        from tvm.rpc import client

        answered = []

        def connect(*args: Any, **options: Any) -> Any:
            answered.append(time.perf_counter())
            return stock_connect(*args, **options)

        stock_connect = client.connect
        begun = time.perf_counter()
        with mock.patch.object(client, "connect", connect):
            session = self.tracker.request(key)
        self._answered_s.append(answered[-1] - begun)
        self._opened_s.append(time.perf_counter() - answered[-1])
        self.way.measure(session)

    def offers(self, key: str) -> bool:
        """Whether the host, which has the phone, would hand it out."""
        return bool(self.tracker.summary()["queue_info"].get(key, {}).get("free"))


def _in_turns(key: str, *addresses: tuple[str, int]) -> list[_Door]:
    """What was measured through each; the first is of the phone's own host."""
    doors = [_Door(address) for address in addresses]
    for _ in range(ROUNDS):
        for door in doors:
            until(lambda: doors[0].offers(key), FREE_LIMIT_S, f"{key} is not offered again")
            door.measure(key)
    return doors
