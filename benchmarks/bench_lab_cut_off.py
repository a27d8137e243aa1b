"""A host whose network loses all packets, both ways: its pauses, a session on its phone, and what was lost afterwards.

LAB_CUT_OFF_S: for how long, 30. The host's pauses are the longest answer about its own phone, asked over and over;
beside it that of as long before the cut. `status` asks the database about the other hosts, and does not wait for long.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from functools import partial

from benchmarks.harness import Context, Figure, asked, under, until
from benchmarks.lab_cut_off import CUT, OTHER, CutOffLab
from tests.support.host_network import HostNetwork, Lost
from tests.support.stock_client import compile_kernel
from tests.support.whole_lab import WAIT

DEFAULT_S = "30"
LIMIT_S = 120.0
GOAL_MS = 200.0
GOAL_STATUS_MS = 1500.0
GOAL_LOST_S = 10.0  # three missed beats of two seconds, and up to one each of host and head around them


def run(context: Context) -> list[Figure]:
    """The figures of one cut."""
    cut_s = float(os.environ.get("LAB_CUT_OFF_S", DEFAULT_S))
    context.say("two hosts begin")
    with closing(HostNetwork(CUT, OTHER)) as network, ExitStack() as stack:
        lab = CutOffLab(network, stack, compile_kernel(context.folder), context.folder)
        with lab.session() as client:
            job = lab.submit(lab.left.name, WAIT)
            until(lambda: bool(lab.attempts(job)), LIMIT_S, "no job runs")
            context.say(f"a session and a job are open; {cut_s:g} s as they are, then {cut_s:g} s cut off")
            show = partial(asked, lab.cut.socket, "device.show", device=lab.left.name)
            status = partial(asked, lab.cut.socket, "status")
            with show() as before, status() as statuses_before:
                time.sleep(cut_s)
            with show() as answers, status() as statuses:
                begun_s = time.monotonic()
                lab.network.lose(CUT, *Lost)
                until(lambda: bool(lab.events("host.lost")), LIMIT_S, "the host is not declared lost")
                lost_s = time.monotonic() - begun_s
                time.sleep(max(0.0, cut_s - lost_s))
            lab.network.mend(CUT, *Lost)
            begun_s = time.monotonic()
            until(lambda: bool(lab.events("host.back")), LIMIT_S, "the host is not back")
            back_s = time.monotonic() - begun_s
            until(lambda: lab.attempts(job)[1:] == [(lab.left.name, "running")], LIMIT_S, "its job does not run again")
            lab.go(lab.left)
            until(lambda: lab.attempts(job)[1:] == [(lab.left.name, "done")], LIMIT_S, "its job does not end")
            client.go()
            rounds, wrong = client.hear()
            client.finish()
        wrong_rules = lab.wrong()
    for rule, cases in wrong_rules.items():
        context.say(f"{rule}: {cases[:5]}")
    return [
        under(
            "longest answer about its own phone while it is cut off",
            1e3 * max(answers),
            "ms",
            GOAL_MS,
            1e3 * max(before),
        ),
        under("longest status", 1e3 * max(statuses), "ms", GOAL_STATUS_MS, 1e3 * max(statuses_before)),
        under("cut off to declared lost", lost_s, "s", GOAL_LOST_S),
        Figure("connected again to back", back_s, "s"),
        Figure("rounds of its session compared", rounds, ""),
        Figure("rounds wrong", wrong, "", None, "0", not wrong),
        Figure("rules broken", len(wrong_rules), "", None, "0", not wrong_rules),
    ]
