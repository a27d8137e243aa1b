"""Recorded health of a phone, played on a virtual one: its files repeat the readings, moment by moment.

A trace is lines of JSON, each a moment: `{"t": seconds since the first, ...}` with any of

- `"probe"`: what device_scripts/probe.sh printed (its battery, thermal, zones, supply, cpu and gpu sections count);
- `"files"`: texts by path under the phone's directory, `dumpsys/battery` or `sys/class/thermal/thermal_zone0/temp`;
- `"state"`: fields of `PhoneState` as they stand in state.json; missing ones stay;
- `"health"`: what farm read in the probe, for people and programs; nothing is played from it.

A file that one moment set stays so until another sets it.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm.common.errors import UserError
from farm.simulation.state import PhoneState, changes_from_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farm.simulation.lab_phone import LabPhone

_SECTION = "==farm:"
_DUMPS = {"battery": "dumpsys/battery", "thermal": "dumpsys/thermalservice"}
_ZONE = re.compile(r"(thermal_zone\d+) (.*)=(-?\d+)")
_ABSOLUTE = re.compile(r"/(sys/[\w./:-]+)=(.*)")
_SUPPLY = re.compile(r"(\w+/[a-z]\w*)=(.*)")


@dataclass(frozen=True, slots=True)
class Moment:
    """A phone's health at one time."""

    at_s: float
    state: Mapping[str, Any]
    files: Mapping[str, str]


def parse_trace(text: str) -> tuple[Moment, ...]:
    """Read a trace.

    A last line that is incomplete (`torn_line`) is left out.
    """
    moments: list[Moment] = []
    whole, _ = torn_line(text)
    for number, line in enumerate(whole.split("\n"), 1):
        if not line.strip():
            continue
        try:
            moment = _moment(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"line {number} is no moment of a trace: {error}", hint="docs/virtual-phone.md") from error
        if moments and moment.at_s < moments[-1].at_s:
            raise UserError(f"line {number}: time goes back to {moment.at_s:g} s", hint="sort the lines by their t")
        moments.append(moment)
    if not moments:
        raise UserError("the trace is empty", hint="each line is a JSON object with a t")
    return tuple(moments)


def torn_line(text: str) -> tuple[str, str]:
    """A trace without its last line where that was cut, and that line ("" when the trace is whole).

    The recorder is killed, or the disk fills up, in the middle of a line: the moments before it are good.
    """
    head, newline, last = text.rpartition("\n")
    if not last.lstrip().startswith("{"):
        return text, ""
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return head + newline, last
    return text, ""


def files_of_probe(output: str) -> dict[str, str]:
    """The phone's files that a probe read, by path under the phone's directory."""
    files: dict[str, str] = {}
    for part in output.replace("\r\n", "\n").split(_SECTION)[1:]:
        name, _, body = part.partition("\n")
        if name in _DUMPS and body.strip():
            files[_DUMPS[name]] = body
        for line in body.splitlines():
            if zone := _ZONE.fullmatch(line):
                files[f"sys/class/thermal/{zone[1]}/type"] = f"{zone[2]}\n"
                files[f"sys/class/thermal/{zone[1]}/temp"] = f"{zone[3]}\n"
            elif (found := _ABSOLUTE.fullmatch(line)) and ".." not in line:
                files[found[1]] = f"{found[2]}\n"
            elif name == "supply" and (found := _SUPPLY.fullmatch(line)):
                files[f"sys/class/power_supply/{found[1]}"] = f"{found[2]}\n"
    return files


async def play(phone: LabPhone, moments: Sequence[Moment], *, speed: float, repeat: bool) -> None:
    """Let a phone repeat the readings of the trace, at their times."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        for moment in moments:
            wait_s = (moment.at_s - moments[0].at_s) / speed - (loop.time() - began)
            await asyncio.sleep(max(0.0, wait_s))
            phone.captured |= moment.files
            phone.set_state(**moment.state)
            phone.refresh()
        if not repeat:
            return
        await asyncio.sleep(0.01)  # a trace of one moment repeats without end


def _moment(record: dict[str, Any]) -> Moment:
    at_s = float(record["t"])
    if not math.isfinite(at_s):
        raise ValueError("t is no time")
    unknown = sorted(set(record) - {"t", "probe", "files", "state", "health"})
    if unknown:
        raise ValueError(f"unknown fields {', '.join(unknown)}")
    files = files_of_probe(record.get("probe", ""))
    for name, text in record.get("files", {}).items():
        if not isinstance(text, str) or ".." in name or not name.startswith(("dumpsys/", "sys/", "proc/meminfo")):
            raise ValueError(f"{name} is no file of a phone's sensors")
        files[name] = text
    state = changes_from_record(record.get("state", {}))
    PhoneState(**state)  # refuses what is no state
    return Moment(at_s, state, files)
