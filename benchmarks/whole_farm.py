"""What benchmarks of the whole farm share: its event log read as times, and adb's own word about a phone.

Times are Unix seconds: the daemon stamps its events with the same host's clock.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from farm.common.errors import HostError
from farm.model.device import LIFE_EVENTS
from farm.simulation.virtual_farm import VirtualFarm

PROFILES = ("oneplus-12", "galaxy-note20", "realme-gt-neo3", "galaxy-s9")
WAIT_S = 60.0
_UNIX_SPEC = "localfilesystem:"

Happened = Callable[["Event"], bool]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the daemon's event log."""

    seq: int
    at: float
    kind: str
    subject: str
    data: Mapping[str, Any]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """An event as the daemon tells it."""
        return cls(row["seq"], datetime.fromisoformat(row["at"]).timestamp(), row["kind"], row["subject"], row["data"])

    @property
    def device(self) -> str:
        """The name of the device it is about, or ""."""
        return self.subject if self.kind.startswith("device.") else str(self.data.get("device", ""))


class Journal:
    """The daemon's events, for questions about when something was so."""

    def __init__(self, farm: VirtualFarm) -> None:
        self._farm = farm

    def mark(self) -> int:
        """The number of the newest event."""
        return int(self._farm.status()["seq"])

    def after(self, seq: int, limit_s: float = WAIT_S) -> Generator[Event, None, None]:
        """Events after `seq` as they happen.

        Raises:
            HostError: `limit_s` is over.
        """
        try:
            yield from map(Event.read, self._farm.events(seq, timeout_s=limit_s))
        except TimeoutError as error:
            raise HostError(f"the farm did not get there: {error}") from error

    def first(self, seq: int, happened: Happened, limit_s: float = WAIT_S) -> Event:
        """The first event after `seq` that `happened` accepts."""
        with contextlib.closing(self.after(seq, limit_s)) as events:
            return next(event for event in events if happened(event))

    def leasable_again(self, device: str, seq: int, noticed: Happened) -> Event:
        """The event after which `device` is ready and nobody holds it, at or after the one that `noticed` accepts.

        Args:
            device: its name.
            seq: nothing up to there counts as noticed.
            noticed: tells the event by which the farm knows that something is wrong; before, the phone looks ready.
        """
        ready = held = seen = False
        with contextlib.closing(self.after(0)) as events:
            for event in events:
                if event.device != device:
                    continue
                if event.kind in LIFE_EVENTS:
                    ready = event.kind == "device.ready"
                elif event.kind in ("lease.granted", "lease.released"):
                    held = event.kind == "lease.granted"
                seen = seen or (event.seq > seq and noticed(event))
                if seen and ready and not held:
                    return event
        raise AssertionError("an event stream ends with an error only")


class AdbList:
    """When adb's own server first listed a phone as usable. A second client beside the daemon's watcher."""

    def __init__(self, spec: str) -> None:
        """Args: spec: the server's unix socket, as adb writes it."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(spec.removeprefix(_UNIX_SPEC))
        self._socket.sendall(b"0012host:track-devices")
        self._usable: dict[str, float] = {}
        self._thread = threading.Thread(target=self._follow, name="adb list", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def usable_since(self, serial: str) -> float:
        """Unix seconds since when it is listed as `device`; KeyError when it is not."""
        return self._usable[serial]

    def _follow(self) -> None:
        with self._socket.makefile("rb") as stream:
            if stream.read(4) != b"OKAY":
                return
            while size := stream.read(4):
                lines = stream.read(int(size, 16)).decode().splitlines()
                now = time.time()
                listed = [line.split("\t")[0] for line in lines if line.endswith("\tdevice")]
                self._usable = {serial: self._usable.get(serial, now) for serial in listed}


def about(device: str, *kinds: str) -> Happened:
    """Accepts events of these kinds (prefixes) about a device, by its name or serial."""
    return lambda event: event.kind.startswith(kinds) and device in (event.device, event.data.get("serial"))
