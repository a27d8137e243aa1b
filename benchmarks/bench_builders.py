"""Builders: how many candidates 50 slots build that take half a second each, and what follows when all are killed.

Real dask over TLS on loopback; the builders sleep in place of a compiler. The processor time of the host's process for
a candidate stands beside what building one here takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from benchmarks.harness import Context, Figure, under
from tests.support.fake_builders import BuilderFarm, FakeRun

BUILDERS, SLOTS, BUILD_S = 5, 10, 0.5
WARM, MEASURED = 100, 900
GOAL_PER_S = 90.0
GOAL_LOCAL_S = 1.0
CANDIDATES = 12


def run(context: Context) -> list[Figure]:
    """All figures."""
    figures = asyncio.run(_builders(context))
    context.say(f"{CANDIDATES} candidates on this host")
    local_s = _local_cpu_s(context.folder / "cache")
    remote_s = figures[-1].value / 1e3
    return [
        *figures,
        Figure("the same, built here", 1e3 * local_s, "ms"),
        Figure("built here, beside a builder's", local_s / remote_s, "times"),
    ]


async def _builders(context: Context) -> list[Figure]:
    async with BuilderFarm.running(context.folder) as farm:
        context.say(f"{BUILDERS} builders with {SLOTS} slots each")
        started = [await farm.start(f"b{number}", f"good:{BUILD_S}", SLOTS) for number in range(BUILDERS)]
        [host] = [each for each in psutil.Process().children() if "farm.builders.server" in each.cmdline()]
        with FakeRun(farm) as tuning:
            rate, cpu_s = await asyncio.to_thread(_rate, tuning, host)
            context.say("all builders are killed")
            lost, ended_s = await asyncio.to_thread(_kill, tuning, started)
    return [
        Figure("candidates", rate, "1/s", goal=f"at least {GOAL_PER_S:g}", ok=rate >= GOAL_PER_S),
        Figure("candidates without exactly one answer, all builders killed", lost, "", goal="0", ok=lost == 0),
        under("all given back to the host", ended_s, "s", GOAL_LOCAL_S),
        Figure("the host's processor time for a builder's candidate", 1e3 * cpu_s, "ms"),
    ]


def _rate(tuning: FakeRun, host: psutil.Process) -> tuple[float, float]:
    """Candidates a second, and the host's processor time for each, while every slot has work."""
    while tuning.slots < BUILDERS * SLOTS:
        tuning.read()
    ordered, module = 0, bytes(20_000)
    begun_s = before_s = 0.0
    while len(tuning.answers) < WARM + MEASURED:
        while ordered - len(tuning.answers) < tuning.slots and ordered < WARM + MEASURED + tuning.slots:
            tuning.order(ordered, ordered.to_bytes(4, "big") + module)
            ordered += 1
        tuning.read()
        if not begun_s and len(tuning.answers) >= WARM:
            begun_s, before_s = time.monotonic(), _cpu_s(host)
    took_s, used_s = time.monotonic() - begun_s, _cpu_s(host) - before_s
    assert all(library for _, library in tuning.answers.values())
    tuning.ordered = ordered
    return MEASURED / took_s, used_s / MEASURED


def _kill(tuning: FakeRun, builders: Sequence[BaseProcess]) -> tuple[int, float]:
    """How many candidates had no answer, and when the last one had its."""
    while len(tuning.answers) < tuning.ordered:
        tuning.read()
    first = tuning.ordered
    for number in range(first, first + tuning.slots):
        tuning.order(number, number.to_bytes(4, "big") * 5000)
    wanted = first + tuning.slots
    time.sleep(BUILD_S / 2)  # they are under way
    killed_s = time.monotonic()
    for each in builders:
        each.kill()
    while len(tuning.answers) < wanted and time.monotonic() - killed_s < 10 * GOAL_LOCAL_S:
        tuning.read()
    return wanted - len(tuning.answers), time.monotonic() - killed_s


def _cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _local_cpu_s(cache: Path) -> float:
    """Processor time of one candidate that is built here, the build server's start left out."""
    from farm.tuning.builder import FarmBuilder
    from tests.support.candidates import builder_inputs, module

    with FarmBuilder(cache=cache) as builder:
        builder.submit(builder_inputs([module("add", 1.0)])[0]).result()
        [server] = [each for each in psutil.Process().children() if "farm.tuning.build_server" in each.cmdline()]
        own, before = psutil.Process(), 0.0

        def used_s() -> float:
            return float(sum(server.cpu_times()[:4])) + _cpu_s(own)

        before = used_s()
        given = builder_inputs([module("add", 2.0 + number) for number in range(CANDIDATES)])
        for each in [builder.submit(one) for one in given]:
            each.result()
        return (used_s() - before) / CANDIDATES
