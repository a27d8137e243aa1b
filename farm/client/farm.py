"""What every client of the farm has: its connection, what is known of the farm, files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Literal, Self

from farm.client.door import RESTART_S, Door, OnNotice, OnTransfer, logger
from farm.client.files import OnBytes, checked_file, download, upload
from farm.client.model import DeviceInfo, FarmStatus, Usage, status_from, usage_from
from farm.client.streams import events
from farm.control.address import find
from farm.core.events import Event


class AsyncFarm:
    """A connection to the farm's daemon, and all but jobs."""

    def __init__(
        self,
        socket: Path | str | None = None,
        *,
        key: Path | str | None = None,
        restart_s: float = RESTART_S,
        on_notice: OnNotice = logger.warning,
        on_transfer: OnTransfer | None = None,
    ) -> None:
        """No connection is made yet.

        Args:
            socket: the daemon's control socket, or `tcp://HOST:PORT` of a lab elsewhere; None means `$FARM_DAEMON`,
                `$FARM_SOCKET`, the client's file, then the default place.
            key: the key file that `farm auth new` gave out, for a lab elsewhere; None means `$FARM_KEY`, then the
                client's file.
            restart_s: how long a daemon that went away is waited for, seconds.
            on_notice: hears that it is being waited for, once each time, and that a lease ends soon.
            on_transfer: hears how far each upload and download is: a file's name, bytes there, bytes in all.
        """
        where = find(str(socket or ""), key or "")
        self._door = Door(where, restart_s=restart_s, on_notice=on_notice)
        self._door.on_transfer = on_transfer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. Jobs go on; `wait` for them with another client."""
        self._door.close()

    # -- the farm ------------------------------------------------------------------------------------------------------

    async def events(
        self, *, since: int | None = None, subject: str = "", follow: bool = True
    ) -> AsyncGenerator[Event, None]:
        """What happens in the farm, in order, each event once, over restarts of the daemon too.

        Args:
            since: events after this number (of an event, or `status().seq`); None: from now on.
            subject: only about this device, job or lease.
            follow: wait for more; otherwise it ends with what is known now.
        """
        seq = (await self.status()).seq if since is None else since
        async with aclosing(events(self._door, "events", seq, subject=subject, follow=follow)) as told:
            async for each in told:
                if isinstance(each, Event):
                    yield each

    async def status(self) -> FarmStatus:
        """Phones, keys, and what is wrong with the host."""
        return status_from(await self._door.call("status"))

    async def devices(self) -> tuple[DeviceInfo, ...]:
        """Every phone that adb lists or the farm knows."""
        return (await self.status()).devices

    async def explain(self, what: str, name: str) -> tuple[str, ...]:
        """Why a `job`, `device` or `key` waits, in sentences."""
        return tuple((await self._door.call("explain", what=what, name=name))["lines"])

    async def usage(
        self, since: datetime, until: datetime | None = None, *, by: Literal["user", "device", "door"] = "user"
    ) -> tuple[Usage, ...]:
        """Who used phones for how long in a window of time (until now); times need a zone."""
        end = until.isoformat() if until else None
        answer = await self._door.call("usage", since=since.isoformat(), until=end, by=by)
        return tuple(map(usage_from, answer["usage"]))

    # -- files ---------------------------------------------------------------------------------------------------------

    async def put_file(self, source: Path | str | bytes, *, on_bytes: OnBytes | None = None) -> str:
        """Upload a file or bytes; returns the SHA-256 it is known by. What the farm has is not sent again.

        Raises:
            UserError: the file cannot be read.
        """
        return await upload(self._door, source if isinstance(source, bytes) else checked_file(source), on_bytes)

    async def get_file(self, sha256: str, target: Path | str, *, on_bytes: OnBytes | None = None) -> int:
        """Download an artifact into a file, hash checked; returns its size in bytes.

        Raises:
            UserError: there is no such artifact, or the file cannot be written.
        """
        return await download(self._door, sha256, Path(target), on_bytes)
