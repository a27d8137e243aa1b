"""Tuning a matrix multiplication on one phone: a script with FarmRunner and FarmBuilder beside the same with stock's.

Each script is a process of its own, measured from its start to its end, imports included.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Context, Figure
from benchmarks.stock_tuning import serials, stock_phones
from farm.cli.virtual_farm import phones_of, virtual_farm
from farm.core.errors import HostError
from tests.support.tvm import environment

PROFILE = "oneplus-12"
TRIALS = 64
LIMIT_S = 900.0  # stock's takes 50 s on an idle host
GOAL_FACTOR = 3.0


def run(context: Context) -> list[Figure]:
    """One run of each: they take a minute."""
    order = {
        "size": 128,
        "target": {"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu", "num-cores": 1},
        "trials": TRIALS,
        "per_iter": 64,
        "cost_model": "xgb",
        "seed": 1,
        "devices": 1,
    }
    with virtual_farm(phones_of([PROFILE])) as farm:
        farm.wait_ready(1)
        context.say("farm")
        ours = _script(order | {"socket": str(farm.socket), "on": "android"})
        context.say("stock")
        with stock_phones(farm, serials(farm)) as config:
            stock = _script(order | {"tracker": config.tracker_port})
    context.say(f"stock {stock}")
    context.say(f"farm  {ours}")
    factor = stock["whole_s"] / ours["whole_s"]
    return [
        Figure(f"{TRIALS} trials, whole script", ours["whole_s"], "s", stock["whole_s"]),
        Figure("whole script, times faster", factor, "", None, f"at least {GOAL_FACTOR:g}", factor >= GOAL_FACTOR),
        Figure("of it tune_tir", ours["call_s"], "s", stock["call_s"]),
        Figure("of it imports", ours["whole_s"] - ours["call_s"], "s", stock["whole_s"] - stock["call_s"]),
        Figure("trials with a result", ours["trials"], "", stock["trials"]),
        Figure("best kernel", 1e6 * ours["best_s"], "us", 1e6 * stock["best_s"]),
    ]


def _script(order: dict[str, Any]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tune_script", json.dumps(order)],
        cwd=Path(__file__).parents[1],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise HostError(f"the tuning script ended with {done.returncode}: {done.stderr[-500:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
