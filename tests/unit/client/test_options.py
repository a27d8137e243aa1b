"""The words that type checkers know for a way to sum use are the daemon's."""

from typing import get_args, get_type_hints

from farm.client import AsyncClient
from farm.head.reports import UsageGrouping


def test_use_is_summed_by_what_the_daemon_can_sum_it_by():
    assert list(get_args(get_type_hints(AsyncClient.usage)["by"])) == [each.value for each in UsageGrouping]
