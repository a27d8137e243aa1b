"""From a phone's appearing in adb until it can be leased: with nothing on it, unplugged for a moment, rebooted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.harness import Context, Figure, under
from benchmarks.whole_farm import PROFILES, AdbList, Event, Journal, about
from farm.model.device import Life
from farm.simulation.control import LabClient
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm

COLD = 5  # phones that the farm has never seen
WARM = 9  # returns of one that has everything
GOAL_WARM_S = 1.0
STEPS = (Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.READY)


def run(context: Context) -> list[Figure]:
    """Medians, and the worst; the clock starts when the adb server lists the phone as `device`."""
    with virtual_farm({"first": PROFILES[0]}, report=context.say) as farm:
        farm.wait_ready(1)  # the zygote has imported TVM: what follows is about phones
        with AdbList(farm.adb_socket) as adb:
            trip = Trip(farm, adb)
            context.say(f"{COLD} new phones, one after the other")
            cold = [trip.cold(number) for number in range(COLD)]
            context.say(f"{WARM} returns with bundle and server")
            replugged = [trip.back("unplug", "plug") for _ in range(WARM)]
            context.say(f"{WARM} returns with the bundle, without a server")
            rebooted = [trip.back("power_cut", "boot") for _ in range(WARM)]
    return [
        *_figures("cold", cold, None),
        *_figures("warm, replugged", replugged, GOAL_WARM_S),
        *_figures("warm, rebooted", rebooted, GOAL_WARM_S),
    ]


class Trip:
    """Ways of a phone from appearing to ready: seconds of waiting for the first step, then of each step."""

    def __init__(self, farm: VirtualFarm, adb: AdbList) -> None:
        self._lab: LabClient = farm.lab
        self._adb = adb
        self._journal = Journal(farm)

    def cold(self, number: int) -> list[float]:
        """A phone that nobody has seen before; it is gone again afterwards."""
        seq = self._journal.mark()
        phone = self._lab.add(f"new-{number}", PROFILES[number % len(PROFILES)])
        times = self._times(phone.serial, seq)
        self._lab.remove(phone.name)
        return times

    def back(self, leave: str, come: str) -> list[float]:
        """The first phone goes and comes back, by these faults."""
        serial = self._lab.phone("first").serial
        seq = self._journal.mark()
        self._lab.fault("first", leave)
        gone = self._journal.first(seq, about(serial, "device.gone"))
        self._lab.fault("first", come)
        return self._times(serial, gone.seq)

    def _times(self, serial: str, seq: int) -> list[float]:
        events: list[Event] = []
        for event in self._journal.after(seq):
            if about(serial, "device.")(event) and event.data.get("serial"):
                events.append(event)
                if event.kind == f"device.{Life.READY}":
                    break
        steps = [event for event in events if event.kind.removeprefix("device.") in STEPS]
        assert [event.kind.removeprefix("device.") for event in steps] == list(STEPS), steps
        moments = [self._adb.usable_since(serial), *(event.at for event in steps)]
        return [after - before for before, after in pairwise(moments)]


def _figures(name: str, trips: Sequence[Sequence[float]], goal_s: float | None) -> list[Figure]:
    totals = [sum(trip) for trip in trips]
    parts = ("adb's word to the daemon", *(str(step) for step in STEPS[:-1]))
    return [
        Figure(name, statistics.median(totals), "s"),
        under(f"{name}: the worst", max(totals), "s", goal_s),
        *(
            Figure(f"{name}: {part}", 1e3 * statistics.median(trip[index] for trip in trips), "ms")
            for index, part in enumerate(parts)
        ),
    ]
