"""Phones of one pool are alike on paper; here it is measured. The rules are pure; `Judge` reads the reference kernel.

A phone's *factor* is how much slower it runs the reference kernel than the run's *nominal* time. What it measures is
divided by that, so heat and lesser chips cost no good candidate its place. The nominal is found once and kept with the
records: an attempt that goes on measures on the same scale.

A phone that is too far from the pool as it is now is left out for a while: beyond some limit one number cannot stand
for another chip's caches and clocks. Whether it is the nominal's phone, or came first, does not matter for that.
"""

from __future__ import annotations

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
RECENT_S = 5 * EVERY_S  # readings older than this say nothing of the pool as it is now
READINGS = 5  # about 5 ms each; the least of them counts: whatever gets in the way only adds time
DOUBTS = 4  # so many times as many before a phone is left out
SCALE_FILE = "scale.json"  # beside the records
LEAST_S, MOST_S = 1e-9, 1e3  # of a kernel: all else is damage


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a phone's results are worth.

    Attributes:
        factor: divide its seconds by this.
        out: why it must not be used for some minutes; empty: it may.
    """

    factor: float = 1.0
    out: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """What is known of one phone."""

    seconds: float  # of the reference kernel, when it was last read
    now: float  # its factor
    read_s: float  # when, monotonic


def level(others: Collection[float], own: float, nominal_s: float | None) -> float:
    """How fast the pool's phones are now: what each is held against, seconds of the reference kernel.

    It is one of the readings, so one phone at least is not too far off. Of three or more phones it is their median. Of
    two, nobody can say which is wrong: it is the one nearer to the nominal speed that such a phone has had before, or
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


def opinion(device: str, factor: float, off: float, limit: float | None) -> Opinion:
    """Whether a phone may be used now.

    Args:
        device: its name, for the words.
        factor: its seconds over the nominal ones.
        off: its seconds over the pool's.
        limit: how far `off` may be from 1; None: as far as it likes.
    """
    if limit is None or abs(off - 1) <= limit:
        return Opinion(factor)
    how = "slower" if off > 1 else "faster"
    return Opinion(
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
    return seconds if LEAST_S <= seconds <= MOST_S else None


def write_nominal(folder: Path, kernel: str, nominal_s: float) -> None:
    """Keep it with the records.

    Raises:
        OSError: the disk is full.
    """
    new = folder / f".{SCALE_FILE}"
    new.write_text(json.dumps({"kernel": kernel, "nominal_s": nominal_s}) + "\n")
    new.replace(folder / SCALE_FILE)


class Judge:
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
            found: hears what the nominal time is once it is found.
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

    def look(self, device: str, session: Any, kind: str = "") -> Opinion:  # noqa: ARG002 - its kernel says what kind
        """What `device` is worth now; measured when it joins and then from time to time, else remembered.

        Args:
            device: the phone's name.
            session: an open `tvm.rpc.RPCSession` to it, which nothing else uses meanwhile.
            kind: as farm.tuning.slot.Judge has it; all candidates of this judge's run are for one kind.

        Raises:
            ValueError: what the phone's clock says is no time.
            Exception: what TVM raises when the session breaks.
        """
        known = self.scales.get(device)
        if known is not None and self._clock() - known.read_s < self._every_s:
            return Opinion(known.now, self.left_out.get(device, ""))
        found = self._judged(device, self._read_s(device, session, READINGS))
        if found.out:
            found = self._judged(device, self._read_s(device, session, READINGS * DOUBTS))
        return found

    def _read_s(self, device: str, session: Any, readings: int) -> float:
        known, read = self._loaded.get(device, (None, None))
        if known is not session or read is None:
            read = self._load(session)
            # The reading of an earlier session is freed here: that session has ended, so nobody is asked for it.
            self._loaded[device] = (session, read)
        seconds = min(read() for _ in range(readings))
        if not LEAST_S <= seconds <= MOST_S:  # as the nominal it would make every other phone's factor nonsense
            raise ValueError(f"the phone's clock says that it took {seconds:g} s")
        return seconds

    def _judged(self, device: str, seconds: float) -> Opinion:
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
            judged = opinion(device, factor, seconds / level(others, seconds, self._history_s), self._limit)
            self.left_out.pop(device, None)
            if judged.out:
                self.left_out[device] = judged.out
            return judged


class JudgeOfKinds:
    """A judge for each kind of device that candidates are for, for runs whose first candidate says which that is."""

    def __init__(self, judge_of: Callable[[str], Judge | None]) -> None:
        """`judge_of`: makes the one for "cpu", "opencl" ..., once; None: phones are not judged for those."""
        self._judge_of = judge_of
        self._judges: dict[str, Judge | None] = {}
        self._lock = threading.Lock()

    def look(self, device: str, session: Any, kind: str) -> Opinion:
        """As `Judge.look`; before there is a candidate, nothing is known of the phone."""
        if not kind:
            return Opinion()
        with self._lock:
            if kind not in self._judges:
                self._judges[kind] = self._judge_of(kind)
            judge = self._judges[kind]
        return Opinion() if judge is None else judge.look(device, session)
