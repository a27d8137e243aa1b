"""MNN's benchmark.out and ncnn's benchncnn: a line per model with fastest, slowest and mean run, in milliseconds."""

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
_MNN = re.compile(r"\[ - \] (\S+) +max = +(\S+?) ?ms  min = +(\S+?) ?ms  avg = +(\S+?) ?ms")
_MNN_LOOPS = re.compile(r"-+> Benchmarking\.\.\. loop = (\d+)\b.*")
_NCNN = re.compile(r"(\S+) +min = +(\S+)  max = +(\S+)  avg = +(\S+)")
_NCNN_LOOPS = re.compile(r"loop_count = (\d+)")


def parse_mnn(output: ProgramOutput) -> ProgramSamples:
    """The mean of `loop` runs of the only model in its folder.

    Raises:
        UserError: there is no such line, or there are several.
    """
    return _mean(output, _MNN, _MNN_LOOPS, "[ - ] MODEL  max = ... ms  min = ... ms  avg = ... ms")


def parse_ncnn(output: ProgramOutput) -> ProgramSamples:
    """The mean of `loop_count` runs of the only model.

    Raises:
        UserError: as `parse_mnn`.
    """
    return _mean(output, _NCNN, _NCNN_LOOPS, "MODEL  min = ...  max = ...  avg = ...")


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
