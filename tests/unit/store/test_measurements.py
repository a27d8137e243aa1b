"""What a bench measured is kept with its result, found by model, and says what a phone's nominal speed is."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from farm.control.verbs.records import HistoryVerbs
from farm.model.job import AttemptState, JobState
from farm.results.series import series_of
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
        reasons=(), median_s=0.002, given=None, whole_reasons=(), user="ann",
    ):  # fmt: skip
        nonlocal count
        count += 1
        one = job(f"j{count}", kind=kind, user=user, spec={"model": model, "name": name, **(given or {})})
        await store.jobs.add([one])
        tried = attempt(count, one.id, 1, device)
        assert await begin(store, tried)
        told = {
            "epoch": epoch, "verdict": verdict,
            "reasons": whole_reasons or [{"verdict": "rejected", "code": each} for each in reasons],
            "estimate": {"median_s": median_s}, "samples": [1] * 1000,
            "reference": {"kernel": kernel, "median_s": reference_s, "nominal_s": nominal_s}, "tvm": "0.27",
        }  # fmt: skip
        if inside:
            told |= {"model": "net", "model_sha256": inside}
        becomes = ended(replace(one, attempts=1), JobState.DONE if state is AttemptState.DONE else JobState.FAILED)
        result = {"certificate": told} if certificate else {"latency": {}}
        assert await store.jobs.finish(over(tried, state), becomes, result=result)
        await store.leases.end(tried.lease, ended_at=NOW, reason="over", held_s=7.0)
        return one.id

    return bench


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


async def test_a_history_leaves_each_result_as_it_was_and_adds_it_at_the_newest_nominal(store, bench):
    """A flat model; its phone's first benches were 8 % hot. The newest bench of the phone is of another model."""
    for nominal_s in (0.00108, 0.00104, 0.001):
        await bench(nominal_s=nominal_s, median_s=2 * nominal_s)
    await bench(kernel="", nominal_s=None)
    await bench(epoch="x/y:15", nominal_s=0.007)
    await bench(B, nominal_s=0.0009)
    verbs, before = HistoryVerbs(store.measurements), None
    rows = []
    while page := (await verbs.page(model=A, before=before, limit=2))["rows"]:
        rows += page
        before = page[-1]["seq"]
    assert [each["estimate"]["median_s"] for each in rows] == [0.002, 0.002, 0.002, 0.00208, 0.00216]
    assert [each["reference"]["nominal_s"] for each in rows] == [0.007, None, 0.001, 0.00104, 0.00108]
    assert [each["today"] and each["today"]["nominal_s"] for each in rows] == [0.007, None, 0.0009, 0.0009, 0.0009]
    assert [each["today"]["median_s"] for each in rows if each["today"]] == pytest.approx([0.002, *[0.0018] * 3])


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
