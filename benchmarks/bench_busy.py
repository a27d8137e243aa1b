"""The share of time in which phones measure while a tuning run has candidates for them.

Twice: with candidates that are built already, beside stock, and in a whole `tune_tir` whose candidates are built
meanwhile. A kernel waits; it leaves the processors, which here are the host's, to those who build, as a phone does.
"""

from __future__ import annotations

import logging
import platform
import time
from pathlib import Path

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from benchmarks.harness import Context, Figure
from benchmarks.stock_tuning import answered, serials, stock_phones
from benchmarks.tune_script import parts, results_s
from farm.common.errors import HostError
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm

PHONES = 4
PROFILE = "oneplus-12"
KERNEL_MS = 100
REPEAT = 2
PER_PHONE, STOCK_PER_PHONE = 20, 6  # candidates
TUNED_PER_PHONE = 24  # trials of a tuning run, in one round
GOAL = 0.95
# What a candidate costs at least: each repeat, and the run before them that warms up.
MIN_S = (REPEAT + 1) * KERNEL_MS / 1e3
TUNED_LEAST_S = (EvaluatorConfig().number + 1) * KERNEL_MS / 1e3  # as MetaSchedule measures by itself

SLOW_MATMUL = f"""
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32"), c: T.Buffer((64, 64), "float32")):
        T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
        with T.sblock("root"):
            with T.sblock("wait"):
                T.reads()
                T.writes()
                T.evaluate(T.call_extern("int32", "usleep", {KERNEL_MS * 1000}))
            for i, j, k in T.grid(64, 64, 64):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        c[vi, vj] = T.float32(0)
                    c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]
"""


def run(context: Context) -> list[Figure]:
    """With one phone and with several."""
    figures = []
    with virtual_farm(phones_of([PROFILE] * PHONES)) as farm:
        farm.wait_ready(PHONES)
        for devices in (1, PHONES):
            context.say(f"{devices} phones: stock, then farm")
            stock, ours = _stock(farm, devices, context), _ours(farm, devices, context)
            context.say(f"{devices} phones: a tuning run")
            tuning, built = _tuning(farm, devices, context.folder)
            goal = f"at least {100 * GOAL:g} %"
            name = f"{KERNEL_MS} ms kernel, {devices} phone{'s' if devices > 1 else ''}"
            figures += [
                Figure(f"phones measure, {name}", 100 * ours, "%", 100 * stock, goal, ours >= GOAL),
                Figure(f"in tune_tir, {name}", 100 * tuning, "%", None, goal, tuning >= GOAL),
                Figure(f"this host built meanwhile (needed: {devices / TUNED_LEAST_S:g})", built, "1/s"),
            ]
    return figures


def _ours(farm: VirtualFarm, devices: int, context: Context) -> float:
    from farm.client.tuning import FarmRunner
    from tests.support.candidates import library, runner_inputs

    inputs = runner_inputs([library(context.folder, f"sleep {KERNEL_MS}")] * PER_PHONE * devices)
    how = EvaluatorConfig(number=1, repeat=REPEAT, min_repeat_ms=0)
    with FarmRunner("android", devices=devices, socket=farm.socket, evaluator=how, same_limit=None) as runner:
        answered(runner.run(inputs[:devices]))
        while len(runner.status().phones) < devices:
            time.sleep(0.05)
        answered(runner.run(inputs[:devices]))
        begun_s = time.perf_counter()
        answered(runner.run(inputs))
        wall_s = time.perf_counter() - begun_s
    # By the kernel's own time, as for stock: what the way to the phone takes is not measuring.
    return len(inputs) * MIN_S / (wall_s * devices)


def _stock(farm: VirtualFarm, devices: int, context: Context) -> float:
    from tvm.s_tir import meta_schedule as ms

    from tests.support.candidates import library, runner_inputs

    inputs = runner_inputs([library(context.folder, f"sleep {KERNEL_MS}")] * STOCK_PER_PHONE * devices)
    how = ms.runner.EvaluatorConfig(number=1, repeat=REPEAT, min_repeat_ms=0)
    with stock_phones(farm, serials(farm)[:devices]) as config:
        runner = ms.runner.RPCRunner(config, how, max_workers=devices)
        answered(runner.run(inputs[:devices]))
        begun_s = time.perf_counter()
        answered(runner.run(inputs))
        wall_s = time.perf_counter() - begun_s
    return len(inputs) * MIN_S / (wall_s * devices)


def _tuning(farm: VirtualFarm, devices: int, folder: Path) -> tuple[float, float]:
    """The share, and candidates built per second."""
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.script import from_source

    from farm.client.tuning import FarmBuilder, FarmRunner

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)  # its progress goes to stdout
    trials = TUNED_PER_PHONE * devices
    target = tvm.target.Target({"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu", "num-cores": 1})
    work = folder / f"tuning on {devices}"
    profiler = ms.Profiler()
    with (
        FarmRunner("android", devices=devices, socket=farm.socket, same_limit=None) as runner,
        FarmBuilder(runner, cache=work / "cache") as builder,
    ):
        while len(runner.status().phones) < devices:
            time.sleep(0.05)
        with profiler:
            database = ms.tune_tir(
                from_source(SLOW_MATMUL), target, str(work), max_trials_global=trials, num_trials_per_iter=trials,
                builder=builder, runner=runner, cost_model="random", seed=1,
            )  # fmt: skip
    ran = len(results_s(database))
    if ran < trials:
        raise HostError(f"{trials - ran} of {trials} trials have no result")
    spent_s = parts(profiler)
    built_s = [path.stat().st_mtime for path in (work / "cache" / "candidates").iterdir()]
    built = (len(built_s) - 1) / (max(built_s) - min(built_s))
    return trials * TUNED_LEAST_S / ((spent_s["build_s"] + spent_s["run_s"]) * devices), built
