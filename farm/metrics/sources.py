"""What the collector reads: given by the daemon, called at each scrape. None of it waits or asks the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from farm.core.device import DeviceView
from farm.core.histogram import QUICK_S, Histogram
from farm.core.requests import LeaseClass
from farm.leasing.model import Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The farm's parts, as far as metrics need them."""

    version: str
    epoch: int
    state_dir: Path
    database: Path | None = None  # the SQLite file; None on a server
    started_at: float = field(default_factory=time.time)  # seconds since 1970

    views: Callable[[], tuple[DeviceView, ...]]
    quarantined: Callable[[], Mapping[str, str]] = dict  # serial -> ailment
    probe_failures: Mapping[str, int] = field(default_factory=Counter)  # by device
    adb_up: Callable[[], bool] = lambda: True
    round_trips: Mapping[str, Histogram] = field(default_factory=dict)  # by who answered

    holders: Callable[[], Iterable[Holder]] = tuple
    depth: Callable[[], Mapping[LeaseClass, int]] = dict  # waiting requests
    longest_s: Callable[[], Mapping[LeaseClass, float]] = dict  # the oldest one's wait
    servable: Callable[[], int] = lambda: 0  # waiting requests that nothing keeps from an idle device
    draining: Callable[[], bool] = lambda: False  # an operator wants no phone to be handed out
    decisions: Histogram = field(default_factory=partial(Histogram, QUICK_S))  # of the allocator
    sessions: Callable[[], int] = lambda: 0

    jobs: Callable[[], Mapping[tuple[str, str], int]] = dict  # by kind and state
    toolchains: Callable[[], Mapping[str, tuple[bool, int]]] = dict  # is it up, attempts under way
    zygote_starts: Mapping[str, int] = field(default_factory=Counter)
    worker_ends: Mapping[tuple[str, str], int] = field(default_factory=Counter)  # by toolchain and outcome

    store_problem: Callable[[], str] = str
    commits: Histogram = field(default_factory=partial(Histogram, QUICK_S))
    calls: Mapping[str, int] = field(default_factory=Counter)  # by outcome
    auth_failures: Callable[[], int] = lambda: 0
    pulses: Callable[[], Iterable[tuple[str, float, float]]] = tuple  # part, silent_s, limit_s
    loop_delay: Histogram = field(default_factory=partial(Histogram, QUICK_S))
