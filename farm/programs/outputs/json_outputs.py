"""What programs print as JSON: lines of people's own programs, and llama.cpp's `llama-bench -o json`."""

from __future__ import annotations

import json
import re
from typing import Any

from farm.programs.outputs.readings import (
    DECIMAL_COMMA,
    SHOWN_CHARS,
    ProgramOutput,
    ProgramSamples,
    missing_line,
    read_count,
    read_time,
    unreadable_output,
)

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_COMMA = re.compile(r"[0-9],[0-9]")


def parse_lines(output: ProgramOutput) -> ProgramSamples:
    """A sample for each line that is a JSON object with a time; lines that do not begin with `{` are ignored.

    `{"ms": 1.25}` is one run, `{"ms": 1.25, "runs": 100}` a mean.

    Raises:
        UserError: a line is no JSON, has no time or two; means of different numbers of runs; there is no such line.
    """
    seconds, runs = [], set()
    for line in output.lines:
        if line.startswith("{"):
            taken = _read(line, output)
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
    """A sample for each repetition of its only test: the time in which all of the test's tokens were processed.

    Raises:
        UserError: it is no such JSON, or of several tests, whose times are not of one thing.
    """
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
