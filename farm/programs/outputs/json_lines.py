"""JSON lines of people's own programs: `{"ms": 1.25}` for each run, or `{"ms": 1.25, "runs": 100}` for a mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farm.programs.outputs.readings import (
    SHOWN_CHARS,
    ProgramOutput,
    ProgramSamples,
    missing_line,
    no_json,
    read_count,
    read_time,
    unreadable_output,
)

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def parse(output: ProgramOutput) -> ProgramSamples:
    """A sample for each line that is a JSON object with a time; lines that do not begin with `{` are ignored.

    Raises:
        UserError: a line is no JSON, has no time or two; means of different numbers of runs; there is no such line.
    """
    seconds, runs = [], set()
    for line in output.lines:
        if line.startswith("{"):
            taken = _object(line, output)
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


def _object(line: str, output: ProgramOutput) -> Mapping[str, Any]:
    try:
        taken: Any = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
    except ValueError as error:
        raise no_json(line, error, output) from error
    return dict(taken)
