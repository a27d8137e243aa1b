"""Follows what other hosts change in the database, and writes this host's readings for their lists."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from farm.common.errors import FarmError, HostError
from farm.leasing.lab_readings import encode_readings
from farm.model.device import DeviceView

LOOK_EVERY_S = 5.0
WRITE_EVERY_S = 10.0  # phones are probed as often

log = logging.getLogger(__name__)


async def follow_other_hosts(looks: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
    """Call each look every 5 s, until cancelled; a problem is logged once.

    Args:
        looks: what is looked at, a plural -> takes up what has changed.
    """
    problems: dict[str, str] = {}
    while True:
        for what, look in looks.items():
            try:
                await look()
                problems.pop(what, None)
            except FarmError as error:
                if error.message != problems.get(what):
                    log.warning("%s of other hosts are not up to date: %s", what, error.message)
                problems[what] = error.message
        await asyncio.sleep(LOOK_EVERY_S)


async def share_readings(
    views: Callable[[], Iterable[DeviceView]], write: Callable[[Mapping[str, Any]], Awaitable[None]]
) -> None:
    """Write all readings every 10 s if they have changed, until cancelled."""
    written: Mapping[str, Any] | None = None
    while True:
        if (found := encode_readings(views())) != written:
            with contextlib.suppress(HostError):  # the writer reports it
                await write(found)
                written = found
        await asyncio.sleep(WRITE_EVERY_S)
