"""`farm history`, `farm compare` and `farm bench`, as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from farm.cli import history
from farm.cli.history import PLOT_COLUMNS, _series_json, drawn
from farm.common.errors import UserError
from farm.kinds.bench import command as bench
from farm.kinds.compare import command as compare
from farm.results.columns import columns_of
from farm.results.series import series_of

NONE = "900 would show that there is none"
DAY = datetime(2026, 11, 1, tzinfo=UTC)


def row(number, median_s=0.010, **fields):
    estimate = {"median_s": median_s, "low_s": median_s * 0.999, "high_s": median_s * 1.001}
    return {
        "seq": number, "job": f"bench-{number}", "model": "a" * 64, "name": "net", "device": "pixel",
        "epoch": "x/y:14", "at": (DAY + timedelta(days=number)).isoformat(), "estimate": estimate,
        "verdict": "trusted", "target": "cpu", "precision": "float32", "tuned": False, "tvm": "0.27", **fields,
    }  # fmt: skip


class Daemon:
    """Answers as the verbs do, two rows a page."""

    def __init__(self, rows):
        self.rows = rows

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def call(self, kind, **asked):
        if kind == "history.models":
            named = [each for each in self.rows if each["name"] == asked["model"]]
            return {"models": [{"model": each["model"], "name": each["name"], "count": 1} for each in named]}
        assert kind == "history.list"
        found = [
            each
            for each in sorted(self.rows, key=lambda each: -each["seq"])
            if each["model"] == asked["model"]
            and asked["device"] in ("", each["device"])
            and each["seq"] < asked.get("before", 1 << 60)
        ]
        return {"rows": found[:2], "more": len(found) > 2}


@pytest.fixture
def told(capsys, monkeypatch):
    def told(rows, **options):
        monkeypatch.setattr(history, "connect", lambda: Daemon(rows))
        asked = {"model": "net", "device": "", "limit": 1000, "plot": False, "json": False}
        history.history(**(asked | options))
        return capsys.readouterr().out.splitlines()

    return told


def test_a_regression_is_told_with_the_job_it_began_with(told):
    rows = [row(number) for number in range(1, 7)] + [row(number, 0.0112) for number in range(7, 11)]
    lines = told(rows)
    assert lines[0] == "net (aaaaaaaaaaaa) on pixel: cpu, float32"
    assert [line.split()[-1] for line in lines[3:13]] == [f"bench-{number}" for number in range(1, 11)]
    assert lines[13] == "  regression: 10.00 ms -> 11.20 ms (+12.0%) since bench-7, 4 results"


def test_what_may_not_be_compared_stands_apart(told):
    rows = [
        row(1), row(2, epoch="x/y:15"), row(3, device="galaxy"), row(4, precision="float16"), row(5, model="b" * 64),
        row(6, tuned=True),
    ]  # fmt: skip
    assert len(series_of(rows)) == 6
    lines = told(rows)
    assert len([line for line in lines if line.startswith("net (")]) == 6
    assert "  system x/y:15" in lines
    assert not [line for line in lines if "regression" in line]
    assert len([line for line in told(rows, device="galaxy") if line.startswith("net (")]) == 1


def test_a_line_has_the_newest_name_of_its_model_and_what_its_results_ran_under(told):
    program = {"tvm": "", "runtime": {"name": "ort", "version": "1.31"}, "target": "ort", "placement": "threads=2"}
    lines = told([row(1, name="old"), row(2), row(3, **program)])
    assert [line for line in lines if line.startswith(("net (", "old ("))] == [
        "net (aaaaaaaaaaaa) on pixel: cpu, float32",
        "net (aaaaaaaaaaaa) on pixel: ort, float32, threads=2",
    ]
    assert ["TVM 0.27" in line for line in lines if "bench-" in line] == [True, True, False]
    assert "ort 1.31" in lines[-1]


def by(kernel, nominal_s):
    return {"reference": {"kernel": kernel, "median_s": 0.001, "nominal_s": nominal_s}}


def corrected(number, then_s):
    """A flat model's result; the phone's nominal was taken for `then_s` on its day and is 1 ms today."""
    found = row(number, 10 * then_s, **by("k", then_s))
    times = {name: value * 0.001 / then_s for name, value in found["estimate"].items()}
    return found | {"today": {"nominal_s": 0.001, **times}}


def test_a_result_stays_as_it_was_and_todays_nominal_is_another_figure(told):
    then = [0.00168, 0.00168, 0.00168, 0.00104, *[0.001] * 4]
    rows = [corrected(number, then_s) for number, then_s in enumerate(then, 1)]
    lines = told(rows)
    assert lines[1] == "  system x/y:14, reference kernel k"
    assert lines[2] == "  4 of 8 results rescaled to today's nominal speed, for changes and plots only"
    head, first, *_, last = (line.split("  ") for line in lines[3:12])
    assert [each.strip() for each in head if each][1:4] == ["MEDIAN", "95 % RANGE", "RESCALED"]
    assert [each.strip() for each in first if each][1:5] == ["16.80 ms", "±0.10 %", "10.00 ms", "trusted"]
    assert [each.strip() for each in last if each][1:4] == ["10.00 ms", "±0.10 %", "trusted"]  # as it was reported
    assert not [line for line in lines if "improvement" in line]
    assert not any("nominal" in line for line in told([row(1, **by("k", 0.001)), row(2)]))


def test_a_row_has_one_unit(told):
    today = {"nominal_s": 0.0005, "median_s": 9e-5, "low_s": 8.9e-5, "high_s": 9.1e-5}
    (line,) = (line for line in told([row(1, 0.000168, **by("k", 0.001), today=today)]) if line.endswith("bench-1"))
    assert line.split()[2:4] == ["168.0", "µs"]
    assert "90.00 µs" in line


def test_commits_are_shown_where_a_result_has_one(told):
    assert "COMMIT" not in " ".join(told([row(1)]))
    lines = told([row(1), row(2, commit="0123456789abcdef", branch="main")])
    head, without, commit = (line.split() for line in lines[2:5])
    assert head.index("COMMIT") == head.index("RUNTIME") + 1
    assert ("-" in without, "0123456789ab" in commit) == (True, True)
    (series,) = series_of([row(1, commit="0123456789abcdef")])
    assert _series_json(series, ())["results"][0]["commit"] == "0123456789abcdef"


def test_another_reference_kernel_begins_another_line(told):
    """Its nominal was found on a warm day: all later results would look 6 % slower."""
    rows = [row(number, **by("old", 0.001)) for number in range(1, 7)]
    rows += [row(number, 0.0106, **by("new", 0.00106)) for number in range(7, 13)]
    assert not [line for line in told(rows) if "regression" in line]
    assert [found[0]["kernel"] for found in series_of(rows)] == ["new", "old"]


def one_sample(number, median_s=0.010, **fields):
    return row(number, **fields) | {"estimate": {"median_s": median_s, "low_s": None, "high_s": None, "count": 1}}


def test_a_result_of_one_sample_is_shown_without_an_interval_and_judged_nowhere(told):
    rows = [row(1), one_sample(2, 0.5), *[row(number) for number in range(3, 7)]]
    lines = told([*rows, *[row(number, 0.0112) for number in range(7, 11)]], plot=True)
    alone = next(line for line in lines if "bench-2" in line)
    assert alone.split()[2:6] == ["500.0", "ms", "-", "trusted"]
    assert lines[-2:] == [
        "  regression: 10.00 ms -> 11.20 ms (+12.0%) since bench-7, 4 results",
        "  -: no interval, as one sample has none; 1 of 10 are shown, and judged nowhere",
    ]
    stepped = [*[one_sample(number) for number in range(1, 7)], *[one_sample(number, 0.02) for number in range(7, 11)]]
    assert not [line for line in told(stepped) if "regression" in line]


def test_one_sample_of_an_older_release_has_no_interval_either(told):
    old = row(1) | {"estimate": {"median_s": 0.01, "low_s": 0.01, "high_s": 0.01, "count": 1}}
    assert told([old])[3].split()[2:5] == ["10.00", "ms", "-"]
    assert columns_of(old)["low_s"] is None


@pytest.mark.parametrize("wrong", [None, 0, float("inf")])
def test_a_result_without_a_median_is_left_out(wrong, told):
    bad = row(2) | {"estimate": {"median_s": wrong, "low_s": 0.009, "high_s": 0.01}}
    assert [each["seq"] for found in series_of([row(1), bad, row(3)]) for each in found] == [1, 3]
    with pytest.raises(UserError, match="no result of net has a finite median") as caught:
        told([bad])
    assert "farm job show bench-2" in caught.value.hint
    with pytest.raises(UserError, match="nothing called other was measured"):
        told([bad], model="other")


def test_results_that_are_not_trusted_are_shown_and_left_out(told):
    rows = [row(number) for number in range(1, 5)]
    rows += [row(number, 0.02, verdict="rejected") for number in range(5, 9)]
    lines = told(rows)
    assert len([line for line in lines if "rejected" in line]) == 4
    assert not [line for line in lines if "regression" in line]
    assert lines[-1] == "  only trusted results are searched for changes: 4 of 8 are not trusted"


def test_intervals_are_drawn_on_one_scale(told):
    low, high = drawn(row(1, 0.010), 0.00999, 0.02002), drawn(row(2, 0.020), 0.00999, 0.02002)
    assert low == "o"
    assert high.strip(" ") == "o"
    assert len(high) == PLOT_COLUMNS
    wide = drawn(row(1) | {"estimate": {"median_s": 0.5, "low_s": 1e-9, "high_s": 1.0}}, 0.0, 1.0)
    assert wide == "-" * 20 + "o" + "-" * 19
    lines = told([row(1), row(2, 0.02)], plot=True)
    assert any(line.endswith(("o", "●")) for line in lines)
    assert any(line.endswith("medians from the oldest to the latest") for line in lines)


def compared(**fields):
    comparison = {
        "answer": "cannot tell", "ratio": 1.02, "low": 0.98, "high": 1.07, "pairs": 24, "needed_pairs": 300,
        "needed_same": 900, "find_effect": 0.03, "reasons": [{"cause": "the ratio went between two levels"}],
    }  # fmt: skip
    side = {"latency": {"median_ms": 1.5}, "max_abs_error": None}
    return {
        "device": "pixel", "comparison": comparison | fields, "a": side, "b": side | {"max_abs_error": 1e-6},
        "certificate": {"notes": ["a virtual phone"]},
    }  # fmt: skip


def test_a_comparison_that_cannot_tell_says_what_it_would_take(capsys):
    compare.print_results([compared()])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "PHONE  VERDICT      B / A  99 % RANGE      A         B         PAIRS  WHY",
        "pixel  cannot tell  1.020  0.980 to 1.070  1.500 ms  1.500 ms  24     the ratio went between two levels",
    ]
    assert lines[2:] == [
        f"  pixel: 300 pairs taken in turns would find a difference of 3% with 95 % power, {NONE}",
        "B / A: median of paired runs. Outputs match the reference (B 1e-06).",
        "A virtual phone.",
    ]
    compare.print_results([compared()], why=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "PAIRS"
    assert lines[2] == "  pixel: the ratio went between two levels"


def test_a_comparison_that_nobody_could_finish_says_that_it_is_too_noisy(capsys):
    compare.print_results([compared(low=0.856, high=7142.13, needed_pairs=2421394, needed_same=10**9)])
    lines = capsys.readouterr().out.splitlines()
    assert "0.856 to over 1000" in lines[1]
    assert lines[2] == "  pixel: too noisy here: it would take more than 100000 pairs; try a quieter host or phone"


def test_an_answer_says_nothing_of_what_another_one_would_take(capsys):
    compare.print_results([compared(answer="faster", ratio=0.188, low=0.17, high=0.2, needed_pairs=2421394)])
    assert "more than" not in capsys.readouterr().out


def test_how_well_a_large_ratio_is_known_stands_below_the_answer(capsys):
    compare.print_results([compared(answer="slower", ratio=62.0, low=43.7, high=125.0, known_to=2.016, reasons=[])])
    lines = capsys.readouterr().out.splitlines()
    assert "slower" in lines[1]
    assert " 62     43.7 to 125 " in lines[1]
    assert lines[2] == "  pixel: B is certainly slower: 43.7 to 125 times"


def test_that_two_builds_do_not_compute_the_same_is_said_once(capsys):
    unlike = {"unlike": ["A has 1 input, B 2 inputs"]}
    compare.print_results([compared() | unlike, compared() | {"unlike": []}, compared() | unlike])
    assert capsys.readouterr().err.splitlines() == [
        "warning: A and B do not compute the same, which their times do not tell: A has 1 input, B 2 inputs"
    ]


def test_a_profile_has_its_operators_and_what_it_cannot_see(capsys):
    operator = {
        "name": "conv", "unit": "cpu", "calls": 2, "each_ms": 0.5, "total_ms": 1.0, "share": 0.25, "shapes": [],
    }  # fmt: skip
    bench.print_profile({"device": "pixel", "profile": {"operators": [operator], "notes": ["each ran alone"]}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "pixel: operators in the model's own run"
    assert lines[2].split() == ["conv", "cpu", "2", "0.5000", "1.000", "25.0%"]
    assert lines[3] == "  pixel: each ran alone"
    bench.print_profile({"device": "pixel", "profile": {"operators": [], "notes": ["it is a package"]}})
    assert capsys.readouterr().out == "  pixel: it is a package\n"
