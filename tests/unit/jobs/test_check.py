"""Whether several submits could be taken in, before any is: Dispatcher.check, and targets that no phone has."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from farm.common.errors import Code, NoPhoneError, UserError
from farm.head.config import UserConfig
from farm.head.planning import plan
from farm.kinds import KINDS
from farm.kinds.run import RunSpec
from farm.kinds.shell import ShellSpec
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


ADRENO, MALI = Gpu("adreno", "Adreno 630"), Gpu("mali", "Mali-G77")
UNUSABLE = (
    "p1 has no GPU that is known to be usable (Adreno 630); p2 has no GPU that is known to be usable (Adreno 630)"
)


def known(name, gpu, *targets):
    return replace(phone(name), identity=DeviceIdentity(targets={each: {} for each in targets}, gpu=gpu))


VIEWS = [known("p1", ADRENO, "cpu", "p1"), known("p2", ADRENO, "cpu", "p2")]


def planned(target, views):
    wanted = RunSpec(on="android", model="0" * 64, name="net", target=target)
    return plan(wanted, "alice", views, NOW, ("a", "b", "c"), must_match=True).jobs


@pytest.mark.parametrize(
    ("target", "views", "why", "hint"),
    [
        ("adreno", VIEWS, rf"has the target 'adreno': {re.escape(UNUSABLE)}", "targets: cpu, p1, p2; a virtual phone"),
        ("adrenno", VIEWS, "there is no target of that name", "did you mean 'adreno'? targets: cpu, p1, p2"),
        ("nosuch", VIEWS, "there is no target of that name", "targets: cpu, p1, p2"),
        ("adreno-clml", VIEWS, "CLML needs a TVM that was built with USE_CLML", "targets: cpu"),
        (
            "adreno-clml",
            [known("p", ADRENO, "cpu", "adreno")],
            "'adreno-clml': p is a virtual phone",
            "targets: adreno",
        ),
        ("opencl -device=adreno", VIEWS, re.escape(UNUSABLE), "targets: cpu, p1, p2; a virtual phone"),
        ('{"kind": "opencl"', VIEWS, "the target is no JSON", "such as"),
        ('{"kind": ' + "[" * 30_000, VIEWS, "the target is no JSON", "such as"),
        ("rpi4", VIEWS, "a name for what is compiled without a phone", "farm compile --target rpi4"),
        ("adreno", [known("p", MALI, "cpu", "opencl")], "'adreno': p has Mali-G77, which it is not for", "targets: "),
    ],
)
def test_a_target_that_no_matching_phone_has_is_refused_with_those_there_are(target, views, why, hint):
    with pytest.raises(UserError, match=why) as raised:
        planned(target, views)
    assert raised.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("precision", "triple", "warned"),
    [
        ("float16_acc32", "x86_64-linux-gnu", True),
        ("float16_acc32", "aarch64-linux-android", False),
        ("float32", "x86_64-linux-gnu", False),
    ],
)
def test_half_precision_on_a_cpu_without_it_is_a_warning(precision, triple, warned):
    view = replace(phone("p"), identity=DeviceIdentity(targets={"cpu": {"kind": "llvm", "mtriple": triple}}))
    wanted = RunSpec(on="android", model="0" * 64, name="net", precision=precision)
    warnings = plan(wanted, "alice", [view], NOW, ("a",), must_match=True).warnings
    assert any("in software" in each for each in warnings) == warned


@pytest.mark.parametrize(("target", "views"), [("p2", VIEWS), ("adreno", [*VIEWS, phone("p3")])])
def test_a_phone_that_has_the_target_or_is_not_known_yet_will_do(target, views):
    assert len(planned(target, views)) == 1
