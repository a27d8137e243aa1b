"""ExecuTorch's executor_runner: each run where it says so, else the time of all of them, in milliseconds."""

from __future__ import annotations

import re

from farm.programs.outputs.readings import ProgramOutput, ProgramSamples, missing_line, read_count, read_time

MILLISECOND = 1e-3
_RUN = re.compile(r".*\] Iteration ([0-9]{1,9}) of ([0-9]{1,9}): (\S+) ms")
_ALL = re.compile(r".*\] Model executed successfully (\S+) time\(s\) in (\S+) ms\.")
_QNN = re.compile(r".*\] (\S+) inference took \S+ ms, avg (\S+) ms")  # qnn_executor_runner


def parse(output: ProgramOutput) -> ProgramSamples:
    """A sample for each run; of a release that does not print them, their mean.

    Raises:
        UserError: the output has no run, or fewer than were begun.
    """
    each = [found for found in map(_RUN.fullmatch, output.lines) if found]
    if each and len(each) != int(each[-1][2]):
        raise missing_line(f"Iteration {each[-1][2]} of {each[-1][2]}: ... ms", output)
    if each:
        return ProgramSamples(tuple(read_time(found[3], MILLISECOND, found[0]) for found in each), 1)
    for line in output.lines:
        if found := _QNN.fullmatch(line):
            return ProgramSamples((read_time(found[2], MILLISECOND, line),), read_count(found[1], line))
        if found := _ALL.fullmatch(line):
            runs = read_count(found[1], line)
            return ProgramSamples((read_time(found[2], MILLISECOND / runs, line),), runs)
    raise missing_line("Model executed successfully ... time(s) in ... ms.", output)
