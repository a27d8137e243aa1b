"""What programs print, as samples: genuine outputs of each tool, and everything that is no time."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, UserError
from farm.programs.description import RUNTIMES, builtin_description
from farm.programs.outputs import PARSERS, grouped, read_output
from farm.programs.outputs.readings import ProgramOutput
from tests.support.errors import raises_code

DATA = Path("tests/data/programs")


def genuine(name):
    return (DATA / name).read_text()


@pytest.mark.parametrize(
    ("form", "file", "seconds", "runs"),
    [
        ("benchmark_model", "benchmark_model-2019.txt", [66767.6e-6], 15),
        ("benchmark_model", "benchmark_model-2020.txt", [33209.4e-6], 50),
        ("benchmark_model", "benchmark_model-2024.txt", [13520.2e-6], 74),
        ("benchmark_model", "benchmark_model-slow.txt", [1.24027], 50),
        ("onnxruntime_perf_test", "onnxruntime_perf_test-2020-01.txt", [0.734606], 1),
        ("onnxruntime_perf_test", "onnxruntime_perf_test-2020.txt", [0.144871], 10),
        ("onnxruntime_perf_test", "onnxruntime_perf_test-2023.txt", [0.0588053], 1000),
        ("onnxruntime_perf_test", "onnxruntime_perf_test-2025.txt", [0.0446395], 10),
        ("executor_runner", "executor_runner-android.txt", [0.015013292], 1),
        ("executor_runner", "executor_runner-iterations.txt", [0.241944288], 1),
        ("executor_runner", "qnn_executor_runner.txt", [0.01096626], 100),
        ("llama-bench", "llama-bench.json", [0.0746019, 0.0716329, 0.0717452, 0.0719527, 0.0707455], 1),
        ("llama-bench", "llama-bench-2026.json", [0.000496629, 0.00062422, 0.000447217, 0.00043675, 0.000456771], 1),
        ("mnn", "mnn-2019.txt", [0.024489], 10),
        ("ncnn", "ncnn-2021.txt", [0.00427], 10),
        ("qnn-profile", "qnn-profile.txt", [0.002952], 0),
    ],
)
def test_genuine_outputs(form, file, seconds, runs):
    for output in (
        ProgramOutput(genuine(file)),
        ProgramOutput("" if form != "llama-bench" else genuine(file), genuine(file)),
    ):
        found = read_output(form, output)
        assert found.seconds == pytest.approx(seconds)
        assert found.runs == runs


def test_every_genuine_output_has_its_source():
    rows = (DATA / "SOURCES.tsv").read_text().splitlines()[1:]
    assert sorted(row.split("\t")[0] for row in rows) == sorted(path.name for path in DATA.glob("*[!v]"))


@pytest.mark.parametrize(
    ("form", "file", "said"),
    [
        ("llama-bench", "llama-bench-two.json", "ran 2 tests"),
        ("mnn", "mnn-2022.txt", "timed 4 models"),
        ("ncnn", "ncnn-2022.txt", "timed 3 models"),
        ("qnn-profile", "ncnn-2021.txt", "printed no line"),
        ("executor_runner", "llama-bench.json", "printed no line"),
    ],
)
def test_several_things_at_once_and_another_tools_output_are_refused(form, file, said):
    with raises_code(Code.PROGRAM_UNREADABLE, match=said):
        read_output(form, ProgramOutput(genuine(file)))


SMALL = {
    "benchmark_model": "count=50 first=1 curr=1 min=1 max=1 avg={} std=1\nInference timings in us: Init: 1",
    "onnxruntime_perf_test": "Total inference requests: 10\nAverage inference time cost: {} ms",
    "executor_runner": "I 00:00 executorch:executor_runner.cpp:1] Iteration 1 of 1: {} ms",
    "llama-bench": '[\n{{"samples_ns": [{}]}}\n]',
    "mnn": "--------> Benchmarking... loop = 10\n[ - ] net.mnn   max =  1 ms  min =  1 ms  avg =  {} ms",
    "ncnn": "loop_count = 10\n  net  min =  1.00  max =  1.00  avg =  {}",
    "qnn-profile": "Execute Stats (Average):\n    NetRun:  {} us",
    "json-lines": '{{"ms": {}}}',
}


@pytest.mark.parametrize("form", SMALL)
def test_each_format_is_read(form):
    assert read_output(form, ProgramOutput(SMALL[form].format("12.5"))).seconds[0] > 0
    assert SMALL.keys() == PARSERS.keys()


NO_TIMES = ["nan", "NaN", "-nan", "inf", "-1.5", "0", "0.000", "1,25", "1.2.3", "1e400", "0x10"]
NOT_READ = [(form, text) for form in SMALL for text in NO_TIMES if (form, text) != ("llama-bench", "1,25")]  # two there


@pytest.mark.parametrize(("form", "text"), NOT_READ)
def test_what_is_no_time_is_refused(form, text):
    with raises_code(Code.PROGRAM_UNREADABLE):
        read_output(form, ProgramOutput(SMALL[form].format(text)))


@pytest.mark.parametrize("form", [form for form in SMALL if form not in ("llama-bench", "json-lines")])
def test_a_decimal_comma_is_named(form):
    with pytest.raises(UserError) as caught:
        read_output(form, ProgramOutput(SMALL[form].format("1,25")))
    assert "decimal comma" in caught.value.hint


@pytest.mark.parametrize(
    ("form", "text"),
    [("json-lines", '{"ms": 1,25}'), ("json-lines", '{"ms": "1,25"}'), ("llama-bench", '[\n{"avg_ts": 1,25}\n]')],
)
def test_a_decimal_comma_that_is_no_json_is_named(form, text):
    with raises_code(Code.PROGRAM_UNREADABLE) as caught:
        read_output(form, ProgramOutput(text))
    assert "decimal comma" in caught.value.hint


@pytest.mark.parametrize("form", PARSERS)
def test_no_output_is_told_as_that(form):
    with raises_code(Code.PROGRAM_UNREADABLE, match="printed nothing"):
        read_output(form, ProgramOutput(" \n", ""))


@pytest.mark.parametrize("form", PARSERS)
@given(text=st.text(max_size=200))
def test_any_text_is_samples_or_the_one_error(form, text):
    with suppress(UserError):  # any other error fails
        assert all(0 < each < 1e9 for each in read_output(form, ProgramOutput(text)).seconds)


def test_runs_that_were_cut_off_are_no_measurement():
    line = "I 00:00 executorch:executor_runner.cpp:1] Iteration {} of 3: 1.5 ms\n"
    with raises_code(Code.PROGRAM_UNREADABLE, match="Iteration 3 of 3"):
        read_output("executor_runner", ProgramOutput(line.format(1) + line.format(2)))


def test_the_first_runs_are_left_out_where_each_is_told():
    lines = "".join(f'{{"ms": {each}}}\n' for each in (9, 8, 1, 2))
    assert read_output("json-lines", ProgramOutput(f"loading\n{lines}"), 2).seconds == pytest.approx((1e-3, 2e-3))
    assert len(read_output("json-lines", ProgramOutput(lines), 4).seconds) == 4  # else nothing would be left
    mean = ProgramOutput('{"us": 5, "runs": 10}')
    read = read_output("json-lines", mean, 2)
    assert (read.seconds, read.runs) == (pytest.approx((5e-6,)), 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"ms": 1, "us": 2}', "no time, or two"),
        ('{"runs": 2}', "no time, or two"),
        ('{"ms": 1', "is no JSON"),
        ('{"ms": 1, "runs": 0}', "no number of runs"),
        ('{"ms": 1, "runs": 2}\n{"ms": 1}', "different numbers of runs"),
    ],
)
def test_wrong_json_lines_are_named(text, said):
    with raises_code(Code.PROGRAM_UNREADABLE, match=said):
        read_output("json-lines", ProgramOutput(text))


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=50), st.integers(1, 8))
def test_groups_keep_every_run_and_the_mean(seconds, most):
    groups = grouped(seconds, most)
    assert len(groups) == min(most, len(seconds))
    if len(seconds) % len(groups) == 0:
        assert sum(groups) / len(groups) == pytest.approx(sum(seconds) / len(seconds))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_builtin_description_names_a_format_that_is_read(runtime):
    description, _ = builtin_description(runtime)
    assert description.name == runtime
    assert description.output in PARSERS
