"""When a host writes the readings of its phones for the other hosts."""

import asyncio
from datetime import UTC, datetime

import pytest

from farm.common.errors import HostError
from farm.lab import following
from farm.leasing.lab_readings import encode_readings
from farm.model.device import DeviceView, Life

NOW = datetime(2026, 7, 1, tzinfo=UTC)


async def test_readings_are_written_when_they_changed_and_again_after_an_outage(monkeypatch):
    monkeypatch.setattr(following, "WRITE_EVERY_S", 0.0)
    temperatures = iter([30.0, 30.0, 31.0, 31.0])
    shown: list[tuple[DeviceView, ...]] = []
    written: list[float] = []
    tries = 0

    def views():
        try:
            celsius = next(temperatures)
        except StopIteration:
            raise asyncio.CancelledError from None
        shown.append((DeviceView("a", "a", Life.READY, temperature_c=celsius, read_at=NOW),))
        return shown[-1]

    async def write(body):
        nonlocal tries
        tries += 1
        if tries == 2:
            raise HostError("the database is away")
        assert body == encode_readings(shown[-1])
        written.append(body["a"]["temperature_c"])

    with pytest.raises(asyncio.CancelledError):
        await following.share_readings(views, write)
    assert (written, tries) == ([30.0, 31.0], 3)
