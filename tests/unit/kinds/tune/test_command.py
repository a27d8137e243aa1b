"""What `farm tune` prints: its standing at a terminal and elsewhere, its end, the curve."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farm.cli.output.plots import svg
from farm.kinds.tune.command import Live
from farm.kinds.tune.summary import (
    MAX_TASKS,
    Typed,
    build_options,
    next_command,
    print_result,
    summary_lines,
    task_lines,
)

SLOWER = "b runs the reference kernel 20% slower"
RESULT = {
    "trials": 64, "wanted_trials": 64, "earlier_trials": 12, "ended": "trials", "search_s": 200.0, "device": "a",
    "phones": [
        {"device": "a", "trials": 40, "factor": 1.0, "left_out": ""},
        {"device": "b", "trials": 24, "factor": 1.2, "left_out": SLOWER, "lost": ""},
        {"device": "c", "trials": 0, "factor": None, "left_out": "", "lost": "its host two is lost"},
    ],
    "speedup": {"answer": "faster", "times": 2.5, "low": 2.4, "high": 2.6, "confidence": 0.99, "tuned_ms": 4.0,
                "untuned_ms": 10.0},
    "tasks": [{"name": "conv", "trials": 64}],
    "max_abs_error": 1e-6, "records": {"name": "net.onnx", "version": 3}, "package": "f" * 64,
}  # fmt: skip


def event(tuning):
    return SimpleNamespace(data={"tuning": {"trials": 1}} if tuning else {})


def test_at_a_terminal_the_standing_overwrites_itself(capsys):
    written = []
    live = Live(tty=True, write=written.append)
    live.show(event(True), "trial 1")
    live.show(event(True), "trial 2")
    live.show(event(False), "keeping the records")
    assert written == ["\r\x1b[Ktrial 1", "\r\x1b[Ktrial 2", "\n"]
    assert capsys.readouterr().err == "keeping the records\n"


def test_elsewhere_each_line_stands_alone(capsys):
    now_s = 0.0
    live = Live(tty=False, clock=lambda: now_s)

    def told(trials, line, waits=""):
        standing = {"trials": trials, "wanted": 9, "waits": waits}
        live.show(cast(Any, SimpleNamespace(data={"tuning": standing})), line)

    told(1, "trial 1")
    told(2, "so soon")
    now_s = 60.0
    told(1, "the same, but for the time left")
    told(3, "trial 3")
    told(3, "1 of 2 phones", "b is held for 5 s")
    told(3, "1 of 2 phones again", "b is held for 4 s")
    told(9, "trial 9")
    told(9, "trial 9 again")
    live.show(event(False), "keeping the records")
    live.end()
    assert capsys.readouterr().err.splitlines() == [
        "trial 1", "trial 3", "1 of 2 phones", "trial 9", "keeping the records",
    ]  # fmt: skip


def test_the_end_says_what_it_took_and_what_it_brought():
    assert summary_lines(RESULT) == [
        "trials     64 of 64, 12 of them by earlier attempts: all trials are done",
        "time       3m 20s of search",
        "phone      a: 40 trials, 1.000 of the first phone's time for the same work",
        f"phone      b: 24 trials, 1.200 of the first phone's time for the same work; left out: {SLOWER}",
        "phone      c: 0 trials; lost: its host two is lost",
        "latency    4.000 ms tuned, 10.00 ms untuned, on a",
        "speed-up   2.50 times (99% interval 2.40 to 2.60)",
        "numbers    off by 1.0e-06 at most from the reference",
    ]
    doubtful = {**RESULT["speedup"], "answer": "cannot tell"}
    by_few = {**RESULT, "speedup": doubtful, "comparison": {"pairs": 32}}
    assert summary_lines(by_few)[-2].endswith("(99% interval 2.40 to 2.60): cannot tell by only 32 pairs of samples")
    assert summary_lines({**by_few, "speedup": {**doubtful, "low": 0.9}})[-2].endswith(": cannot tell")


def test_the_next_command_is_one_to_type():
    typed = Typed(model="my nets/net.onnx", on="android", job="tune-1", prior="7")
    assert next_command(RESULT, typed) == (
        "farm job output tune-1 -o net.farm.tar && farm bench net.farm.tar --on android"
    )
    written = replace(typed, output=Path("a b.farm.tar"))
    assert next_command(RESULT, written) == "farm bench 'a b.farm.tar' --on android"
    assert next_command(RESULT, replace(written, on="host")) == "farm run 'a b.farm.tar' --on host"


def test_what_brought_nothing_is_not_recommended():
    options = build_options(
        {"target": "adreno", "precision": "float16", "shapes": {"x": [1, 3]}, "dtypes": {"x": "int8"}, "seed": 3}
    )
    typed = Typed(model="my nets/net.onnx", on="android", options=options, job="tune-1", prior="7")
    slower = {**RESULT, "speedup": {**RESULT["speedup"], "answer": "slower", "times": 0.68, "low": 0.62, "high": 0.73}}
    assert summary_lines(slower)[-2].endswith(
        "(99% interval 0.62 to 0.73): SLOWER than untuned, do not use it; try more trials, or a quieter phone"
    )
    on = (
        "farm tune 'my nets/net.onnx' --on android --target adreno --precision float16 --shape 'x:[1,3]' --dtype x:int8"
    )
    assert next_command(slower, typed) == f"{on} --trials 256 --prior 7"
    same = {**RESULT, "compile": {"tuned": False}}
    assert summary_lines(same)[-3:-1] == [
        "latency    10.00 ms on a",
        "speed-up   none: no schedule was faster than TVM's own, so both builds are the same; try more trials",
    ]
    assert next_command(same, replace(typed, on="host", prior="", options=())) == (
        "farm tune 'my nets/net.onnx' --on host --trials 256"
    )


def test_a_build_that_was_not_measured_faster_is_no_next_step_and_untried_tasks_are_said(
    capsys,
):
    doubtful = {**RESULT["speedup"], "answer": "cannot tell", "times": 0.51, "low": 0.23, "high": 1.02}
    row = {"weight": 1, "failed": 0, "default_ms": None, "best_ms": None, "best_gflops": None}
    tasks = [{**row, "name": f"conv{number}", "trials": int(number < 4)} for number in range(13)]
    result = {
        **RESULT,
        "wanted_trials": 2,
        "speedup": doubtful,
        "tasks": tasks,
        "notes": [],
        "comparison": {"pairs": 9},
    }
    assert "untried    9 of 13 tasks never had a candidate: --trials at least 13" in summary_lines(result)
    typed = Typed(model="net.onnx", on="android", job="tune-1", output=Path("net.farm.tar"), prior="7")
    assert next_command(result, typed) == "farm tune net.onnx --on android --trials 13 --prior 7"
    print_result(result, typed)
    assert "net.farm.tar was measured no faster than a build without tuning" in capsys.readouterr().err
    print_result(RESULT | {"tasks": tasks[:4], "notes": []}, typed)
    assert "warning" not in capsys.readouterr().err


def test_what_the_tasks_take_is_apart_from_what_the_model_takes():
    row = {"trials": 32, "weight": 2, "default_ms": 3.0, "best_ms": 1.0}
    tasks = [row, {**row, "weight": 1, "best_ms": 4.0}]
    line = next(each for each in summary_lines({**RESULT, "tasks": tasks}) if each.startswith("tasks"))
    assert line.startswith("tasks      9.000 ms untuned, 5.000 ms with the schedules used: all tasks together")
    unknown = [row, {**row, "default_ms": None}]
    assert not [each for each in summary_lines({**RESULT, "tasks": unknown}) if each.startswith("tasks")]


@pytest.mark.parametrize(
    ("speedup", "told"),
    [
        (
            {"answer": "cannot tell", "low": 0.01, "high": 7142.13, "known_to": 2857.0},
            "2.50 times (99% interval 0.010 to over 1000): cannot tell",
        ),
        ({"times": 62.0, "low": 43.7, "high": 125.0, "known_to": 2.02}, "62.00 times (99% interval 43.70 to 125)"),
    ],
)
def test_no_bound_has_seven_digits(speedup, told):
    (line,) = (
        each for each in summary_lines({**RESULT, "speedup": RESULT["speedup"] | speedup}) if each.startswith("speed")
    )
    assert line == f"speed-up   {told}"


@pytest.mark.parametrize("curve", [[], [[1, 0.5, 0.01]], [[1, 0.5, 0.01], [9, 3.0, 0.002]]])
def test_the_curve_is_a_picture(curve):
    picture = ET.fromstring(svg(curve, 16, "a < b & c"))
    assert "a < b & c" in [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    [path] = picture.iter("{http://www.w3.org/2000/svg}path")
    assert path.get("d", "").count("V") == max(0, len(curve) - 1)


def test_each_tasks_rates_are_told_now_and_then_and_only_news_of_them(capsys):
    def row(name, trials, best):
        best_ms = None if best is None else 1 / best
        return {"name": name, "trials": trials, "latest_gflops": 1.5, "best_gflops": best, "best_ms": best_ms}

    now_s = 0.0
    live = Live(tty=True, write=lambda _: None, clock=lambda: now_s)
    live.line("trial 2", {"trials": 2, "wanted": 9, "tasks": [row("conv", 1, 2.0), row("add", 0, None)]})
    live.line("trial 3", {"trials": 3, "wanted": 9, "tasks": [row("conv", 2, 2.5), row("add", 0, None)]})
    now_s = 60.0
    live.line("trial 4", {"trials": 4, "wanted": 9, "tasks": [row("conv", 2, 2.5), row("add", 1, None)]})
    live.line("trial 9", {"trials": 9, "wanted": 9, "tasks": [row("conv", 2, 2.5), row("add", 6, 0.5)]})
    assert capsys.readouterr().err.splitlines() == [
        "  conv: 1 trial, latest 1.50 GFLOPS, best 2.00 GFLOPS, 0.5000 ms",
        "  conv: 2 trials, latest 1.50 GFLOPS, best 2.50 GFLOPS, 0.4000 ms",
        "  add: 1 trial, latest 1.50 GFLOPS, best -",
        "  add: 6 trials, latest 1.50 GFLOPS, best 0.50 GFLOPS, 2.000 ms",
    ]
    many = {"tasks": [row(f"task{number}", 1, 1.0) for number in range(MAX_TASKS + 30)]}
    assert len(task_lines(many)) == MAX_TASKS + 1
    assert task_lines(many)[-1] == "  and 30 tasks more"
