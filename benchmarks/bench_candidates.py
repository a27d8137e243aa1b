"""Candidates per second: FarmRunner through the gate beside stock's RPCRunner, on the same virtual phones.

How much faster several phones are than one is found in turns: one, all, all, one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import psutil

from benchmarks.harness import Context, Figure
from benchmarks.stock_tuning import answered, serials, stock_phones
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm

PHONES = 4
PROFILE = "oneplus-12"
TRIVIAL, STOCK_TRIVIAL = 2000, 60  # candidates
WAITING_MS = 50
TURN_S = 5.0  # a side has two turns: 10 s, as short runs differ by more than 10 %
GOAL_FACTOR, STRETCH_FACTOR = 20, 40
GOAL_SCALE = 3.5

Rate = Callable[[VirtualFarm, int, Path, int], float]


def run(context: Context) -> list[Figure]:
    """All figures."""
    from tests.support.candidates import library

    trivial, waiting = library(context.folder, "add"), library(context.folder, f"sleep {WAITING_MS}")
    context.say(f"{PHONES} virtual phones")
    with virtual_farm(phones_of([PROFILE] * PHONES)) as farm:
        farm.wait_ready(PHONES)
        context.say("stock, one phone")
        stock = _stock(farm, 1, trivial, STOCK_TRIVIAL)
        context.say("farm, one phone")
        before = _cpu_s(farm)
        ours = _ours(farm, 1, trivial, TRIVIAL)
        client_ms, daemon_ms, gate_ms = (
            1e3 * (till - since) / TRIVIAL for since, till in zip(before, _cpu_s(farm), strict=True)
        )
        one, four = _turns(_ours, farm, waiting, "farm", context)
        stock_one, stock_four = _turns(_stock, farm, waiting, "stock", context)
    words = f"{GOAL_FACTOR} times stock; stretch {STRETCH_FACTOR}"
    factor, scale, stock_scale = ours / stock, four / one, stock_four / stock_one
    return [
        Figure("trivial candidates, one phone", ours, "1/s", stock),
        Figure("trivial candidates, one phone, times stock", factor, "", None, words, factor >= GOAL_FACTOR),
        Figure("trivial candidate, processor time of the client", client_ms, "ms"),
        Figure("trivial candidate, processor time of the daemon", daemon_ms, "ms"),
        Figure("trivial candidate, processor time of the gate", gate_ms, "ms"),
        Figure(f"{WAITING_MS} ms kernel, one phone", one, "1/s", stock_one),
        Figure(f"{WAITING_MS} ms kernel, {PHONES} phones", four, "1/s", stock_four),
        Figure(
            f"{WAITING_MS} ms kernel, {PHONES} phones, times one, {2 * TURN_S:g} s a side", scale, "", stock_scale,
            f"at least {GOAL_SCALE}", scale >= GOAL_SCALE,
        ),
    ]  # fmt: skip


def _cpu_s(farm: VirtualFarm) -> tuple[float, float, float]:
    """Processor time so far of this client, the daemon, and its gate."""
    assert farm.daemon.process is not None
    daemon = psutil.Process(farm.daemon.process.pid)
    gate_s = sum(sum(each.cpu_times()[:2]) for each in daemon.children(recursive=True) if "gate" in each.cmdline())
    return time.process_time(), sum(daemon.cpu_times()[:2]), gate_s


def _turns(rate: Rate, farm: VirtualFarm, path: Path, who: str, context: Context) -> tuple[float, float]:
    """Candidates per second with one phone and with all, each over two turns of `TURN_S` at least."""
    rates: dict[int, list[float]] = {1: [], PHONES: []}
    for devices in (1, PHONES, PHONES, 1):
        # Each is run twice, so that this many cannot take less.
        count = math.ceil(TURN_S / (2 * WAITING_MS / 1e3)) * devices
        rates[devices].append(rate(farm, devices, path, count))
    context.say(f"{who}, one phone and {PHONES}: {rates}")
    return harmonic_mean(rates[1]), harmonic_mean(rates[PHONES])


def _ours(farm: VirtualFarm, devices: int, path: Path, count: int) -> float:
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

    from farm.client.tuning import FarmRunner

    once = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
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
