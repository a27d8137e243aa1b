"""A library is to blame when the phone's process died under it and the phone itself stayed."""

import asyncio

import pytest

from farm.kinds.execution import process_killed
from farm.model.device import Life
from tests.support.waiting import HANG_S
from tests.unit.jobs.fakes import phone


class Fleet:
    """One phone, whose life a test tells."""

    def __init__(self, life=Life.RECOVERING):
        self.view, self.callbacks = phone("pixel", life), []

    def views(self):
        return (self.view,)

    def subscribe(self, callback):
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def becomes(self, life):
        self.view = phone("pixel", life)
        for callback in self.callbacks:
            callback(self.view)


class Leasing:
    def __init__(self, ended=True):
        self.ended = ended

    async def ended_by_phone(self, lease_id):
        assert lease_id == "L1"
        return self.ended


async def judged(fleet, *lives, ended=True, wait_s=HANG_S):
    asked = asyncio.ensure_future(process_killed(Leasing(ended), fleet, "L1", "pixel", wait_s=wait_s))
    for life in lives:
        await asyncio.sleep(0)
        fleet.becomes(life)
    found = await asked
    assert fleet.callbacks == []
    return found


async def test_a_process_that_died_on_a_phone_that_stayed_was_killed():
    assert await judged(Fleet(), Life.CHECKING, Life.READY)
    assert await judged(Fleet(Life.READY))  # back already


@pytest.mark.parametrize(
    "lost", [Life.GONE, Life.OFFLINE, Life.IDENTIFYING, Life.QUARANTINED, Life.PROVISIONING, Life.STARTING]
)
async def test_a_phone_that_left_or_is_unfit_says_nothing_of_the_library(lost):
    assert not await judged(Fleet(), lost, Life.CHECKING, Life.READY)
    assert not await judged(Fleet(lost))


async def test_a_session_that_the_farm_ended_says_nothing():
    assert not await judged(Fleet(Life.READY), ended=False)


async def test_a_phone_that_does_not_come_back_says_nothing():
    assert not await judged(Fleet(), wait_s=0.05)
