"""Stock TVM keys set by hand: those of the configuration and those of `farm alias set`, kept in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from farm.core.errors import FarmError, UserError
from farm.core.labels import normalise
from farm.core.selector import Selector
from farm.fleet.fleet import Fleet
from farm.store.changes import to_its_end


class AliasBook(Protocol):
    """What is needed of farm.store.devices.AliasTable."""

    def all(self) -> dict[str, str]:
        """Alias -> selector."""

    async def save(self, name: str, selector: str) -> None:
        """Keep one."""

    async def forget(self, name: str) -> bool:
        """Remove one; whether there was one."""


class Aliases:
    """Keys set by hand. One of the store wins over one of the same name in the configuration."""

    def __init__(self, fleet: Fleet, book: AliasBook, configured: Mapping[str, str]) -> None:
        """Tell the fleet what is set.

        Raises:
            SelectorError: a configured selector does not follow the grammar.
        """
        self._fleet = fleet
        self._book = book
        self._kept = {name: Selector.parse(text) for name, text in book.all().items()}
        self.use(configured)

    def use(self, configured: Mapping[str, str]) -> None:
        """Take the configuration's keys as they are now.

        Raises:
            SelectorError: a selector does not follow the grammar; nothing has changed.
        """
        self._configured = {normalise(name): Selector.parse(text) for name, text in configured.items()}
        self._fleet.set_aliases(self.selectors())

    def selectors(self) -> dict[str, Selector]:
        """Every key set by hand, with the phones it means."""
        return self._configured | self._kept

    @to_its_end
    async def set(self, name: str, selector: str) -> str:
        """Set a key; returns it normalised.

        Raises:
            UserError: nothing of the name survives normalisation, or a device has that key by itself.
            SelectorError: the selector does not follow the grammar.
        """
        alias, parsed = normalise(name), Selector.parse(selector)
        if not alias:
            raise UserError(f"{name!r} cannot be a key", hint="use letters, digits and . _ -")
        own = next((view for view in self._fleet.views() if alias in (view.name, *view.aliases)), None)
        if own is not None and alias not in self.selectors():
            raise UserError(f"{alias} is a key that {own.name} has by itself", hint="choose another key")
        before = self._kept.get(alias)
        self._put(alias, parsed)  # at once: a device must not take the name while this is written
        try:
            await self._book.save(alias, str(parsed))
        except FarmError:
            self._put(alias, before)
            raise
        return alias

    @to_its_end
    async def remove(self, name: str) -> str:
        """Remove a key; returns it normalised.

        Raises:
            UserError: it was not set with `farm alias set`.
        """
        alias = normalise(name)
        if not await self._book.forget(alias):
            where = "it stands in the configuration file" if alias in self._configured else "see: farm alias list"
            raise UserError(f"the key {name!r} was not set with `farm alias set`", hint=where)
        self._put(alias, None)
        return alias

    def _put(self, alias: str, selector: Selector | None) -> None:
        if selector is None:
            self._kept.pop(alias, None)
        else:
            self._kept[alias] = selector
        self._fleet.set_aliases(self.selectors())
