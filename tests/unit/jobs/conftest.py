"""What tests of jobs share."""

import pytest

from tests.unit.jobs.dispatching import running


@pytest.fixture
async def farm(tmp_path):
    """A daemon's share of jobs, with two phones."""
    async with running(tmp_path / "farm.db", "p1", "p2") as farm:
        yield farm
