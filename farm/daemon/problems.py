"""The current problems, as `farm status` shows them."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator

from farm.adb.program import ServerProcess, other_servers
from farm.adb.watch import WatchEvent
from farm.common.events import EventLog
from farm.common.phone_text import plain
from farm.common.selector import did_you_mean
from farm.common.tasks import SharedCall
from farm.config import FarmConfig
from farm.store.store import Store

LAB_NEEDS = 'a lab also needs [store] url and [lab] head = "apart" (docs/many-hosts.md)'
OTHER_SERVERS_FOR_S = 30.0  # the scan takes 40-600 ms of a core; other servers come by hand

log = logging.getLogger(__name__)


class Problems:
    """Keeps the failures of adb and the store that last; asks the other parts, and looks for other adb servers."""

    def __init__(self, config: FarmConfig) -> None:
        self._lasting: dict[str, str] = {}  # failures by subject
        if (host := config.lab.host) and not config.lab.head_apart:
            self._lasting["lab"] = f'[lab] host = "{host}" is no host of a lab yet, but a single one: {LAB_NEEDS}'
            log.warning("%s", self._lasting["lab"])
        self.sources: list[Callable[[], list[str]]] = []  # each returns the present problems of one part
        self._failed: set[Callable[[], list[str]]] = set()  # the log has why
        self._adb_socket = config.adb_socket
        self._other_servers = SharedCall(_other_servers, keep_s=OTHER_SERVERS_FOR_S)
        self._usb = config.adb.manage and config.adb.usb

    async def current(self) -> list[str]:
        """One line for each problem."""
        found = [*self._lasting.values(), *(line for source in self.sources for line in self._ask(source))]
        if self._usb:
            found.extend(
                f"{other} may hold USB phones" for other in await self._other_servers(self._adb_socket) if other.usb
            )
        return found

    def _ask(self, source: Callable[[], list[str]]) -> list[str]:
        try:
            return source()
        except Exception as error:  # its bug: `farm status` must work when something is wrong
            if source not in self._failed:
                log.exception("a check for problems failed")
            self._failed.add(source)
            return [f"a check for problems failed, the log has more: {type(error).__name__}: {plain(str(error))}"]

    def of_adb(self, events: EventLog) -> Callable[[WatchEvent], None]:
        """The function that the device watcher calls with its events."""

        def on_event(event: WatchEvent) -> None:
            if event.kind.endswith((".back", ".removed")):
                self._lasting.pop(event.subject, None)
            else:
                hint = f" ({event.error.hint})" if event.error and event.error.hint else ""
                self._lasting[event.subject] = event.message + hint
            events.publish(event.kind, event.subject, message=event.message)

        return on_event

    def of_store(self, store: Store, events: EventLog) -> Callable[[bool], None]:
        """The function that the store calls when it begins and ends failing."""

        def on_change(failing: bool) -> None:
            if failing:
                self._lasting["store"] = store.problem
            else:
                self._lasting.pop("store", None)
            events.publish("store.full" if failing else "store.back", "store", reason=store.problem)

        return on_change


async def _other_servers(socket: str) -> list[ServerProcess]:
    return await asyncio.to_thread(other_servers, socket)


def unresolved_names(config: FarmConfig, keys: Collection[str], words: Collection[str] = ()) -> Iterator[str]:
    """One line for each. Looks at files.

    Args:
        config: the configuration.
        keys: every TVM key that a client can request now; empty while no phone has come yet.
        words: every alias of a phone, adopted or not; empty while no phone has come yet.
    """
    program = config.power.uhubctl
    if program and shutil.which(program) is None:
        yield f"[power] uhubctl: there is no program {program}: no power is cut by it"
    if config.usb.sysfs != "/sys" and not os.path.isdir(f"{config.usb.sysfs}/bus"):  # noqa: PTH112 - also without permission
        yield f"[usb] sysfs: {config.usb.sysfs} is no sysfs: farm cannot see where phones are plugged in"
    for rule in config.adopt:
        for word in rule.selector.aliases:
            if words and word not in words:
                hint = did_you_mean(word, words, "")
                problem = f"no phone that has come answers to {word}" + (f" ({hint})" if hint else "")
                yield f'[[adopt]] match = "{rule.selector}": {problem}'
    for key in config.gates.tvm_class:
        if keys and key not in keys:
            yield f"[gates.tvm_class] {key}: no phone and no alias has that key: nothing is asked for by it"
