"""When a host writes the readings of its phones for the other hosts."""

import asyncio
from datetime import UTC, datetime

import pytest

from farm.common.errors import HostError
from farm.lab import following
from farm.leasing.lab_readings import encode_readings
from farm.model.device import DeviceView, Life

NOW = datetime(2026, 7, 1, tzinfo=UTC)


async def test_readings_are_written_when_they_changed_and_again_after_an_outage(numbers):
    numbers(following, WRITE_EVERY_S=0.0)
    shown = [DeviceView("a", "a", Life.READY, temperature_c=each, read_at=NOW) for each in (30.0, 30.0, 31.0, 31.0)]
    looks, tries = iter(shown), []

    def views():
        if (view := next(looks, None)) is None:
            raise asyncio.CancelledError
        return (view,)

    async def write(body):
        tries.append(body)
        if len(tries) == 2:
            raise HostError("the database is away")

    with pytest.raises(asyncio.CancelledError):
        await following.share_readings(views, write)
    assert tries == [encode_readings([shown[each]]) for each in (0, 2, 3)]
