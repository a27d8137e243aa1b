"""Candidates per second: FarmRunner through the gate beside stock's RPCRunner, on the same virtual phones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Context, Figure
from benchmarks.stock_tuning import answered, serials, stock_phones
from farm.cli.virtual_farm import VirtualFarm, phones_of, virtual_farm

PHONES = 4
PROFILE = "oneplus-12"
TRIVIAL, STOCK_TRIVIAL = 2000, 60  # candidates
WAITING, STOCK_WAITING = 80, 24  # with 4 phones; a quarter of them with one
WAITING_MS = 50
GOAL_FACTOR, STRETCH_FACTOR = 20, 40
GOAL_SCALE = 3.5


def run(context: Context) -> list[Figure]:
    """All figures."""
    from tests.support.candidates import library

    trivial, waiting = library(context.folder, "add"), library(context.folder, f"sleep {WAITING_MS}")
    context.say(f"{PHONES} virtual phones")
    with virtual_farm(phones_of([PROFILE] * PHONES)) as farm:
        farm.wait_ready(PHONES)
        context.say("stock, one phone")
        stock = _stock(farm, 1, trivial, STOCK_TRIVIAL)
        stock_one = _stock(farm, 1, waiting, STOCK_WAITING // PHONES)
        context.say("farm, one phone")
        ours = _ours(farm, 1, trivial, TRIVIAL)
        one = _ours(farm, 1, waiting, WAITING // PHONES)
        context.say(f"stock, {PHONES} phones")
        stock_four = _stock(farm, PHONES, waiting, STOCK_WAITING)
        context.say(f"farm, {PHONES} phones")
        four = _ours(farm, PHONES, waiting, WAITING)
    words = f"{GOAL_FACTOR} times stock; stretch {STRETCH_FACTOR}"
    factor, scale, stock_scale = ours / stock, four / one, stock_four / stock_one
    return [
        Figure("trivial candidates, one phone", ours, "1/s", stock),
        Figure("trivial candidates, one phone, times stock", factor, "", None, words, factor >= GOAL_FACTOR),
        Figure(f"{WAITING_MS} ms kernel, one phone", one, "1/s", stock_one),
        Figure(f"{WAITING_MS} ms kernel, {PHONES} phones", four, "1/s", stock_four),
        Figure(
            f"{WAITING_MS} ms kernel, {PHONES} phones, times one", scale, "", stock_scale,
            f"at least {GOAL_SCALE}", scale >= GOAL_SCALE,
        ),
    ]  # fmt: skip


def _ours(farm: VirtualFarm, devices: int, path: Path, count: int) -> float:
    from farm.client.tuning import FarmRunner
    from farm.tuning.session import Evaluator

    once = Evaluator(number=1, repeat=1, min_repeat_ms=0)
    with FarmRunner("android", devices=devices, socket=farm.socket, evaluator=once, same_limit=None) as runner:
        while len(runner.status().phones) < devices:
            time.sleep(0.05)
        return _rate(runner, path, count, devices)


def _stock(farm: VirtualFarm, devices: int, path: Path, count: int) -> float:
    from tvm.s_tir import meta_schedule as ms

    once = ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
    with stock_phones(farm, serials(farm)[:devices]) as config:
        return _rate(ms.runner.RPCRunner(config, once, max_workers=devices), path, count, devices)


def _rate(runner: Any, path: Path, count: int, devices: int) -> float:
    """Candidates per second, after each phone had one."""
    from tests.support.candidates import runner_inputs

    answered(runner.run(runner_inputs([path] * devices)))
    inputs = runner_inputs([path] * count)
    begun_s = time.perf_counter()
    answered(runner.run(inputs))
    return count / (time.perf_counter() - begun_s)
