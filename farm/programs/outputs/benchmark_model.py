"""TensorFlow Lite's and LiteRT's benchmark_model: the mean of the runs behind the warm-up, in microseconds."""

from __future__ import annotations

import re

from farm.programs.outputs.readings import ProgramOutput, ProgramSamples, missing_line, read_count, read_time

MICROSECOND = 1e-6
_COUNT = re.compile(r"(?:INFO: )?(count=(\S+) .*)")
_SUMMARY = re.compile(r"(?:INFO: )?(?:Average i|I)nference timings in us: ")


def parse(output: ProgramOutput) -> ProgramSamples:
    """The mean in the last line `count=50 first=... avg=...`: the one before is of the warm-up.

    Raises:
        UserError: there is no such line, or the summary behind it, which ends a benchmark, is missing.
    """
    lines = output.lines
    if not any(map(_SUMMARY.match, lines)):
        raise missing_line("Inference timings in us: ...", output)
    counted = [found for found in map(_COUNT.match, lines) if found]
    if not counted:
        raise missing_line("count=... avg=...", output)
    line, count = counted[-1][1], counted[-1][2]
    values = {name: value for name, _, value in (word.partition("=") for word in line.split())}
    mean = values.get("avg", values.get("curr", ""))  # of a single run it prints no mean
    return ProgramSamples((read_time(mean, MICROSECOND, line),), read_count(count, line))
