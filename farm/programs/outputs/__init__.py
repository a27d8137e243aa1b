"""What programs print, as samples: a parser per format. Pure.

A parser takes the text of one call of a program and returns its samples, or raises the one error that says which line
is wrong. It takes nothing for a time that is none: NaN, 0, a decimal comma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from farm.programs.outputs import json_outputs, text_outputs
from farm.programs.outputs.readings import ProgramOutput, ProgramSamples

PARSERS: Mapping[str, Callable[[ProgramOutput], ProgramSamples]] = {
    "json-lines": json_outputs.parse_lines,
    "benchmark_model": text_outputs.parse_benchmark_model,
    "onnxruntime_perf_test": text_outputs.parse_onnxruntime_perf_test,
    "executor_runner": text_outputs.parse_executor_runner,
    "llama-bench": json_outputs.parse_llama_bench,
    "mnn": text_outputs.parse_mnn,
    "ncnn": text_outputs.parse_ncnn,
    "qnn-profile": text_outputs.parse_qnn_profile,
}


def read_output(form: str, output: ProgramOutput, skip: int = 0) -> ProgramSamples:
    """The samples of one call, without its first `skip` runs where it prints each run.

    Raises:
        UserError: the output is not of that format.
    """
    found = PARSERS[form](output)
    each_run = found.runs == 1 and len(found.seconds) > skip
    return ProgramSamples(found.seconds[skip:], 1) if each_run else found


def grouped(seconds: Sequence[float], most: int) -> list[float]:
    """Samples of single runs as at most so many means of runs in a row, each of about as many."""
    groups = min(most, len(seconds))
    edges = [len(seconds) * group // groups for group in range(groups + 1)]
    return [sum(seconds[low:high]) / (high - low) for low, high in pairwise(edges)]
