"""What is submitted in a storm: follows from the seed alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ATTEMPTS = 10  # of a job: the storm alone makes none fail
STEADY = {"max_attempts": ATTEMPTS, "timeout_s": 60.0}


@dataclass(frozen=True)
class Size:
    """How much chaos."""

    jobs: int
    phones: int
    storm_s: float  # at most, if each kind of blow has fallen by then
    stock_clients: int = 0  # programs that use the TVM door all the time


@dataclass(frozen=True)
class Order:
    """One submit: a spec without its artifacts, and what must become of it."""

    key: str
    spec: Mapping[str, Any]
    count: int  # jobs it makes
    follows: str = ""  # key of the order that must be done first
    fails: bool = False  # the job itself is wrong


@dataclass
class Taken:
    """What the farm answered to an order."""

    order: Order
    jobs: tuple[str, ...]
    cancelled: bool = False


def orders(random_: random.Random, size: Size) -> list[Order]:
    """Orders that make `size.jobs` jobs."""
    made: list[Order] = []
    left = size.jobs
    while left > 0:
        kind = random_.choices(("bench", "run", "shell", "lease"), (30, 15, 40, 15))[0]
        count = random_.randint(2, min(3, size.phones)) if left > 3 and random_.random() < 0.08 else 1
        fails = False
        spec: dict[str, Any] = {"kind": kind, "on": "android", "devices": count, **STEADY}
        if kind in ("bench", "run"):
            spec["name"] = "tiny.onnx"
        if kind == "bench":
            spec |= {"repeat": 3, "number": 1}
        elif kind == "run":
            spec |= {"fill": random_.choice(("zeros", "ones", "random")), "top_k": 3}
        elif kind == "shell":
            fails = random_.random() < 0.07
            pause_s = random_.choice((0, 0, 0.2, 1.0))
            spec["command"] = f"sleep {pause_s}; echo job-{len(made)}; exit {3 if fails else 0}"
        else:
            spec["seconds"] = random_.uniform(1.0, 3.0)
        spec["priority"] = random_.choice((1, 1, 1, 2, 5))
        spec["hold"] = random_.random() < 0.04 or not made  # one in any case: held jobs are resumed
        follows = random_.choice(made).key if made and random_.random() < 0.12 else ""
        made.append(Order(f"chaos-{len(made)}", spec, count, follows, fails))
        left -= count
    return made
