"""What a command costs: `farm status` from start to end over both doors, each TAB, and where the imports' time goes.

Each is a process of its own, as a shell starts it, one after the other; the daemon beside it has four virtual phones.
Wall time is what the goal is about, and holds on a quiet host; processor time says the same on a busy one.
Goals are judged by the median: the worst of the runs, printed beside it, is the host's scheduler as much as farm.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Context, Figure, under
from farm.simulation.virtual_farm import phones_of, virtual_farm
from tests.support.other_users import key_of
from tests.support.tvm import free_port

RUNS = 30
PHONES = ("oneplus-12", "galaxy-s9", "huawei-mate-20", "realme-gt-neo3")
GOAL_MS = 150.0
# What a start consists of, each with what goes before it.
IMPORTS = (
    ("python alone", "pass"),
    ("typer", "import typer"),
    ("pyzmq", "import zmq"),
    ("farm.cli.main", "import farm.cli.main"),
    (
        "farm.cli.main, farm.cli.status, farm.control.client",
        "import farm.cli.main, farm.cli.status, farm.control.client",
    ),
)
TABS = {
    "a command": "farm be",
    "an option": "farm bench net.onnx --half",
    "a phone": "farm device show ",
    "a selector": "farm bench net.onnx --on ",
    "a job": "farm watch ",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command."""

    wall_ms: float
    cpu_ms: float  # what it computed itself: nearly the same on a host that is busy


def run(context: Context) -> list[Figure]:
    """All figures."""
    port = free_port()
    config = f'[control]\nlisten = "tcp://127.0.0.1:{port}"\n'
    farm_program = str(Path(sys.executable).with_name("farm"))
    context.say(f"a daemon with {len(PHONES)} virtual phones")
    with virtual_farm(phones_of(PHONES), config=config) as farm:
        farm.wait_ready(len(PHONES))
        here = {"FARM_SOCKET": str(farm.socket)}
        context.say(f"farm status, {RUNS} times")
        figures = _goals("farm status, unix socket", _runs([farm_program, "status"], here))
        there = {"FARM_KEY": str(key_of(farm, "bench", "viewer", context.folder)), "FARM_SOCKET": ""}
        context.say(f"farm status over tcp with CURVE, {RUNS} times")
        figures += _goals("farm status, tcp with CURVE", _runs([farm_program, "status"], there))
        for what, line in TABS.items():
            context.say(f"TAB behind {line!r}")
            figures += _goals(f"TAB, {what}", _runs([farm_program], here | _tab(line)))
        context.say("the same without a daemon, and farm --help")
        nowhere = {"FARM_SOCKET": str(context.folder / "none")}
        figures += _goals("TAB, a phone, no daemon", _runs([farm_program], nowhere | _tab(TABS["a phone"])))
        help_ms = _runs([farm_program, "--help"], here)
        figures += _goals("farm --help", help_ms)
    return figures + _imports(context)


def _tab(line: str) -> dict[str, str]:
    """What the script for bash puts into the environment."""
    words = line.split(" ")
    return {"_FARM_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}


def _goals(name: str, runs: Sequence[Run]) -> list[Figure]:
    wall_ms = [each.wall_ms for each in runs]
    return [
        under(f"{name}, median of {RUNS}", statistics.median(wall_ms), "ms", GOAL_MS),
        Figure(f"{name}, worst of {RUNS}", max(wall_ms), "ms"),
        Figure(f"{name}, processor time, median", statistics.median(each.cpu_ms for each in runs), "ms"),
    ]


def _imports(context: Context) -> list[Figure]:
    context.say("imports")
    return [
        Figure(f"processor time of a start with {name}, median", _cpu_ms([sys.executable, "-c", code]), "ms")
        for name, code in IMPORTS
    ]


def _runs(command: Sequence[str], environ: Mapping[str, str]) -> list[Run]:
    """Each run from the start of the process to its end; the first one, which warms files, is left out."""
    env = {**os.environ, **environ}
    runs = []
    for _ in range(RUNS + 1):
        begun = time.perf_counter()
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        runs.append(Run(1e3 * (time.perf_counter() - begun), 1e3 * (used.ru_utime + used.ru_stime)))
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stderr.close()
        if process.returncode != 0:
            raise AssertionError(f"{command} ended with {process.returncode}: {said.decode()}")
    return runs[1:]


def _cpu_ms(command: Sequence[str]) -> float:
    return statistics.median(each.cpu_ms for each in _runs(command, {}))
