"""Phones on this host that come, go and are wanted by others as a test says."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farm.common.errors import PhoneError
from farm.tuning.phones import Command, HostPhones, PoolState, SessionOffer, stock_server


def compiled_server(bundle: Path) -> Command:
    """A `tvm_rpc` with its libraries in one folder, as phones have it."""

    def command(port: int, key: str, folder: Path) -> Sequence[str]:
        return [
            str(bundle / "tvm_rpc"), "server", "--host=127.0.0.1", f"--port={port}", f"--port-end={port + 1}",
            f"--key={key}", f"--work-dir={folder}",
        ]  # fmt: skip

    return command


class StagedPhones(HostPhones):
    """HostPhones under a test's hand."""

    def __init__(self, count: int = 1, command: Command = stock_server, libraries: Path | None = None) -> None:
        self.hidden: set[str] = set()
        self.wanted_back: set[str] = set()
        self.given_back: list[str] = []
        self.opened = 0  # sessions
        super().__init__(count, command, libraries)

    def lose(self, lease: str) -> None:
        """The phone is gone, and its session with it."""
        self.hidden.add(lease)
        super().abort_session(lease, "the test pulled the cable")

    def state(self) -> PoolState:
        state = super().state()
        kept = [each for each in state.phones if each.lease not in {*self.hidden, *self.given_back}]
        phones = tuple(replace(each, yield_wanted=each.lease in self.wanted_back) for each in kept)
        return PoolState(phones, state.wanted, state.waits or ("" if phones else "the test has taken them all"))

    def open_session(self, lease: str) -> SessionOffer:
        if lease in self.hidden:
            raise PhoneError(f"{lease} is gone")
        self.opened += 1
        return super().open_session(lease)

    def abort_session(self, lease: str, reason: str) -> None:
        if lease in self.hidden:
            raise PhoneError(f"{lease} is gone")
        super().abort_session(lease, reason)

    def give_back(self, lease: str) -> None:
        self.given_back.append(lease)


class CountingPhones(StagedPhones):
    """Behind a relay that counts how often the host waits for the phone."""

    turns = 0

    def open_session(self, lease: str) -> SessionOffer:
        offer = super().open_session(lease)
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._relay, args=(listener, offer.port), daemon=True).start()
        return replace(offer, port=listener.getsockname()[1])

    def _relay(self, listener: socket.socket, port: int) -> None:
        with listener, listener.accept()[0] as host, socket.create_connection(("127.0.0.1", port)) as phone:
            asked = False
            while True:
                for ready in select.select([host, phone], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    self.turns += ready is phone and asked
                    asked = ready is host
                    (phone if ready is host else host).sendall(data)
