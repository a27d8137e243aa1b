"""What a queued job asks leasing for."""

from datetime import UTC, datetime

import pytest

from farm.core.requests import LeaseClass
from farm.jobs.planning import plan, request_of
from farm.jobs.specs import BenchSpec

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_bench_asks_for_a_quiet_hub_when_it_is_wanted(quiet):
    spec = BenchSpec(on="android", model="0" * 64, name="net", quiet_hub=quiet)
    (job,) = plan(spec, "alice", (), NOW, iter(["j1"]), must_match=False).jobs
    request = request_of(job, frozenset({"bad"}))
    assert request.quiet_hub is quiet
    assert (request.lease_class, request.user, request.avoid) == (LeaseClass.BENCH, "alice", {"bad"})
