"""Whether several submits could be taken in, before any is: Dispatcher.check, and targets that no phone has."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from farm.common.errors import Code, NoPhoneError, UserError
from farm.head.config import UserConfig
from farm.head.planning import plan
from farm.kinds import KINDS
from farm.kinds.run.spec import RunSpec
from farm.kinds.shell.spec import ShellSpec
from farm.model.identity import DeviceIdentity, Gpu
from farm.model.specs import spec_from_wire
from tests.support.errors import raises_code
from tests.unit.jobs.dispatching import running
from tests.unit.jobs.fakes import phone

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def spec(on="android", **fields):
    return ShellSpec(on=on, command="id", **fields)


async def test_a_check_counts_and_adds_nothing(tmp_path):
    async with running(tmp_path / "farm.db", "p1", "p2", quota=UserConfig(jobs=3)) as farm:
        assert await farm.dispatcher.check(spec(devices="all"), "alice") == 2
        assert await farm.dispatcher.check(spec(), "alice", besides=2) == 1
        with raises_code(Code.QUOTA_EXCEEDED):
            await farm.dispatcher.check(spec(), "alice", besides=3)
        with pytest.raises(NoPhoneError):
            await farm.dispatcher.check(spec(on="absent"), "alice", must_match=True)
        assert farm.store.jobs.live() == ()
        await farm.dispatcher.submit(spec(devices="all"), "alice", key="k")
        assert await farm.dispatcher.check(spec(devices="all"), "alice", key="k", besides=3) == 0


async def test_a_checked_spec_waits_for_whole_ids_only(tmp_path):
    async with running(tmp_path / "farm.db", "p1") as farm:
        job_id = await farm.one()
        assert await farm.dispatcher.check(spec(after=(job_id,)), "alice") == 1
        with pytest.raises(UserError, match="is no whole id") as raised:
            await farm.dispatcher.check(spec(after=(job_id[:-2],)), "alice")
        assert job_id in raised.value.hint


def test_labels_for_no_elements_are_refused_before_there_is_a_job():
    given = {"kind": "run", "on": "android", "model": "0" * 64, "name": "net", "labels": "1" * 64}
    assert spec_from_wire(KINDS, given | {"top_k": 5}).top_k == 5
    with raises_code(Code.BAD_SPEC, match="top_k is 0"):
        spec_from_wire(KINDS, given)


def test_a_target_that_no_matching_phone_has_is_refused_with_those_there_are():
    gpu = Gpu("adreno", "Adreno 630")
    views = [
        replace(phone(name), identity=DeviceIdentity(targets={"cpu": {}, name: {}}, gpu=gpu)) for name in ("p1", "p2")
    ]
    wanted = RunSpec(on="android", model="0" * 64, name="net", target="p2")
    ids = ("a", "b", "c")
    assert len(plan(wanted, "alice", views, NOW, ids, must_match=True).jobs) == 1
    with raises_code(Code.BAD_SPEC, match="has the target 'adreno'") as raised:
        plan(replace(wanted, target="adreno"), "alice", views, NOW, ids, must_match=True)
    assert raised.value.hint.startswith("targets: cpu, p1, p2; a virtual phone runs on its host")
    assert str(raised.value).endswith(
        ": p1 has no GPU that is known to be usable (Adreno 630); p2 has no GPU that is known to be usable (Adreno 630)"
    )
    for text, why, hint in (
        ("adrenno", "there is no target of that name", "did you mean 'adreno'? targets: cpu, p1, p2"),
        ("nosuch", "there is no target of that name", "targets: cpu, p1, p2"),
        ("adreno-clml", "CLML needs a TVM that was built with USE_CLML", "targets: cpu"),
        ("rpi4", "a name for what is compiled without a phone", "farm compile --target rpi4"),
    ):
        with raises_code(Code.BAD_SPEC, match=why) as raised:
            plan(replace(wanted, target=text), "alice", views, NOW, ids, must_match=True)
        assert raised.value.hint.startswith(hint)
    mali = [
        replace(phone("p"), identity=DeviceIdentity(targets={"cpu": {}, "opencl": {}}, gpu=Gpu("mali", "Mali-G77")))
    ]
    with raises_code(Code.BAD_SPEC, match="'adreno': p has Mali-G77, which it is not for"):
        plan(replace(wanted, target="adreno"), "alice", mali, NOW, ids, must_match=True)
    unknown = [*views, phone("p3")]
    assert len(plan(replace(wanted, target="adreno"), "alice", unknown, NOW, ids, must_match=True).jobs) == 1
