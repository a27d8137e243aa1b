"""Follows other hosts: their changes in the database and their reach. Writes this host's readings for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from farm.common.errors import FarmError, HostError, HostUnreachableError
from farm.lab.link import HostLink, LinkCall
from farm.leasing.lab_readings import encode_readings
from farm.model.device import DeviceView

LOOK_EVERY_S = 5.0
WRITE_EVERY_S = 10.0  # phones are probed as often
REACH = "reach"  # the service that accepts, and does nothing
REACH_LIMIT_S = 5.0
REACHED_EVERY = 3  # looks: a handshake with every host takes some milliseconds

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
            except Exception as error:  # the others are looked at all the same
                if repr(error) != problems.get(what):
                    log.exception("%s of other hosts are not up to date", what)
                problems[what] = repr(error)
        await asyncio.sleep(LOOK_EVERY_S)


class HostReach:
    """Tries whether this host can connect to the other hosts of its lab that run and listen."""

    def __init__(self, link: HostLink) -> None:
        """Answer the tries of other hosts from now on."""
        self._link = link
        self._found: Mapping[str, str] = {}  # by host: why the latest try failed; "": it was reached
        self._before: Mapping[str, str] = {}  # the same, of the try before
        self._looks = 0
        link.serve(REACH, LinkCall.accept)

    def problem_of(self, host: str) -> str | None:
        """Why the last two tries to reach the host failed; "": the last one did not; None: not known."""
        found = self._found.get(host)
        return found if not found or self._before.get(host) else None

    async def still_unreached(self, host: str) -> str:
        """Why another try to reach an unreached host fails; "": it succeeds, or the host was not unreached."""
        if self.problem_of(host):
            self._found = {**self._found, host: await self._try(host)}
        return self.problem_of(host) or ""

    async def look(self) -> None:
        """Try every host, but a reached one only every third time."""
        self._looks += 1
        hosts = [each.name for each in (await self._link.hosts()).values() if each.address and each.beat_at is not None]
        tried = [name for name in hosts if self._found.get(name) != "" or self._looks % REACHED_EVERY == 0]
        found = dict(zip(tried, await asyncio.gather(*map(self._try, tried)), strict=True))
        self._before = self._found
        self._found = {name: found.get(name, "") for name in hosts}

    async def _try(self, host: str) -> str:
        try:
            connection = await self._link.dial(host, REACH, limit_s=REACH_LIMIT_S)
        except HostUnreachableError as error:
            return error.message
        except FarmError:  # it answers: an older release has no such service
            return ""
        await connection.close()
        return ""


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
