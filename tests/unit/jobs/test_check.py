"""Whether several submits could be taken in, before any is: Dispatcher.check, and targets that no phone has."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from farm.config import UserConfig
from farm.core.errors import NoPhoneError, UserError
from farm.jobs.admission import QuotaError
from farm.jobs.planning import plan
from farm.jobs.specs import BadSpecError, RunSpec, ShellSpec, spec_from_wire
from tests.unit.jobs.dispatching import running
from tests.unit.jobs.fakes import phone

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def spec(on="android", **fields):
    return ShellSpec(on=on, command="id", **fields)


async def test_a_check_counts_and_adds_nothing(tmp_path):
    async with running(tmp_path / "farm.db", "p1", "p2", limits=UserConfig(jobs=3)) as farm:
        assert farm.dispatcher.check(spec(devices="all"), "alice") == 2
        assert farm.dispatcher.check(spec(), "alice", besides=2) == 1
        with pytest.raises(QuotaError):
            farm.dispatcher.check(spec(), "alice", besides=3)
        with pytest.raises(NoPhoneError):
            farm.dispatcher.check(spec(on="absent"), "alice", must_match=True)
        assert farm.store.jobs.live() == ()
        await farm.dispatcher.submit(spec(devices="all"), "alice", key="k")
        assert farm.dispatcher.check(spec(devices="all"), "alice", key="k", besides=3) == 0


async def test_a_checked_spec_waits_for_whole_ids_only(tmp_path):
    async with running(tmp_path / "farm.db", "p1") as farm:
        job_id = await farm.one()
        assert farm.dispatcher.check(spec(after=(job_id,)), "alice") == 1
        with pytest.raises(UserError, match="is no whole id") as raised:
            farm.dispatcher.check(spec(after=(job_id[:-2],)), "alice")
        assert job_id in raised.value.hint


def test_labels_for_no_elements_are_refused_before_there_is_a_job():
    given = {"kind": "run", "on": "android", "model": "0" * 64, "name": "net", "labels": "1" * 64}
    assert spec_from_wire(given | {"top_k": 5}).top_k == 5
    with pytest.raises(BadSpecError, match="top_k is 0"):
        spec_from_wire(given)


def test_a_target_that_no_matching_phone_has_is_refused_with_those_there_are():
    views = [replace(phone(name), identity=SimpleNamespace(targets={"cpu": {}, name: {}})) for name in ("p1", "p2")]
    wanted = RunSpec(on="android", model="0" * 64, name="net", target="p2")
    ids = ("a", "b", "c")
    assert len(plan(wanted, "alice", views, NOW, ids, must_match=True).jobs) == 1
    with pytest.raises(BadSpecError, match="has the target 'adreno'") as raised:
        plan(replace(wanted, target="adreno"), "alice", views, NOW, ids, must_match=True)
    assert raised.value.hint == "targets: cpu, p1, p2"
    unknown = [*views, phone("p3")]
    assert len(plan(replace(wanted, target="adreno"), "alice", unknown, NOW, ids, must_match=True).jobs) == 1
