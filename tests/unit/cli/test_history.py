"""`farm history`, `farm compare` and `farm bench`, as people read them."""

import pytest

from farm.cli.history import PLOT_COLUMNS, SPARE, SPARE_BESIDE_PLOT, _series_json, drawn, plot_columns
from farm.cli.output import table
from farm.kinds.bench import command as bench
from farm.kinds.compare import command as compare
from farm.results.series import columns_of, series_of
from tests.support.history_rows import energy, history, measured, memory, row


def by(kernel, nominal_s):
    return {"reference": {"kernel": kernel, "median_s": 0.001, "nominal_s": nominal_s}}


def corrected(number, then_s):
    """A flat model's result; the phone's nominal was taken for `then_s` on its day and is 1 ms today."""
    found = row(number, 10 * then_s, **by("k", then_s))
    times = {name: value * 0.001 / then_s for name, value in found["estimate"].items()}
    return found | {"today": {"nominal_s": 0.001, **times}}


def one_sample(number, median_s=0.010):
    return row(number) | {"estimate": {"median_s": median_s, "low_s": None, "high_s": None, "count": 1}}


TEN = range(1, 11)
STEPPED = [0.010] * 6 + [0.0112] * 4
SLOW = [*[row(number) for number in range(1, 5)], *[row(n, 0.02, verdict="rejected") for n in range(5, 9)]]
APART = [
    row(1), row(2, epoch="x/y:15"), row(3, device="galaxy"), row(4, precision="float16"), row(5, model="b" * 64),
    row(6, tuned=True),
]  # fmt: skip
PROGRAM = {"tvm": "", "runtime": {"name": "ort", "version": "1.31"}, "target": "ort", "placement": "threads=2"}
NOMINALS = [0.00168, 0.00168, 0.00168, 0.00104, *[0.001] * 4]
MICRO = {"nominal_s": 0.0005, "median_s": 9e-5, "low_s": 8.9e-5, "high_s": 9.1e-5}
KERNELS = [
    *[row(number, **by("old", 0.001)) for number in range(1, 7)],
    *[row(number, 0.0106, **by("new", 0.00106)) for number in range(7, 13)],
]
OLD_SAMPLE = row(1) | {"estimate": {"median_s": 0.01, "low_s": 0.01, "high_s": 0.01, "count": 1}}


def without_median(wrong):
    return row(2) | {"estimate": {"median_s": wrong, "low_s": 0.009, "high_s": 0.01}}


SHOWN = {
    "a regression with the job it began with": ("", [row(n, s) for n, s in zip(TEN, STEPPED, strict=True)]),
    "a regression that was fixed": ("", [row(n, 0.0112 if 7 <= n <= 10 else 0.01) for n in range(1, 15)]),
    "what may not be compared stands apart": ("", APART),
    "a history of one phone": ("--device galaxy", APART),
    "the newest name, and what results ran under": ("", [row(1, name="old"), row(2), row(3, **PROGRAM)]),
    "todays nominal is another figure, and no improvement":
        ("", [corrected(number, then_s) for number, then_s in enumerate(NOMINALS, 1)]),
    "an unchanged nominal is not told": ("", [row(1, **by("k", 0.001)), row(2)]),
    "a row has one unit": ("", [row(1, 0.000168, **by("k", 0.001), today=MICRO)]),
    "a commit where a result has one": ("", [row(1), row(2, commit="0123456789abcdef", branch="main")]),
    "another reference kernel begins another line, found on a warm day": ("", KERNELS),
    "one sample has no interval and is judged nowhere":
        ("--plot", [one_sample(n, 0.5) if n == 2 else row(n, s) for n, s in zip(TEN, STEPPED, strict=True)]),
    "a step of single samples is no regression": ("", [one_sample(n, 0.01 if n < 7 else 0.02) for n in TEN]),
    "one sample of an older release has no interval either": ("", [OLD_SAMPLE]),
    "results that are not trusted are shown and left out": ("", SLOW),
    "intervals on one scale": ("--plot", [row(1), row(2, 0.02)]),
    "a result without a median is left out": ("", [row(1), without_median(None), row(3)]),
    "no result with a median": ("", [without_median(None)]),
    "joules have a line of their own, and a regression":
        ("--plot", [row(1), *[energy(n, 0.01 if n < 8 else 0.0112) for n in range(2, 14)], energy(14, method="gauge")]),
    "a cold start has a line for each metric, and one reading is judged by the others":
        ("", [memory(n, 274.3e6 if n < 7 else 250e6) for n in TEN]),
    "a run of minutes has its end and its slowdown":
        ("", [measured(n, "sustain", latency_at_the_end=(0.02, 0.0199, 0.0201), slowdown=1.3)
              | {"method": "for 30m"} for n in range(1, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_history(answers, farm, snapshot, name):
    options, rows = SHOWN[name]
    answers |= history(*rows)
    snapshot(str(farm(f"history net {options}")))


def test_a_model_that_was_not_measured(answers, farm):
    answers |= history(row(1))
    assert "nothing called other was measured" in farm("history other").err


def test_series_are_of_one_build_one_phone_and_one_kernel():
    assert len(series_of(APART)) == 6
    assert [found[0]["kernel"] for found in series_of(KERNELS)] == ["new", "old"]
    (series,) = series_of([row(1, commit="0123456789abcdef")])
    assert _series_json(series, ())["results"][0]["commit"] == "0123456789abcdef"
    assert columns_of(OLD_SAMPLE)["low_s"] is None


@pytest.mark.parametrize("wrong", [None, 0, float("inf")])
def test_a_result_without_a_median_is_in_no_series(wrong):
    assert [each["seq"] for found in series_of([row(1), without_median(wrong), row(3)]) for each in found] == [1, 3]


@pytest.mark.parametrize(
    ("result", "scale", "shown"),
    [
        (row(1, 0.010), (0.00999, 0.02002), "o"),
        (row(2, 0.020), (0.00999, 0.02002), " " * (PLOT_COLUMNS - 1) + "o"),
        (row(1) | {"estimate": {"median_s": 0.5, "low_s": 1e-9, "high_s": 1.0}}, (0.0, 1.0), "-" * 20 + "o" + "-" * 19),
    ],
)
def test_intervals_are_drawn_on_one_scale(result, scale, shown):
    assert drawn(result, *scale) == shown


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
def test_intervals_keep_their_scale_in_a_narrow_terminal(width):
    """They were cut as words are: those beyond the cut looked alike."""
    titles = ["  WHEN", "MEDIAN", "95 % RANGE", "VERDICT", "RUNTIME", "JOB", "10.14 µs .. 187.8 µs"]
    cells = ["  2026-11-30 19:22", "33.35 µs", "-70 %, +130 %", "rejected", "TVM 0.27.0.post1", "bench-9171f4e167b2"]
    wide = plot_columns(titles, [cells], width)
    lines = [*table(titles, [[*cells, "-" * wide]], width=width, spare=(*SPARE, *SPARE_BESIDE_PLOT, titles[-1]))]
    assert ("…" in lines[1], lines[1].endswith("-" * wide)) == (False, width > 60)
    assert max(map(len, lines)) <= width


def compared(unlike=(), **fields):
    comparison = {
        "answer": "cannot tell", "ratio": 1.02, "low": 0.98, "high": 1.07, "pairs": 24, "needed_pairs": 300,
        "needed_same": 900, "find_effect": 0.03, "reasons": [{"cause": "the ratio went between two levels"}],
    }  # fmt: skip
    side = {"latency": {"median_ms": 1.5}, "max_abs_error": None}
    return {
        "device": "pixel", "comparison": comparison | fields, "a": side, "b": side | {"max_abs_error": 1e-6},
        "certificate": {"notes": ["a virtual phone"]}, "unlike": list(unlike),
    }  # fmt: skip


NOISY = {"low": 0.856, "high": 7142.13, "needed_pairs": 2421394, "needed_same": 10**9}
FASTER = {"answer": "faster", "ratio": 0.188, "low": 0.17, "high": 0.2, "needed_pairs": 2421394}
SLOWER = {"answer": "slower", "ratio": 62.0, "low": 43.7, "high": 125.0, "known_to": 2.016, "reasons": []}
INPUTS = ["A has 1 input, B 2 inputs"]
COMPARED = {
    "cannot tell": ([compared()], {}),
    "cannot tell, and why": ([compared()], {"why": True}),
    "too noisy": ([compared(**NOISY)], {}),
    "faster": ([compared(**FASTER)], {}),
    "much slower": ([compared(**SLOWER)], {}),
    "not alike, said once": ([compared(INPUTS), compared(), compared(INPUTS)], {}),
}


@pytest.mark.parametrize("name", COMPARED)
def test_compare(capsys, snapshot, name):
    results, options = COMPARED[name]
    compare.print_results(results, **options)
    snapshot("".join(capsys.readouterr()), f"compare {name}")


def test_a_profile_has_its_operators_and_what_it_cannot_see(capsys, snapshot):
    operator = {
        "name": "conv", "unit": "cpu", "calls": 2, "each_ms": 0.5, "total_ms": 1.0, "share": 0.25, "shapes": [],
    }  # fmt: skip
    bench.print_profile({"device": "pixel", "profile": {"operators": [operator], "notes": ["each ran alone"]}})
    bench.print_profile({"device": "pixel", "profile": {"operators": [], "notes": ["it is a package"]}})
    snapshot(capsys.readouterr().out)
