"""What a zygote's child does: greet the daemon, run its task's `main`, report the result or the error.

A task's `early`, where it has one, is called before anything else: this process has a single thread until then, and may
fork.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from farm.compiler.tvm_errors import first_line
from farm.core.errors import FarmError, UserError
from farm.jobs.executor import YieldedError
from farm.jobs.messages import Spawn
from farm.worker.daemon import Daemon

Main = Callable[[Mapping[str, Any], Daemon], dict[str, Any]]


class WorkerBugError(FarmError):
    """A worker failed in a way farm did not foresee."""

    code = "worker_bug"


def run(order: Spawn) -> None:
    """Carry out one spawn order in this process."""
    early(order.task)
    with Daemon(order) as daemon:
        daemon.hello(pid=os.getpid())
        try:
            main: Main = importlib.import_module(order.task).main
            daemon.succeed(main(order.payload, daemon))
        except YieldedError as error:
            daemon.fail(error)
        except UserError as error:  # nobody's bug: the sentence is enough
            sys.stderr.write(f"{error.message}\n")
            daemon.fail(error)
        except FarmError as error:
            traceback.print_exc()
            daemon.fail(error)
        except Exception as error:  # noqa: BLE001 - reported to the daemon, which decides; the trace is the evidence
            traceback.print_exc()
            daemon.fail(
                WorkerBugError(
                    f"{order.task} failed: {type(error).__name__}: {first_line(error)}", evidence=traceback.format_exc()
                )
            )


def early(task: str) -> None:
    """What the task must do before there are threads. A task that cannot be imported is told of by `run`."""
    try:
        getattr(importlib.import_module(task), "early", lambda: None)()
    except Exception:  # noqa: BLE001 - the task does without; the trace goes into the attempt's log
        traceback.print_exc()
