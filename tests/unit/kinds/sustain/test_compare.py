"""Two sustained runs on one phone: which is faster in the first minute, and which at the end."""

from types import SimpleNamespace

import pytest

from farm.cli import connection
from farm.common.errors import HostUnreachableError, UserError
from farm.kinds.sustain import compare
from farm.kinds.sustain.compare import compare_courses, print_compared


def stretch(median_ms, celsius=30.0, **more):
    return {
        "median_ms": median_ms, "low_ms": 0.999 * median_ms, "high_ms": 1.001 * median_ms, "count": 240,
        "celsius": celsius, "throttle_status": 0, **more,
    }  # fmt: skip


def run(first_ms, end_ms, *, plateau=True, celsius=30.0, stopped="", device="pixel", inputs=((1, 3),), **certificate):
    rows = [stretch(first_ms, celsius, start_s=0.0), stretch(end_ms, start_s=60.0), stretch(9e9, start_s=120.0)]
    return {
        "buckets": rows, "bucket_s": 60.0, "seconds": 130.0, "wanted_s": 1800.0, "stopped": stopped,
        "plateau": stretch(end_ms) if plateau else None, "model": {"inputs": {"x": inputs[0]} if inputs else {}},
        "certificate": {"device": device, "epoch": "x:14", "model_sha256": "1", "notes": [], **certificate},
    }  # fmt: skip


def test_one_sample_decides_nothing():
    a, b = run(10.0, 15.0), run(8.0, 20.0)
    for each in (a, b):
        each["buckets"][0] |= {"low_ms": None, "high_ms": None, "count": 1}
    found = compare_courses(a, b, 0.01)
    assert (found.first.answer, found.end.answer) == ("cannot tell", "slower")
    assert found.first.low < 0.001 < 1000 < found.first.high


def test_a_build_may_be_faster_at_first_and_slower_at_the_end():
    found = compare_courses(run(10.0, 15.0), run(8.0, 20.0), 0.01)
    assert (found.first.answer, found.first.ratio) == ("faster", pytest.approx(0.8))
    assert (found.end.answer, found.end.ratio) == ("slower", pytest.approx(4 / 3))
    assert [each.code for each in found.end.reasons] == ["not_in_turns"]


def test_a_difference_that_two_runs_of_one_build_may_have_is_none():
    found = compare_courses(run(10.0, 15.0), run(10.4, 14.6), 0.01)
    assert (found.first.answer, found.end.answer, found.end.min_effect) == ("same", "same", 0.05)
    assert compare_courses(run(10.0, 15.0), run(10.0, 13.0), 0.2).end.answer == "same"


def test_without_a_plateau_the_last_whole_minute_tells_only_what_no_doubt_changes():
    found = compare_courses(run(10.0, 15.0), run(10.0, 13.0, plateau=False), 0.01)
    assert (found.end.answer, found.ends[1]["median_ms"]) == ("cannot tell", 13.0)
    doubt = found.end.reasons[0]
    assert (doubt.cause, doubt.evidence) == ("the speed of B still changed at its end", "Compared is its last minute.")
    assert compare_courses(run(10.0, 15.0), run(10.0, 7.0, plateau=False), 0.01).end.answer == "faster"


def test_what_makes_two_runs_unlike_is_a_reason():
    stopped = compare_courses(run(10.0, 15.0, stopped="the battery reached 53 °C"), run(10.0, 13.0), 0.01)
    doubt = stopped.end.reasons[0]
    assert (doubt.cause, doubt.evidence) == ("A ended after 2m 10s", "the battery reached 53 °C")
    warmer = compare_courses(run(10.0, 15.0), run(10.0, 15.0, celsius=39.0), 0.01)
    assert warmer.first.reasons[0].cause == "the temperature went from 30 to 39 °C"
    other = compare_courses(run(1.0, 1.0, model="a.onnx"), run(1.0, 1.0, model="b.onnx", model_sha256="2"), 0.01)
    assert other.notes == ("A is of a.onnx, B of b.onnx: two files, whose outputs were not compared",)


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (run(1.0, 1.0, device="galaxy"), "different phones: pixel and galaxy"),
        ({**run(1.0, 1.0), "wanted_s": 3600.0}, "not equally long: 30m and 1h"),
    ],
    ids=["phones", "lengths"],
)
def test_runs_on_two_phones_or_of_two_lengths_are_refused(b, said):
    with pytest.raises(ValueError, match=said):
        compare_courses(run(1.0, 1.0), b, 0.01)


@pytest.mark.parametrize(
    ("inputs", "said"), [(((1, 4),), "input 0 is 1x3 in A, 1x4 in B"), ((), "A has 1 input, B 0 inputs")]
)
def test_different_inputs_are_a_warning(capsys, inputs, said):
    found = compare_courses(run(10.0, 15.0), run(8.0, 20.0, inputs=inputs), 0.01)
    assert found.unlike == (said,)
    print_compared(found, why=False)
    assert capsys.readouterr().err == (
        f"warning: A and B do not compute the same, which their times do not tell: {said}\n"
    )


def by_rails(*names):
    return {"source": "power rails", "rails": [{"name": each, "counted": each != "DISPLAY"} for each in names]}


@pytest.mark.parametrize(
    ("meters", "shown"),
    [
        (({"source": "fuel gauge", "name": "battery"},) * 2, True),
        ((by_rails("CPU", "DISPLAY"), by_rails("CPU")), True),
        ((by_rails("CPU"), by_rails("CPU", "GPU")), False),
        ((by_rails("CPU"), {"source": "meter"}), False),
        (({"command": ["m"], "period_s": 0.1},) * 2, True),  # of a former release
    ],
)
def test_watts_stand_where_one_source_told_both(capsys, meters, shown):
    runs = [run(10.0, 15.0, meter=each) for each in meters]
    for each, watts in zip(runs, (2.0, 3.0), strict=True):
        each["plateau"]["busy_w"] = watts
    print_compared(compare_courses(*runs, 0.01), why=False)
    head, first, end, *_ = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (head[-4:] == ["A", "W", "B", "W"], end[-2:] == ["2.000", "3.000"]) == (shown, shown)
    assert (first[-2:] == ["-", "-"]) == shown


def test_a_run_shorter_than_ten_minutes_has_no_minutes(capsys):
    short = {"bucket_s": 0.5, "wanted_s": 5.0}
    found = compare_courses(run(10.0, 15.0) | short, run(8.0, 20.0, plateau=False) | short, 0.01)
    assert "0.5 s" in found.end.reasons[0].evidence
    print_compared(found, why=False)
    assert "first 0.5 s  faster" in capsys.readouterr().out


def test_the_table_has_both_times(capsys):
    print_compared(compare_courses(run(10.0, 15.0), run(8.0, 20.0), 0.01), why=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["first", "minute", "faster"], ["at", "the", "end"]]


def test_phones_of_a_host_that_is_away_are_left_out(monkeypatch, capsys):
    def call(_verb, device):
        if device == "far":
            raise HostUnreachableError("host two, which has far, is lost")
        return {"name": device}

    monkeypatch.setattr(connection, "call", call)
    assert connection.show_devices(["far", "near"]) == [{"name": "near"}]
    assert "left out, as their host cannot be reached: far" in capsys.readouterr().err


@pytest.mark.parametrize("stored", [{"buckets": []}, {"certificate": {}}, {"buckets": [stretch(0.0, start_s=0.0)]}])
def test_runs_that_another_release_stored_otherwise_are_one_clear_error(stored):
    a, b = (
        SimpleNamespace(result=result, job=SimpleNamespace(id=name))
        for name, result in {"s-1": run(10.0, 15.0), "s-2": {**run(8.0, 20.0), **stored}}.items()
    )
    with pytest.raises(UserError) as raised:
        compare.compare_stored_runs(a, b, 0.01, json=False, why=False)
    assert raised.value.hint
