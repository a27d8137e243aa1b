"""What programs print, as samples: a parser per format. Pure.

A parser takes the text of one call of a program and returns its samples, or raises the one error that says which line
is wrong. It takes nothing for a time that is none: NaN, 0, a decimal comma.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from farm.common.errors import Code, UserError
from farm.measure.series import MAX_S, MIN_S

SHOWN_CHARS = 80
EVIDENCE_CHARS = 2000
DECIMAL_COMMA = "does the program write a decimal comma? farm sets LC_ALL=C; it must not choose another locale"
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
unreadable_output = partial(UserError, code=Code.PROGRAM_UNREADABLE)
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_COMMA = re.compile(r"[0-9],[0-9]")
MILLISECOND = 1e-3
MICROSECOND = 1e-6
_TFLITE_COUNT = re.compile(r"(?:INFO: )?(count=(\S+) .*)")
_TFLITE_SUMMARY = re.compile(r"(?:INFO: )?(?:Average i|I)nference timings in us: ")
# Before 2020 without "inference" and blank; since 2025 with "total".
_ORT_MEAN = re.compile(r"Average (?:inference )?time cost(?: total)?: ?(\S+) ms")
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


def read_output(form: str, output: ProgramOutput, skip: int = 0) -> ProgramSamples:
    """The samples of one call, without its first `skip` runs where it prints each run."""
    found = PARSERS[form](output)
    each_run = found.runs == 1 and len(found.seconds) > skip
    return ProgramSamples(found.seconds[skip:], 1) if each_run else found


def grouped(seconds: Sequence[float], most: int) -> list[float]:
    """Samples of single runs as at most so many means of runs in a row, each of about as many."""
    groups = min(most, len(seconds))
    edges = [len(seconds) * group // groups for group in range(groups + 1)]
    return [sum(seconds[low:high]) / (high - low) for low, high in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What one call of a program printed. A phone with an old adbd has all of it in `stdout`."""

    stdout: str
    stderr: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines of both, stripped."""
        return [line.strip() for text in (self.stdout, self.stderr) for line in text.splitlines()]

    @property
    def end(self) -> str:
        """The end of what it printed, as evidence."""
        return (self.stdout.strip() or self.stderr.strip())[-EVIDENCE_CHARS:]


@dataclass(frozen=True, slots=True)
class ProgramSamples:
    """The times of one call, in order, in seconds of one run."""

    seconds: tuple[float, ...]
    runs: int  # averaged into each of them; 0: the program does not say


def read_time(text: str, unit_s: float, line: str) -> float:
    """A time that a program printed, in seconds; `line` is where."""
    if not _NUMBER.fullmatch(text):
        raise unreadable_output(
            f"{text[:SHOWN_CHARS]!r} is no number, in the line {line[:SHOWN_CHARS]!r}",
            hint=DECIMAL_COMMA if "," in text else "call it by hand",
        )
    seconds = float(text) * unit_s
    if not MIN_S <= seconds <= MAX_S:
        raise unreadable_output(
            f"{text[:SHOWN_CHARS]} is no time that a run takes, in the line {line[:SHOWN_CHARS]!r}",
            hint="more runs, if the program rounds to 0",
        )
    return seconds


def read_count(text: str, line: str) -> int:
    """A number of runs."""
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) == 0:
        raise unreadable_output(f"{text[:SHOWN_CHARS]!r} is no number of runs, in the line {line[:SHOWN_CHARS]!r}")
    return int(text)


def missing_line(wanted: str, output: ProgramOutput) -> UserError:
    """The error for an output without the line that has the times."""
    if not output.end:
        return unreadable_output(
            "the program printed nothing", hint="call it by hand; does it print to a file? Then `report` reads it"
        )
    return unreadable_output(
        f"the program printed no line {wanted!r}",
        hint="is it the program that the description's `output` names? The evidence is the end of what it printed",
        evidence=output.end,
    )


def parse_lines(output: ProgramOutput) -> ProgramSamples:
    """A sample for each line that is a JSON object with a time; lines that do not begin with `{` are ignored.

    `{"ms": 1.25}` is one run, `{"ms": 1.25, "runs": 100}` a mean. A line with `ran_on` has no time.
    """
    seconds, runs = [], set()
    for line in output.lines:
        if line.startswith("{"):
            taken = _read(line, output)
            if "ran_on" in taken:  # read by work_placement
                continue
            times = [name for name in UNITS if name in taken]
            if len(times) != 1:
                raise unreadable_output(f"the line {line[:SHOWN_CHARS]!r} has no time, or two", hint='{"ms": 1.25}')
            seconds.append(read_time(str(taken[times[0]]), UNITS[times[0]], line))
            runs.add(read_count(str(taken.get("runs", "1")), line))
    if not seconds:
        raise missing_line('{"ms": ...}', output)
    if len(runs) > 1:
        raise unreadable_output("the lines are means of different numbers of runs", hint='the same "runs" in each')
    return ProgramSamples(tuple(seconds), runs.pop())


def parse_llama_bench(output: ProgramOutput) -> ProgramSamples:
    """A sample for each repetition of its only test: the time in which all of the test's tokens were processed."""
    start = output.stdout.find("[\n")  # what a backend prints stands before it
    if start < 0:
        raise missing_line("[", output)
    tests = _read(output.stdout[start:], output)
    if not isinstance(tests, list) or len(tests) != 1:
        raise unreadable_output(
            f"llama-bench ran {len(tests)} tests, whose times are not of one thing",
            hint="one test: -p 512 -n 0 (prompt) or -p 0 -n 128 (generation)",
        )
    samples = tests[0].get("samples_ns") if isinstance(tests[0], dict) else None
    if not isinstance(samples, list) or not samples:
        raise missing_line('"samples_ns": [ ... ]', output)
    line = f'"samples_ns": {samples}'
    return ProgramSamples(tuple(read_time(str(each), UNITS["ns"], line) for each in samples), 1)


def _read(text: str, output: ProgramOutput) -> Any:
    """An output, or a line of it, as JSON whose numbers are left as text."""
    try:
        return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise unreadable_output(
            f"{text[:SHOWN_CHARS]!r} is no JSON: {error}",
            hint=DECIMAL_COMMA if _COMMA.search(text) else "call it by hand: farm lease run --on SELECTOR -- adb shell",
            evidence=output.end,
        ) from error


def parse_benchmark_model(output: ProgramOutput) -> ProgramSamples:
    """TensorFlow Lite's and LiteRT's: the mean in the last line `count=50 first=... avg=...`, behind the warm-up's."""
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
    """The mean of its runs, which its one untimed run goes before."""
    means = [found for found in map(_ORT_MEAN.fullmatch, output.lines) if found]
    runs = [found for found in map(_ORT_RUNS.fullmatch, output.lines) if found]
    if not means:
        raise missing_line("Average inference time cost: ... ms", output)
    if not runs:
        raise missing_line("Total inference requests: ...", output)
    return ProgramSamples((read_time(means[-1][1], MILLISECOND, means[-1][0]),), read_count(runs[-1][1], runs[-1][0]))


def parse_executor_runner(output: ProgramOutput) -> ProgramSamples:
    """ExecuTorch's: a sample for each run; of a release that does not print them, their mean."""
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
    """MNN's benchmark.out: the mean of `loop` runs of the only model in its folder."""
    return _mean(output, _MNN, _MNN_LOOPS, "[ - ] MODEL  max = ... ms  min = ... ms  avg = ... ms")


def parse_ncnn(output: ProgramOutput) -> ProgramSamples:
    """Ncnn's benchncnn: the mean of `loop_count` runs of the only model."""
    return _mean(output, _NCNN, _NCNN_LOOPS, "MODEL  min = ...  max = ...  avg = ...")


def parse_qnn_profile(output: ProgramOutput) -> ProgramSamples:
    """qnn-profile-viewer's, over the log of qnn-net-run: the mean `NetRun`, which the application waits for one run."""
    lines = output.lines
    if _QNN_AVERAGE not in lines:
        raise missing_line(_QNN_AVERAGE, output)
    for line in lines[lines.index(_QNN_AVERAGE) + 1 :]:
        if line.endswith("Stats:") or (line.startswith("Execute Stats") and line != _QNN_AVERAGE):
            break
        if found := _QNN_NETRUN.fullmatch(line):
            return ProgramSamples((read_time(found[1], MICROSECOND, line),), 0)
    raise missing_line("NetRun: ... us", output)


PARSERS: Mapping[str, Callable[[ProgramOutput], ProgramSamples]] = {
    "json-lines": parse_lines,
    "benchmark_model": parse_benchmark_model,
    "onnxruntime_perf_test": parse_onnxruntime_perf_test,
    "executor_runner": parse_executor_runner,
    "llama-bench": parse_llama_bench,
    "mnn": parse_mnn,
    "ncnn": parse_ncnn,
    "qnn-profile": parse_qnn_profile,
}


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
