"""What one event costs the allocator: a phone freed, or a request coming, with 200 devices and thousands waiting.

The goal is for a phone freed while 1,000 wait; the others say where it goes from there.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

from benchmarks.harness import Context, Figure, percentile, under
from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import AllocatorPolicy
from farm.head.allocator.reservations import Reservation
from farm.model.device import Closed, DeviceView, Life
from farm.model.requests import LeaseClass, LeaseRequest, LeaseSource

DEVICES = 200
USERS = 50
EVENTS = 2000
HOLD_S = 1.5  # between events: each lease lasts some 300 s, so that with 10,000 waiting most queues come to starve
GOAL_MS = 0.5
GOAL_WAITING = 1_000
SEED = 20
WARM = {LeaseClass.BENCH: Closed("skin 41.2 °C is above 38 °C for bench", 300.0)}


def run(context: Context) -> list[Figure]:
    """Median and 99th percentile of one decision."""
    figures = []
    for waiting in (GOAL_WAITING, 10_000):
        context.say(f"{waiting} requests of {USERS} users wait for {DEVICES} devices")
        lab = BusyLab(waiting, reserved=False)
        figures += _figures(f"a phone freed, {waiting} waiting", lab.freed(EVENTS), goal=waiting == GOAL_WAITING)
        figures += _figures(f"a request comes, {waiting} waiting", lab.coming(EVENTS))
    context.say("the same with starved queues, few worker slots, and reservations")
    figures += _figures("a phone freed, 10000 waiting for 8 worker slots", BusyLab(10_000, workers=8).freed(EVENTS))
    figures += _figures("a phone freed, 10000 waiting, 20 reservations", BusyLab(10_000, reserved=True).freed(EVENTS))
    figures += _figures("a phone freed, 10000 waiting, all starve", BusyLab(10_000, starved_s=1.0).freed(EVENTS))
    figures += _figures(
        "a phone freed, 1000 waiting, a third too warm for benches", BusyLab(1000, warm=3).freed(EVENTS)
    )
    figures += _figures("a request comes, no one waits, all are free", BusyLab(0, workers=1000).served(EVENTS))
    return figures


def _figures(title: str, seconds: Iterable[float], *, goal: bool = False) -> list[Figure]:
    ms = [1e3 * each for each in seconds]
    return [
        under(f"{title}: median", statistics.median(ms), "ms", GOAL_MS if goal else None),
        Figure(f"{title}: 99th percentile", percentile(ms, 99), "ms"),
    ]


class BusyLab:
    """A busy lab: every device held, so many requests waiting in a few hundred groups."""

    def __init__(
        self,
        waiting: int,
        *,
        devices: int = DEVICES,
        reserved: bool = False,
        workers: int = 10_000,
        starved_s: float = 1800.0,
        warm: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`warm`: each device of so many is too warm for benches. `clock`: times an event, seconds."""
        self.devices, self.clock = devices, clock
        self.random = random.Random(SEED)
        self.allocator = Allocator(AllocatorPolicy(workers=workers, starved_s=starved_s))
        self.now_s = 1000.0
        self.ids = count()
        self.waiting: list[str] = []
        for number in range(devices):
            too_warm = bool(warm) and number % warm == 0
            self.decide(Allocator.device_changed, replace(_device(number), closed=WARM if too_warm else {}))
        self.decide(Allocator.usage_loaded, {f"user-{number}": 1e4 * self.random.random() for number in range(USERS)})
        if reserved:
            windows = (
                Reservation(f"{n}", Selector.parse(f"batch={n}"), frozenset({f"user-{n}"}), 1e3 + 60 * n, 1e4)
                for n in range(20)
            )
            self.decide(Allocator.reservations_changed, tuple(windows))
        for _ in range(devices + waiting if waiting else 0):
            self.decide(Allocator.request_added, *self.lease_request())

    def lease_request(self) -> tuple[str, LeaseRequest]:
        """The id of a request, and the request."""
        number = self.random.randrange(self.devices)
        text = self.random.choice(
            ["android", f"gpu-{number % 12}", f"soc-{number % 40}", f"batch={number % 20}", f"device-{number:03}"]
        )
        request = LeaseRequest(
            Selector.parse(text),
            f"user-{int(USERS * self.random.random() ** 2)}",
            LeaseSource.JOB,
            self.random.choice([1, 1, 1, 2, 5]),
            self.random.choice([LeaseClass.BENCH, LeaseClass.TUNE]),
            worker=True,
            longest_s=self.random.choice([60.0, 600.0, 3600.0]),
        )
        return f"r{next(self.ids)}", request

    def decide(self, happened: Callable[..., object], *facts: object) -> None:
        happened(self.allocator, *facts, self.now_s)

    def timed(self, happened: Callable[..., object], *facts: object) -> float:
        """Seconds that one event takes, with the question when to look again."""
        begun = self.clock()
        happened(self.allocator, *facts, self.now_s)
        self.allocator.next_check_s()
        return self.clock() - begun

    def freed(self, events: int) -> list[float]:
        """A random lease ends; a new request keeps the queue as long as it is."""

        def step() -> float:
            took = self.timed(Allocator.lease_ended, self.random.choice(sorted(self.allocator.held)), "")
            self.decide(Allocator.request_added, *self.lease_request())
            return took

        return self._repeat(events, step)

    def coming(self, events: int) -> list[float]:
        """A request comes and goes."""

        def step() -> float:
            request_id, request = self.lease_request()
            took = self.timed(Allocator.request_added, request_id, request)
            self.decide(Allocator.request_withdrawn, request_id)
            return took

        return self._repeat(events, step)

    def served(self, events: int) -> list[float]:
        """A request comes, is served at once, and the phone is given back."""

        def step() -> float:
            took = self.timed(Allocator.request_added, *self.lease_request())
            for device in tuple(self.allocator.held):
                self.decide(Allocator.lease_ended, device, "")
            return took

        return self._repeat(events, step)

    def _repeat(self, events: int, step: Callable[[], float]) -> list[float]:
        gc.collect()
        gc.freeze()  # as a daemon does that has started: what lives long is not looked at again
        taken = []
        for _ in range(events):
            self.now_s += HOLD_S
            taken.append(step())
        gc.unfreeze()
        return taken


def _device(number: int) -> DeviceView:
    name = f"device-{number:03}"
    aliases = ("android", f"gpu-{number % 12}", f"soc-{number % 40}", name)
    return DeviceView(name, name, Life.READY, adopted=True, aliases=aliases, labels={"batch": f"{number % 20}"})
