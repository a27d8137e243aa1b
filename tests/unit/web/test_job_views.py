"""Jobs as pages show them: filters, words, files, places in the queue, lines of history."""

from __future__ import annotations

import csv
import io
from typing import Any
from urllib.parse import parse_qs

import pytest

from farm.common.durations import took
from farm.common.errors import UserError
from farm.kinds import KINDS
from farm.model.identity import target_words
from farm.model.job import FINAL, JobState
from farm.web.job_views import (
    STATES,
    Filter,
    csv_of,
    facts,
    files_of,
    job_tone,
    lenient,
    outcome,
    reasons,
    why,
)
from farm.web.leases import queue_rows
from farm.web.measured import build_words, line_plots, row_times
from farm.web.rendering import TONES, linked, model_name

SHA = "ab" * 32


def row(**fields):
    return {"id": "bench-1", "state": "queued", "waits": "", "error": None, "progress": None,
            "selector": "android", "device": "", "priority": 1, **fields}  # fmt: skip


def test_a_filter_is_asked_as_the_verb_wants_it():
    assert Filter().asked() == {
        "limit": 50,
        "user": "",
        "of_kind": "",
        "text": "",
        "selector": "",
        "device": "",
        "before": "",
    }
    asked = Filter(state="live", text=" x ", selector="gpu=b,soc=a").asked()
    assert set(asked["state"]) == set(JobState) - FINAL
    assert (asked["text"], asked["selector"]) == ("x", "gpu=b,soc=a")
    assert "text" not in Filter(array="a", text="x").asked()  # the verb refuses both
    with pytest.raises(UserError):
        Filter(selector="soc=").asked()


def test_a_filter_s_address_has_what_is_not_empty():
    wanted = Filter(state="done", text="a b&c", before="j1")
    assert parse_qs(wanted.query()[1:]) == {"state": ["done"], "text": ["a b&c"], "before": ["j1"]}
    assert wanted.query(state="", text="", before="") == ""
    assert wanted.narrow
    assert not Filter(before="j1").narrow


def test_mine_are_those_of_the_reader_and_sorting_looks_at_more_jobs():
    assert Filter(mine="1", user="bob").asked("ann")["user"] == "ann"
    assert Filter(mine="1", user="bob").asked()["user"] == "bob"  # nobody is signed in
    assert Filter(sort="took").asked()["limit"] > Filter().asked()["limit"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("took", ["b", "c", "a"]),
        ("-took", ["c", "b", "a"]),
        ("-result", ["b", "a", "c"]),
        ("nonsense", ["a", "b", "c"]),
    ],
)
def test_jobs_without_a_value_come_last(sort: str, order: list[str]):
    def timed(name: str, seconds: int | None, median_ms: float | None):
        ended = None if seconds is None else f"2026-11-22T06:00:{seconds:02}+00:00"
        result = {"estimate": {"median_ms": median_ms}} if median_ms else None
        return row(id=name, started_at="2026-11-22T06:00:00+00:00", ended_at=ended, result=result)

    jobs = [timed("a", None, 1.5), timed("b", 2, 2.5), timed("c", 11, None)]
    assert [each["id"] for each in Filter(sort=sort).in_order(jobs)] == order


def test_no_cell_of_the_csv_is_computed_by_a_spreadsheet():
    hostile = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", 'a "b", c', "plain"]
    times = {"submitted_at": "2026-11-22T06:00:00+00:00", "started_at": None, "ended_at": None}
    text = csv_of(
        row(**times, kind="shell", name=name, user="ann", state="failed", on="", attempts=0, error={"message": "-x"})
        for name in hostile
    )
    titles, *rows = list(csv.reader(io.StringIO(text, newline="")))
    read = [dict(zip(titles, cells, strict=True)) for cells in rows]
    assert [each["name"] for each in read] == [f"'{name}" for name in hostile[:-2]] + hostile[-2:]
    assert {each["why"] for each in read} == {"'-x"}


def test_results_in_a_csv_are_numbers_whose_column_names_the_unit():
    results = [
        {"estimate": {"median_ms": 0.07389}, "verdict": "trusted"},
        {"speedup": {"times": 2.5}},
        {"comparison": {"ratio": 0.5, "answer": "faster"}},
        {"exit_code": 0},
        None,
    ]
    times = {"submitted_at": "2026-11-22T06:00:00+00:00", "started_at": None, "ended_at": None}
    about = {**times, "kind": "bench", "name": "net", "user": "ann", "on": "pixel", "attempts": 1}
    read = list(csv.DictReader(io.StringIO(csv_of(row(**about, result=result) for result in results), newline="")))
    assert [[each[name] for name in ("median_ms", "times_as_fast", "b_over_a", "exit_code")] for each in read] == [
        ["0.07389", "", "", ""], ["", "2.5", "", ""], ["", "", "0.5", ""], ["", "", "", "0"], [""] * 4
    ]  # fmt: skip


def test_the_times_of_a_result_are_in_one_unit():
    estimate = {"median_s": 1.1e-4, "low_s": 0.9e-4, "high_s": 1.2e-4}
    today = {"median_s": 2e-4, "low_s": 1.9e-4, "high_s": 2.1e-4, "nominal_s": 1e-3}
    assert row_times({"estimate": estimate, "today": today}) == [
        "110.0 µs", "90.00 µs", "120.0 µs", "200.0 µs", "190.0 µs", "210.0 µs"
    ]  # fmt: skip
    assert row_times({"estimate": {"median_s": 1e-3, "count": 1}}) == ["1.000 ms", "-", "-", "1.000 ms", "-", "-"]
    assert row_times({}) == ["-"] * 6


def test_every_state_has_a_tone_and_can_be_chosen():
    assert {state.value for state in JobState} <= TONES.keys()
    assert {state.value for state in JobState} < set(STATES)


def test_one_line_says_why():
    assert why(row(waits="no phone is free")) == "no phone is free"
    assert why(row(state="failed", error={"message": "exit code 3"})) == "exit code 3"
    assert why(row(state="running", progress={"step": "timing"}, waits="x")) == "timing"
    assert why(row(state="running")) == ""


def test_facts_begin_with_what_is_to_be_done():
    spec = KINDS["bench"].from_wire({"on": "android", "model": SHA, "name": "m.onnx", "repeat": 5})
    told_facts = dict(facts({"job": row(), "spec": spec.to_wire()}))
    assert told_facts["model"] == f"m.onnx ({SHA[:12]})"
    assert told_facts["options"] == "repeat 5"


def test_only_what_a_result_names_is_a_file():
    shown = {
        "job": {"id": "tune-1/../x"},
        "result": {"package": SHA, "records": {"artifact": "../etc"}, "stdout": "hi"},
    }
    assert [(each.name, each.sha256) for each in files_of(shown)] == [("package", SHA), ("stdout", ""), ("result", "")]
    assert all("/" not in each.filename for each in files_of(shown))
    assert files_of({"job": {"id": "j"}, "result": None}) == []


def test_what_is_missing_is_none():
    loose = lenient({"a": {"b": [{"c": 1}]}})
    assert loose["a"]["b"][0]["d"] is None
    assert loose["x"] is None


def test_times():
    assert took("2026-11-22T06:00:00+00:00", "2026-11-22T06:00:07.5+00:00") == "7.5 s"
    assert took("2026-11-22T06:00:00+00:00", None) == ""


def test_places_count_everybody_who_waits():
    waiting = [{"job": ""}, {"job": "a"}, {"job": "b"}]
    rows = queue_rows(
        waiting, 10, [{"id": "a", "name": "m", "kind": "run", "waits": "no phone"}], {"a": 90.0, "b": None}
    )
    assert [each["place"] for each in rows] == [11, 12, 13]
    assert (rows[1]["why"], rows[1]["estimate"], rows[2]["estimate"]) == ("no phone", "within 1m 30s", "")
    assert rows[0]["kind"] == "TVM client"


def test_results_that_cannot_be_compared_are_lines_of_their_own():
    def result(seq, device):
        return {"seq": seq, "device": device, "at": f"2026-11-2{seq}T06:00:00+00:00", "verdict": "trusted",
                "estimate": {"median_s": seq * 1e-3, "low_s": 1e-3, "high_s": 9e-3}}  # fmt: skip

    plots = line_plots([result(5, "b"), result(4, "a"), result(3, "a"), result(2, "b"), result(1, "c")])
    assert [plot.title.partition(":")[0] for plot in plots] == ["a", "b"]
    assert list(plots[0].panels[0].lines[0].values) == [3.0, 4.0]
    assert len({plot.id for plot in plots}) == 2


def test_a_build_in_words_is_of_tvm_only_where_tvm_ran():
    row = {"target": "cpu", "precision": "float32", "tuned": True, "placement": "2 threads", "tvm": "0.27"}
    assert build_words(row) == "cpu float32, tuned, 2 threads, TVM 0.27"
    assert build_words({"target": "ort"}) == "ort"


def test_targets_in_words():
    assert target_words({"kind": "llvm", "mcpu": "x", "num-cores": 8}) == "llvm x"
    assert target_words("tag/a") == "tag/a"


@pytest.mark.parametrize(
    ("state", "result", "came_of_it", "colour"),
    [
        ("done", {"verdict": "trusted", "estimate": {"median_ms": 1.5}}, ("1.500 ms", "trusted"), "good"),
        ("done", {"verdict": "suspect", "estimate": {"median_ms": 1.5}}, ("1.500 ms", "suspect"), "warn"),
        ("done", {"verdict": "rejected", "estimate": {"median_ms": 1.5}}, ("1.500 ms", "rejected"), "poor"),
        ("done", {"verdict": "trusted", "estimate": {"median_ms": 0.07389}}, ("73.89 µs", "trusted"), "good"),
        ("done", {"comparison": {"ratio": 0.5, "answer": "faster"}}, ("B / A 0.5000", "faster"), "good"),
        ("done", {"comparison": {"ratio": 1.0, "answer": "cannot tell"}}, ("B / A 1.0000", "cannot tell"), "warn"),
        ("done", {"speedup": {"times": 2.0, "answer": "faster"}, "comparison": {}}, ("2.00 times", "faster"), "good"),
        ("done", {"speedup": {"times": 0.5, "answer": "slower"}}, ("0.50 times", "slower"), "poor"),
        ("failed", {"exit_code": 3}, ("exit code 3", ""), "bad"),
        ("done", {}, ("", ""), "good"),
        ("running", None, ("", ""), "busy"),
    ],
)
def test_a_job_that_is_done_is_as_good_as_its_result(
    state: str, result: Any, came_of_it: tuple[str, str], colour: str
) -> None:
    row = {"state": state, "result": result}
    assert outcome(row) == came_of_it
    assert job_tone(row) == colour


def test_a_reason_is_given_once_for_all_its_devices() -> None:
    held = [("pixel", "held by ann"), ("fire", "held by ann"), ("tab", "in maintenance: its glass is broken")]
    explained = {
        "waits": "",
        "limits": ["bench: no more than 2 phones at once"],
        "devices": [{"device": device, "reason": reason} for device, reason in held],
    }
    assert reasons(explained) == [
        "bench: no more than 2 phones at once", "pixel, fire: held by ann", "tab: in maintenance: its glass is broken",
    ]  # fmt: skip
    assert reasons({"waits": "its turn has not come", "limits": [], "devices": []}) == ["its turn has not come"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("undo: farm device release pixel", 'undo: <a href="/devices/pixel">farm device release pixel</a>'),
        ("`farm job list` shows them", '<a href="/jobs">farm job list</a> shows them'),
        ("see farm logs bench-5af1; then", 'see <a href="/jobs/bench-5af1">farm logs bench-5af1</a>; then'),
        (
            "farm explain device 10.0.0.3:5555.",
            '<a href="/devices/10.0.0.3%3A5555">farm explain device 10.0.0.3:5555</a>.',
        ),
        ("farm device reboot is for operators", "farm device reboot is for operators"),
        ("end it: farm lease kick pixel; or wait", 'end it: <a href="/leases">farm lease kick pixel</a>; or wait'),
        ("farm bundle promote nightly.", '<a href="/bundles">farm bundle promote nightly</a>.'),
        ("no phone is handed out: farm drain --end", 'no phone is handed out: <a href="/">farm drain --end</a>'),
        ("farm explain job bench-5af1", '<a href="/jobs/bench-5af1">farm explain job bench-5af1</a>'),
        ("farm status says why", '<a href="/">farm status</a> says why'),
        ("farm doctor shows <b>", "farm doctor shows &lt;b&gt;"),
        ("farm job list --user ann shows", '<a href="/jobs?user=ann">farm job list --user ann</a> shows'),
        ("farm job list --state held shows", "farm job list --state held shows"),
    ],
)
def test_a_command_leads_to_the_page_that_does_it(text: str, shown: str) -> None:
    assert str(linked(text)) == shown


@pytest.mark.parametrize(
    ("market_name", "model", "shown"),
    [
        ("Pixel 8", "GKWS6", "Pixel 8"),
        ("Galaxy é", "SM-1", "Galaxy é"),
        ("", "SM-<1>", "SM-&lt;1&gt;"),
        ("一加 12", "PJD110", '<span title="一加 12">PJD110</span>'),
        ("一加 12", "", "一加 12"),
        (None, None, ""),
    ],
)
def test_a_phone_has_a_name_in_latin_letters(market_name: str | None, model: str | None, shown: str) -> None:
    assert model_name({"market_name": market_name, "model": model}) == shown
