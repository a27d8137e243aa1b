"""A real head over PostgreSQL that waits for the disk, with 50 hosts in 4 processes and 100,000 queued jobs.

The hosts are real to the head and the database: they arm each lease, end each attempt and each lease by a commit. Only
their jobs do nothing. They offer little more jobs than the goal: with a load beyond what the machine can do, the gap
between two leases would only measure the queue. Processor time per job, of all processes together, holds on a machine
with other load too. LAB_GRANT_S: how long it is measured, 60 s; the promise is about 300.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import psutil

from benchmarks import lab_load
from benchmarks.harness import Context, Figure, percentile, under, until
from farm.common.errors import HostError
from farm.simulation.postgres import new_server
from tests.support import postgres
from tests.support.whole_lab import HeadCommand

HOSTS = 50
PHONES = 20  # of each host
PROCESSES = 4
QUEUED = 100_000
JOB_S = 9.5  # with 1,000 phones, hosts that lose no time end 105 jobs a second
SETTLE_S = 15.0  # before it is measured: all phones are leased at once at the start
GOAL_PER_S = 100.0
GOAL_MS = 15.0
GOAL_99_MS = 100.0
OPTIONS = "-c max_connections=600 -c shared_buffers=256MB"  # some six of each host
DEFAULT_S = 60.0
START_LIMIT_S = 120.0


def run(context: Context) -> list[Figure]:
    """Jobs per second, and how soon a phone is leased again."""
    measured_s = float(os.environ.get("LAB_GRANT_S", DEFAULT_S))
    with new_server(durable=True, options=OPTIONS) as server, ExitStack() as stack:
        url = postgres.new_database(server.url)
        context.say(f"writing {QUEUED:,} queued jobs")
        asyncio.run(lab_load.fill(url, list(lab_load.jobs(QUEUED, HOSTS * PHONES, random.Random(0)))))
        context.say(f"{HOSTS} hosts of {PHONES} phones begin, then the head")
        hosts = [_hosts(url, number) for number in range(PROCESSES)]
        for each in hosts:
            stack.callback(each.kill)
        for each in hosts:
            _read_line(each)
        head = HeadCommand(context.folder, url, 1, f"[jobs]\nworkers = {PHONES}\n")
        stack.callback(head.kill)
        until(lambda: bool(head.terms), START_LIMIT_S, f"no head decides: see {head.log}")
        assert head.process is not None
        time.sleep(SETTLE_S)
        context.say(f"measuring for {measured_s:g} s")
        pids = {"the head": [head.process.pid], "hosts": [each.pid for each in hosts], "PostgreSQL": [server.pid]}
        begun_s, used_s = time.monotonic(), _used_s(pids)
        time.sleep(measured_s)
        until_s, after_s = time.monotonic(), _used_s(pids)
        if not head.runs:
            raise HostError("the head has ended", evidence=head.log.read_text()[-1000:])
        gaps = [gap for each in hosts for gap in _gaps(each)]
    ms = [1e3 * gap for at_s, gap in gaps if begun_s <= at_s < until_s]
    per_s, took_s = len(ms) / (until_s - begun_s), until_s - begun_s
    return [
        Figure("jobs", per_s, "1/s", None, f"at least {GOAL_PER_S:g}", per_s >= GOAL_PER_S),
        under("end of a lease to the next one armed: median", statistics.median(ms), "ms", GOAL_MS),
        under("end of a lease to the next one armed: 99th percentile", percentile(ms, 99), "ms", GOAL_99_MS),
        *(
            Figure(f"processor of {name} per job", 1e3 * (after_s[name] - used_s[name]) / len(ms), "ms")
            for name in pids
        ),
        Figure("measured", took_s, "s"),
    ]


def _hosts(url: str, number: int) -> subprocess.Popen[str]:
    first, after = (HOSTS * each // PROCESSES for each in (number, number + 1))
    command = [
        sys.executable,
        "-m",
        "benchmarks.lab_hosts",
        url,
        f"{first}",
        f"{after - first}",
        f"{PHONES}",
        f"{JOB_S}",
    ]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _read_line(hosts: subprocess.Popen[str]) -> str:
    assert hosts.stdout is not None
    if not (line := hosts.stdout.readline()):
        raise HostError(f"a process of hosts ended with {hosts.wait()}")
    return line


def _gaps(hosts: subprocess.Popen[str]) -> list[tuple[float, float]]:
    """End a process of hosts; returns its measurements."""
    assert hosts.stdin is not None
    hosts.stdin.close()
    return [(at_s, gap) for at_s, gap in json.loads(_read_line(hosts))["ended"]]


def _used_s(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Processor seconds of these processes and their children so far, by name."""
    return {name: sum(_tree_used_s(psutil.Process(pid)) for pid in some) for name, some in pids.items()}


def _tree_used_s(process: psutil.Process) -> float:
    used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in used))
