"""What `farm status` calls a problem: the news of adb that still hold."""

from __future__ import annotations

import pytest

from farm.adb.watch import WatchNews
from farm.config import AdbConfig, FarmConfig
from farm.core.errors import HostError
from farm.core.events import EventLog
from farm.daemon.problems import Problems


@pytest.mark.parametrize("end", ["network.back", "network.removed"])
async def test_a_problem_lasts_until_it_is_over_or_nobodys_any_more(end: str) -> None:
    problems = Problems(FarmConfig(adb=AdbConfig(manage=False)))
    heard = problems.of_adb(EventLog())
    heard(WatchNews("network.lost", "10.0.0.7:5555", "It refused.", HostError("refused", hint="is it on?")))
    assert await problems.look() == ["It refused. (is it on?)"]
    heard(WatchNews(end, "10.0.0.7:5555", "Over."))
    assert await problems.look() == []
