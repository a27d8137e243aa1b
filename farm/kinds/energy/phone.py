"""The daemon's side of an energy job's worker: reads the phone's fuel gauge while the model runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from farm.adb.client import AdbClient
from farm.common.errors import FarmError, ProtocolError
from farm.devices.server.phone_paths import GAUGE
from farm.kinds.execution import MeasuringHost

LEAST_NAP_S, MOST_NAP_S = 0.1, 10.0
MOST_LINES = 50_000  # that wait for the worker
MOST_LINE_BYTES = 4096


class GaugeReader:
    """Reads lines of a phone's gauge, with the time of their arrival, until it is closed."""

    def __init__(self, client: AdbClient, serial: str) -> None:
        self._client, self._serial = client, serial
        self._nap_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._lines: list[tuple[float, str]] = []

    async def lines(self, nap_s: float) -> list[tuple[float, str]]:
        """The lines since the last call, read every `nap_s`: seconds since 1970 by this host's clock, and the text.

        Raises:
            FarmError: phone or link failed.
        """
        if nap_s != self._nap_s:
            await self.close()
            self._nap_s = nap_s
            self._task = asyncio.create_task(self._read(nap_s), name=f"gauge of {self._serial}")
        lines, self._lines = self._lines, []
        if not lines and self._task is not None and self._task.done():
            await self._task
        return lines

    async def close(self) -> None:
        """End the reading."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, FarmError):
                await task

    async def _read(self, nap_s: float) -> None:
        rest = b""
        async with await self._client.open_shell(self._serial, f"sh {GAUGE} {nap_s:.3f}") as stream:
            while chunk := await stream.read():
                arrived_s = time.time()
                *whole, rest = (rest + chunk).split(b"\n")
                self._lines += ((arrived_s, line.decode("ascii", "replace").strip()) for line in whole)
                del self._lines[:-MOST_LINES]
                rest = rest[-MOST_LINE_BYTES:]


@dataclass(frozen=True, slots=True)
class GaugeHost(MeasuringHost):
    """Reads the phone's gauge for the worker."""

    gauge: GaugeReader

    async def serve(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """`gauge {nap_s}`: the lines since the last call."""
        if verb != "gauge":
            return await MeasuringHost.serve(self, verb, fields)
        nap_s = fields.get("nap_s")
        if type(nap_s) is not float or not LEAST_NAP_S <= nap_s <= MOST_NAP_S:
            raise ProtocolError(f"a worker reads a gauge every {LEAST_NAP_S:g} to {MOST_NAP_S:g} s")
        return {"lines": await self.gauge.lines(nap_s)}
