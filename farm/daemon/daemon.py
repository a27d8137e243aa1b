"""One `farm serve`: starts every part, waits, takes them down in the opposite order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from zmq import ZMQError

from farm import __version__
from farm.common.errors import FarmError, HostError
from farm.common.histogram import QUICK_S, Histogram
from farm.common.systemd import Notifier, Watchdog
from farm.common.tasks import Begin, LastingTasks, end_tasks
from farm.config import FarmConfig
from farm.control.callers import Caller, Role
from farm.control.limits import raise_descriptor_limit
from farm.daemon.interfaces import Parts, WebPage, open_control_channel
from farm.daemon.monitoring import current_status, metrics_page, progress_checks, return_memory
from farm.daemon.persistence import Persistence, open_persistence
from farm.daemon.phones import open_phones
from farm.daemon.problems import Problems
from farm.daemon.reload import BY_SIGNAL, Reloader
from farm.daemon.scheduling import check_gate_apart, open_gate, open_scheduling
from farm.daemon.shared_config import LoadConfig, SharedConfig
from farm.daemon.starting import Start, StopRequestedError
from farm.daemon.stopped_results import StoppedResults
from farm.daemon.workers import start_workers
from farm.head.reservations import ClockWatch
from farm.jobs.checker import FarmChecker
from farm.metrics.process import measure_loop_delay
from farm.store.files import StateFolderLock, check_paths

log = logging.getLogger("farm")


class Daemon:
    """One `farm serve`."""

    def __init__(self, config: FarmConfig, load: LoadConfig, notifier: Notifier | None = None) -> None:
        """`load` reads the configuration again, as `config` was read; `notifier`: the way to the service manager."""
        self._config = config
        self._load = load
        self._notifier = notifier or Notifier()
        self._reload: Callable[[], None] | None = None  # on SIGHUP

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP reads the configuration again.

        Raises:
            FarmError: the state folder is in use, a port is taken, the database is damaged, adb is missing.
        """
        raise_descriptor_limit()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        if not sys.stderr.isatty():  # in a terminal it means that the terminal is gone, and ends the daemon
            loop.add_signal_handler(signal.SIGHUP, self._signalled)
        async with contextlib.AsyncExitStack() as stack:
            try:
                parts = await self._build(stack, Start(self._notifier, stop))
            except StopRequestedError:
                log.info("stopping: the start was not over")
                return
            except (OSError, ZMQError) as error:
                raise HostError(
                    f"cannot start: {getattr(error, 'filename', '') or 'the host'}: {error.strerror or error}",
                    hint="look at the daemon's state and runtime folders: farm doctor",
                ) from error
            gc.collect()
            gc.freeze()  # 10,000 kept jobs: each later look through them would hold the loop for 0.2-0.4 s
            self._notifier.ready("serving")
            log.info("farm %s serves (pid %d, socket %s)", __version__, os.getpid(), self._config.control_socket)
            stopping = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait((*parts, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            self._reload = None
            self._notifier.stopping()
            log.info("stopping")
        for part in parts:
            if part.done() and not part.cancelled() and (failed := part.exception()) is not None:
                raise failed
        if stopping not in done:
            raise FarmError(f"{', '.join(part.get_name() for part in done)} ended by itself")

    def _signalled(self) -> None:
        """SIGHUP; without effect until everything is there and once the end has begun."""
        if self._reload is not None:
            self._reload()

    async def _open_reloader(self, persistence: Persistence) -> tuple[Reloader, SharedConfig]:
        lab, by_signal = SharedConfig(persistence.store), Caller(BY_SIGNAL, Role.OPERATOR, "signal")
        reloader = Reloader(
            await lab.load(self._load) if self._config.lab.host else self._config,
            self._load, lab, persistence.events, self._notifier,
            lambda outcome: persistence.audit.record_later(by_signal, "reload", "daemon", outcome),
        )  # fmt: skip
        return reloader, lab

    async def _build(self, stack: contextlib.AsyncExitStack, start: Start) -> list[asyncio.Task[None]]:
        """Start every part, bottom floor first; returns the tasks whose end ends the daemon.

        `stack` takes them down in the opposite order: first the listeners, so that no client connects, then the fleet.
        """
        config = self._config
        check_paths(config.state_dir, config.runtime_dir)
        stack.callback(StateFolderLock(config.state_dir).close)
        with self._notifier.extending():  # a gate of another release: nothing is migrated that could not serve
            await check_gate_apart(config)
        own_gate = open_gate(config.tvm, stack)  # a port that is taken is known before anything is written
        problems, lasting = Problems(config), LastingTasks()
        with self._notifier.extending():  # a database of an earlier release is brought up to date here
            persistence = await open_persistence(config, stack, problems, start)
        reloader, lab = await self._open_reloader(persistence)
        config = reloader.config
        workers = await start_workers(config, stack, persistence, lasting)

        # Leasing follows the fleet, the checker asks leasing for keys, its workers reach the gate at the TVM port:
        # the checker is given ways to partners that are there before the first phone is.
        def gate() -> tuple[str, int]:
            return scheduling.gate()

        def checking_key(device: str) -> str:
            return scheduling.leasing.checking_key(device)

        def gate_gone_at() -> float:
            return scheduling.tvm_server.gone_at

        checker = FarmChecker(workers.supervisor, key=checking_key, gate=gate, gate_gone_at=gate_gone_at)
        phones = await open_phones(config, stack, persistence, workers.bundles, workers.toolchains, checker, problems)
        running: list[asyncio.Task[None]] = []  # begun when everything is there, ended when the listeners are closed
        stack.push_async_callback(lambda: end_tasks(*running))
        scheduling = await open_scheduling(config, stack, persistence, workers, phones, own_gate)
        stopped = StoppedResults(persistence.store, persistence.events, phones.fleet.views, scheduling.head)
        problems.sources += (
            stopped.problems,
            lab.problems,
            workers.problems,
            scheduling.problems,
            lasting.problems,
            phones.fleet.lasting.problems,
            lambda: phones.unresolved_names(reloader.config),
        )
        web = WebPage(config.web, problems, lab=bool(config.lab.host))
        parts = Parts(config, persistence, workers, phones, scheduling, problems, lasting, reloader, web, stopped)
        control = await open_control_channel(stack, parts)
        progress, loop_delay = progress_checks(parts), Histogram(QUICK_S)
        web.open(stack, control, persistence.history.shown, metrics=metrics_page(parts, control, progress, loop_delay))
        reloader.notes = phones.unresolved_names
        reloader.parts += [persistence.use, workers.use, phones.use, scheduling.use]
        self._reload = reloader.signalled
        watchdog = Watchdog(self._notifier, progress, lambda: current_status(parts))
        tasks = _lasting_tasks(parts)
        tasks |= {"watchdog": watchdog.run, "loop delay": partial(measure_loop_delay, loop_delay)}
        ending = [asyncio.create_task(begin(), name=name) for name, begin in _ending_tasks(parts).items()]
        running += [*ending, *(lasting.start(name, begin) for name, begin in tasks.items())]
        return [*ending, *workers.server.tasks, *control.tasks, *web.tasks]


def _lasting_tasks(parts: Parts) -> dict[str, Begin]:
    """The tasks that run as long as the daemon, by name; nothing outside it ends them."""
    persistence, scheduling = parts.persistence, parts.scheduling
    return {
        **persistence.tasks(),
        **scheduling.tasks(),
        **parts.phones.tunnels.tasks(),
        "clock": ClockWatch(persistence.events, scheduling.clock_jumped).run,
        "artifacts": parts.workers.artifacts.keep_tidy,
        "memory": return_memory,
        "stopped results": parts.stopped_results.run,
        "page": parts.web.retry,
    }


def _ending_tasks(parts: Parts) -> dict[str, Begin]:
    """The tasks whose end ends the daemon, by name; the service manager then starts it again.

    The daemon may not write any more, its host was removed from the lab, or the fleet has a bug.
    """
    return {**parts.persistence.ending_tasks(), **parts.scheduling.ending_tasks(), "fleet": parts.phones.fleet.run}
