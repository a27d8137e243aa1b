"""What is wrong now, as `farm status` shows it: news that still hold."""

from __future__ import annotations

import logging
from collections.abc import Callable

from farm.adb.program import Neighbours
from farm.adb.watch import WatchNews
from farm.config import FarmConfig
from farm.core.events import EventLog
from farm.core.phone_text import plain
from farm.store.store import Store

log = logging.getLogger(__name__)


class Problems:
    """Hears of adb and the store; asks for strangers that may hold phones."""

    def __init__(self, config: FarmConfig) -> None:
        self._news: dict[str, str] = {}  # by subject
        self.sources: list[Callable[[], list[str]]] = []  # whoever knows what is wrong when asked
        self._failed: set[Callable[[], list[str]]] = set()  # the log has why
        self._neighbours = Neighbours(config.adb_socket)
        self._usb = config.adb.manage and config.adb.usb

    async def look(self) -> list[str]:
        """One line for each problem."""
        found = [*self._news.values(), *(line for source in self.sources for line in self._asked(source))]
        if self._usb:
            found.extend(f"{other} may hold USB phones" for other in await self._neighbours.look() if other.usb)
        return found

    def _asked(self, source: Callable[[], list[str]]) -> list[str]:
        try:
            return source()
        except Exception as error:  # its bug: everybody asks for status just when something is wrong
            if source not in self._failed:
                log.exception("a check of what is wrong failed")
            self._failed.add(source)
            return [f"a check of what is wrong failed, the log says more: {type(error).__name__}: {plain(str(error))}"]

    def of_adb(self, events: EventLog) -> Callable[[WatchNews], None]:
        """What the device watcher calls with its news."""

        def heard(news: WatchNews) -> None:
            if news.kind.endswith((".back", ".removed")):
                self._news.pop(news.subject, None)
            else:
                hint = f" ({news.error.hint})" if news.error and news.error.hint else ""
                self._news[news.subject] = news.message + hint
            events.publish(news.kind, news.subject, message=news.message)

        return heard

    def of_store(self, store: Store, events: EventLog) -> Callable[[bool], None]:
        """What the store calls when it begins and ends failing."""

        def heard(failing: bool) -> None:
            if failing:
                self._news["store"] = store.problem
            else:
                self._news.pop("store", None)
            events.publish("store.full" if failing else "store.back", "store", reason=store.problem)

        return heard
