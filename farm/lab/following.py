"""What other hosts change in the database is taken up here: bundles, keys set by hand, toolchains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from farm.common.errors import FarmError

LOOK_EVERY_S = 5.0

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
                    log.warning("%s of other hosts are not all here yet: %s", what, error.message)
                problems[what] = error.message
        await asyncio.sleep(LOOK_EVERY_S)
