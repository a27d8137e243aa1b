"""What programs print, as samples: genuine outputs of each tool, and everything that is no time."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, UserError
from farm.programs.description import RUNTIMES, builtin_description
from farm.programs.outputs import PARSERS, ProgramOutput, grouped, read_output
from tests.support.errors import raises_code
from tests.support.golden import golden

DATA = Path("tests/data/programs")


def read(file, output=None):
    """By the format that the file's name begins with or has in it."""
    form = next(form for form in PARSERS if form in file.name)
    try:
        found = read_output(form, output or ProgramOutput(file.read_text()))
    except UserError as error:
        return error.message
    return {"seconds": [float(f"{each:.6g}") for each in found.seconds], "runs": found.runs}


@pytest.mark.parametrize(("file", "told"), golden(DATA, read, "*[!v]"))
def test_genuine_outputs_and_those_of_several_things_at_once(file, told):
    assert read(file) == told
    assert read(file, ProgramOutput(file.read_text() if "llama" in file.name else "", file.read_text())) == told


def test_every_genuine_output_has_its_source():
    rows = (DATA / "SOURCES.tsv").read_text().splitlines()[1:]
    assert sorted(row.split("\t")[0] for row in rows) == sorted(path.name for path in DATA.glob("*[!v]"))


@pytest.mark.parametrize(("form", "file"), [("qnn-profile", "ncnn-2021.txt"), ("executor_runner", "llama-bench.json")])
def test_another_tools_output_is_refused(form, file):
    with raises_code(Code.PROGRAM_UNREADABLE, match="printed no line"):
        read_output(form, ProgramOutput((DATA / file).read_text()))


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


COMMAS = [(form, SMALL[form].format("1,25")) for form in SMALL if form not in ("llama-bench", "json-lines")]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *COMMAS,
        *(("json-lines", text) for text in ('{"ms": 1,25}', '{"ms": "1,25"}')),
        ("llama-bench", '[\n{"avg_ts": 1,25}\n]'),
    ],
)
def test_a_decimal_comma_is_named(form, text):
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
        ('{"ms": ' + "[" * 30_000, "is no JSON"),
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
