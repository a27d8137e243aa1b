"""Reads the configuration again while the daemon serves: on SIGHUP and on `farm reload`. Nobody's session is cut."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from farm.config import FarmConfig
from farm.control.audit import OK
from farm.control.callers import Role
from farm.control.forms import Verbs, verb
from farm.control.server import ControlCall
from farm.core.errors import FarmError
from farm.core.events import EventLog
from farm.daemon.reload_plan import ReloadPlan, plan
from farm.notify import Notifier

BY_SIGNAL = "SIGHUP"
FAILED = "failed"  # the audit log's outcome where an error has no code

log = logging.getLogger("farm")


class Reloader(Verbs):
    """Knows what holds now. Each of `parts` takes a new configuration; they are told in order, on the event loop.

    What one of them refuses holds for none: those before it get the old one back.
    """

    def __init__(
        self,
        config: FarmConfig,
        load: Callable[[], FarmConfig],
        events: EventLog,
        notifier: Notifier,
        signal_told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """What a reload needs.

        Args:
            config: what holds now.
            load: reads and checks everything the way the daemon's start did; it may block.
            events: gets config.reloaded and config.refused.
            notifier: the way to the service manager.
            signal_told: gets the outcome of each reload that a signal asked for (the desk tells the verb's).
        """
        self.config = config
        self._signal_told = signal_told
        self.parts: list[Callable[[FarmConfig], None]] = []
        self.notes: Callable[[FarmConfig], list[str]] = lambda _: []  # what of a configuration points at nothing
        self._load = load
        self._events = events
        self._notifier = notifier
        self._one = asyncio.Lock()
        self._signalled: set[asyncio.Task[None]] = set()

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
            Exception: a mistake of farm's; the old one holds on, too.
        """
        async with self._one:
            self._notifier.reloading()
            try:
                told = await asyncio.to_thread(self._load)
                decided = plan(self.config, told)
                self._put_in_force(decided.effective)
            except FarmError as error:
                self._events.publish("config.refused", "daemon", by=who, reason=error.message, hint=error.hint)
                raise
            except Exception as error:
                reason = f"a mistake in farm: {type(error).__name__}"
                self._events.publish(
                    "config.refused", "daemon", by=who, reason=reason, hint="the daemon's log has more"
                )
                raise
            finally:
                self._notifier.ready("serving")
            self.config = decided.effective
            self._events.publish(
                "config.reloaded", "daemon", by=who, applied=list(decided.applied), restart=list(decided.restart)
            )
            return decided

    def _put_in_force(self, config: FarmConfig) -> None:
        for count, part in enumerate(self.parts, start=1):
            try:
                part(config)
            except Exception:
                for told in self.parts[:count]:
                    with contextlib.suppress(Exception):  # the first mistake is the one to tell
                        told(self.config)
                raise

    @verb("reload", Role.OPERATOR)
    async def _verb(self, call: ControlCall) -> Mapping[str, Any]:
        """Read the configuration again -> {applied, restart, notes}: names of changed keys, what points at nothing."""
        decided = await self.reload(call.caller.user)
        notes = self.notes(decided.effective)
        return {"applied": list(decided.applied), "restart": list(decided.restart), "notes": notes}

    async def _by_signal(self) -> None:
        try:
            await self.reload(BY_SIGNAL)
            self._signal_told(OK)
        except FarmError as error:
            self._signal_told(error.code)
            log.error("the configuration is refused, the old one holds on: %s", error)  # noqa: TRY400 (a mistake in a file is no traceback)
        except Exception:
            self._signal_told(FAILED)
            log.exception("the configuration could not be read again, the old one holds on")
