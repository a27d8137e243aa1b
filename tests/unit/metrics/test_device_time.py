"""One word for what a device is doing, and the time it has spent so."""

from dataclasses import replace

import pytest

from benchmarks.bench_scrape import device
from farm.metrics.devices import DeviceTime, state_of
from farm.model.device import Closed, DeviceView, Heat, Life, Service
from farm.model.requests import LeaseClass

VIEW = device(1)


def closed(view: DeviceView, *, heat: bool) -> DeviceView:
    return replace(view, closed=dict.fromkeys(LeaseClass, Closed("why", heat=heat)))


@pytest.mark.parametrize(
    ("view", "given", "word"),
    [
        (VIEW, {}, ("idle", "")),
        (VIEW, {"leased": True}, ("leased", "")),
        (replace(VIEW, service=Service.DRAINING), {"leased": True}, ("leased", "")),
        (replace(VIEW, service=Service.DRAINING), {}, ("draining", "")),
        (replace(VIEW, service=Service.MAINTENANCE), {}, ("maintenance", "")),
        (replace(VIEW, heat=Heat.COOLING), {}, ("cooling", "heat")),
        (closed(VIEW, heat=True), {}, ("cooling", "heat")),
        (closed(VIEW, heat=False), {}, ("closed", "hub")),
        (replace(VIEW, closed={LeaseClass.BENCH: Closed("warm")}), {}, ("idle", "")),
        (replace(VIEW, life=Life.RECOVERING), {"fault": "gpu"}, ("recovering", "gpu")),
        (replace(VIEW, life=Life.QUARANTINED), {"fault": "wrong"}, ("quarantined", "wrong")),
        (replace(VIEW, life=Life.PROVISIONING), {}, ("provisioning", "")),
        (replace(VIEW, life=Life.GONE), {}, ("gone", "link")),
        (replace(VIEW, life=Life.OFFLINE), {"lost_with": "hub", "fault": "mute"}, ("offline", "hub")),
    ],
)
def test_the_word(view: DeviceView, given: dict[str, str], word: tuple[str, str]) -> None:
    assert state_of(view, **{"leased": False, **given}) == word


def test_every_second_is_counted_once() -> None:
    time = DeviceTime()
    time.enter_state("1", "a", ("idle", ""), 100.0)
    time.enter_state("1", "a", ("leased", ""), 110.0)
    time.enter_state("1", "a", ("leased", ""), 115.0)
    assert time.read(120.0) == {("a", "idle", ""): 10.0, ("a", "leased", ""): 10.0}
    assert time.read(121.0)["a", "leased", ""] == 11.0


def test_a_lost_link_and_a_fault_interrupt_and_cleaning_does_not() -> None:
    time = DeviceTime()
    for at, state in enumerate(
        [("idle", ""), ("recovering", ""), ("checking", ""), ("leased", ""), ("gone", "link"), ("offline", "hub"),
         ("idle", ""), ("recovering", ""), ("recovering", "gpu"), ("idle", "")]
    ):  # fmt: skip
        time.enter_state("1", "a", state, float(at))
    assert time.interruptions() == {"a": 2}


def test_a_device_keeps_its_time_under_another_name() -> None:
    time = DeviceTime()
    time.enter_state("1", "a", ("idle", ""), 0.0)
    time.enter_state("1", "b", ("idle", ""), 5.0)
    assert time.read(6.0) == {("b", "idle", ""): 6.0, ("b", "leased", ""): 0.0}


def test_a_forgotten_device_takes_its_series_along() -> None:
    time = DeviceTime()
    for name in "ab":
        time.enter_state(f"serial-{name}", name, ("idle", ""), 0.0)
    time.read(5.0)
    time.keep_only({"serial-b"})
    assert time.read(6.0) == {("b", "idle", ""): 6.0, ("b", "leased", ""): 0.0}
