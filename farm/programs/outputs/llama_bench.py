"""llama.cpp's `llama-bench -o json`: the nanoseconds of each repetition of a test."""

from __future__ import annotations

import json
from typing import Any

from farm.programs.outputs.readings import (
    ProgramOutput,
    ProgramSamples,
    missing_line,
    no_json,
    read_time,
    unreadable_output,
)

NANOSECOND = 1e-9


def parse(output: ProgramOutput) -> ProgramSamples:
    """A sample for each repetition of its only test: the time in which all of the test's tokens were processed.

    Raises:
        UserError: it is no such JSON, or of several tests, whose times are not of one thing.
    """
    start = output.stdout.find("[\n")  # what a backend prints stands before it
    if start < 0:
        raise missing_line("[", output)
    try:
        tests: Any = json.loads(output.stdout[start:], parse_float=str, parse_int=str)
    except ValueError as error:
        raise no_json(output.stdout[start:], error, output) from error
    if not isinstance(tests, list) or len(tests) != 1:
        raise unreadable_output(
            f"llama-bench ran {len(tests)} tests, whose times are not of one thing",
            hint="one test: -p 512 -n 0 (prompt) or -p 0 -n 128 (generation)",
        )
    samples = tests[0].get("samples_ns") if isinstance(tests[0], dict) else None
    if not isinstance(samples, list) or not samples:
        raise missing_line('"samples_ns": [ ... ]', output)
    line = f'"samples_ns": {samples}'
    return ProgramSamples(tuple(read_time(str(each), NANOSECOND, line) for each in samples), 1)
