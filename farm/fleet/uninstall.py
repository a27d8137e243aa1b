"""Farm leaves every phone."""

from __future__ import annotations

import asyncio

from farm.core.errors import FarmError
from farm.fleet.fleet import Fleet


async def uninstall(fleet: Fleet) -> tuple[tuple[str, ...], dict[str, str]]:
    """Clean and forget every adopted device: the names that are clean, and why the others are not."""
    names = [view.name for view in fleet.views() if view.adopted]
    failed: dict[str, str] = {}

    async def forget(name: str) -> None:
        try:
            await fleet.orders.forget(name, clean=True)
        except FarmError as error:
            failed[name] = error.message

    await asyncio.gather(*map(forget, names))
    return tuple(name for name in names if name not in failed), failed
