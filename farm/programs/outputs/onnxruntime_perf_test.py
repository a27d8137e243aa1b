"""ONNX Runtime's onnxruntime_perf_test: the mean of all runs, in milliseconds."""

from __future__ import annotations

import re

from farm.programs.outputs.readings import ProgramOutput, ProgramSamples, missing_line, read_count, read_time

MILLISECOND = 1e-3
# Before 2020 the lines had no "inference", and no blank behind the colon.
_MEAN = re.compile(r"Average (?:inference )?time cost: ?(\S+) ms")
_RUNS = re.compile(r"Total (?:inference requests|iterations): ?(\S+)")


def parse(output: ProgramOutput) -> ProgramSamples:
    """The mean of its runs, which its one untimed run goes before.

    Raises:
        UserError: it did not print one.
    """
    means = [found for found in map(_MEAN.fullmatch, output.lines) if found]
    runs = [found for found in map(_RUNS.fullmatch, output.lines) if found]
    if not means:
        raise missing_line("Average inference time cost: ... ms", output)
    if not runs:
        raise missing_line("Total inference requests: ...", output)
    return ProgramSamples((read_time(means[-1][1], MILLISECOND, means[-1][0]),), read_count(runs[-1][1], runs[-1][0]))
