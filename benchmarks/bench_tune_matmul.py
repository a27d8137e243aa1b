"""Tuning a matrix multiplication on one phone: a script with farm's runner and builder, with stock's, and `farm tune`.

The goal is the scripts': both are the same search with the same 64 candidates in one round, each a process of its own
from its start to its end, imports included; runner and builder differ. They take turns, in the order farm, stock,
stock, farm, farm, stock (fewer on a host so busy that this takes minutes); each figure is the median of its side, and
the ratios are those of neighbours. `farm tune` does another search (rounds of 16, trained between them) and more than
stock's script: it compiles the model tuned and untuned, packs it, checks its numbers and times both for at least 3 s.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Context, Figure
from benchmarks.stock_tuning import serials, stock_phones
from farm.common.errors import HostError
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm
from tests.support.tvm import environment

PROFILE = "oneplus-12"
SIZE = 128
TRIALS = 64
ROUNDS = 3
ENOUGH_S = 150.0  # no further round after so long
LIMIT_S = 900.0  # stock's takes 50 s on an idle host
GOAL_FACTOR = 3.0
PARTS = {
    "begin_s": "imports, runner and builder made",
    "rest_s": "tensor intrinsics, the rest of tune_tir",
    "think_s": "search",
    "build_s": "builds that the search waits for",
    "run_s": "measuring, and what is built meanwhile",
    "train_s": "cost model",
    "end_s": "end",
}

Times = Mapping[str, float]


def run(context: Context) -> list[Figure]:
    """Rounds of our script and stock's, then the job."""
    target = {"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu", "num-cores": 1}
    search = {"trials": TRIALS, "per_iter": TRIALS, "cost_model": "xgb", "seed": 1}
    order = {"size": SIZE, "target": target, "devices": 1, **search}
    with virtual_farm(phones_of([PROFILE])) as farm:
        farm.wait_ready(1)
        pairs: list[tuple[Times, Times]] = []
        begun_s = time.monotonic()
        while len(pairs) < ROUNDS and time.monotonic() - begun_s < ENOUGH_S:
            pairs.append(_round(farm, order, len(pairs), context))
        context.say("farm tune")
        job = _job(farm, context.folder, target)
    ours, stock = (_median([pair[side] for pair in pairs]) for side in (0, 1))
    factors = [rival["whole_s"] / own["whole_s"] for own, rival in pairs]
    factor = median(factors)
    return [
        Figure(f"{TRIALS} trials, whole script", ours["whole_s"], "s", stock["whole_s"]),
        Figure("whole script, times faster", factor, "", None, f"at least {GOAL_FACTOR:g}", factor >= GOAL_FACTOR),
        Figure(f"in the worst of {len(pairs)} rounds", min(factors), ""),
        *(Figure(f"of it {words}", ours[part], "s", stock[part]) for part, words in PARTS.items()),
        Figure("processor time of the script, times less", stock["cpu_s"] / ours["cpu_s"], ""),
        Figure("processor time of the script", ours["cpu_s"], "s", stock["cpu_s"]),
        Figure("trials with a result", ours["trials"], "", stock["trials"]),
        Figure("best kernel", 1e6 * ours["best_s"], "us", 1e6 * stock["best_s"]),
        Figure(f"farm tune of it, {TRIALS} trials, whole command", job["whole_s"], "s", stock["whole_s"]),
        Figure("of it the search", job["search_s"], "s"),
        Figure("best kernel of farm tune", 1e6 * job["best_s"], "us", 1e6 * stock["best_s"]),
        Figure("load of this host meanwhile (load average of a minute)", ours["load"], "", stock["load"]),
    ]


def _round(farm: VirtualFarm, order: dict[str, Any], number: int, context: Context) -> tuple[Times, Times]:
    """Ours and stock's. Who begins changes with each round."""

    def ours() -> Times:
        return _script(order | {"socket": str(farm.socket), "on": "android"})

    def stock() -> Times:
        with stock_phones(farm, serials(farm)) as config:
            return _script(order | {"tracker": config.tracker_port})

    if number % 2:
        rival = stock()
        own = ours()
    else:
        own = ours()
        rival = stock()
    context.say(f"round {number + 1} of {ROUNDS}: farm {own['whole_s']:.1f} s, stock {rival['whole_s']:.1f} s")
    return own, rival


def _median(rounds: Sequence[Times]) -> Times:
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def _script(order: dict[str, Any]) -> Times:
    begun_at = time.time()  # of the day: the script reckons from it
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tune_script", json.dumps(order | {"begun_at": begun_at})],
        cwd=Path(__file__).parents[1],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    whole_s = time.time() - begun_at
    if done.returncode:
        raise HostError(f"the tuning script ended with {done.returncode}: {done.stderr[-500:]}")
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if told["trials"] < TRIALS:  # one that failed costs less time than one that ran
        raise HostError(f"{TRIALS - told['trials']:g} of {TRIALS} trials have no result")
    end_s = whole_s - sum(told[part] for part in PARTS if part in told)
    return told | {"whole_s": whole_s, "end_s": end_s, "load": os.getloadavg()[0]}


def _job(farm: VirtualFarm, folder: Path, target: dict[str, Any]) -> Times:
    model = folder / "matmul.onnx"
    model.write_bytes(_matmul())
    begun_s = time.monotonic()
    done = farm.farm(
        "tune", str(model), "--on", "android", "--trials", str(TRIALS), "--seed", "1", "--target", json.dumps(target),
        "--json", timeout_s=LIMIT_S,
    )  # fmt: skip
    whole_s = time.monotonic() - begun_s
    if not done.stdout:
        raise HostError(f"farm tune ended with {done.returncode}: {done.stderr[-500:]}")
    [result] = json.loads(done.stdout)["results"]
    if result["error"]:
        raise HostError(f"farm tune ended with {done.returncode}: {result['error']['message']}")
    return {"whole_s": whole_s, "search_s": result["search_s"], "best_s": result["tasks"][0]["best_ms"] / 1e3}


def _matmul() -> bytes:
    from onnx import TensorProto, helper

    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE]) for name in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "matmul", [a, b], [c])
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())
