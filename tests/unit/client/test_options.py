"""The keywords that type checkers know are the fields of the specs."""

from typing import get_args, get_type_hints

import pytest

from farm.client import AsyncClient
from farm.client.model import BenchOptions, CompareOptions, JobOptions, RunOptions, TuneOptions
from farm.head.reports import UsageGrouping
from farm.kinds import KINDS
from farm.model.specs import fields_of

BY_THEMSELVES = {"on", "model", "model_b", "command"}  # arguments of the methods


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bench", BenchOptions),
        ("compare", CompareOptions),
        ("tune", TuneOptions),
        ("run", RunOptions),
        ("shell", JobOptions),
    ],
)
def test_they_are_the_fields_of_the_spec(kind, options):
    assert set(options.__annotations__) == set(fields_of(KINDS[kind])) - BY_THEMSELVES


def test_use_is_summed_by_what_the_daemon_can_sum_it_by():
    assert list(get_args(get_type_hints(AsyncClient.usage)["by"])) == [each.value for each in UsageGrouping]
