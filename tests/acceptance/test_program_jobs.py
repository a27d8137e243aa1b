"""Jobs of kind program on a virtual phone: a shell script as the benchmark tool, with all that can go wrong."""

import json
from pathlib import Path

import pytest

from tests.support.tiny_model import tiny_onnx
from tests.support.whole_farm import phones, until_ready

DATA = Path(__file__).parents[1] / "data" / "programs"

pytestmark = pytest.mark.farm("galaxy-s9")

SPEC = """
name = "script"
version = "1.0"
license = "MIT"
command = ["{{runtime}}/timer", "{{runs}}", "{{model}}", "{{work}}", "{{mode}}"]
output = "json-lines"
files = "tool"
limit_s = {limit}
[settings]
mode = "good"
[cpu]
mode = ["good", "mean", "much", "hang"]
"""
TOOL = """#!/system/bin/sh
case $4 in
good)
    [ "$(cat "$2")" = weights ] || exit 3
    printf '\\000\\000\\200\\077' >"$3/out.raw"
    i=0
    while [ $i -lt $1 ]; do echo "{\\"ms\\": 1.$((i % 7 + 10))}"; i=$((i + 1)); done ;;
mean) echo "{\\"ms\\": 1.25, \\"runs\\": $1}" ;;
npu*) echo "{\\"ms\\": 1.25, \\"runs\\": $1}"; echo "{\\"ran_on\\": {\\"NPU\\": ${4#npu}, \\"CPU\\": 2}}" ;;
much) exec yes 'a long line that is printed forever' ;;
hang) trap '' HUP; sleep 1000 ;;
esac
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "timer").write_text(TOOL)
    (tmp_path / "net.bin").write_text("weights")
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.format(limit=30))
    return path


# onnxruntime_perf_test as it is called: -e chooses the provider, -p writes a profile, whose name has the time.
PERF_TEST = """#!/system/bin/sh
while [ $# -gt 1 ]; do
    case $1 in -e) provider=$2 ;; -p) profile=$2 ;; esac
    shift
done
case $provider in nnapi) one=NnapiExecutionProvider ;; *) one=CPUExecutionProvider ;; esac
if [ -n "$profile" ]; then
    {{
        echo '['
        echo "{{\\"name\\": \\"a_kernel_time\\", \\"dur\\": 30, \\"args\\": {{\\"provider\\": \\"$one\\"}}}},"
        echo '{{"name": "b_kernel_time", "dur": 10, "args": {{"provider": "CPUExecutionProvider"}}}}]'
    }} >"${{profile}}_2026-11-30_12-00-00.json"
fi
cat <<'END'
{printed}
END
"""


def ran(farm, spec, *options, mode="good", code=0):
    model = spec.parent / "net.bin"
    words = ("program", "run", spec, "--on", "android", "--model", model, "--set", f"mode={mode}", "--json", *options)
    done = farm.farm(*words, "--max-attempts", "1")
    assert done.returncode == code, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    return result


def exported(farm):
    return [json.loads(line) for line in farm.farm("export", "net.bin").stdout.splitlines()]


def test_a_program_is_measured_as_a_bench_is(farm, spec):
    (phone,) = phones(farm)
    first = ran(farm, spec, "--repeat", "12")
    assert first["runtime"]["name"] == "script"
    assert 1.09 < first["latency"]["median_ms"] < 1.17
    certificate = first["certificate"]
    assert (certificate["count"], certificate["number"]) == (12, 5)
    assert certificate["reference"]["kernel"]  # of TVM's, between two calls
    assert certificate["reference"]["median_s"] > 0
    assert any("were not compared" in note for note in certificate["notes"])
    assert phone.shell("ls /data/local/tmp/farm/programs").split()
    mean = ran(farm, spec, "--repeat", "6", mode="mean")
    assert (mean["latency"]["median_ms"], mean["certificate"]["number"]) == (pytest.approx(1.25), 20)
    pushed = [line for line in farm.farm("logs", mean["job"]).stdout.splitlines() if "bytes of programs" in line]
    assert "pushed 0 bytes" in pushed[0]
    shown = farm.farm("job", "show", first["job"]).stdout
    assert "script 1.0, mode=good, MIT" in shown
    lines = json.loads(farm.farm("history", "net.bin", "--json").stdout)["lines"]
    assert [(line["target"], line["placement"], line["results"][0]["job"]) for line in lines] == [
        ("script", "mode=good", first["job"]),  # a setting is no change of level
        ("script", "mode=mean", mean["job"]),
    ]
    assert {row["runtime"] for row in exported(farm)} == {"script 1.0"}
    compared = farm.farm("compare", first["job"], mean["job"])
    # A busy host's results may be rejected: that is an answer, too.
    assert compared.returncode == 0 or "cannot tell: the result of" in compared.stderr, compared.stderr


def test_a_program_that_prints_without_end_is_one_error(farm, spec):
    error = ran(farm, spec, mode="much", code=1)["error"]
    assert error["code"] == "program_unreadable"
    assert "printed more than 128 KiB and was ended" in error["message"]
    assert error["hint"]


def test_where_the_work_ran_is_kept_required_and_a_line_of_history(farm, spec):
    net = spec.parent / "placed.bin"
    net.write_text("other weights")
    words = ("program", "run", spec, "--on", "android", "--model", net, "--repeat", "5", "--require-offload", "60%")
    little = farm.farm(*words, "--set", "mode=npu2")
    assert little.returncode == 1, little.stdout + little.stderr
    assert "50 % was offloaded of 60 %; it ran on NPU 2 nodes, CPU 2 nodes" in little.stderr
    assert "The work ran on NPU 2 nodes, CPU 2 nodes." in little.stdout
    enough = farm.farm(*words, "--set", "mode=npu3", "--json")
    assert enough.returncode == 0, enough.stdout + enough.stderr
    (result,) = json.loads(enough.stdout)["results"]
    assert result["ran_on"]["offloaded"] == pytest.approx(0.6)
    unknown = farm.farm(*words, "--set", "mode=mean")
    assert (unknown.returncode, "where its work ran is not known" in unknown.stderr) == (1, True)
    rows = [json.loads(line) for line in farm.farm("export", "placed.bin", "--samples").stdout.splitlines()]
    assert [(row["ran_on"], row["offloaded"]) for row in rows] == [
        (None, None), ("NPU 3 nodes, CPU 2 nodes", pytest.approx(0.6)), ("NPU 2 nodes, CPU 2 nodes", 0.5),
    ]  # fmt: skip
    assert [len(row["samples_s"]) for row in rows] == [5, 5, 5]
    assert all(row["p90_s"] > 0 and row["number"] == 20 for row in rows)
    lines = json.loads(farm.farm("history", "placed.bin", "--json").stdout)["lines"]
    assert {line["ran_on"] for line in lines} == {row["ran_on"] or "" for row in rows}


def test_ci_benches_another_runtime(farm, spec):
    words = ("ci", "bench", spec.parent / "net.bin", "--on", "android", "--runtime", spec, "--repeat", "5", "--json")
    done = farm.farm(*words, "--set", "mode=mean", "--branch", "topic", "--commit", "c1")
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    (row,) = (each for each in exported(farm) if each["branch"] == "topic")
    assert (case["job"], row["commit"]) == (row["job"], "c1")


def test_a_program_that_hangs_is_ended_on_the_phone(farm, spec):
    (phone,) = phones(farm)
    spec.write_text(SPEC.format(limit=2))
    error = ran(farm, spec, mode="hang", code=1)["error"]
    assert (error["code"], "did not end within 2 s" in error["message"]) == ("program_hung", True)
    until_ready(farm)  # cleaned and checked
    assert "programs" not in phone.shell("ps -A -o PID,ARGS")


def test_a_model_under_tvm_and_another_runtime_in_turns(farm, spec):
    model = spec.parent / "tiny.onnx"
    model.write_bytes(tiny_onnx())
    words = ("compare", model, "--on", "android", "--runtime-b", spec, "--set-b", "mode=mean", "--measure", "3")
    done = farm.farm(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert [result[side]["runtime"]["name"] for side in "ab"] == ["tvm", "script"]
    assert result["b"]["latency"]["median_ms"] == pytest.approx(1.25)
    assert result["comparison"]["pairs"] >= 2
    assert result["a"]["max_abs_error"] is not None
    shown = farm.farm("job", "show", result["job"]).stdout
    assert "A ran under tvm" in shown
    assert "; B under script 1.0, mode=mean" in shown
    same = farm.farm("compare", model, "--on", "android")
    assert (same.returncode, "nothing differs" in same.stderr) == (2, True)


def test_a_runtime_that_farm_knows_is_the_program_in_its_folder(farm, spec):
    tool = spec.parent / "litert"
    tool.mkdir()
    lines = (DATA / "benchmark_model-2020.txt").read_text()
    (tool / "benchmark_model").write_text(f"#!/system/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    model = spec.parent / "net.tflite"
    model.write_text("weights")
    words = ("bench", model, "--on", "android", "--runtime", "litert", "--runtime-folder", tool, "--repeat", "5")
    done = farm.farm(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["latency"]["median_ms"] == pytest.approx(33.2094)
    assert (result["certificate"]["number"], result["target"]) == (50, "litert")
    refused = farm.farm(*words, "--precision", "float16")
    assert (refused.returncode, "is for TVM" in refused.stderr) == (2, True), refused.stderr


def test_a_provider_that_took_nodes_is_in_the_result_and_one_that_took_none_fails(farm, spec):
    tool, model = spec.parent / "ort", spec.parent / "net.onnx"
    tool.mkdir()
    printed = (DATA / "onnxruntime_perf_test-2026.txt").read_text()
    (tool / "onnxruntime_perf_test").write_text(PERF_TEST.format(printed=printed))
    model.write_bytes(tiny_onnx())
    words = ("bench", model, "--on", "android", "--runtime", "ort", "--runtime-folder", tool, "--repeat", "5", "--json")
    done = farm.farm(*words, "--set", "provider=nnapi", "--require-offload", "75%")
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["latency"]["median_ms"] == pytest.approx(98.961997)
    words_of_it = "NnapiExecutionProvider 1 nodes, CPUExecutionProvider 1 nodes"
    assert (result["ran_on"]["words"], result["ran_on"]["offloaded"]) == (words_of_it, pytest.approx(0.75))
    source = ("--branch", "topic", "--commit", "c1")
    checked = farm.farm("ci", *words, *source, "--set", "provider=nnapi", "--require-offload", "80%")
    (case,) = json.loads(checked.stdout)["cases"]
    assert (checked.returncode, case["answer"]) == (1, "failed"), checked.stderr
    assert case["about"] == f"75 % was offloaded of 80 %; it ran on {words_of_it}"
    nothing = farm.farm(*words, "--set", "provider=xnnpack", "--max-attempts", "1")  # as if it took no node
    (failed,) = json.loads(nothing.stdout)["results"]
    assert (nothing.returncode, failed["error"]["code"]) == (1, "not_offloaded")
