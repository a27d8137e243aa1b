"""Jobs as pages show them: filters, words, files, places in the queue, lines of history; values as people read them."""

import csv
import io
import re
from urllib.parse import parse_qs

import pytest

from farm.common.durations import format_duration, took
from farm.common.errors import UserError
from farm.common.tones import TONES
from farm.devices.health.series import LINE_EVERY_S
from farm.kinds import KINDS
from farm.model.identity import target_words
from farm.model.job import FINAL, JobState
from farm.results.series import by_metric, list_words
from farm.web.job_views import STATES, Filter, csv_of, facts, files_of, job_tone, lenient, reasons, why
from farm.web.leases import queue_rows
from farm.web.measured import build_words, is_side, line_plots, row_words
from farm.web.rendering import SPARK_WIDTH, linked, model_name, spark, toggled
from tests.support import history_rows
from tests.support.golden import rows
from tests.support.web_rows import AT, SHA, job

NOTHING_ASKED = dict.fromkeys(("user", "of_kind", "text", "selector", "device", "before"), "") | {"limit": 50}


@pytest.mark.parametrize(
    ("wanted", "reader", "asked"),
    [
        (Filter(), "", {}),
        (Filter(text=" x ", selector="gpu=b,soc=a"), "", {"text": "x", "selector": "gpu=b,soc=a"}),
        (Filter(mine="1", user="bob"), "ann", {"user": "ann"}),
        (Filter(mine="1", user="bob"), "", {"user": "bob"}),  # nobody is signed in
    ],
)
def test_a_filter_is_asked_as_the_verb_wants_it(wanted, reader, asked):
    assert wanted.asked(reader) == NOTHING_ASKED | asked


def test_a_filter_asks_for_states_for_enough_to_sort_and_for_no_selector_that_is_none():
    assert set(Filter(state="live").asked()["state"]) == set(JobState) - FINAL
    assert "text" not in Filter(array="a", text="x").asked()  # the verb refuses both
    assert Filter(sort="took").asked()["limit"] > Filter().asked()["limit"]
    with pytest.raises(UserError):
        Filter(selector="soc=").asked()


def test_a_filter_s_address_has_what_is_not_empty():
    wanted = Filter(state="done", text="a b&c", before="j1")
    assert parse_qs(wanted.query()[1:]) == {"state": ["done"], "text": ["a b&c"], "before": ["j1"]}
    assert wanted.query(state="", text="", before="") == ""
    assert (wanted.narrow, Filter(before="j1").narrow) == (True, False)
    assert [toggled("name", "name"), toggled("-name", "name"), toggled("", "name")] == ["-name", "name", "name"]


@pytest.mark.parametrize(
    ("sort", "order"), [("took", "bca"), ("-took", "cba"), ("-result", "bac"), ("nonsense", "abc")]
)
def test_jobs_without_a_value_come_last(sort, order):
    def timed(name, seconds, median_ms):
        ended = seconds and f"2026-11-22T06:00:{seconds:02}+00:00"
        return job(id=name, ended_at=ended, result=median_ms and {"estimate": {"median_ms": median_ms}})

    jobs = [timed("a", None, 1.5), timed("b", 2, 2.5), timed("c", 11, None)]
    assert "".join(each["id"] for each in Filter(sort=sort).in_order(jobs)) == order


def test_no_cell_of_the_csv_is_computed_by_a_spreadsheet():
    hostile = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", 'a "b", c', "plain"]
    text = csv_of(job(name=name, error={"message": "-x"}) for name in hostile)
    titles, *rows = list(csv.reader(io.StringIO(text, newline="")))
    read = [dict(zip(titles, cells, strict=True)) for cells in rows]
    assert [each["name"] for each in read] == [f"'{name}" for name in hostile[:-2]] + hostile[-2:]
    assert {each["why"] for each in read} == {"'-x"}


@pytest.mark.parametrize(
    ("result", "cells"),
    [
        ({"estimate": {"median_ms": 0.07389}, "verdict": "trusted"}, {"median_ms": "0.07389"}),
        ({"speedup": {"times": 2.5}}, {"times_as_fast": "2.5"}),
        ({"comparison": {"ratio": 0.5, "answer": "faster"}}, {"b_over_a": "0.5"}),
        ({"exit_code": 0}, {"exit_code": "0"}),
        (None, {}),
    ],
)
def test_results_in_a_csv_are_numbers_whose_column_names_the_unit(result, cells):
    (read,) = csv.DictReader(io.StringIO(csv_of([job(result=result)]), newline=""))
    numbers = dict.fromkeys(("median_ms", "times_as_fast", "b_over_a", "exit_code"), "")
    assert {name: read[name] for name in numbers} == numbers | cells


def test_the_times_of_a_result_are_in_one_unit():
    estimate = {"median_s": 1.1e-4, "low_s": 0.9e-4, "high_s": 1.2e-4}
    today = {"median_s": 2e-4, "low_s": 1.9e-4, "high_s": 2.1e-4, "nominal_s": 1e-3}
    assert row_words({"estimate": estimate, "today": today}) == [
        "110.0 µs", "90.00 µs", "120.0 µs", "200.0 µs", "190.0 µs", "210.0 µs"
    ]  # fmt: skip
    assert row_words({"estimate": {"median_s": 1e-3, "count": 1}}) == ["1.000 ms", "-", "-", "1.000 ms", "-", "-"]
    assert row_words({}) == ["-"] * 6


def test_every_state_has_a_tone_and_can_be_chosen():
    states = {state.value for state in JobState}
    assert states <= TONES.keys()
    assert states < set(STATES)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "queued", "waits": "no phone is free"}, "no phone is free"),
        ({"state": "failed", "error": {"message": "exit code 3"}}, "exit code 3"),
        ({"state": "running", "progress": {"step": "timing"}, "waits": "x"}, "timing"),
        ({"state": "running"}, ""),
    ],
)
def test_one_line_says_why(fields, said):
    assert why(job(**fields)) == said


def test_facts_begin_with_what_is_to_be_done():
    spec = KINDS["bench"].from_wire({"on": "android", "model": SHA, "name": "m.onnx", "repeat": 5})
    found = dict(facts({"job": job(), "spec": spec.to_wire()}))
    assert (found["model"], found["options"]) == (f"m.onnx ({SHA[:12]})", "repeat 5")


def test_only_what_a_result_names_is_a_file():
    result = {"package": SHA, "records": {"artifact": "../etc"}, "stdout": "hi"}
    files = files_of({"job": {"id": "tune-1/../x"}, "result": result})
    assert [(each.name, each.sha256) for each in files] == [("package", SHA), ("stdout", ""), ("result", "")]
    assert all("/" not in each.filename for each in files)
    assert files_of({"job": {"id": "j"}, "result": None}) == []


def test_what_is_missing_is_none():
    loose = lenient({"a": {"b": [{"c": 1}]}})
    assert (loose["a"]["b"][0]["d"], loose["x"]) == (None, None)


def test_places_count_everybody_who_waits():
    waiting, of_a = [{"job": ""}, {"job": "a"}, {"job": "b"}], {"id": "a", "name": "m", "kind": "run", "waits": "busy"}
    rows = queue_rows(waiting, 10, [of_a], {"a": 90.0, "b": None})
    assert [(each["place"], each["kind"], each["why"], each["estimate"]) for each in rows] == [
        (11, "TVM client", "", ""), (12, "run", "busy", "within 1m 30s"), (13, "", "", ""),
    ]  # fmt: skip


def test_results_that_cannot_be_compared_are_lines_of_their_own():
    def result(seq, device):
        return {"seq": seq, "device": device, "at": f"2026-11-2{seq}T06:00:00+00:00", "verdict": "trusted",
                "estimate": {"median_s": seq * 1e-3, "low_s": 1e-3, "high_s": 9e-3}}  # fmt: skip

    first, second = line_plots([result(5, "b"), result(4, "a"), result(3, "a"), result(2, "b"), result(1, "c")])
    assert [plot.title.partition(":")[0] for plot in (first, second)] == ["a", "b"]
    assert list(first.panels[0].lines[0].values) == [3.0, 4.0]
    assert first.id != second.id


def test_joules_are_a_line_of_their_own_and_no_side_of_a_comparison():
    rows = [history_rows.energy(2, 0.012), history_rows.energy(1), history_rows.row(4), history_rows.row(3)]
    joules, times = line_plots(rows := [*by_metric(rows)])
    assert (joules.title, joules.panels[0].label) == ("pixel: cpu float32, energy, by meter, TVM 0.27", "energy, mJ")
    assert list(joules.panels[0].lines[0].values) == [10.0, 12.0]
    assert times.panels[0].label == "median, ms"
    assert [is_side(row) for row in rows] == [False, False, True, True]
    assert row_words(rows[0])[:3] == ["12.00 mJ", "11.88 mJ", "12.12 mJ"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            build_words(
                {"target": "cpu", "precision": "float32", "tuned": True, "placement": "2 threads", "tvm": "0.27"}
            ),
            "cpu float32, tuned, 2 threads, TVM 0.27",
        ),
        (build_words({"target": "ort"}), "ort"),  # TVM only where TVM ran
        (target_words({"kind": "llvm", "mcpu": "x", "num-cores": 8}), "llvm x"),
        (target_words("tag/a"), "tag/a"),
        (took(AT, "2026-11-22T06:00:07.5+00:00"), "7.5 s"),
        (took(AT, None), ""),
    ],
)
def test_builds_targets_and_times_in_words(words, said):
    assert words == said


def measured(verdict, median_ms=1.5):
    return {"verdict": verdict, "estimate": {"median_ms": median_ms}}


@pytest.mark.parametrize(
    ("state", "result", "came_of_it", "colour"),
    [
        ("done", measured("trusted"), ("1.500 ms", "trusted"), "good"),
        ("done", measured("suspect"), ("1.500 ms", "suspect"), "warn"),
        ("done", measured("rejected"), ("1.500 ms", "rejected"), "poor"),
        ("done", measured("trusted", 0.07389), ("73.89 µs", "trusted"), "good"),
        ("done", {"comparison": {"ratio": 0.5, "answer": "faster"}}, ("B / A 0.500", "faster"), "good"),
        ("done", {"comparison": {"ratio": 1.0, "answer": "cannot tell"}}, ("B / A 1.000", "cannot tell"), "warn"),
        ("done", {"speedup": {"times": 2.0, "answer": "faster"}}, ("2.00 times as fast", "faster"), "good"),
        ("done", {"speedup": {"times": 0.5, "answer": "slower"}}, ("0.50 times as fast", "slower"), "poor"),
        ("failed", {"exit_code": 3}, ("exit code 3", ""), "bad"),
        ("done", {}, ("", ""), "good"),
        ("running", None, ("", ""), "busy"),
    ],
)
def test_a_job_that_is_done_is_as_good_as_its_result(state, result, came_of_it, colour):
    row = {"state": state, "result": result}
    assert (list_words(result or {}), job_tone(row)) == (came_of_it, colour)


def test_a_reason_is_given_once_for_all_its_devices():
    held = [("pixel", "held by ann"), ("fire", "held by ann"), ("tab", "in maintenance: its glass is broken")]
    devices = [{"device": device, "reason": reason} for device, reason in held]
    assert reasons({"waits": "", "limits": ["bench: no more than 2 phones at once"], "devices": devices}) == [
        "bench: no more than 2 phones at once", "pixel, fire: held by ann", "tab: in maintenance: its glass is broken",
    ]  # fmt: skip
    assert reasons({"waits": "its turn has not come", "limits": [], "devices": []}) == ["its turn has not come"]


@pytest.mark.parametrize(("text", "shown"), rows(__file__, "linked"))
def test_a_command_leads_to_the_page_that_does_it(text, shown):
    assert str(linked(text)) == shown


def test_a_spark_is_as_wide_as_there_are_readings_and_says_its_span():
    line = spark([None, None, 30.0, None, 34.5])
    assert f"<title>temperature of the last {format_duration(3 * LINE_EVERY_S)}: 30.0 to 34.5 °C</title>" in line
    assert re.findall(r"([\d.]+),", line) == ["0.0", f"{SPARK_WIDTH:.1f}"]
    assert "not known yet" in spark([None, 30.0])
    assert "not known yet" in spark([])


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
def test_a_phone_has_a_name_in_latin_letters(market_name, model, shown):
    assert model_name({"market_name": market_name, "model": model}) == shown
