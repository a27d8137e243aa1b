"""`farm job show`, as people read it."""

import pytest

from farm.cli.job import _list_lines, _outcome, print_page, print_standing
from farm.kinds.bench.spec import BenchSpec
from farm.kinds.compare.spec import CompareSpec
from farm.kinds.lease.spec import LeaseSpec
from farm.kinds.run.spec import RunSpec
from farm.kinds.shell.spec import ShellSpec
from farm.kinds.tune.spec import TuneSpec

AT, LATER = "2026-11-20T15:00:00+00:00", "2026-11-20T15:00:02.500000+00:00"
HASH = "0123456789abcdef" * 4


@pytest.fixture
def page(capsys):
    """The lines of a job's page."""

    def lines(spec, *, state="done", result=None, attempts=(), after=(), kept=None, **row):
        job = {
            "id": "job-1", "kind": spec.kind, "name": "", "user": "ann", "state": state, "selector": spec.on,
            "device": "", "on": "pixel", "array": "", "priority": spec.priority, "submitted_at": AT,
            "ended_at": LATER if state in ("done", "failed") else None, "attempts": len(attempts), "error": None,
            "waits": "", **row,
        }  # fmt: skip
        shown = {"job": job, "spec": spec.to_wire(), "after": after, "attempts": attempts, "result": result}
        print_page(shown, kept)
        return capsys.readouterr().out.splitlines()

    return lines


def attempt(**fields):
    return {
        "id": "job-1.1", "number": 1, "device": "pixel", "fence": 1, "lease": "L1", "state": "done",
        "started_at": AT, "ended_at": LATER, "error": None,
    } | fields  # fmt: skip


def test_a_bench_has_its_table_and_a_model_by_name(page):
    spec = BenchSpec(on="android", model=HASH, name="net.onnx", repeat=7, hold=True, shapes={"x": (1, 3)})
    names = ("min_ms", "median_ms", "mean_ms", "max_ms", "std_ms", "low_ms", "high_ms")
    latency = {"count": 7, **dict.fromkeys(names, 1.5)}
    result = {
        "soc": "SM8650", "target": "cpu", "identity": {}, "latency": latency, "estimate": latency,
        "verdict": "trusted", "max_abs_error": 1e-6,
    }  # fmt: skip
    text = "\n".join(page(spec, result=result, attempts=[attempt()]))
    assert "job-1 is done: bench of ann, priority" in text
    assert "net.onnx (0123456789ab)" in text
    assert HASH not in text
    assert "options   shape x:[1,3], repeat 7" in text  # neither the defaults nor that it was held once
    assert "2.5 s" in text
    assert "1.500 ms  ±0.0 %" in text
    assert "{" not in text


@pytest.mark.parametrize("lacks", ["estimate", "latency"])
def test_a_result_of_another_release_is_one_line_and_the_rest_is_shown(page, lacks):
    names = ("min_ms", "median_ms", "mean_ms", "max_ms", "std_ms", "low_ms", "high_ms")
    latency = {"count": 7, **dict.fromkeys(names, 1.5)}
    older = {name: value for name, value in latency.items() if name != "median_ms"}
    result = {"soc": "", "target": "cpu", "identity": {}, "estimate": latency, "latency": latency, "verdict": "trusted"}
    spec = BenchSpec(on="android", model=HASH, name="net.onnx")
    lines = page(spec, result=result | {lacks: older}, attempts=[attempt()])
    assert any("job-1 is done: bench of ann" in line for line in lines)
    assert any("pixel" in line and "2.5 s" in line for line in lines)
    (last,) = [line for line in lines if "cannot read the result" in line]
    assert "median_" in last
    assert last.endswith("farm job show job-1 --json")


def test_a_bench_that_is_not_trusted_says_why(page):
    names = ("min_ms", "median_ms", "mean_ms", "max_ms", "std_ms", "low_ms", "high_ms")
    latency = {"count": 7, **dict.fromkeys(names, 1.5)}
    tries = [
        {"estimate": {"median_s": 0.0021}, "verdict": "rejected", "reported": False},
        {"estimate": {"median_s": 0.0012}, "verdict": "suspect", "reported": True},
    ]
    result = {
        "soc": "SM8650", "target": "cpu", "identity": {}, "latency": latency, "max_abs_error": None,
        "estimate": {"median_ms": 1.25, "low_ms": 1.2, "high_ms": 1.3, "min_ms": 1.1, "max_ms": 1.4},
        "verdict": "suspect",
        "certificate": {
            "reasons": [{"code": "few_samples", "cause": "only 7 samples, 30 needed"}], "tries": tries,
            "notes": ["a virtual phone"],
        },
    }  # fmt: skip
    lines = page(BenchSpec(on="android", model=HASH, name="net.onnx"), result=result)
    assert any("1.250 ms  ±4.0 %" in line and "suspect" in line for line in lines)
    assert lines[-4:] == [
        "0 of 1 trusted (goal ±1 %).",
        "A virtual phone.",
        "  pixel: only 7 samples, 30 needed",
        "  pixel: measured 2 times: 2.100 ms (rejected), 1.200 ms (suspect); number 2 is shown",
    ]


def test_a_comparison_has_its_answer_and_what_b_is(page):
    spec = CompareSpec(on="android", model=HASH, name="a.onnx", model_b=HASH, name_b="b.onnx", precision_b="float16")
    side = {"latency": {"median_ms": 1.5}, "max_abs_error": 1e-6}
    comparison = {
        "answer": "slower", "ratio": 1.1, "low": 1.05, "high": 1.15, "pairs": 24, "needed_pairs": 20, "reasons": [],
    }  # fmt: skip
    result = {"device": "pixel", "comparison": comparison, "a": side, "b": side, "certificate": {"notes": []}}
    lines = page(spec, result=result)
    assert "  options   model_b 0123456789ab, name_b b.onnx, precision_b float16" in lines
    assert any("slower" in line and "1.050 to 1.150" in line for line in lines)


def test_a_run_names_its_outputs_and_how_to_get_them(page):
    arrays = [{"name": "probs", "shape": [1, 10], "dtype": "float32"}]
    spec = RunSpec(on="android", model=HASH, name="net.onnx", inputs=HASH)
    lines = page(spec, result={"outputs": HASH, "arrays": arrays})
    assert "  options   inputs 0123456789ab" in lines
    assert any("probs" in line and "1 x 10" in line for line in lines)
    assert "outputs: farm job output job-1 -o FILE.npz" in lines


def test_a_failed_line_shows_what_it_said(page):
    error = {"fault": "user", "code": "command_failed", "message": "its exit code is 3", "hint": "look", "exit": 1}
    lines = page(
        ShellSpec(on="android", command="false"), state="failed", error=error,
        attempts=[attempt(state="failed", error=error)], result={"exit_code": 3, "stdout": "one\ntwo\n", "stderr": ""},
    )  # fmt: skip
    assert "  command   false" in lines
    assert "  error     its exit code is 3" in lines
    assert lines[-4:] == ["exit code 3", "stdout:", "one", "two"]


def test_what_waits_says_why_and_for_whom(page):
    lines = page(
        LeaseSpec(on="android", seconds=1800, note="debug"), state="blocked", on="", after=["job-0"],
        waits="it waits for job-0, which is held",
    )  # fmt: skip
    assert "  for       30m: debug" in lines
    assert "  after     job-0" in lines
    assert "  waits     it waits for job-0, which is held" in lines


def test_a_tuning_run_has_its_tasks_and_what_it_brought(page):
    task = {
        "name": "conv",
        "weight": 2,
        "trials": 9,
        "failed": 1,
        "default_ms": 2.0,
        "best_ms": 0.5,
        "best_gflops": 4.0,
        "kept_own": False,
    }
    kept = {**task, "name": "relu", "best_ms": 2.5, "kept_own": True}
    gain = {
        "answer": "faster", "times": 2.5, "low": 2.4, "high": 2.6, "confidence": 0.99,
        "tuned_ms": 4.0, "untuned_ms": 10.0,
    }  # fmt: skip
    result = {
        "tasks": [task, kept], "trials": 9, "wanted_trials": 9, "earlier_trials": 0, "ended": "trials", "search_s": 3.0,
        "phones": [], "device": "pixel", "speedup": gain, "notes": [], "records": {"name": "net.onnx", "version": 1},
    }  # fmt: skip
    lines = page(TuneSpec(on="android", model=HASH, name="net.onnx", trials=9), result=result, attempts=[attempt()])
    assert "conv  2       9       1       2.000 ms  0.5000 ms  4.00    best" in lines
    assert "relu  2       9       1       2.000 ms  2.500 ms   4.00    TVM's own" in lines
    assert "speed-up   2.50 times (99% interval 2.40 to 2.60)" in lines
    assert "records    version 1 of net.onnx" in lines


def test_a_tuning_that_failed_says_what_it_kept(page):
    lines = page(
        TuneSpec(on="android", model=HASH, name="net.onnx", trials=9), state="failed", kept={"set": 7, "records": 12}
    )
    assert "  records   12 trials were kept: --prior 7 goes on from them" in lines


def test_a_running_search_is_shown_with_each_tasks_rates(capsys):
    row = {"name": "conv", "trials": 3, "latest_gflops": 1.0, "best_gflops": 2.0, "best_ms": 0.5}
    print_standing({"step": "trial 3 of 9", "tuning": {"tasks": [row]}})
    assert (
        capsys.readouterr().out == "\ntrial 3 of 9\n  conv: 3 trials, latest 1.00 GFLOPS, best 2.00 GFLOPS, 0.5000 ms\n"
    )
    print_standing(None)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"result": {"verdict": "suspect", "estimate": {"median_ms": 0.481}}}, ("suspect", "0.4810 ms", "")),
        ({"result": {"verdict": "trusted", "estimate": {"median_ms": 0.07389}}}, ("trusted", "73.89 µs", "")),
        ({"result": {"comparison": {"answer": "faster", "ratio": 0.5}}}, ("faster", "B/A 0.500", "")),
        ({"result": {"exit_code": 3}}, ("-", "exit code 3", "")),
        ({"waits": "no phone is free"}, ("-", "-", "no phone is free")),
        ({"error": {"message": "the phone went away"}}, ("-", "-", "the phone went away")),
        ({}, ("-", "-", "")),
    ],
)
def test_a_job_in_a_list_has_its_result_or_why_there_is_none(row, shown):
    assert _outcome({"waits": "", "error": None, **row}) == shown


def test_a_list_fits_a_narrow_terminal_and_says_why_a_result_is_not_trusted():
    row = {
        "id": "bench-5af1c2", "array": "bench-5af1c0", "kind": "bench", "name": "mobilenet_v2.onnx", "user": "ann",
        "on": "huawei-mate-20", "device": "", "attempts": 1, "submitted_at": AT, "started_at": AT, "ended_at": AT,
        "waits": "", "error": None,
    }  # fmt: skip
    rejected = {"verdict": "rejected", "estimate": {"median_ms": 0.162}, "why": "too noisy"}
    lines = list(
        _list_lines(
            [{**row, "state": "done", "result": rejected}, {**row, "state": "cancelled", "waits": "by ann"}],
            AT,
            width=40,
        )
    )
    assert max(map(len, lines)) <= 40
    assert [line.strip() for line in lines[2::2]] == ["too noisy", "by ann"]
    assert lines[1].split()[:2] == ["bench-5af1c2", "done"]
