"""Descriptions of programs: what is wrong is named; what is right becomes one quoted line."""

import shlex

import pytest

from farm.common.errors import Code
from farm.programs.description import (
    Places,
    builtin_description,
    check_model,
    command_line,
    read_description,
    report_line,
    with_settings,
)
from tests.support.errors import raises_code

PLACES = Places("/data/p/runtime", "/data/p/set/model.onnx", "/data/p/work")
GOOD = """
name = "mine"
command = ["{runtime}/timer", "--model={model}", "-n", "{runs}", "it's {threads}"]
output = "json-lines"
[settings]
threads = "4"
[environment]
THREADS = "{threads}"
"""


def read(text):
    return read_description(text.encode(), "spec.toml")


def script_of(line):
    program, dash_c, script = shlex.split(line)[1:]
    assert (program, dash_c) == ("sh", "-c")
    return script


def test_a_description_becomes_one_quoted_line():
    script = script_of(command_line(read(GOOD), PLACES, 20, {"threads": "2; reboot"}))
    assert script.startswith("cd /data/p/work && echo $$ >pid && export LC_ALL=C LD_LIBRARY_PATH=/data/p/runtime ")
    assert "THREADS='2; reboot'" in script
    words = shlex.split(script.partition("exec ")[2])
    assert words[:5] == ["/data/p/runtime/timer", "--model=/data/p/set/model.onnx", "-n", "20", "it's 2; reboot"]


def test_a_report_is_a_second_line():
    description, _ = builtin_description("qnn")
    settings = with_settings(description, {})
    script = script_of(report_line(description, PLACES, 20, settings))
    assert "--input_log /data/p/work/output/qnn-profiling-data_0.log" in script
    assert report_line(read(GOOD), PLACES, 20, {"threads": "1"}) == ""


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("name = ", "spec.toml is no TOML", "docs/programs.md"),
        ("name = " + "[" * 30_000, "brackets in brackets", "docs/programs.md"),
        (GOOD + 70_000 * "#", "spec.toml is larger than 64 KiB", "is it a description?"),
        ('kind = "bench"\non = "android"', "spec.toml is a spec file of jobs", "farm submit"),
        (GOOD.replace("output", "outputs"), "'outputs' is not known", "did you mean output"),
        (GOOD.replace("json-lines", "json-line"), "output must be", "json-lines"),
        (GOOD.replace('name = "mine"', ""), "name is missing", ""),
        (GOOD.replace("{runs}", "{run}"), "fills in the placeholder {run}", "did you mean runs"),
        (GOOD.replace('threads = "4"', 'work = "4"'), "settings.work has a name that farm fills in", ""),
        ('runs = "20"' + GOOD, "runs must be a whole number", ""),
        ("runs = 0" + GOOD, "runs must be 1 or more", ""),
        ("limit_s = nan" + GOOD, "limit_s must be", ""),
        ('expected = {file = "../x", reference = "r.npy"}' + GOOD, "expected.file has characters", ""),
        ('expected = {file = "x", reference = "r.npy", tol = 1.0}' + GOOD, "expected.tol is not known", ""),
        (GOOD.replace("THREADS =", '"A B" ='), "environment", ""),
    ],
)
def test_what_is_wrong_is_named(text, said, hint):
    with raises_code(Code.BAD_PROGRAM, match=said.replace("{", r"\{").replace("}", r"\}")) as caught:
        read(text)
    assert hint in caught.value.hint


def test_settings_are_those_of_the_description():
    ncnn, _ = builtin_description("ncnn")
    with raises_code(Code.BAD_PROGRAM, match="ncnn needs a value for shape"):
        with_settings(ncnn, {})
    assert with_settings(ncnn, {"shape": "[227,227,3]"})["shape"] == "[227,227,3]"
    with raises_code(Code.BAD_PROGRAM, match="ncnn has no setting 'shapes'") as caught:
        with_settings(ncnn, {"shapes": "1"})
    assert caught.value.hint == "did you mean shape?"


def test_a_model_must_be_of_the_runtimes_format():
    litert, _ = builtin_description("litert")
    check_model(litert, "net.tflite")
    with raises_code(Code.BAD_PROGRAM, match="litert takes .tflite files, not net.onnx"):
        check_model(litert, "net.onnx")
    with raises_code(Code.BAD_PROGRAM, match="litert needs a model: `model` names no file"):
        check_model(litert, "")


def test_there_is_no_description_of_others():
    with raises_code(Code.BAD_PROGRAM, match="no description of a runtime 'lite'") as caught:
        builtin_description("lite")
    assert "litert" in caught.value.hint
