"""What `farm status` calls a problem: the news of adb that still hold."""

import pytest

from farm.adb.watch import WatchEvent
from farm.common.errors import HostError
from farm.common.events import EventLog
from farm.config import AdbConfig, FarmConfig
from farm.daemon.problems import Problems


@pytest.mark.parametrize("end", ["network.back", "network.removed"])
async def test_a_problem_lasts_until_it_is_over_or_nobodys_any_more(end):
    problems = Problems(FarmConfig(adb=AdbConfig(manage=False)))
    on_event = problems.of_adb(EventLog())
    on_event(WatchEvent("network.lost", "10.0.0.7:5555", "It refused.", HostError("refused", hint="is it on?")))
    assert await problems.current() == ["It refused. (is it on?)"]
    on_event(WatchEvent(end, "10.0.0.7:5555", "Over."))
    assert await problems.current() == []


async def test_a_check_that_fails_takes_nobody_s_status_away(caplog):
    problems = Problems(FarmConfig(adb=AdbConfig(manage=False)))

    def broken():
        raise KeyError("nobody\nknows")

    problems.sources += [broken, lambda: ["the disk is full"]]
    for _ in range(2):
        failed, full = await problems.current()
        assert "KeyError: 'nobody" in failed
        assert full == "the disk is full"
    assert len(caplog.records) == 1
