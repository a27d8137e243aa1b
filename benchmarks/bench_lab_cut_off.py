"""A host whose network loses all packets, both ways: its pauses, a session on its phone, and what was lost afterwards.

LAB_CUT_OFF_S: for how long, 30. The host's pauses are the longest answer about its own phone, asked over and over;
beside it that of as long before the cut. `status` asks the database about the other hosts, and does not wait for long.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import lab_chaos
from benchmarks.harness import Context, Figure, under, until
from benchmarks.lab_cut_off import CUT, OTHER, WAIT, CutOffLab
from farm.common.errors import HostError
from farm.control.client import ControlClient
from tests.support import postgres
from tests.support.host_network import HostNetwork, Lost
from tests.support.stock_client import compile_kernel

DEFAULT_S = "30"
ASK_EVERY_S = 0.05
LIMIT_S = 120.0
GOAL_MS = 200.0
GOAL_STATUS_MS = 1500.0
GOAL_LOST_S = 10.0  # three missed beats of two seconds, and up to one each of host and head around them


def run(context: Context) -> list[Figure]:
    """The figures of one cut."""
    if why := postgres.missing():
        raise HostError(f"there is no PostgreSQL: {why}")
    cut_s = float(os.environ.get("LAB_CUT_OFF_S", DEFAULT_S))
    context.say("two hosts begin")
    with closing(HostNetwork(CUT, OTHER)) as network, ExitStack() as stack:
        lab = CutOffLab(network, stack, compile_kernel(context.folder))
        with lab.session() as client:
            job = lab.submit(lab.left.name, WAIT)
            until(lambda: bool(lab.attempts(job)), LIMIT_S, "no job runs")
            context.say(f"a session and a job are open; {cut_s:g} s as they are, then {cut_s:g} s cut off")
            show = partial(_asked, lab.cut.socket, "device.show", device=lab.left.name)
            status = partial(_asked, lab.cut.socket, "status")
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
        broken = _broken_rules(lab, context)
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
        Figure("rules broken", broken, "", None, "0", not broken),
    ]


@contextmanager
def _asked(socket: Path, verb: str, **fields: Any) -> Iterator[list[float]]:
    """Ask a daemon the same thing meanwhile; the list gets the seconds of each answer."""
    answers: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        with ControlClient(socket) as client:
            while not stop.wait(ASK_EVERY_S):
                begun_s = time.monotonic()
                client.call(verb, **fields)
                answers.append(time.monotonic() - begun_s)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


def _broken_rules(lab: CutOffLab, context: Context) -> int:
    (context.folder / "clients.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lab.told))
    lab_chaos.copy_logs((lab.cut, lab.other), context.folder / "phones")
    wrong = lab_chaos.verdict(lab.lab, context.folder)["wrong"]
    for rule, cases in wrong.items():
        context.say(f"{rule}: {cases[:5]}")
    return len(wrong)
