"""The lab's configuration: keys that all hosts have alike. It stands in the database; each host and head follows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from farm.common.errors import HostError, UserError
from farm.config import LAB_CONFIG, ConfigError, FarmConfig, check_lab_config, lab_keys
from farm.store.lab_table import SharedConfigRecord
from farm.store.store import Store

# Reads and checks the configuration as the start of the process did, with the lab's as TOML; "": none. It may block.
LoadConfig = Callable[[str], FarmConfig]


class SharedConfig:
    """The lab's configuration as this process last read it; always empty on the only host of a database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._text = ""  # TOML
        self._problem = ""
        self.keys: tuple[str, ...] = ()  # that it sets

    async def load(self, load: LoadConfig) -> FarmConfig:
        """This host's configuration with the lab's, as both are now. While the database is away: as the lab's was.

        If this release cannot read the lab's, `problems` says so and this host does without it.

        Raises:
            ConfigError: this host's own has a mistake.
        """
        await self.changed()
        return await asyncio.to_thread(self._load, load)

    async def changed(self) -> bool:
        """Read it; returns whether it differs from what was read before. False while the database is away."""
        before = self._text
        if self._store.server is not None:
            with contextlib.suppress(HostError):  # the store reports it
                self._text = (await self.record()).text
        return self._text != before

    async def record(self) -> SharedConfigRecord:
        """The lab's configuration now.

        Raises:
            UserError: this host is in no lab.
            HostError: the database is away.
        """
        if self._store.server is None:
            raise UserError("this host is in no lab", hint="edit this host's own farm.toml, then farm reload")
        return await self._store.in_thread(self._store.lab.config)

    async def set(self, text: str, by: str) -> None:
        """Check a text and write it for all hosts.

        Raises:
            ConfigError: it has a mistake; nothing has changed.
            UserError: this host is in no lab.
            HostError: the database is away.
        """
        await self.record()
        await asyncio.to_thread(check_lab_config, text)
        await self._store.lab.save_config(SharedConfigRecord(text, by, self._store.now()))

    def problems(self) -> list[str]:
        """Why this host does without the lab's configuration."""
        return [self._problem] if self._problem else []

    def _load(self, load: LoadConfig) -> FarmConfig:
        try:
            config = load(self._text)
            self.keys, self._problem = lab_keys(self._text), ""
        except ConfigError as error:
            config = load("")
            self.keys, self._problem = (), f"{LAB_CONFIG} is not used here: {error.message}"
        return config
