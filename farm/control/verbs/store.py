"""Verbs about the store: is it sound, copy it, prune it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import HostPath, Verbs, form, verb
from farm.core.errors import UserError
from farm.store.check import check
from farm.store.offline import back_up
from farm.store.retention import Retention
from farm.store.store import Store

MAX_KEEP_DAYS = 36_500


@form
class Backup:
    """`store.backup`: an absolute path on the daemon's host; empty: beside the database."""

    path: HostPath = ""


@form
class Prune:
    """`store.prune`. Without days: as configured."""

    keep_days: Annotated[float, Field(ge=0, le=MAX_KEEP_DAYS)] | None = None
    dry_run: bool = False


class StoreVerbs(Verbs):
    """Verbs over the store, for operators."""

    def __init__(self, store: Store, where: Path | str, retention: Retention) -> None:
        self._store = store
        self._where = where
        self._retention = retention

    @verb("store.check", Role.OPERATOR)
    async def check(self) -> Mapping[str, Any]:
        """Look at everything; what is wrong, how much there is."""
        report = await asyncio.to_thread(check, self._store.database.engine)
        return {**report.to_wire(), "problem": self._store.problem}

    @verb("store.backup", Role.OPERATOR)
    async def backup(self, asked: Backup) -> Mapping[str, Any]:
        """Copy the database while it serves."""
        named = asked.path
        path = Path(named) if named else None
        if path is not None and not path.is_absolute():
            raise UserError(f"{named} is not an absolute path", hint="the daemon does not know your folder")
        made = await asyncio.to_thread(back_up, self._where, path)
        return {"path": str(made), "size_bytes": made.stat().st_size}

    @verb("store.prune", Role.OPERATOR)
    async def prune(self, asked: Prune) -> Mapping[str, Any]:
        """Remove what is too old."""
        if asked.dry_run:
            pruned = await asyncio.to_thread(self._retention.would_prune, asked.keep_days)
        else:
            pruned = await self._retention.prune(asked.keep_days)
        return {**pruned.to_wire(), "dry_run": asked.dry_run}
