"""Runs rows of the fault matrix on a virtual farm: several at once, each on a phone of its own, beside a bystander."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from benchmarks.fault_scene import LIMIT_S, SLOW_LIMIT_S, Bystander, Recorder, Scene, words
from benchmarks.fault_table import FAULTS, READY, Fault, Stage
from benchmarks.whole_farm import Event
from farm.common.errors import FarmError
from farm.simulation.namespaces import detect_isolation
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm

PHONES = {
    "bystander": "galaxy-s9",
    "first": "oneplus-12",
    "second": "realme-gt-neo3",
    "user": "oneplus-5t",
    "rooted": "oneplus-12+root",
    "left": "galaxy-note20",
    "right": "huawei-mate-20",
}
PLACES = {"left": "1-4.1", "right": "1-4.2"}
LANES = {"first": Stage.PHONE, "second": Stage.PHONE, "user": Stage.USER, "left": Stage.HUB, "rooted": Stage.ROOTED}
# A matrix spends what a phone may have in months; what a day allows has tests of its own (tests/unit/core).
CONFIG = """
[recovery]
reboots_per_day = 100
power_cycles_per_day = 100
"""
QUICK = """
[probe]
every_s = 0.5
[heat]
cool_for_s = 0.5
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault. Seconds are None where nothing was to be measured."""

    fault: Fault
    wrong: str = ""  # what was not as the table says; "" all was
    detected: str = ""  # the first event that told of it, in its own words
    noticed_s: float | None = None  # from the fault to that event
    actions: tuple[str, ...] = ()  # taken, repeated ones once
    back_s: float | None = None  # until it was ready: since the fault, or since what ended it
    spared: bool = True  # the bystander's session lived and went on


@contextlib.contextmanager
def matrix_farm(config: str = "", report: Callable[[str], None] = lambda _: None) -> Iterator[VirtualFarm]:
    """The farm that the matrix needs, every phone ready."""
    with virtual_farm(PHONES, config=CONFIG + config, places=PLACES, report=report) as farm:
        farm.wait_ready(len(PHONES))
        yield farm


def play(
    farm: VirtualFarm,
    faults: Sequence[Fault] = FAULTS,
    *,
    report: Callable[[str], None] = lambda _: None,
    repeats: bool = False,
) -> list[Outcome]:
    """Do all of them: those of single phones side by side, then those of the whole farm.

    Args:
        farm: as `matrix_farm` makes it.
        faults: rows of the table.
        report: called with a line for each.
        repeats: as often as each says, else once.

    Returns:
        One outcome for each time, in the order of the table.
    """
    recorder = Recorder(farm)
    outcomes: dict[str, list[Outcome]] = {}

    def do(scene: Scene, wanted: Sequence[Fault]) -> None:
        for fault in wanted:
            for _ in range(fault.repeats if repeats else 1):
                outcome = one(scene, fault)
                outcomes.setdefault(fault.name, []).append(outcome)
                report(f"{fault.name}: {outcome.wrong or 'ok'}{_seconds(outcome)}")

    with contextlib.ExitStack() as stack:
        stack.callback(recorder.close)
        scenes = {
            phone: stack.enter_context(Scene(farm, recorder, phone, profile, "right" if phone == "left" else ""))
            for phone, profile in PHONES.items()
        }
        bystander = Bystander(scenes["bystander"])
        for scene in scenes.values():
            scene.bystander = bystander
        bystander.start()
        stack.callback(bystander.end)
        bystander.goes_on(0, 60.0)
        lanes = [
            threading.Thread(target=do, args=(scenes[phone], wanted), name=phone)
            for phone, wanted in _shared(faults).items()
            if wanted
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        do(scenes["first"], [fault for fault in faults if fault.stage is Stage.FARM])
    return [outcome for fault in faults for outcome in outcomes.get(fault.name, [Outcome(fault, "it was not tried")])]


def _shared(faults: Sequence[Fault]) -> Mapping[str, list[Fault]]:
    """Which phone gets which faults."""
    lanes: dict[str, list[Fault]] = {phone: [] for phone in LANES}
    for fault in faults:
        fitting = [phone for phone, stage in LANES.items() if stage is fault.stage]
        if fitting:
            lanes[min(fitting, key=lambda phone: len(lanes[phone]))].append(fault)
    return lanes


def possible(fault: Fault) -> str:
    """Why a fault cannot be played on this host; "" it can."""
    if "survives SIGKILL" in fault.name and detect_isolation().value != "full":
        return "it needs phones with users of their own (root)"
    return ""


def one(scene: Scene, fault: Fault) -> Outcome:
    """Do one fault on the scene's phone, which is as it was afterwards."""
    bystander = scene.bystander
    assert bystander is not None
    scene.notes = {}
    outcome = Outcome(fault)
    try:
        scene.until(scene.is_free, "it is ready before the fault")
        outset = time.time()
        for step in fault.before:
            step(scene)
        served, broken = bystander.served, len(bystander.broken)
        outcome = _played(scene, fault, outset)
        if fault.spares:
            spared = bystander.goes_on(max(served, bystander.served)) and len(bystander.broken) == broken
            outcome = replace(outcome, spared=spared)
            if not spared:
                outcome = replace(outcome, wrong=f"the bystander's session broke: {bystander.broken[broken:]}")
    except (FarmError, AssertionError, OSError) as error:
        outcome = replace(outcome, wrong=f"{type(error).__name__}: {error}"[:1500])
    for step in (*fault.tidy, _clean_slate):
        try:
            step(scene)
        except (FarmError, AssertionError, OSError) as error:
            outcome = replace(outcome, wrong=outcome.wrong or f"tidying up: {error}"[:1500])
    return outcome


def _clean_slate(scene: Scene) -> None:
    """Every link works, nothing counts against the phone, and it is ready; so are all others after a farm's fault."""
    scene.lab.good_kernels(scene.phone)
    if not scene.lab.phone(scene.phone).online:
        scene.lab.plug(scene.phone)
    scene.farm.farm("device", "release", scene.device)
    scene.until(scene.is_free, "it is ready after the fault")
    if scene.neighbour:
        scene.until_state(scene.name_of(scene.lab.phone(scene.neighbour).serial), READY)


def _played(scene: Scene, fault: Fault, outset: float) -> Outcome:
    limit_s = SLOW_LIMIT_S if fault.slow else LIMIT_S
    scene.since = began = time.time()
    shown_from = began if fault.do else outset  # without `do` the fault came while `before` lasted
    for step in fault.do:
        step(scene)
    last = 0
    first: Event | None = None
    for wanted in fault.seen:
        told = scene.recorder.wait(scene.device, shown_from, wanted, last, limit_s)
        first, last = first or told, told.seq
    since = began
    if fault.undo:
        if fault.meanwhile:
            scene.until_state(scene.device, fault.meanwhile)
        since = time.time()
        for step in fault.undo:
            step(scene)
    for wanted in fault.then:
        last = scene.recorder.wait(scene.device, since, wanted, last, limit_s).seq
    scene.until(scene.is_free, "it is ready again")
    history = scene.recorder.of(scene.device, shown_from)
    for step in fault.check:
        step(scene)
    actions = _actions(history, scene.device)
    wrong = "" if actions == fault.actions else f"actions {actions}, not {fault.actions}"
    back = [each.at for each in history if each.at >= since and _is_back(each, scene.device)]
    return Outcome(
        fault,
        wrong,
        f"{first.kind}: {words(first)}" if first else "",
        max(0.0, first.at - began) if first else None,
        actions,
        back[-1] - since if back else None,
    )


def _is_back(event: Event, device: str) -> bool:
    """Whether the phone may be leased after this event, or it is the last word on a fault."""
    ready = event.kind in ("device.ready", "device.cool", "device.finding_over") and event.subject == device
    return ready or (event.kind == "lease.released" and event.data.get("device") == device)


def _actions(events: Sequence[Event], device: str) -> tuple[str, ...]:
    """Actions taken, in order, repeated ones once."""
    taken = [str(each.data["action"]) for each in events if each.kind == "recovery.action" and each.subject == device]
    return tuple(action for action, _ in groupby(taken))


def _seconds(outcome: Outcome) -> str:
    noticed = "" if outcome.noticed_s is None else f", noticed after {outcome.noticed_s:.2f} s"
    back = "" if outcome.back_s is None else f", back after {outcome.back_s:.2f} s"
    return noticed + back
