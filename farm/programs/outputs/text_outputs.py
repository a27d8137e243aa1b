"""What the tools of other runtimes print as lines of text: the time of each run, or the mean of several."""

from __future__ import annotations

import re

from farm.programs.outputs.readings import (
    ProgramOutput,
    ProgramSamples,
    missing_line,
    read_count,
    read_time,
    unreadable_output,
)

MILLISECOND = 1e-3
MICROSECOND = 1e-6

_TFLITE_COUNT = re.compile(r"(?:INFO: )?(count=(\S+) .*)")
_TFLITE_SUMMARY = re.compile(r"(?:INFO: )?(?:Average i|I)nference timings in us: ")
_ORT_MEAN = re.compile(r"Average (?:inference )?time cost: ?(\S+) ms")  # before 2020 without "inference" and blank
_ORT_RUNS = re.compile(r"Total (?:inference requests|iterations): ?(\S+)")
_EXECUTORCH_RUN = re.compile(r".*\] Iteration ([0-9]{1,9}) of ([0-9]{1,9}): (\S+) ms")
_EXECUTORCH_ALL = re.compile(r".*\] Model executed successfully (\S+) time\(s\) in (\S+) ms\.")
_EXECUTORCH_QNN = re.compile(r".*\] (\S+) inference took \S+ ms, avg (\S+) ms")  # qnn_executor_runner
_MNN = re.compile(r"\[ - \] (\S+) +max = +(\S+?) ?ms  min = +(\S+?) ?ms  avg = +(\S+?) ?ms")
_MNN_LOOPS = re.compile(r"-+> Benchmarking\.\.\. loop = (\d+)\b.*")
_NCNN = re.compile(r"(\S+) +min = +(\S+)  max = +(\S+)  avg = +(\S+)")
_NCNN_LOOPS = re.compile(r"loop_count = (\d+)")
_QNN_AVERAGE = "Execute Stats (Average):"
_QNN_NETRUN = re.compile(r"NetRun: +(\S+) us")


def parse_benchmark_model(output: ProgramOutput) -> ProgramSamples:
    """TensorFlow Lite's and LiteRT's: the mean in the last line `count=50 first=... avg=...`, behind the warm-up's.

    Raises:
        UserError: there is no such line, or the summary behind it, which ends a benchmark, is missing.
    """
    lines = output.lines
    if not any(map(_TFLITE_SUMMARY.match, lines)):
        raise missing_line("Inference timings in us: ...", output)
    counted = [found for found in map(_TFLITE_COUNT.match, lines) if found]
    if not counted:
        raise missing_line("count=... avg=...", output)
    line, count = counted[-1][1], counted[-1][2]
    values = {name: value for name, _, value in (word.partition("=") for word in line.split())}
    mean = values.get("avg", values.get("curr", ""))  # of a single run it prints no mean
    return ProgramSamples((read_time(mean, MICROSECOND, line),), read_count(count, line))


def parse_onnxruntime_perf_test(output: ProgramOutput) -> ProgramSamples:
    """The mean of its runs, which its one untimed run goes before.

    Raises:
        UserError: it did not print one.
    """
    means = [found for found in map(_ORT_MEAN.fullmatch, output.lines) if found]
    runs = [found for found in map(_ORT_RUNS.fullmatch, output.lines) if found]
    if not means:
        raise missing_line("Average inference time cost: ... ms", output)
    if not runs:
        raise missing_line("Total inference requests: ...", output)
    return ProgramSamples((read_time(means[-1][1], MILLISECOND, means[-1][0]),), read_count(runs[-1][1], runs[-1][0]))


def parse_executor_runner(output: ProgramOutput) -> ProgramSamples:
    """ExecuTorch's: a sample for each run; of a release that does not print them, their mean.

    Raises:
        UserError: the output has no run, or fewer than were begun.
    """
    each = [found for found in map(_EXECUTORCH_RUN.fullmatch, output.lines) if found]
    if each and len(each) != int(each[-1][2]):
        raise missing_line(f"Iteration {each[-1][2]} of {each[-1][2]}: ... ms", output)
    if each:
        return ProgramSamples(tuple(read_time(found[3], MILLISECOND, found[0]) for found in each), 1)
    for line in output.lines:
        if found := _EXECUTORCH_QNN.fullmatch(line):
            return ProgramSamples((read_time(found[2], MILLISECOND, line),), read_count(found[1], line))
        if found := _EXECUTORCH_ALL.fullmatch(line):
            runs = read_count(found[1], line)
            return ProgramSamples((read_time(found[2], MILLISECOND / runs, line),), runs)
    raise missing_line("Model executed successfully ... time(s) in ... ms.", output)


def parse_mnn(output: ProgramOutput) -> ProgramSamples:
    """MNN's benchmark.out: the mean of `loop` runs of the only model in its folder.

    Raises:
        UserError: there is no such line, or there are several.
    """
    return _mean(output, _MNN, _MNN_LOOPS, "[ - ] MODEL  max = ... ms  min = ... ms  avg = ... ms")


def parse_ncnn(output: ProgramOutput) -> ProgramSamples:
    """Ncnn's benchncnn: the mean of `loop_count` runs of the only model.

    Raises:
        UserError: as `parse_mnn`.
    """
    return _mean(output, _NCNN, _NCNN_LOOPS, "MODEL  min = ...  max = ...  avg = ...")


def parse_qnn_profile(output: ProgramOutput) -> ProgramSamples:
    """qnn-profile-viewer's, over the log of qnn-net-run: the mean `NetRun`, which the application waits for one run.

    Raises:
        UserError: the log has none.
    """
    lines = output.lines
    if _QNN_AVERAGE not in lines:
        raise missing_line(_QNN_AVERAGE, output)
    for line in lines[lines.index(_QNN_AVERAGE) + 1 :]:
        if line.endswith("Stats:") or (line.startswith("Execute Stats") and line != _QNN_AVERAGE):
            break
        if found := _QNN_NETRUN.fullmatch(line):
            return ProgramSamples((read_time(found[1], MICROSECOND, line),), 0)
    raise missing_line("NetRun: ... us", output)


def _mean(output: ProgramOutput, row: re.Pattern[str], loops: re.Pattern[str], wanted: str) -> ProgramSamples:
    rows = [found for found in map(row.fullmatch, output.lines) if found]
    counts = [found for found in map(loops.fullmatch, output.lines) if found]
    if not rows or not counts:
        raise missing_line(wanted, output)
    if len(rows) > 1:
        names = ", ".join(found[1] for found in rows[:3])
        raise unreadable_output(
            f"the program timed {len(rows)} models ({names} ...), whose times are not of one thing",
            hint="have it time one model",
        )
    return ProgramSamples((read_time(rows[0][4], MILLISECOND, rows[0][0]),), read_count(counts[-1][1], counts[-1][0]))
