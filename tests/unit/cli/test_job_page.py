"""`farm job show` and the lists of jobs, as people read them; job_pages.json has the jobs."""

import json
from pathlib import Path

import pytest

from farm.cli.job import _list_lines, _outcome, print_page, print_standing
from farm.kinds import KINDS

AT, LATER = "2026-11-20T15:00:00+00:00", "2026-11-20T15:00:02.500000+00:00"
PAGES = json.loads(Path(__file__).with_name("job_pages.json").read_text())


def show(case):
    spec, state, attempts = (
        KINDS[case["kind"]].from_wire(case["spec"]),
        case.get("state", "done"),
        case.get("attempts", []),
    )
    row = {
        "id": "job-1", "kind": spec.kind, "name": "", "user": "ann", "state": state, "selector": spec.on, "device": "",
        "on": "pixel", "array": "", "priority": spec.priority, "submitted_at": AT, "attempts": len(attempts),
        "ended_at": LATER if state in ("done", "failed") else None, "error": None, "waits": "", **case.get("row", {}),
    }  # fmt: skip
    shown = {"job": row, "spec": spec.to_wire(), "after": case.get("after", ()), "attempts": attempts}
    print_page({**shown, "result": case.get("result")}, case.get("kept"))


@pytest.mark.parametrize("name", PAGES)
def test_page(at_utc, capsys, snapshot, name):
    show(PAGES[name])
    snapshot(capsys.readouterr().out)


@pytest.mark.parametrize("lacks", ["estimate", "latency"])
def test_a_result_of_another_release_is_one_line_and_the_rest_is_shown(capsys, lacks):
    case = PAGES["a bench has its table and a model by name"]
    older = {name: value for name, value in case["result"][lacks].items() if name != "median_ms"}
    show({**case, "result": case["result"] | {lacks: older}})
    lines = capsys.readouterr().out.splitlines()
    assert any("job-1 is done: bench of ann" in line for line in lines)
    assert any("pixel" in line and "2.5 s" in line for line in lines)
    (last,) = [line for line in lines if "cannot read the result" in line]
    assert ("median_" in last, last.endswith("farm job show job-1 --json")) == (True, True)


def test_a_running_search_is_shown_with_each_tasks_rates(capsys):
    row = {"name": "conv", "trials": 3, "latest_gflops": 1.0, "best_gflops": 2.0, "best_ms": 0.5}
    print_standing(None)
    print_standing({"step": "trial 3 of 9", "tuning": {"tasks": [row]}})
    said = "\ntrial 3 of 9\n  conv: 3 trials, latest 1.00 GFLOPS, best 2.00 GFLOPS, 0.5000 ms\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"result": {"verdict": "suspect", "estimate": {"median_ms": 0.481}}}, ("suspect", "0.4810 ms", "")),
        ({"result": {"comparison": {"answer": "faster", "ratio": 0.5}}}, ("faster", "B / A 0.500", "")),
        ({"result": {"speedup": {"times": 2.0}, "comparison": {"ratio": 0.5}}}, ("-", "2.00 times as fast", "")),
        ({"result": {"energy": {"net_j": 0.04}}}, ("-", "40.00 mJ", "")),
        ({"result": {"plateau": {"median_ms": 1.5}, "peak_bytes": 7}}, ("-", "1.500 ms sustained", "")),
        ({"result": {"peak_bytes": 9_000_000}}, ("-", "9.0 MB", "")),
        ({"result": {"estimate": 7, "energy": {"net_j": "x"}, "exit_code": 0}}, ("-", "exit code 0", "")),
        ({"result": {"estimate": {"median_ms": 1}, "why": "too noisy"}}, ("-", "1.000 ms", "too noisy")),
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
    rows = [{**row, "state": "done", "result": rejected}, {**row, "state": "cancelled", "waits": "by ann"}]
    lines = list(_list_lines(rows, AT, width=40))
    assert max(map(len, lines)) <= 40
    assert [line.strip() for line in lines[2::2]] == ["too noisy", "by ann"]
    assert lines[1].split()[:2] == ["bench-5af1c2", "done"]
