"""Candidates per second: FarmRunner through the gate beside stock's RPCRunner, on the same virtual phones.

How much faster several phones are than one is found in turns: one, all, all, one. Processor time, of client, daemon and
gate, is given beside that of a bare session in the same rounds: a loop over stock's calls `upload`, `load_module` and
`time_evaluator` in one session past farm, on the same phone, which frees nothing on the phone meanwhile. So it is what
TVM's RPC takes by itself for a candidate. adb's server and the phone are in neither.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

import psutil

from benchmarks.harness import Context, Figure, under
from benchmarks.stock_tuning import answered, serials, stock_phones
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm

PHONES = 4
PROFILE = "oneplus-12"
TRIVIAL, STOCK_TRIVIAL = 500, 60  # candidates; the first also of a bare session
ROUNDS = 4  # of TRIVIAL, each with a bare session
WAITING_MS = 50
TURN_S = 5.0  # a side has two turns: 10 s, as short runs differ by more than 10 %
GOAL_FACTOR, STRETCH_FACTOR = 20, 40
GOAL_SCALE = 3.5
GOAL_TIMES_BARE = 2.0

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
        context.say("farm and a bare session, one phone, in turns")
        rounds = [(_bare(farm, trivial), _spent(farm, trivial)) for _ in range(ROUNDS)]
        one, four = _turns(_ours, farm, waiting, "farm", context)
        stock_one, stock_four = _turns(_stock, farm, waiting, "stock", context)
    words = f"{GOAL_FACTOR} times stock; stretch {STRETCH_FACTOR}"
    ours = harmonic_mean([spent.per_s for _, spent in rounds])
    factor, scale, stock_scale = ours / stock, four / one, stock_four / stock_one
    client_ms, daemon_ms, gate_ms = (
        median(getattr(spent, name) for _, spent in rounds) for name in ("client_ms", "daemon_ms", "gate_ms")
    )
    bare_ms = median(bare.client_ms for bare, _ in rounds)
    times_bare = median(spent.all_ms / bare.client_ms for bare, spent in rounds)
    return [
        Figure("trivial candidates, one phone", ours, "1/s", stock),
        Figure("trivial candidates, one phone, times stock", factor, "", None, words, factor >= GOAL_FACTOR),
        Figure("trivial candidates, a bare session", harmonic_mean([bare.per_s for bare, _ in rounds]), "1/s"),
        Figure("trivial candidate, processor time of the client; stock: a bare session's", client_ms, "ms", bare_ms),
        Figure("trivial candidate, processor time of the daemon", daemon_ms, "ms"),
        Figure("trivial candidate, processor time of the gate", gate_ms, "ms"),
        under("trivial candidate, processor time of all three, times bare", times_bare, "", GOAL_TIMES_BARE),
        Figure(f"{WAITING_MS} ms kernel, one phone", one, "1/s", stock_one),
        Figure(f"{WAITING_MS} ms kernel, {PHONES} phones", four, "1/s", stock_four),
        Figure(
            f"{WAITING_MS} ms kernel, {PHONES} phones, times one, {2 * TURN_S:g} s a side", scale, "", stock_scale,
            f"at least {GOAL_SCALE}", scale >= GOAL_SCALE,
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spent:
    """A trivial candidate of many: per second, and milliseconds of processor time for each."""

    per_s: float
    client_ms: float
    daemon_ms: float
    gate_ms: float

    @property
    def all_ms(self) -> float:
        """Of client, daemon and gate."""
        return self.client_ms + self.daemon_ms + self.gate_ms


class Meter:
    """What `TRIVIAL` candidates take, from when it is made."""

    def __init__(self, farm: VirtualFarm) -> None:
        assert farm.daemon.process is not None
        daemon = psutil.Process(farm.daemon.process.pid)
        gates = [each for each in daemon.children(recursive=True) if "gate" in each.cmdline()]
        self._processes = (daemon, *gates)
        self._begun = self._now()

    def read(self) -> Spent:
        """When they are all answered."""
        wall_s, client_s, daemon_s, *gate_s = (now - begun for now, begun in zip(self._now(), self._begun, strict=True))
        return Spent(TRIVIAL / wall_s, *(1e3 * each / TRIVIAL for each in (client_s, daemon_s, sum(gate_s))))

    def _now(self) -> tuple[float, ...]:
        used_s = (sum(each.cpu_times()[:2]) for each in self._processes)
        return time.perf_counter(), time.process_time(), *used_s


def _bare(farm: VirtualFarm, path: Path) -> Spent:
    """Candidates in a session past farm, by a loop over stock's calls."""
    import tvm
    from tvm import rpc

    from tests.support.candidates import EXTENT

    with stock_phones(farm, serials(farm)[:1]) as config:
        session = rpc.connect_tracker(config.tracker_host, config.tracker_port).request(config.tracker_key)
        device, kept = session.cpu(0), []
        buffers = [tvm.runtime.empty((EXTENT,), "float32", device) for _ in range(2)]
        for number in range(-1, TRIVIAL):
            if number == 0:  # the one before looked the functions up
                meter = Meter(farm)
            session.upload(path, f"{number}.so")
            module = session.load_module(f"{number}.so")
            timer = module.time_evaluator("main", device, number=1)
            timer(*buffers)
            kept += [module, timer]
        spent = meter.read()
        session._sess.get_function("CloseRPCConnection")()  # noqa: SLF001 - before `kept` is freed one by one
    return spent


def _spent(farm: VirtualFarm, path: Path) -> Spent:
    """The same number of candidates of farm's runner."""
    with _runner(farm, 1) as runner:
        _measure(runner, path, 1)
        meter = Meter(farm)
        _measure(runner, path, TRIVIAL)
        return meter.read()


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
    with _runner(farm, devices) as runner:
        return _rate(runner, path, count, devices)


@contextlib.contextmanager
def _runner(farm: VirtualFarm, devices: int) -> Iterator[Any]:
    """Farm's runner with so many phones."""
    from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

    from farm.client.tuning import FarmRunner

    once = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
    with FarmRunner("android", devices=devices, socket=farm.socket, evaluator=once, same_limit=None) as runner:
        while len(runner.status().phones) < devices:
            time.sleep(0.05)
        yield runner


def _stock(farm: VirtualFarm, devices: int, path: Path, count: int) -> float:
    from tvm.s_tir import meta_schedule as ms

    once = ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
    with stock_phones(farm, serials(farm)[:devices]) as config:
        return _rate(ms.runner.RPCRunner(config, once, max_workers=devices), path, count, devices)


def _rate(runner: Any, path: Path, count: int, devices: int) -> float:
    """Candidates per second, after each phone had one."""
    _measure(runner, path, devices)
    begun_s = time.perf_counter()
    _measure(runner, path, count)
    return count / (time.perf_counter() - begun_s)


def _measure(runner: Any, path: Path, count: int) -> None:
    """Have that many candidates measured."""
    from tests.support.candidates import runner_inputs

    answered(runner.run(runner_inputs([path] * count)))
