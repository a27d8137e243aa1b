"""Whether the phones of a pool, alike on paper, are equally fast now. `SpeedJudge` reads the reference kernel.

A phone's *factor* is how much slower it runs the reference kernel than the run's *nominal* time. What it measures is
divided by that, so heat and lesser chips cost no good candidate its place. The nominal is found once and kept with the
records: an attempt that continues measures on the same scale.

A phone that is too far from the pool as it is now is left out for a while: beyond some limit one number cannot stand
for another chip's caches and clocks. Whether it is the nominal's phone, or came first, does not matter for that.
"""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

LIMIT = 0.15  # a phone further from the pool is too far
EVERY_S = 60.0  # a phone warms up within minutes
RECENT_S = 5 * EVERY_S  # older readings do not describe the pool as it is now
READINGS = 5  # about 5 ms each; the least of them counts: disturbances only add time
RECHECK_FACTOR = 4  # so many times as many before a phone is left out
SCALE_FILE = "scale.json"  # beside the records
MIN_S, MAX_S = 1e-9, 1e3  # of a kernel: all else is damage


@dataclass(frozen=True, slots=True)
class SpeedOpinion:
    """A judgement of the times that a phone measured.

    Attributes:
        factor: divide its seconds by this.
        out: why it must not be used for some minutes; empty: it may.
    """

    factor: float = 1.0
    out: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """The known speed of one phone."""

    seconds: float  # of the reference kernel, when it was last read
    now: float  # its factor
    read_s: float  # when, monotonic


def level(others: Collection[float], own: float, nominal_s: float | None) -> float:
    """The present speed of the pool's phones, each against its nominal time, seconds of the reference kernel.

    It is one of the readings, so one phone at least is not too far off. Of three or more phones it is their median. Of
    two, neither is known to be wrong: it is the one nearer to the nominal speed that such a phone has had before, or
    else the faster one, as what goes wrong (heat, other work) makes phones slow.

    Args:
        others: recent readings of the other phones in use.
        own: the reading of the phone in question.
        nominal_s: of the farm's history; None: there is none.
    """
    readings = [*others, own]
    if len(readings) == 2 and nominal_s is not None:
        return min(readings, key=lambda seconds: abs(math.log(seconds / nominal_s)))
    return median_low(readings)


def opinion(device: str, factor: float, off: float, limit: float | None) -> SpeedOpinion:
    """Whether a phone may be used now.

    Args:
        device: its name, for the words.
        factor: its seconds over the nominal ones.
        off: its seconds over the pool's.
        limit: how far `off` may be from 1; None: as far as it likes.
    """
    if limit is None or abs(off - 1) <= limit:
        return SpeedOpinion(factor)
    how = "slower" if off > 1 else "faster"
    return SpeedOpinion(
        factor,
        f"{device} runs the reference kernel {abs(off - 1):.0%} {how} than the pool does (at most {limit:.0%})",
    )


def read_nominal(folder: Path, kernel: str) -> float | None:
    """The nominal seconds of the reference kernel that a folder's records were measured at; None: not known."""
    try:
        known = json.loads((folder / SCALE_FILE).read_text())
        seconds = float(known["nominal_s"]) if known["kernel"] == kernel else math.nan
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return seconds if MIN_S <= seconds <= MAX_S else None


def write_nominal(folder: Path, kernel: str, nominal_s: float) -> None:
    """Keep it with the records."""
    new = folder / f".{SCALE_FILE}"
    new.write_text(json.dumps({"kernel": kernel, "nominal_s": nominal_s}) + "\n")
    new.replace(folder / SCALE_FILE)


class SpeedJudge:
    """Asked by the threads that serve the phones, each about its own."""

    def __init__(
        self,
        load: Callable[[Any], Callable[[], float]],
        *,
        limit: float | None = LIMIT,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        nominal_s: float | None = None,
        history_s: float | None = None,
        found: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Know nothing of any phone yet.

        Args:
            load: puts the kernel into a raw `tvm.rpc` session; what it returns reads once, in seconds.
            limit: how far a phone may be from the pool, relative; None: as far as it likes.
            every_s: how long a reading is good for.
            clock: monotonic.
            nominal_s: the scale that this run's records are on already; None: there are none.
            history_s: the kernel's nominal time on such a phone, of earlier benches; None: not known.
            found: called with the nominal time when it is known.
        """
        self._load = load
        self._limit = limit
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._nominal_s = nominal_s
        self._history_s = history_s
        self._found = found
        self._loaded: dict[str, tuple[Any, Callable[[], float]]] = {}
        self.scales: dict[str, Scale] = {}
        self.left_out: dict[str, str] = {}  # for now

    def check(self, device: str, session: Any) -> SpeedOpinion:
        """The speed of `device` now; measured when it joins and then from time to time, else remembered.

        Args:
            device: the phone's name.
            session: an open `tvm.rpc.RPCSession` to it, which nothing else uses meanwhile.
        """
        known = self.scales.get(device)
        if known is not None and self._clock() - known.read_s < self._every_s:
            return SpeedOpinion(known.now, self.left_out.get(device, ""))
        found = self._opinion(device, self._read_s(device, session, READINGS))
        if found.out:
            found = self._opinion(device, self._read_s(device, session, READINGS * RECHECK_FACTOR))
        return found

    def _read_s(self, device: str, session: Any, readings: int) -> float:
        known, read = self._loaded.get(device, (None, None))
        if known is not session or read is None:
            read = self._load(session)
            # The reading of an earlier session is freed here: that session has ended, so it is not asked for.
            self._loaded[device] = (session, read)
        seconds = min(read() for _ in range(readings))
        if not MIN_S <= seconds <= MAX_S:  # as the nominal it would make every other phone's factor nonsense
            raise ValueError(f"the phone's clock says that it took {seconds:g} s")
        return seconds

    def _opinion(self, device: str, seconds: float) -> SpeedOpinion:
        now_s = self._clock()
        with self._lock:
            if self._nominal_s is None:
                self._nominal_s = self._history_s or seconds
                self._found(self._nominal_s)
            others = [
                each.seconds
                for name, each in self.scales.items()
                if name not in (device, *self.left_out) and now_s - each.read_s < RECENT_S
            ]
            factor = seconds / self._nominal_s
            self.scales[device] = Scale(seconds, factor, now_s)
            found = opinion(device, factor, seconds / level(others, seconds, self._history_s), self._limit)
            self.left_out.pop(device, None)
            if found.out:
                self.left_out[device] = found.out
            return found


# The judge for a kind of device that candidates are for ("cpu", "opencl"); "" while there is no candidate.
# None: phones are not judged for that.
JudgeOf = Callable[[str], SpeedJudge | None]


def judge_each_kind(make: JudgeOf) -> JudgeOf:
    """A judge for each kind of device, which `make` makes once; none while there is no candidate."""
    lock, made = threading.Lock(), functools.cache(make)

    def judge_of(kind: str) -> SpeedJudge | None:
        with lock:
            return made(kind) if kind else None

    return judge_of
