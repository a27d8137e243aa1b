"""The share of time in which phones measure while a tuning run has candidates for them."""

from __future__ import annotations

import time

from benchmarks.harness import Context, Figure
from benchmarks.stock_tuning import answered, serials, stock_phones
from farm.cli.virtual_farm import VirtualFarm, phones_of, virtual_farm
from farm.tuning.candidate import Measured

PHONES = 4
PROFILE = "oneplus-12"
KERNEL_MS = 100
REPEAT = 2
PER_PHONE, STOCK_PER_PHONE = 20, 6  # candidates
GOAL = 0.95
# What a candidate costs at least: each repeat, and the run before them that warms up.
LEAST_S = (REPEAT + 1) * KERNEL_MS / 1e3


def run(context: Context) -> list[Figure]:
    """With one phone and with several."""
    figures = []
    with virtual_farm(phones_of([PROFILE] * PHONES)) as farm:
        farm.wait_ready(PHONES)
        for devices in (1, PHONES):
            context.say(f"{devices} phones: stock, then farm")
            stock, ours = _stock(farm, devices, context), _ours(farm, devices, context)
            name = f"phones measure, {KERNEL_MS} ms kernel, {devices} phone{'s' if devices > 1 else ''}"
            figures.append(Figure(name, 100 * ours, "%", 100 * stock, f"at least {100 * GOAL:g} %", ours >= GOAL))
    return figures


def _ours(farm: VirtualFarm, devices: int, context: Context) -> float:
    from farm.client.tuning import FarmRunner
    from farm.tuning.session import Evaluator
    from tests.support.candidates import library, runner_inputs

    inputs = runner_inputs([library(context.folder, f"sleep {KERNEL_MS}")] * PER_PHONE * devices)
    told: list[Measured] = []
    how = Evaluator(number=1, repeat=REPEAT, min_repeat_ms=0)
    with FarmRunner(
        "android", devices=devices, socket=farm.socket, evaluator=how, measured=told.append, same_limit=None
    ) as runner:
        answered(runner.run(inputs[:devices]))
        while len(runner.status().phones) < devices:
            time.sleep(0.05)
        answered(runner.run(inputs[:devices]))
        begun_s = time.perf_counter()
        answered(runner.run(inputs))
        wall_s = time.perf_counter() - begun_s
    # By the kernel's own time, as for stock: what the way to the phone takes is not measuring.
    return len(inputs) * LEAST_S / (wall_s * devices)


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
    return len(inputs) * LEAST_S / (wall_s * devices)
