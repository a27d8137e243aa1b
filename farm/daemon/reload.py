"""Reads the configuration again while the daemon serves: on SIGHUP and on `farm reload`. Nobody's session is cut."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from farm.config import FarmConfig
from farm.control.callers import Role
from farm.control.server import ControlCall, ControlServer
from farm.control.verbs import Nothing, read_fields
from farm.core.errors import FarmError
from farm.core.events import EventLog
from farm.daemon.notify import Notifier
from farm.daemon.reload_plan import ReloadPlan, plan

BY_SIGNAL = "SIGHUP"

log = logging.getLogger("farm")


class Reloader:
    """Knows what holds now. Each of `parts` takes a new configuration; they are told in order, on the event loop."""

    def __init__(
        self, config: FarmConfig, load: Callable[[], FarmConfig], events: EventLog, notifier: Notifier
    ) -> None:
        """`load` reads and checks everything the way the daemon's start did; it may block."""
        self.config = config
        self.parts: list[Callable[[FarmConfig], None]] = []
        self._load = load
        self._events = events
        self._notifier = notifier
        self._one = asyncio.Lock()
        self._signalled: set[asyncio.Task[None]] = set()

    def register(self, server: ControlServer) -> None:
        """Add the verb `reload` to the door."""
        server.register("reload", self._verb, Role.OPERATOR)

    def signalled(self) -> None:
        """SIGHUP came: do it in the background; what is wrong is an event and a line in the log."""
        task = asyncio.create_task(self._by_signal(), name="reload")
        self._signalled.add(task)
        task.add_done_callback(self._signalled.discard)

    async def reload(self, who: str) -> ReloadPlan:
        """Read everything again, put in force what can be, say what waits for a restart.

        Args:
            who: on whose order; the event names them.

        Raises:
            ConfigError: there is a mistake in it; the old configuration holds on.
        """
        async with self._one:
            self._notifier.reloading()
            try:
                told = await asyncio.to_thread(self._load)
                decided = plan(self.config, told)
                for part in self.parts:
                    part(decided.effective)
            except FarmError as error:
                self._events.publish("config.refused", "daemon", by=who, reason=error.message, hint=error.hint)
                raise
            finally:
                self._notifier.ready("serving")
            self.config = decided.effective
            self._events.publish(
                "config.reloaded", "daemon", by=who, applied=list(decided.applied), restart=list(decided.restart)
            )
            return decided

    async def _verb(self, call: ControlCall) -> Mapping[str, Any]:
        """Read the configuration again -> {applied, restart}: names of changed keys."""
        read_fields(call, Nothing)
        decided = await self.reload(call.caller.user)
        return {"applied": list(decided.applied), "restart": list(decided.restart)}

    async def _by_signal(self) -> None:
        try:
            await self.reload(BY_SIGNAL)
        except FarmError as error:
            log.error("the configuration is refused, the old one holds on: %s", error)  # noqa: TRY400 (a mistake in a file is no traceback)
