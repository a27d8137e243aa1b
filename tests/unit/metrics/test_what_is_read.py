"""What other floors keep for metrics: waiting requests by class, how long, and which an idle phone would suit."""

import asyncio
import time
from dataclasses import replace

import pytest

from farm.common.errors import Code, HostError
from farm.common.histogram import QUICK_S, Histogram
from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import AllocatorPolicy
from farm.head.allocator.reservations import Reservation
from farm.head.config import UserConfig
from farm.head.model import LeasePolicy
from farm.jobs.attempt import AttemptTimeoutError
from farm.jobs.supervisor import _how_ended
from farm.metrics.process import LOOP_PROBE_S, measure_loop_delay
from farm.model.device import Closed, Life, Service, UsbPlace
from farm.model.requests import LeaseClass
from tests.support.leasing_lab import ANDROID, Lab, settle
from tests.support.local_head import requests_of
from tests.support.waiting import until

BENCH = replace(ANDROID, lease_class=LeaseClass.BENCH)


async def test_the_queue_by_class_grows_and_shrinks() -> None:
    lab = Lab("a")
    ids = [lab.ask(request) for request in (ANDROID, ANDROID, BENCH)]
    await settle()
    assert dict(requests_of(lab.leasing).depth) == {LeaseClass.INTERACTIVE: 1, LeaseClass.BENCH: 1}
    assert set(requests_of(lab.leasing).longest_s()) == {LeaseClass.INTERACTIVE, LeaseClass.BENCH}
    lab.leasing.withdraw(ids[2])
    assert dict(requests_of(lab.leasing).depth) == {LeaseClass.INTERACTIVE: 1}
    assert requests_of(lab.leasing).decisions.cumulative()[-1][1] > 0
    await lab.leasing.close()


async def test_a_grant_tells_its_class_and_source() -> None:
    lab = Lab("a")
    lab.ask(BENCH)
    await settle()
    (granted,) = [event for event in lab.events.since() if event.kind == "lease.granted"]
    assert (granted.data["lease_class"], granted.data["source"]) == ("bench", "job")
    await lab.leasing.close()


async def test_requests_that_nothing_keeps_from_an_idle_phone(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab("a", "b")
    monkeypatch.setattr(Allocator, "_serve", lambda *_: ())  # a bug
    lab.ask(BENCH)
    lab.ask(replace(BENCH, selector=Selector.parse("no-such-phone")))
    await settle()
    assert requests_of(lab.leasing).overlooked() == 1
    requests_of(lab.leasing).drain("anna drains this host")  # nothing is granted to anybody: that is no stuck queue
    assert requests_of(lab.leasing).overlooked() == 0
    requests_of(lab.leasing).drain("")
    assert requests_of(lab.leasing).overlooked() == 1
    for name in "ab":
        lab.devices.become(name, Life.READY, service=Service.MAINTENANCE)
    assert requests_of(lab.leasing).overlooked() == 0
    await lab.leasing.close()


@pytest.mark.parametrize(
    "kept_by", ["heat", "reservation", "a reservation of a part of them", "quota", "quiet hub", "worker slot"]
)
async def test_what_keeps_a_request_from_idle_phones_is_no_stuck_queue(kept_by: str) -> None:
    lab = Lab("a", "b", policy=LeasePolicy(allocator=AllocatorPolicy(workers=0)))
    request = BENCH
    match kept_by:
        case "heat":
            for name in "ab":
                lab.devices.become(name, Life.READY, closed={BENCH.lease_class: Closed("47 °C")})
        case "quota":
            requests_of(lab.leasing).decide(
                requests_of(lab.leasing).allocator.quotas_changed, UserConfig(devices=1), {}
            )
            lab.devices.become("b", Life.OFFLINE)
            lab.ask(BENCH)  # has "a"
            await settle()
            lab.devices.become("b", Life.READY)
        case "worker slot":
            request = replace(request, worker=True)
        case "quiet hub":
            lab.devices.become("a", Life.READY, place=UsbPlace("1-1", 1, "1-1.1"))
            lab.devices.become("b", Life.READY, place=UsbPlace("1-1", 2, "1-1.2"))
            lab.ask(replace(BENCH, device="a", user="bob"))
            request = replace(request, quiet_hub=True, device="b")
        case _:
            device = Selector.parse("a") if "part" in kept_by else Selector()
            request = replace(request, device="a")
            now_s = time.monotonic()
            reserved = Reservation("r", device, frozenset({"bob"}), now_s, now_s + 3600)
            requests_of(lab.leasing).reserve((reserved,))
    lab.ask(request)
    await settle()
    assert requests_of(lab.leasing).depth.total() == 1
    assert requests_of(lab.leasing).overlooked() == 0
    await lab.leasing.close()


async def test_a_loop_that_is_blocked_is_late() -> None:
    delays = Histogram(QUICK_S)
    task = asyncio.create_task(measure_loop_delay(delays))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    blocked_until = loop.time() + 2 * LOOP_PROBE_S
    while loop.time() < blocked_until:
        pass
    await until(lambda: delays.total)
    task.cancel()
    assert delays.total >= LOOP_PROBE_S * 0.9
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (None, "done"),
        (asyncio.CancelledError(), "cancelled"),
        (HostError("x", Code.WORKER_DIED), "died"),
        (HostError("x", Code.WORKER_SILENT), "silent"),
        (AttemptTimeoutError("x"), "timeout"),
        (ValueError("x"), "failed"),
    ],
)
def test_how_a_worker_ended(error: BaseException | None, word: str) -> None:
    assert _how_ended(error) == word
