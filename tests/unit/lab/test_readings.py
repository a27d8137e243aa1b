"""When a host writes the readings of its phones for the other hosts, and which hosts it can reach."""

import asyncio
from datetime import UTC, datetime

import pytest

from farm.common.errors import HostError
from farm.lab import following
from farm.lab.following import HostReach
from farm.leasing.lab_readings import encode_readings
from farm.model.device import DeviceView, Life
from tests.support.linked_hosts import linked_hosts

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


async def test_a_host_is_unreachable_after_two_tries_and_reached_after_one(tmp_path):
    async with linked_hosts(tmp_path) as hosts:
        reach = HostReach(hosts.add("one"))
        HostReach(hosts.add("new"))
        hosts.add("older")  # without the service
        hosts.add("away")
        hosts.add("deaf", listens=False)
        await hosts.links["away"].stop()
        assert reach.problem_of("away") is None
        await reach.look()
        assert [reach.problem_of(name) for name in ("new", "older", "away", "deaf")] == ["", "", None, None]
        await reach.look()
        assert "host away cannot be reached" in str(reach.problem_of("away"))
        hosts.change("away", address=hosts.rows["older"].address)  # another host of the lab answers there
        await reach.look()
        assert "another host" in str(reach.problem_of("away"))
        hosts.change("away", address=hosts.rows["new"].address, certificate=hosts.rows["new"].certificate)
        del hosts.rows["new"]
        assert await reach.still_unreached("away") == reach.problem_of("away") == ""
