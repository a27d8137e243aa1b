"""What `farm bench` prints: one scale, and what lies behind it; what commands refuse before they ask a daemon."""

import pytest
from typer.testing import CliRunner

from farm.cli.main import app
from farm.cli.output import terminal
from farm.compiler.package import LIBRARY, REFERENCE, write_package
from farm.kinds import KINDS
from farm.kinds.bench.command import amount_lines, print_results, print_stats, result_lines
from farm.kinds.run.command import print_results as print_runs
from farm.measure.assess import assess
from farm.measure.conditions import LONGER, Conditions, PhoneCondition
from farm.measure.series import series
from farm.model.specs import GROUPS
from farm.results.series import OWN_REFERENCE
from farm.worker.measuring import MeasuringRun, _step
from farm.worker.timing import TakenSamples
from tests.support.golden import rows
from tests.support.packages import MADE
from tests.support.tiny_model import tiny_onnx


@pytest.fixture
def typed(monkeypatch, tmp_path):
    """Run a command of a user without a daemon, in a folder with a model and a package."""
    monkeypatch.setenv("FARM_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(tiny_onnx())
    (tmp_path / "net.farm.tar").write_bytes(write_package(MADE, {LIBRARY: b"library", REFERENCE: b"arrays"}))
    return lambda *arguments: CliRunner().invoke(app, arguments)


def result(estimate_ms, seen_ms):
    return {
        "device": "pixel", "soc": "SM8650", "target": "cpu", "identity": {}, "verdict": "trusted",
        "max_abs_error": 1e-6,
        "latency": {"median_ms": seen_ms, "min_ms": seen_ms * 0.9, "max_ms": seen_ms * 1.2, "count": 40},
        "estimate": {
            "median_ms": estimate_ms, "low_ms": estimate_ms * 0.99, "high_ms": estimate_ms * 1.01,
            "min_ms": estimate_ms * 0.95, "max_ms": estimate_ms * 1.1,
        },
        "certificate": {"count": 40},
    }  # fmt: skip


def test_the_median_is_at_the_usual_clock_and_so_are_the_stats_but_for_the_raw_median(capsys):
    found = result(1.0, 8.0)
    found["latency"] |= {"mean_ms": 8.8, "std_ms": 0.8}
    print_results([found])
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["PHONE", "MEDIAN", "95", "%", "RANGE", "VERDICT", "WHY"]
    assert row.split() == ["pixel", "1.000", "ms", "±1.0", "%", "trusted"]
    print_stats([found])
    _, head, row, foot = capsys.readouterr().out.splitlines()
    assert head.split()[::2][:4] == ["PHONE", "ms", "ms", "ms"]
    assert row.split() == ["pixel", "8.000", "1.000", "1.100", "0.9000", "1.200", "0.1000", "40", "cpu"]
    assert foot.startswith("RAW: the median as measured")


def test_why_says_how_many_samples_were_warm_up(capsys):
    found = result(1.0, 1.0)
    print_results([found | {"certificate": {"count": 42, "warmup": 2}}], why=True)
    assert capsys.readouterr().out.splitlines()[-1] == "  pixel: 2 of 42 samples are left out as warm-up"


def test_why_draws_by_how_much_the_median_may_be_off_for_what(capsys):
    parts = [
        {"code": "sampling", "cause": "285 samples scatter", "amount": 0.006},
        {"code": "burst", "cause": "4 samples in a row are outliers", "amount": 0.002},
        {"code": "follows", "cause": "the model may not follow the clock as the reference kernel", "amount": 1e-6},
    ]
    found = result(1.0, 1.0) | {"certificate": {"count": 285, "amounts": parts}}
    print_results([found])
    assert "consists of" not in capsys.readouterr().out
    print_results([found], why=True)
    head, *bars = capsys.readouterr().out.splitlines()[-3:]
    assert head == "  pixel: ±0.8 % consists of:"
    assert [each.split("±")[1] for each in bars] == [
        "0.6 %: 285 samples scatter",
        "0.2 %: 4 samples in a row are outliers",
    ]
    assert [each.count(terminal.glyphs().full) for each in bars] == [14, 4]


def test_the_parts_of_a_wide_interval_add_up_to_what_it_is_said_to_be():
    """On the log scale 0.1 and 0.7 make a half width of 0.88."""
    parts = [{"cause": "the clock", "amount": 0.7}, {"cause": "5 samples scatter", "amount": 0.1}]
    head, *bars = amount_lines(parts, 0.88, terminal.glyphs())
    assert [head, *(each.split("±")[1] for each in bars)] == [
        "±88 % consists of:", "77 %: the clock", "11 %: 5 samples scatter",
    ]  # fmt: skip


def test_a_try_that_is_measured_again_is_told_with_a_reason_of_its_own_verdict():
    throttled = Conditions(PhoneCondition(throttle_status=3))
    found = assess(series([1e-3] * 12, None, [1e-4] * 12), 1e-4, conditions=throttled)
    tries = [MeasuringRun(TakenSamples(1, 1e-3), found, "", 1.0)]
    assert _step(tries, 1).startswith("timing again (1 of 1): rejected, the phone throttled: thermal status 3 of 6")


def test_one_sample_is_printed_without_an_interval(capsys):
    found = result(1.0, 1.0)
    one = {"low_ms": None, "high_ms": None, "count": 1, "half_width": None}
    latency = {"count": 1, "mean_ms": 1.0, "std_ms": None}
    print_results([found | {"estimate": found["estimate"] | one}])
    print_stats([found | {"latency": found["latency"] | latency}])
    _, row, _, _, _, _, stats, _ = capsys.readouterr().out.splitlines()
    assert row.split()[1:4] == ["1.000", "ms", "-"]
    assert stats.split()[-3:] == ["-", "1", "cpu"]


def test_why_adds_the_tails_of_the_samples(capsys):
    found = result(1.0, 1.0)
    tails = found | {"estimate": found["estimate"] | {"p90_ms": 1.25, "p99_ms": 2.5}}
    print_results([tails, found | {"device": "zebra"}], why=True)  # of a release without
    head, row, old, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[5:] == ["P90", "P99", "VERDICT"]
    assert row.split()[5:] == ["1.250", "ms", "2.500", "ms", "trusted"]
    assert old.split()[5:] == ["-", "-", "trusted"]


@pytest.mark.parametrize(("line", "said"), rows(__file__, "not_begun"))
def test_what_cannot_end_well_is_not_begun(typed, line, said, tmp_path):
    before = sorted(tmp_path.iterdir())
    done = typed(*line.split())
    assert done.exit_code == 2 or done.exception is not None
    assert said in done.output + "".join(str(getattr(done.exception, name, "")) for name in ("message", "hint"))
    assert sorted(tmp_path.iterdir()) == before


def doubtful(device, *reasons):
    certificate = {
        "reasons": [
            {"code": "x", "verdict": verdict, "cause": cause, "hint": "cool the phone"} for verdict, cause in reasons
        ],
        "notes": ["a virtual phone"],
        "tries": [{"estimate": {"median_s": 0.001}, "verdict": "suspect", "reported": at == 0} for at in range(2)],
    }
    return result(1.0, 1.0) | {"device": device, "certificate": certificate}


def test_a_table_has_one_cause_a_phone_and_one_next_step_and_why_shows_every_reason(capsys):
    results = [
        doubtful("pixel", ("suspect", "the clock changed"), ("rejected", "two levels"), ("suspect", "it warmed up")),
        doubtful("galaxy", ("suspect", "the clock changed")),
    ]
    print_results(results, spec={"half_width": 0.01})
    assert capsys.readouterr().out.splitlines() == [
        "PHONE   MEDIAN    95 % RANGE  VERDICT  WHY",
        "galaxy  1.000 ms  ±1.0 %      trusted  the clock changed",
        "pixel   1.000 ms  ±1.0 %      trusted  two levels",
        "2 of 2 trusted (goal ±1 %). Cool the phone. Every reason: --why",
        "Outputs match the reference (1e-06). A virtual phone.",
    ]
    own = [each | {"max_abs_error": 0.0, "numerics": {"reference": OWN_REFERENCE}} for each in results]
    print_results(own)
    assert "Outputs match TVM itself on the host, nothing else (0e+00)." in capsys.readouterr().out
    print_results(results, why=True)
    assert capsys.readouterr().out.splitlines()[5:] == [
        "  pixel: two levels",
        "  pixel, galaxy: the clock changed",
        "  pixel: it warmed up",
        "  pixel, galaxy: measured 2 times: 1.000 ms (suspect), 1.000 ms (suspect); number 1 is shown",
    ]


def test_a_cause_stands_whole_below_its_row_where_80_columns_have_no_room():
    cause = "samples changed by +12.5 % from the first to the last one"
    found = [doubtful(f"huawei-mate-20-{at}", ("rejected", cause)) for at in (10, 2)]
    found[0]["estimate"] |= {"low_ms": 0.8, "high_ms": 1.97}
    assert list(result_lines(found, width=80))[:5] == [
        "PHONE              MEDIAN    95 % RANGE    VERDICT",
        "huawei-mate-20-2   1.000 ms  ±1.0 %        trusted",
        f"  {cause}",
        "huawei-mate-20-10  1.000 ms  -20 %, +97 %  trusted",
        f"  {cause}",
    ]
    assert list(result_lines(found, width=160))[1].endswith(f"trusted  {cause}")


@pytest.mark.parametrize(
    ("spec", "step"),
    [
        ({"measure_s": 30.0}, "Measure longer: --measure 2m."),
        ({"measure_s": 120.0}, "Measure longer: --measure 8m."),
        ({"measure_s": 1350.0}, "Measure longer: --measure 1h."),
        ({"measure_s": 3600.0}, "Use a quieter phone, or a wider --half-width."),
        ({"measure_s": 3600.0, "repeat": 40}, "Take more samples: --repeat 160."),
        ({"measure_s": 30.0, "repeat": 5}, "Take more samples: --repeat 40."),
        ({"measure_s": 30.0, "repeat": 20_000}, "Use a quieter phone, or a wider --half-width."),
    ],
)
def test_the_next_step_is_none_that_was_asked_for(spec, step):
    found = doubtful("pixel", ("rejected", "uncertain by ±58 %"))
    found["certificate"]["reasons"][0]["hint"] = LONGER
    assert f"1 of 1 trusted. {step}" in result_lines([found], spec=spec)


@pytest.mark.parametrize(
    ("median_ms", "low_ms", "high_ms", "shown"),
    [
        (0.0761, 0.0755, 0.0766, "76.10 µs  -0.79 %, +0.66 %"),
        (0.175, 0.14, 0.345, "0.1750 ms  -20 %, +97 %"),
        (2500.0, 2475.0, 2525.0, "2.500 s  ±1.0 %"),
    ],
)
def test_units_and_ranges(median_ms, low_ms, high_ms, shown):
    found = result(median_ms, median_ms)
    found["estimate"] |= {"low_ms": low_ms, "high_ms": high_ms}
    assert shown in list(result_lines([found]))[1]


@pytest.mark.parametrize(
    ("command", "option", "heading"),
    [
        ("bench", "--half-width", "the measurement"),
        ("bench", "--stats", "the output"),
        ("bench", "--runtime-folder", "the runtime"),
        ("program run", "--runs", "the measurement"),
        ("compare", "--records-b", "B"),
        ("tune", "--trials", "the search"),
        ("lease acquire", "--wait", "the queue"),
    ],
)
def test_the_help_has_options_under_the_headings_of_their_fields(typed, command, option, heading):
    lines = typed(*command.split(), "--help").output.splitlines()
    headings = [line.rstrip(":") for line in lines if line.startswith("Options")]
    assert headings == [each for each in ("Options", *GROUPS) if each in headings]
    above = lines[: next(at for at, line in enumerate(lines) if line.startswith(f"  {option}"))]
    assert next(line for line in reversed(above) if line.endswith(":") and line[0] != " ") == f"Options of {heading}:"


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_have_few_options_without_a_heading(typed, kind):
    command = {"lease": "lease acquire", "program": "program run"}.get(kind, kind)
    lines = typed(*command.split(), "--help").output.splitlines()
    begin = lines.index("Options:") + 1
    own = lines[begin : lines.index("", begin)]
    assert sum(line.startswith("  -") for line in own) <= 7


@pytest.mark.parametrize(
    ("numerics", "said"),
    [
        ({"reference": "onnx.reference"}, "pixel: outputs match the reference (0.0e+00)\n"),
        (
            {"reference": OWN_REFERENCE, "note": "no evaluator"},
            "pixel: outputs match TVM itself on the host, nothing else (0.0e+00): no evaluator\n",
        ),
    ],
)
def test_a_run_says_what_its_outputs_were_compared_with(capsys, numerics, said):
    print_runs([{"device": "pixel", "max_abs_error": 0.0, "numerics": numerics, "arrays": [], "fill": "zeros"}])
    assert capsys.readouterr().err == said


def test_a_run_that_locates_says_what_is_wrong_and_who_is_to_blame(capsys):
    found = {
        "blame": "phone", "reason": "this host computes it right in float32", "operator": "Conv (node 'c')",
        "kernel": "fused_conv2d_add", "problem": "off by 1 (10 times the limit)", "tensor": "1x8x4x4 float32",
        "operators": 12, "uploads": 3,
    }  # fmt: skip
    nothing = {**dict.fromkeys(found, ""), "reason": "all outputs are right", "uploads": 1, "operators": 0}
    print_runs([{"device": name, "located": each} for name, each in (("pixel", found), ("moto", nothing))])
    assert capsys.readouterr().out == (
        "pixel: the first wrong operator is Conv (node 'c'): off by 1 (10 times the limit)\n"
        "pixel: its kernel is fused_conv2d_add, its output 1x8x4x4 float32\n"
        "pixel: to blame is the phone: this host computes it right in float32\n"
        "pixel: 3 uploads, 12 operators\n"
        "moto: all outputs are right\n"
        "moto: 1 upload\n"
    )
