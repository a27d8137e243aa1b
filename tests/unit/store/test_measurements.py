"""What a bench measured is kept with its result, found by model, and says what a phone's nominal speed is."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from farm.control.verbs.records import HistoryVerbs
from farm.model.job import AttemptState, JobState
from farm.model.specs import EarlierBench
from farm.results.series import columns_of, series_of
from farm.store.measurements import NOMINAL_OF
from farm.store.retention import HISTORY, Retention
from tests.unit.store.values import NOW, attempt, begin, ended, job, over

A, B = "a" * 64, "ab" * 32
AGREE = (0.00301, 0.00298, 0.003, 0.00305, 0.0031)  # their median is the first


@pytest.fixture
def store(opened, tmp_path):
    return opened(tmp_path / "farm.db")


@pytest.fixture
def bench(store):
    """Runs benches to their end, one after the other."""
    count = 0

    async def bench(
        model=A, name="net", *, device="pixel", epoch="x/y:14", kernel="k", reference_s=0.001, nominal_s=0.001,
        verdict="trusted", kind="bench", state=AttemptState.DONE, certificate=True, inside=None,
        reasons=(), median_s=0.002, given=None, whole_reasons=(), user="ann", quality=None, amounts=(), more=None,
        ids="j",
    ):  # fmt: skip
        nonlocal count
        count += 1
        one = job(f"{ids}{count}", kind=kind, user=user, spec={"model": model, "name": name, **(given or {})})
        await store.jobs.add([one])
        tried = attempt(count, one.id, 1, device)
        assert await begin(store, tried)
        told = {
            "epoch": epoch, "verdict": verdict,
            "reasons": whole_reasons or [{"verdict": "rejected", "code": each} for each in reasons],
            "estimate": {"median_s": median_s}, "samples": [1] * 1000, "amounts": amounts,
            "reference": {"kernel": kernel, "median_s": reference_s, "nominal_s": nominal_s}, "tvm": "0.27",
        }  # fmt: skip
        if quality:
            told |= {"quality": quality, "estimate": None, "reference": {}}
        told |= more or {}
        if inside:
            told |= {"model": "net", "model_sha256": inside}
        becomes = ended(replace(one, attempts=1), JobState.DONE if state is AttemptState.DONE else JobState.FAILED)
        result = {"certificate": told} if certificate else {"latency": {}}
        assert await store.jobs.finish(over(tried, state), becomes, result=result)
        await store.leases.end(tried.lease, ended_at=NOW, reason="over", held_s=7.0)
        return one.id

    return bench


async def test_earlier_benches_of_a_model_have_the_speed_of_the_clock_and_the_median_by_it(store, bench):
    await bench(reference_s=0.0011, nominal_s=0.001, median_s=0.002)
    await bench(reference_s=0.001, median_s=0.003)
    for other in ({"model": B}, {"device": "galaxy"}, {"epoch": "x/y:15"}, {"user": "bob"}, {"verdict": "rejected"}):
        await bench(**other)
    newest, oldest = store.measurements.earlier("pixel", "x/y:14", "ann", A)
    assert newest == EarlierBench("", "", "k", 0.001, pytest.approx(0.003))
    assert oldest == EarlierBench("", "", "k", 0.0011, pytest.approx(0.0022))


async def prune(store, later):
    await Retention(store.database, keep_days=1, max_mb=1000, clock=lambda: NOW + later).prune()


@pytest.mark.parametrize(
    "report",
    [
        {"verdict": {"a": 1}}, {"verdict": None}, {"whole_reasons": ("few",)}, {"median_s": "fast"},
        {"median_s": None}, {"reference_s": [1.0]}, {"nominal_s": 10**400}, {"kind": "run"},
        {"state": AttemptState.FAILED}, {"certificate": False},  # an older worker's
    ],
    ids=str,
)  # fmt: skip
async def test_what_is_no_measurement_of_a_bench_is_in_no_history(store, bench, report):
    ended_as = JobState.FAILED if "state" in report else JobState.DONE
    await bench(**report)
    assert (store.measurements.page(A), store.jobs.get("j1").state) == ((), ended_as)


TIMES = {"median_s": 0.002, "low_s": 0.001, "high_s": 0.003}


@pytest.mark.parametrize(
    "hostile",
    [
        {"estimate": {**TIMES, "low_s": "short"}}, {"estimate": {**TIMES, "high_s": {}}}, {"estimate": [TIMES]},
        {"estimate": {**TIMES, "median_s": 0.0}}, {"estimate": {**TIMES, "count": [1]}},
        {"reference": {"kernel": "k", "median_s": 0.001, "nominal_s": 1e-320}}, {"reference": {"kernel": {}}},
        {"runtime": "ort"}, {"runtime": {"name": "ort"}}, {"runtime": {"name": "ort", "version": 1}}, {"target": 7},
        {"precision": ["float32"]}, {"tuned": "yes"}, {"ran_on": {}}, {"offloaded": "all"}, {"notes": "slow"},
        {"notes": [{}]}, {"reasons": [{"code": ["few"]}]}, {"reasons": [{"evidence": None}]},
        {"reasons": {"code": "few"}}, {"amounts": [1]}, {"notes": ["x" * 100_000]},
    ],
    ids=lambda each: str(each)[:60],
)  # fmt: skip
async def test_no_report_keeps_others_from_their_histories(store, bench, hostile):
    for seconds in AGREE:  # so that rows are given at an agreed nominal speed, too
        await bench(reference_s=seconds, nominal_s=seconds, more={"estimate": TIMES})
    await bench(user="bob", more=hostile)
    await bench(user="bob", more={"estimate": None})
    newest, *rows = (await HistoryVerbs(store.measurements).page())["rows"]
    assert (newest["estimate"], len(rows)) == (None, len(AGREE))
    assert {columns_of(row)["low_s"] for row in rows} == {0.001}


QUALITY = {"metric": "top1", "value": 0.9, "low": 0.85, "high": 0.94, "count": 300, "data": B}


async def test_how_right_a_model_is_stands_in_the_history_beside_its_benches(store, bench):
    await bench()
    await bench(kind="run", quality=QUALITY)
    right, fast = (await HistoryVerbs(store.measurements).page(model=A))["rows"]
    assert (right["quality"], right["estimate"], "quality" in fast) == (QUALITY, None, False)
    assert [[row["job"] for row in series] for series in series_of([right, fast])] == [["j1"]]
    assert [columns_of(row)["quality_inputs"] for row in (right, fast)] == [300.0, None]


@pytest.mark.parametrize("wrong", [{"metric": "best"}, {"value": "high"}, {"count": None}, {"low": 10**400}], ids=str)
async def test_a_quality_that_readers_cannot_read_is_in_no_history(store, bench, wrong):
    await bench(kind="run", quality={**QUALITY, **wrong})
    assert store.measurements.page(A) == ()


JOULES = {"energy": {"value": 0.01, "low": 0.0099, "high": 0.0101}}


def measured(values=JOULES, **more):
    return {"more": {"values": values, "method": "by meter", "estimate": None, "reference": {}, **more}}


async def test_what_other_kinds_measure_is_a_series_beside_the_benches(store, bench):
    for _ in range(2):
        await bench(given={"branch": "main", "commit": "c1"})
        await bench(kind="energy", **measured())
    rows = (await HistoryVerbs(store.measurements).page(model=A))["rows"]
    assert [(each[0]["metric"], each[0].get("method"), len(each)) for each in series_of(rows)] == [
        ("energy", "by meter", 2), ("latency", None, 2),
    ]  # fmt: skip
    assert store.measurements.nominal_s("pixel", "x/y:14", "ann") == {"k": 0.001}  # joules have no reference kernel


@pytest.mark.parametrize(
    "report",
    [
        measured({}), measured({"energy": 0.01}), measured({"energy": {"value": "much"}}),
        measured({"energy": {"value": 1e300}}), measured(method=["by", "meter"]),
    ],
    ids=str,
)  # fmt: skip
async def test_values_that_readers_cannot_read_are_in_no_history(store, bench, report):
    await bench(kind="energy", **report)
    assert store.measurements.page(A) == ()


async def test_only_benches_have_a_rhythm(store, bench):
    for kind, report in (("bench", {}), ("energy", measured()), ("run", {"quality": QUALITY})):
        await bench(kind=kind, ids=f"{kind}-", **report)
    await bench(kind="program", ids="program-")
    assert [each[1] for each in store.measurements.times(0)] == ["program-4", "bench-1"]


async def test_results_of_other_input_shapes_are_other_series(store, bench):
    for shape in ([1, 64], [32, 64], [1, 64]):
        await bench(given={"shapes": {"x": shape}, "dtypes": {"x": "float16"}})
    rows = (await HistoryVerbs(store.measurements).page(model=A))["rows"]
    apart = [(series[0]["inputs"], len(series)) for series in series_of(rows)]
    assert apart == [("x:[1,64], x:float16", 2), ("x:[32,64], x:float16", 1)]


async def test_models_are_found_by_name_and_by_hash(store, bench):
    await bench(A, "net")
    await bench(B, "net")
    await bench(A, "renamed")
    await bench(A, "net")
    assert [(each.model, each.name, each.count) for each in store.measurements.models("net")] == [
        (A, "net", 2), (B, "net", 1),
    ]  # fmt: skip
    assert [(each.model, each.name) for each in store.measurements.models(A[:12])] == [(A, "net"), (A, "renamed")]
    assert store.measurements.models(A[:4]) == ()  # of a name, perhaps; too short for a hash
    assert store.measurements.models("ne") == ()


async def test_pages_are_newest_first_without_gap_or_double(store, bench):
    jobs = [await bench(device="pixel" if number % 2 else "galaxy") for number in range(7)]
    found, before = [], None
    while page := store.measurements.page(A, before=before, limit=3):
        found += [each.job for each in page]
        before = page[-1].seq
    assert found == jobs[::-1]
    assert [each.job for each in store.measurements.page(A, device="pixel")] == [jobs[5], jobs[3], jobs[1]]
    one = store.measurements.page(A, limit=1)[0]
    assert (one.name, one.epoch, one.kernel, one.reference_s, one.nominal_s) == ("net", "x/y:14", "k", 0.001, 0.001)
    assert one.at > NOW
    assert one.summary == {
        "reasons": [],
        "verdict": "trusted",
        "estimate": {"median_s": 0.002},
        "tvm": "0.27",
        "user": "ann",
    }


async def test_a_history_leaves_each_result_as_it_was_and_adds_it_at_the_agreed_nominal(store, bench):
    """A flat model; its phone's first benches were 8 % hot. The benches that agree are of two models."""
    for nominal_s in (0.00108, 0.00104, 0.001):
        await bench(nominal_s=nominal_s, median_s=2 * nominal_s)
    await bench(kernel="", nominal_s=None)
    await bench(epoch="x/y:15", nominal_s=0.007)
    for _ in range(2):
        await bench(B, nominal_s=0.0009)
    verbs, before = HistoryVerbs(store.measurements), None
    rows = []
    while page := (await verbs.page(model=A, before=before, limit=2))["rows"]:
        rows += page
        before = page[-1]["seq"]
    assert [each["estimate"]["median_s"] for each in rows] == [0.002, 0.002, 0.002, 0.00208, 0.00216]
    assert [each["reference"]["nominal_s"] for each in rows] == [0.007, None, 0.001, 0.00104, 0.00108]
    assert [each["today"] and each["today"]["nominal_s"] for each in rows] == [None, None, 0.001, 0.001, 0.001]
    assert [each["today"]["median_s"] for each in rows if each["today"]] == pytest.approx([0.002] * 3)


async def test_nothing_is_rescaled_to_the_nominal_of_a_rejected_bench_or_of_few(store, bench):
    for model, nominal_s in ((A, 0.001574), (B, 0.006564)):
        await bench(model, nominal_s=nominal_s, reference_s=nominal_s, verdict="rejected", reasons=["few_samples"])
    await bench(B, nominal_s=0.003, reference_s=0.003)
    assert [row["today"] for row in (await HistoryVerbs(store.measurements).page())["rows"]] == [None] * 3


async def test_a_package_has_a_history_of_its_own(store, bench):
    """What it says it was made from is its maker's word, and would set anybody's history."""
    package = await bench(B, "net.farm.tar", inside=A)
    model = await bench(A, "net")
    assert [each.job for each in store.measurements.page(A)] == [model]
    assert [each.job for each in store.measurements.page(B)] == [package]
    assert [(each.model, each.count) for each in store.measurements.models("net")] == [(A, 1)]


async def test_nominal_speeds_are_of_the_first_benches_in_a_row_that_agree(store, bench):
    for reference_s in (0.009, 0.008):  # the host was busy
        await bench(reference_s=reference_s)
    assert store.measurements.nominal_s("pixel", "x/y:14", "ann") == {"k": pytest.approx(0.0085)}
    for reference_s in AGREE:
        await bench(reference_s=reference_s)
    for _ in range(6):
        await bench(reference_s=0.1)  # too late to change it
    await bench(kernel="gpu", reference_s=0.5)
    await bench(kernel="gpu", reference_s=9.0, verdict="rejected")  # tells nothing
    await bench(epoch="x/y:15", reference_s=0.7)
    await bench(kernel="", reference_s=None)
    assert NOMINAL_OF == 5
    assert store.measurements.nominal_s("pixel", "x/y:14", "ann") == {"k": 0.00301, "gpu": 0.5}
    assert store.measurements.nominal_s("pixel", "x/y:15", "ann") == {"k": 0.7}
    assert store.measurements.nominal_s("galaxy", "x/y:14", "ann") == {}


async def test_what_one_user_reports_moves_no_other_users_nominal(store, bench):
    nominal_s = partial(store.measurements.nominal_s, "pixel", "x/y:14")
    for _ in range(6):
        await bench(reference_s=0.001, user="ann")
    for _ in range(6):
        await bench(reference_s=0.3, nominal_s=0.3, user="mallory")
        await bench(reference_s=0.3, nominal_s=0.3, user="Ann")
    assert nominal_s("ann") == {"k": 0.001}
    assert nominal_s("bob") == {}
    rows = (await HistoryVerbs(store.measurements).page(model=A))["rows"]
    assert {row["today"]["nominal_s"] for row in rows if row["user"] == "ann"} == {0.001}


async def test_three_users_who_agree_fix_the_nominal_of_all(store, bench):
    nominal_s = partial(store.measurements.nominal_s, "pixel", "x/y:14")
    for user, reference_s in {"ann": 0.001, "mallory": 0.3, "bob": 0.00102}.items():
        for _ in range(5):
            await bench(reference_s=reference_s, user=user)
    assert nominal_s("bob") == {"k": 0.00102}
    for _ in range(5):
        await bench(reference_s=0.00101, user="eve")
    assert {nominal_s(user)["k"] for user in ("ann", "bob", "eve", "mallory", "new")} == {0.00101}


async def test_the_job_goes_and_what_it_measured_stays(store, bench):
    for user in ("bob", "eve", "ann"):
        for reference_s in AGREE:
            job_id = await bench(reference_s=reference_s, user=user)
    await prune(store, timedelta(days=100))
    assert store.jobs.get(job_id) is None
    page = store.measurements.page(A)
    assert [each.reference_s for each in page] == [*reversed(AGREE)] * 3
    assert page[0].job == job_id
    assert page[0].summary["estimate"] == {"median_s": 0.002}
    await prune(store, HISTORY + timedelta(days=1))
    assert store.measurements.page(A) == ()
    # Written down when it was known; it does not move, not even when what it was made of is gone.
    assert store.measurements.nominal_s("pixel", "x/y:14", "ann") == {"k": 0.00301}
    for _ in range(5):
        await bench(reference_s=0.1)
    assert store.measurements.nominal_s("pixel", "x/y:14", "ann") == {"k": 0.00301}


async def test_a_bench_that_is_only_far_from_the_nominal_counts_for_it(store, bench):
    await bench(reference_s=0.008)  # at a slow moment
    for _ in range(2):
        await bench(reference_s=0.001, verdict="rejected", reasons=["reference_offset"])
    await bench(reference_s=0.5, verdict="rejected", reasons=["reference_offset", "step"])
    assert store.measurements.nominal_s("pixel", "x/y:14", "ann") == {"k": 0.001}


@pytest.mark.parametrize(("sampling", "nominals"), [(0.02, {"k": 0.001}), (0.9, {})])
async def test_a_bench_whose_interval_is_too_wide_for_that_distance_alone_counts_too(store, bench, sampling, nominals):
    amounts = [{"code": "follows", "amount": 2.1}, {"code": "sampling", "amount": sampling}]
    await bench(verdict="rejected", reasons=["reference_offset", "wide"], amounts=amounts)
    assert store.measurements.nominal_s("pixel", "x/y:14", "ann") == nominals
