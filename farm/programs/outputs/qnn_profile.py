"""QNN's qnn-profile-viewer over the log of qnn-net-run: the mean of its runs, in microseconds."""

from __future__ import annotations

import re

from farm.programs.outputs.readings import ProgramOutput, ProgramSamples, missing_line, read_time

MICROSECOND = 1e-6
AVERAGE = "Execute Stats (Average):"
_NETRUN = re.compile(r"NetRun: +(\S+) us")


def parse(output: ProgramOutput) -> ProgramSamples:
    """The time of `NetRun` in the averages: what the application waits for one run.

    Raises:
        UserError: the log has none.
    """
    lines = output.lines
    if AVERAGE not in lines:
        raise missing_line(AVERAGE, output)
    for line in lines[lines.index(AVERAGE) + 1 :]:
        if line.endswith("Stats:") or (line.startswith("Execute Stats") and line != AVERAGE):
            break
        if found := _NETRUN.fullmatch(line):
            return ProgramSamples((read_time(found[1], MICROSECOND, line),), 0)
    raise missing_line("NetRun: ... us", output)
