"""The daemon's side of builders: starts `farm.builders.server`, asks it, and keeps its reports of the builders."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.builders.table_policy import NO_MATCH
from farm.common.durations import BackOff
from farm.common.errors import HostError, ProtocolError, UserError
from farm.common.events import EventLog
from farm.common.frames import FrameReader, frame
from farm.common.install import pip_install
from farm.config import BuildersConfig
from farm.config.consistency import address_of
from farm.control.callers import Role
from farm.control.verbs import VerbGroup, verb

BACK_OFF = BackOff(1.0, 30.0)  # between two starts of a process that ends
ANSWER_S = 10.0
SERVER = "farm.builders.server"
READ_BYTES = 1 << 18


class BuildersProcess:
    """The process. `run` keeps it running until it is cancelled."""

    def __init__(
        self, config: BuildersConfig, events: EventLog, *, folder: Path, socket: Path, gid: int | None = None
    ) -> None:
        """`config.listen` is not empty.

        Args:
            config: where builders connect.
            events: gets the events of builders.
            folder: of the process's files.
            socket: where runs order.
            gid: of the workers, when they are another user.
        """
        self.socket = str(socket)
        self._config, self._events, self._folder, self._gid = config, events, folder, gid
        self.rows: Sequence[Mapping[str, Any]] = ()  # as `farm builder list` has them
        self.listening: Mapping[str, int] = {}  # its ports; empty: it is not there
        self._problem = ""
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._write: Callable[[bytes], None] | None = None

    def problems(self) -> list[str]:
        """Why there are no builders."""
        return [f"no builders: {self._problem}"] if self._problem else []

    def slots(self) -> Mapping[str, int]:
        """Counts: connected builders, candidates that they can build at once, and those that they build now."""
        ready = [row for row in self.rows if row["state"] == "ready"]
        return {
            "builders": len(ready),
            "slots": sum(row["slots"] for row in ready),
            "building": sum(row["building"] for row in ready),
        }

    def unmatched(self) -> int:
        """How many builders no tuning can use: their identity is another one."""
        return sum(row["state"].startswith(NO_MATCH) for row in self.rows)

    async def run(self) -> None:
        """Start the process, again and again; the first failure is a problem that `farm status` shows."""
        failures = 0
        while True:
            if importlib.util.find_spec("distributed") is None or importlib.util.find_spec("cryptography") is None:
                self._problem = f"this host has no dask.distributed: {pip_install('builders')}"
            else:
                try:
                    await self._run_once()
                except OSError as error:
                    self._problem = f"its process does not start: {error}"
            failures = 1 if self.listening else failures + 1
            self._problem = self._problem or "its process has ended, the daemon's log says why; it is started again"
            self.rows, self.listening, self._write = (), {}, None
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(HostError("the builders' process has ended"))
            await asyncio.sleep(BACK_OFF.delay_s(failures))

    async def ask(self, asking: str, **fields: Any) -> Mapping[str, Any]:
        """The process's answer.

        Raises:
            HostError: it is not there, or does not answer.
            UserError: it refuses.
        """
        if self._write is None or not self.listening:
            raise HostError(self._problem or "the builders' process starts still", hint="try again in a few seconds")
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._write(frame({"id": number, "verb": asking, **fields}))
            async with asyncio.timeout(ANSWER_S):
                answer = await asked
        except TimeoutError as error:
            raise HostError("the builders' process does not answer") from error
        finally:
            del self._asked[number]
        if "error" in answer:
            raise UserError(str(answer["error"]), hint=str(answer["hint"]))
        found: Mapping[str, Any] = answer["answer"]
        return found

    async def _run_once(self) -> None:
        address = address_of(self._config.listen)
        assert address is not None
        host, port = address
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            with contextlib.closing(writer):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", SERVER, str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                )  # fmt: skip
                theirs.close()
                try:
                    settings = {
                        "folder": str(self._folder), "host": host, "port": port,
                        "advertise": self._config.advertise or host, "socket": self.socket, "gid": self._gid,
                    }  # fmt: skip
                    writer.write(frame(settings))
                    self._write = writer.write
                    await self._take_all(reader)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await asyncio.shield(process.wait())
                    Path(self.socket).unlink(missing_ok=True)  # noqa: ASYNC240 (of a folder in memory)

    async def _take_all(self, reader: asyncio.StreamReader) -> None:
        messages = FrameReader()
        with contextlib.suppress(ProtocolError, ConnectionError):
            while data := await reader.read(READ_BYTES):
                for fields, _ in messages.feed(data):
                    self._take(fields)

    def _take(self, fields: Mapping[str, Any]) -> None:
        if "event" in fields:
            self._events.publish(fields["event"], fields["subject"], **fields["data"])
        elif "builders" in fields:
            self.rows = fields["builders"]
        elif "listening" in fields:
            self.listening, self._problem = fields["listening"], ""
        elif "problem" in fields:
            self._problem = fields["problem"]
        elif (asked := self._asked.get(fields["id"])) is not None and not asked.done():
            asked.set_result(fields)


class BuilderVerbs(VerbGroup):
    """Verbs about builders."""

    def __init__(self, process: BuildersProcess | None) -> None:
        """`process`: None when they are off."""
        self._process = process

    @verb("builder.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every builder; one that is connected has a row for each of its processes."""
        return {"on": self._process is not None, "builders": list(self._process.rows) if self._process else []}

    @verb("builder.token", Role.OPERATOR)
    async def token(self) -> Mapping[str, Any]:
        """A token with which one builder may join, for 24 hours."""
        return await self._of().ask("token")

    @verb("builder.remove", Role.OPERATOR)
    async def remove(self, name: str) -> Mapping[str, Any]:
        """Take a builder's certificate, and end its connections."""
        return await self._of().ask("remove", name=name)

    def _of(self) -> BuildersProcess:
        if self._process is None:
            raise UserError(
                "this farm takes no builders",
                hint='set [builders] listen = "tcp://ADDRESS:9193" and restart the daemon',
            )
        return self._process
