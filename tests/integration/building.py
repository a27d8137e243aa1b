"""A task that builds candidates as the tune worker does; run by a real zygote in test_build_server_forked.py."""

import os
from pathlib import Path

import psutil

from farm.kinds.tune import worker as tune
from farm.tuning.builder import FarmBuilder
from tests.support.candidates import builder_inputs, module
from tests.support.whole_farm import until

_threads = []


def early():
    """The tune worker's, and how many threads there were."""
    _threads.append(psutil.Process().num_threads())
    tune.early()


def main(payload, daemon):
    """Build one candidate that is right, or one that takes forever."""
    kind = payload["kind"]
    with FarmBuilder(cache=Path.cwd(), server=tune.forked()) as builder:
        [server] = psutil.Process().children()
        found = {
            "worker": os.getpid(), "server": server.pid, "parent": server.ppid(), "threads": _threads,
            "same_program": server.cmdline() == psutil.Process().cmdline(),
        }  # fmt: skip
        answer = builder.submit(builder_inputs([module(kind)])[0])
        if kind != "add":
            until(server.children)
            family = [server.pid, *(each.pid for each in server.children(recursive=True))]
            daemon.progress("building", family=family, worker=os.getpid())
        return {**found, "built": answer.result().exists()}
