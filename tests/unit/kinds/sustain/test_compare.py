"""Two sustained runs on one phone: which is faster in the first minute, and which at the end."""

import json
from types import SimpleNamespace

import pytest
import typer

from farm.cli import connection
from farm.common.errors import Code, HostUnreachableError, UserError
from farm.kinds.compare.spec import CompareSpec
from farm.kinds.sustain import compare_command
from farm.kinds.sustain.compare import check_alike, compare_courses, orders
from farm.kinds.sustain.compare_command import print_compared, sides_of
from farm.model.specs import fields_of
from tests.support.errors import raises_code


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


def test_b_goes_first_on_every_other_phone():
    assert orders(["p", "q", "r"], b_first=True) == {"p": True, "q": False, "r": True}
    assert orders(["p", "q"], b_first=False) == {"p": False, "q": True}


def row(name, **traits):
    alike = {"soc": "sm8550", "gpu": "adreno-740", "bundle": "b1", "clock_policy": "", **traits}
    return {"name": name, "alike": alike, "labels": {"alike": "77aa"}}


def test_phones_that_are_not_alike_are_refused_by_name():
    check_alike([row("p")])
    check_alike([row("p"), row("q")])
    with raises_code(Code.BAD_SPEC, match="p and r are not alike: they differ in soc, clock policy") as raised:
        check_alike([row("p"), row("q"), row("r", soc="exynos", clock_policy="pinned")])
    assert raised.value.hint == "one phone: --on p; those like it: --on alike=77aa"
    with raises_code(Code.BAD_SPEC, match="q is not identified yet"):
        check_alike([row("p"), {"name": "q", "alike": None, "labels": {}}])


def fields(**given):
    options = {name: each.default for name, each in fields_of(CompareSpec).items() if each.help.option}
    return {**options, "devices": "all", "on": "android", **given}


def test_b_is_what_a_comparison_says_of_it():
    a, b = sides_of(fields(target="adreno", records="t.tar", precision_b="float16", quiet_hub=True))
    assert (a["target"], a["precision"], a["records"], a["quiet_hub"]) == ("adreno", "float32", "t.tar", True)
    assert (b["target"], b["precision"], b["records"], b["quiet_hub"]) == ("adreno", "float16", None, True)
    assert "min_effect" not in a


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"measure_s": 5.0}, "--measure does not"),
        ({"bundle_b": "x"}, "--bundle-b does"),
        ({"settings": {"a": "b"}}, "--set does"),
    ],
)
def test_an_option_that_no_sustained_run_has_is_refused(given, said):
    with pytest.raises(UserError, match=said):
        sides_of(fields(**given))


@pytest.mark.parametrize(
    ("inputs", "said"), [(((1, 4),), "input 0 is 1x3 in A, 1x4 in B"), ((), "A has 1 input, B 0 inputs")]
)
def test_different_inputs_are_a_warning(capsys, inputs, said):
    found = [compare_courses(run(10.0, 15.0), run(8.0, 20.0, inputs=inputs), 0.01)] * 2
    assert found[0].unlike == (said,)
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
    print_compared([compare_courses(*runs, 0.01)], why=False)
    head, first, end, *_ = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (head[-4:] == ["A", "W", "B", "W"], end[-2:] == ["2.000", "3.000"]) == (shown, shown)
    assert (first[-2:] == ["-", "-"]) == shown


def test_a_run_shorter_than_ten_minutes_has_no_minutes(capsys):
    short = {"bucket_s": 0.5, "wanted_s": 5.0}
    found = compare_courses(run(10.0, 15.0) | short, run(8.0, 20.0, plateau=False) | short, 0.01)
    assert "0.5 s" in found.end.reasons[0].evidence
    print_compared([found, found], why=False)
    assert "all 2 phones, first 0.5 s: B is faster" in capsys.readouterr().out


@pytest.mark.parametrize(("refused", "code"), [([], 0), (["pixel: updated"], 1)])
def test_what_is_not_compared_is_a_failure(monkeypatch, capsys, refused, code):
    monkeypatch.setattr(compare_command, "_phones", lambda *_: ["pixel"])
    monkeypatch.setattr(compare_command, "_submit", lambda *_: {})
    monkeypatch.setattr(compare_command, "_compared_pairs", lambda *_: ([], refused))
    monkeypatch.setattr(compare_command.work, "follow", lambda *_, **__: None)
    monkeypatch.setattr(compare_command.work, "exit_code", lambda _: 0)
    spec = SimpleNamespace(hold=False, to_wire=dict)
    farm = SimpleNamespace(spec=lambda *_, **__: spec, check=lambda *_, **__: (0, 0, None))
    given = {name: value for name, value in fields().items() if name != "on"}
    how = {"wait": None, "detach": False, "json": True, "why": False}
    with pytest.raises(typer.Exit) as ended:
        compare_command.compare_sustained(farm, ("a.onnx", "b.onnx"), "android", "30m", given, **how)
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.exit_code, told["ok"], told["not_compared"]) == (code, not refused, refused)


def test_the_table_has_both_times_and_the_answer_of_all_phones(capsys):
    found = [
        compare_courses(run(10.0, 15.0), run(8.0, 20.0), 0.01),
        compare_courses(run(10.0, 15.0, device="twin"), run(8.1, 15.1, device="twin"), 0.01),
    ]
    print_compared(found, why=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["pixel", "first", "minute", "faster"], ["pixel", "at", "the", "end"],
    ]  # fmt: skip
    assert lines[-2].startswith("all 2 phones, first minute: B is faster: B / A is 0.805")
    assert lines[-1].startswith("all 2 phones, at the end: cannot tell: B / A is 1.15")


def test_a_phone_whose_system_changed_between_its_runs_costs_no_other_one_its_answer():
    def done(result):
        return SimpleNamespace(
            ok=True, result=result, device=result["certificate"]["device"], job=SimpleNamespace(id="7")
        )

    lost = SimpleNamespace(ok=False)
    pairs = [
        (done(run(10.0, 15.0)), done(run(8.0, 20.0, epoch="x:15"))),
        (done(run(10.0, 15.0, device="twin")), done(run(8.0, 20.0, device="twin"))),
        (done(run(10.0, 15.0)), lost),
    ]
    found, refused = compare_command._compared_pairs(pairs, 0.01)
    assert [each.device for each in found] == ["twin"]
    (why,) = refused
    assert why.startswith("pixel: the two were measured on different system versions of the phone: x:14 and x:15")
    assert why.endswith("the runs are jobs 7 and 7")


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
        compare_command.compare_stored_runs(a, b, 0.01, json=False, why=False)
    assert raised.value.hint
