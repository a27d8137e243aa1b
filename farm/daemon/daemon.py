"""One `farm serve`: starts every part, waits, takes them down in the opposite order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from farm import __version__
from farm.config import FarmConfig
from farm.control.callers import Caller, Role
from farm.control.crowd import raise_descriptor_limit
from farm.core.errors import FarmError, HostError
from farm.daemon.doors import open_job_door
from farm.daemon.http import WebDoor
from farm.daemon.memory import open_memory
from farm.daemon.metering import Metering
from farm.daemon.phones import open_phones
from farm.daemon.problems import Problems
from farm.daemon.reload import BY_SIGNAL, Reloader
from farm.daemon.sharing import open_sharing
from farm.daemon.vital import pulses, status_of
from farm.daemon.workers import start_workers
from farm.jobs.checker import FarmChecker
from farm.leasing.clock import ClockWatch
from farm.notify import Notifier
from farm.store.lock import StateFolderLock
from farm.tracker.listener import bind
from farm.watchdog import Watchdog

log = logging.getLogger("farm")


class Daemon:
    """One `farm serve`."""

    def __init__(self, config: FarmConfig, load: Callable[[], FarmConfig], notifier: Notifier | None = None) -> None:
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
                parts = await self._build(stack)
            except OSError as error:
                raise HostError(
                    f"cannot start: {error.filename or 'the host'}: {error.strerror or error}",
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

    async def _build(self, stack: contextlib.AsyncExitStack) -> list[asyncio.Task[None]]:
        """Start every part, bottom floor first; returns what runs for as long as the daemon does.

        `stack` takes them down in the opposite order: first the doors, so that nobody comes in, then the fleet.
        """
        config = self._config
        lock = StateFolderLock(config.state_dir)
        stack.callback(lock.close)
        if not config.tvm.gate:
            bind(config.tvm.host, config.tvm.port).close()  # a port that is taken is known before anything is written
        problems = Problems(config)
        with self._notifier.extending():  # a database of an earlier release is brought up to date here
            memory = open_memory(config, stack, problems)
        by_signal = Caller(BY_SIGNAL, Role.OPERATOR, "signal")
        reloader = Reloader(
            config, self._load, memory.events, self._notifier,
            lambda outcome: memory.audit.tell_later(by_signal, "reload", "daemon", outcome),
        )  # fmt: skip
        workers = await start_workers(config, stack, memory)

        # Leasing follows the fleet, the fleet's checker asks leasing for keys, its workers meet the gate at the door:
        # the checker is given ways to partners that are there before the first phone is.
        def gate() -> tuple[str, int]:
            return sharing.gate()

        def checking_key(device: str) -> str:
            return sharing.leasing.checking_key(device)

        checker = FarmChecker(workers.supervisor, key=checking_key, gate=gate)
        phones = await open_phones(config, stack, memory, workers.toolchains, checker, problems)
        parts: list[asyncio.Task[None]] = []  # begun when everything is there, ended when the doors are closed
        stack.push_async_callback(_end, parts)
        sharing = await open_sharing(config, stack, memory, workers, phones)
        problems.sources.append(workers.supervisor.problems)
        problems.sources.append(sharing.problems)
        problems.sources.append(lambda: phones.dangling(reloader.config))
        web = WebDoor(config.web, problems)
        desk = await open_job_door(config, stack, memory, workers, phones, sharing, problems, reloader, web=web)
        vital = pulses(memory, phones, sharing)
        metering = Metering(config, memory, workers, phones, sharing, desk, vital)
        web.open(stack, desk, memory.events, metrics=metering.answer)
        reloader.notes = phones.dangling
        reloader.parts += [memory.use, workers.use, phones.use, sharing.use]
        self._reload = reloader.signalled
        watchdog = Watchdog(self._notifier, vital, lambda: status_of(phones, sharing))
        running = {
            "history": memory.history.run(),
            "retention": memory.retention.run(),
            "fleet": phones.fleet.run(),
            "tunnels": phones.tunnels.run(),
            "clock": ClockWatch(memory.events, sharing.clock_jumped).run(),
            "artifacts": workers.artifacts.keep_tidy(),
            "watchdog": watchdog.run(),
            "loop delay": metering.loop_delay.run(),
        }
        parts += [asyncio.create_task(part, name=name) for name, part in running.items()]
        return [*parts, *workers.door.parts, *desk.parts, *web.parts]  # a door that is dead is no door: begin anew


async def _end(parts: Sequence[asyncio.Task[None]]) -> None:
    """Cancel running parts and wait for their end; what they raise is looked at later."""
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)
