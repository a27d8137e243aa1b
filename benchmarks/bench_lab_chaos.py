"""A storm over a lab of three hosts, two heads and real virtual phones; a judge that shares no code with farm.

LAB_CHAOS_MINUTES: how long, 10; LAB_CHAOS_SEED repeats a run.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from benchmarks import lab_chaos
from benchmarks.harness import Context, Figure
from tests.support.whole_lab import whole_lab

DEFAULT_MINUTES = "10"
HOSTS = 3
PHONES = 2  # of each


def run(context: Context) -> list[Figure]:
    """How much was lost, ended twice, or held by two at once."""
    minutes = float(os.environ.get("LAB_CHAOS_MINUTES", DEFAULT_MINUTES))
    seed = int(os.environ.get("LAB_CHAOS_SEED", f"{time.time_ns() % 100_000}"))
    context.say(f"LAB_CHAOS_SEED={seed}; {HOSTS} hosts begin")
    with whole_lab() as lab, ExitStack() as stack:
        clock = lab_chaos.shifted_clock(context.folder)
        stormy = lab_chaos.StormyLab(lab, stack, clock, HOSTS, PHONES)
        storm = lab_chaos.Storm(stormy, seed, context.folder)
        context.say(f"a storm of {minutes:g} minutes")
        try:
            storm.run(60 * minutes)
        finally:
            context.say("\n  ".join(storm.story))
        ended = stormy.ended()
        for name in ended:
            context.say(f"the daemon of {name} has ended: {stormy.hosts[name].daemon.log_end()}")
            stormy.hosts[name].daemon.start().close()
        found = lab_chaos.verdict(lab, stormy.hosts.values(), context.folder)
        context.say(f"{found['counts']}, {storm.faults.total()} faults, {len(found['wrong'])} rules broken")
        for rule, cases in found["wrong"].items():
            context.say(f"{rule}: {cases[:5]}")
    broken = {rule: len(cases) for rule, cases in found["wrong"].items()}
    return [
        *(Figure(what, count, "") for what, count in found["counts"].items()),
        Figure("faults", storm.faults.total(), ""),
        Figure("daemons that ended by themselves", len(ended), "", None, "0", not ended),
        *(Figure(rule, count, "cases", None, "none", False) for rule, count in broken.items()),
        Figure("rules broken", len(broken), "", None, "0", not broken),
    ]
