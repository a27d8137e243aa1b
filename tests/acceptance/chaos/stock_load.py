"""Stock TVM programs at the TVM door during a storm: ask for a shared key, open a session, compute, leave, again."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from farm.simulation.virtual_farm import VirtualFarm
from tests.support.stock_client import END_LIMIT_S, Clients, StockClient, compile_kernel

# A lost session or tracker is what the storm is about; a wrong sum is not. Ends when its input is closed.
PROGRAM = """
    import select
    told = {"right": 0, "wrong": 0, "lost": []}
    while not select.select([sys.stdin], [], [], 0.3)[0]:
        try:
            session = connect().request("android", session_timeout=60)
            right = add_one(session)
            close(session)
        except Exception as error:
            told["lost"].append(type(error).__name__ + ": " + str(error)[-200:])
        else:
            told["right" if right else "wrong"] += 1
    tell(told)
"""


class StockLoad:
    """Runs the programs while the context lasts; then tells how many sessions went well, and what may not be."""

    def __init__(self, farm: VirtualFarm, clients: int, folder: Path) -> None:
        self.sessions = 0
        self.problems: list[str] = []
        self._farm, self._count, self._folder = farm, clients, folder
        self._stack = ExitStack()
        self._clients: list[StockClient] = []

    def __enter__(self) -> Self:
        if self._count:
            self._keep_port()
            clients = Clients(self._farm, compile_kernel(self._folder))
            self._clients = [self._stack.enter_context(clients.running(PROGRAM)) for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            for client in self._clients if error is None else ():
                self._end(client)

    def _end(self, client: StockClient) -> None:
        try:
            client.finish()
        except subprocess.TimeoutExpired:
            self.problems.append(f"a stock program hangs {END_LIMIT_S:g} s after the last job")
            return
        told = client.hear()
        self.sessions += told["right"]
        if told["wrong"] or not told["right"]:
            self.problems.append(f"a stock program was served like this: {told}")

    def _keep_port(self) -> None:
        """Daemons to come listen where the first one does, as configured ones do: stock programs know one address."""
        config = self._farm.folder / "farm.toml"
        config.write_text(config.read_text().replace("port = 0", f"port = {self._farm.tracker()[1]}"))
