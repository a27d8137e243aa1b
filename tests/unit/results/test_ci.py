"""What `farm ci` says of a new result, and the files that CI systems read."""

from xml.etree import ElementTree as ET

import pytest

from farm.common.errors import UserError
from farm.results.ci import CiAnswer, CiCase, FailLimit, answer_of, confirmed, judged, junit_file, markdown
from farm.results.series import by_metric
from tests.support import history_rows

LIMIT = FailLimit.parse("slower by 2 %")
MEDIANS = (0.01, 0.01004, 0.00998, 0.01001, 0.00997, 0.01002, 0.01, 0.01003)


def row(number, median_s=0.01, **fields):
    build = {"model": f"{number:064d}", "name": "net.onnx", "epoch": "one", "reasons": (), "branch": "main"}
    return history_rows.row(number, median_s, width=0.002, **{**build, "commit": f"commit{number}", **fields})


def new(median_s=0.01, **fields):
    return row(20, median_s, **{"branch": "topic", **fields})


def judge(result, *, rows=None, branch="main"):
    baseline = [row(*each) for each in enumerate(MEDIANS)] if rows is None else rows
    return judged(result, [result, *baseline[::-1]], branch, LIMIT)


@pytest.mark.parametrize(
    ("times", "answer"), [(1.0, CiAnswer.WITHIN), (1.08, CiAnswer.SLOWER), (1.02, CiAnswer.CANNOT_TELL)]
)
def test_the_interval_decides_and_not_the_ratio(times, answer):
    found = judge(new(0.01 * times))
    assert (found.answer, found.about) == (answer, "main, 8 results")
    assert found.ratio == pytest.approx(times, rel=0.005)
    assert found.low < found.ratio < found.high


def test_a_baseline_that_scatters_raises_no_alarm():
    rows = [row(at, 0.01 * (1 + 0.03 * (at % 3))) for at in range(8)]
    assert judge(new(0.011), rows=rows).answer is CiAnswer.CANNOT_TELL


@pytest.mark.parametrize(
    ("fields", "why", "count"),
    [
        ({}, "main has 2 of 3 results", 2),
        ({"branch": "other"}, "main has no result of net.onnx on pixel", 8),
        ({"name": "other.onnx"}, "main has no result", 8),
        ({"device": "galaxy"}, "main has no result", 8),
        ({"commit": "commit20"}, "main has no result", 8),  # the new one's own
        ({"epoch": "two"}, "of another system version of the phone", 8),
        ({"precision": "float16", "target": "opencl"}, "of another target and precision", 8),
        ({"reference": {"kernel": "k"}}, "of another reference kernel", 8),
        ({"verdict": "suspect"}, "no result of main of net.onnx on pixel is trusted and of a clean commit", 8),
        ({"commit": "abc-dirty"}, "no result of main of net.onnx on pixel is trusted and of a clean commit", 8),
    ],
)
def test_a_result_without_a_baseline_says_why(fields, why, count):
    found = judge(new(0.02), rows=[row(at, **fields) for at in range(count)])
    assert (found.answer, why in found.about) == (CiAnswer.NO_BASELINE, True)


def test_the_baseline_begins_where_its_level_changed_last():
    rows = [row(at, median_s) for at, median_s in enumerate((*MEDIANS, *(0.8 * each for each in MEDIANS)))]
    assert judge(new(0.008), rows=rows).about == "main, 8 results"
    assert judge(new(0.01), rows=rows).answer is CiAnswer.SLOWER


def test_a_result_that_is_not_trusted_is_not_compared():
    found = judge(new(0.02, verdict="suspect", reasons=[{"cause": "it was hot"}]))
    assert (found.answer, found.about) == (CiAnswer.CANNOT_TELL, "the result is suspect: it was hot")
    reasons = [{"cause": "it was hot", "verdict": "suspect"}, {"sentence": "it stopped", "verdict": "rejected"}]
    found = judge(new(0.02, verdict="rejected", reasons=reasons))
    assert found.about == "the result is rejected: it stopped (and 1 more reason)"


def test_a_baseline_branch_is_compared_with_its_own_past():
    assert judge(new(0.011, branch="main")).answer is CiAnswer.SLOWER


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("slower by 2 %", 1.02), (" slower  by 0.5%", 1.005), ("slower by 0 %", 1),
        *((text, None) for text in ("", "2 %", "slower by 2", "faster by 2 %", "slower by -2 %", "slower by 2000 %")),
    ],
)  # fmt: skip
def test_conditions(text, ratio):
    if ratio is not None:
        assert FailLimit.parse(text).ratio == pytest.approx(ratio)
        return
    with pytest.raises(UserError) as refused:
        FailLimit.parse(text)
    assert "slower by 2 %" in refused.value.hint


def test_an_interval_at_the_limit_is_no_alarm():
    assert answer_of(1.02, 1.1, LIMIT) is CiAnswer.CANNOT_TELL
    assert answer_of(0.9, 1.02, LIMIT) is CiAnswer.WITHIN


def case(answer, ratio=None, device="pixel", about="main, 8 results"):
    if ratio is None:
        return CiCase("net.onnx", device, answer, about)
    return CiCase("net.onnx", device, answer, about, ratio, ratio - 0.01, ratio + 0.01)


def test_two_slow_results_count_and_one_does_not():
    slow, slower = case(CiAnswer.SLOWER, 1.05), case(CiAnswer.SLOWER, 1.2)
    assert confirmed(slower, slow) == confirmed(slow, slower) == slow
    chance = confirmed(slower, case(CiAnswer.WITHIN, 1.0))
    assert (chance.answer, chance.ratio) == (CiAnswer.CANNOT_TELL, 1.0)
    assert "+20.0%" in chance.about
    alone = confirmed(slower, None)
    assert (alone.answer, alone.ratio) == (CiAnswer.CANNOT_TELL, 1.2)
    assert "no phone to measure it again" in alone.about
    failed = case(CiAnswer.FAILED, about="the phone left")
    assert confirmed(slow, failed) == failed


CASES = [
    case(CiAnswer.WITHIN, 1.0), case(CiAnswer.SLOWER, 1.05, "galaxy"), case(CiAnswer.CANNOT_TELL, 1.02, "moto"),
    case(CiAnswer.NO_BASELINE, device="a|b", about="main has no result"),
    case(CiAnswer.FAILED, device="nokia", about="it \0 <crashed>\n & left"),
]  # fmt: skip


def test_a_junit_file_counts_and_says_each_answer(snapshot):
    text = junit_file(CASES, LIMIT)
    assert ET.fromstring(text).attrib == {"tests": "5", "failures": "1", "errors": "1", "skipped": "2"}
    snapshot(text if isinstance(text, str) else text.decode())


def test_a_summary_is_one_table_whatever_the_words_are(snapshot):
    snapshot(markdown(CASES, LIMIT))


WORSE = FailLimit.parse("worse by 5 %")


def joules(number, value=0.01, **fields):
    source = {"name": "net.onnx", "branch": "main", "commit": f"commit{number}", "reasons": ()}
    return history_rows.energy(number, value * (1 + 0.002 * (number % 3)), **{**source, **fields})


JOULES = tuple(joules(at) for at in range(8))


def judge_joules(result, *, rows=JOULES):
    (new,) = by_metric([result])
    return judged(new, [*by_metric([result, *rows[::-1]])], "main", WORSE)


@pytest.mark.parametrize(
    ("times", "answer"), [(1.0, CiAnswer.WITHIN), (1.12, CiAnswer.WORSE), (1.05, CiAnswer.CANNOT_TELL)]
)
def test_any_metric_is_judged_by_its_own_baseline(times, answer):
    benches = [row(30 + at, 9.0, job=f"bench-{30 + at}", commit="b") for at in range(5)]
    found = judge_joules(joules(20, 0.01 * times, branch="topic"), rows=(*JOULES, *benches))
    assert (found.answer, found.metric, found.about) == (answer, "energy", "main, 8 results")
    assert found.place == "pixel, energy"


def test_joules_by_another_meter_are_no_baseline():
    found = judge_joules(joules(20, branch="topic", method="by power rails"))
    assert (found.answer, "of another way to measure" in found.about) == (CiAnswer.NO_BASELINE, True)


def test_one_reading_of_a_cold_start_is_judged_by_how_others_scatter():
    def start(number, peak):
        return history_rows.memory(number, peak, name="net.onnx", branch="main", commit=f"commit{number}")

    rows = [start(at, 274e6 * (1 + 0.001 * (at % 3))) for at in range(8)]
    new = [*by_metric([start(20, 320e6)])]
    found = {case.metric: case.answer for case in (judged(each, [*by_metric(rows)], "main", WORSE) for each in new)}
    within = CiAnswer.WITHIN
    assert found == {"peak memory": CiAnswer.WORSE, "first load": within, "first run": within}


def test_files_name_the_metric_and_count_what_is_worse(snapshot):
    cases = [judge_joules(joules(20, 0.02, branch="topic")), case(CiAnswer.WITHIN, 1.0)]
    text = junit_file(cases, WORSE)
    text = text if isinstance(text, str) else text.decode()
    assert ET.fromstring(text.encode()).attrib["failures"] == "1"
    snapshot(text + "\n" + markdown(cases, WORSE))
