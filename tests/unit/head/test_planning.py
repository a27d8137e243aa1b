"""The jobs that a submit means, and what a queued job asks leasing for."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from farm.common.errors import Code, NoPhoneError
from farm.head.planning import plan, request_of
from farm.kinds import KINDS
from farm.kinds.bench import BenchSpec
from farm.kinds.shell import ShellSpec
from farm.kinds.sustain import SustainSpec
from farm.kinds.sweep import SweepSpec
from farm.model.device import DeviceView, Life, Service
from farm.model.identity import CpuCluster, DeviceIdentity
from farm.model.requests import LeaseClass
from tests.support.errors import raises_code

NOW = datetime(2026, 5, 1, tzinfo=UTC)


PIXEL = DeviceView(
    "pixel", "S1", Life.GONE, adopted=True, reason="not listed by adb", labels={"soc": "gs201"}, aliases=("android",)
)
READY = DeviceView("oneplus", "S2", Life.READY, adopted=True, labels={"soc": "sm8650"}, aliases=("android",))


def planned(spec, views=(), *, must_match=True):
    return plan(spec, "alice", views, NOW, iter(["a", "b", "c"]), must_match=must_match)


def bench(spec=BenchSpec, **fields):
    return spec(on="android", model="0" * 64, name="net", **fields)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_bench_asks_for_a_quiet_hub_when_it_is_wanted(quiet):
    (job,) = planned(bench(quiet_hub=quiet), must_match=False).jobs
    assert (job.id, job.array) == ("a", "")
    request = request_of(KINDS, job, frozenset({"bad"}))
    assert request.quiet_hub is quiet
    assert (request.lease_class, request.user, request.avoid) == (LeaseClass.BENCH, "alice", {"bad"})


@pytest.mark.parametrize("devices", [1, "all"])
@pytest.mark.parametrize("life", [Life.GONE, Life.OFFLINE, Life.UNAUTHORIZED, Life.QUARANTINED])
def test_a_job_for_phones_that_are_away_is_taken_and_says_what_it_waits_for(life, devices):
    spec = ShellSpec(on="soc=gs201", command="true", devices=devices)
    submitted = planned(spec, (replace(PIXEL, life=life), READY))
    assert len(submitted.jobs) == 1
    (said,) = submitted.warnings
    assert said == f"no matching phone is available, the job waits (pixel: {life}: not listed by adb)"


@pytest.mark.parametrize(("devices", "warned"), [(1, False), (2, True), ("all", True)])
def test_phones_that_are_away_are_named_when_the_others_are_too_few(devices, warned):
    said = planned(ShellSpec(on="android", command="true", devices=devices), (PIXEL, READY)).warnings
    assert ["only 1 matching phone is" in each and "pixel: gone" in each for each in said] == [True] * warned


def test_what_no_known_phone_meets_is_refused():
    with pytest.raises(NoPhoneError):
        planned(ShellSpec(on="soc=sm8750", command="true"), (PIXEL, READY))


def test_of_phones_out_of_service_it_says_why_and_how_they_come_back():
    views = (replace(READY, service=Service.MAINTENANCE), replace(PIXEL, service=Service.DRAINING))
    spec = ShellSpec(on="android", command="true", devices="all")
    with pytest.raises(NoPhoneError) as refused:
        plan(spec, "alice", views, NOW, iter(["a"]), must_match=True)
    out = f"{READY.name} is in maintenance, {PIXEL.name} is draining"
    assert refused.value.message == f"no phone that matches android is in service: {out}"
    assert refused.value.hint == f"back into service: farm device release {READY.name}"


def identified(view, *clusters):
    return replace(view, life=Life.READY, identity=DeviceIdentity(cpu=clusters, targets={"cpu": "llvm"}))


SMALL, LARGE = (CpuCluster(4, max_khz=1_400_000),), (CpuCluster(4, max_khz=1_800_000), CpuCluster(4, max_khz=2_800_000))


@pytest.mark.parametrize(
    ("spec", "fields", "said"),
    [
        (BenchSpec, {"threads": 9}, "pixel has 4 cores, too few for 9 threads"),
        (BenchSpec, {"cores": "0x100"}, "pixel has cores 0 to 3, and 0x100 names core 8"),
        (SustainSpec, {"threads": 12, "timeout_s": 3000.0}, "too few for 12 threads"),
        (SweepSpec, {"threads": (1, 9)}, "too few for 9 threads"),
    ],
)
def test_cores_that_no_matching_phone_has_are_refused_at_once(spec, fields, said):
    with raises_code(Code.NO_SUCH_CORES, match=said):
        planned(bench(spec, **fields), (identified(PIXEL, *SMALL), identified(READY, *LARGE)))


def test_cores_that_one_phone_has_or_may_have_are_not_refused():
    for other in (identified(READY, *LARGE), READY):
        assert planned(bench(threads=8), (identified(PIXEL, *SMALL), other)).jobs
