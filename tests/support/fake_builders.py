"""The builders' process of a farm and builders that build nothing real: real dask over TLS on loopback, no TVM."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

from farm.builders.membership import BuilderToken, join
from farm.builders.process import BuildersProcess
from farm.common.errors import FarmError
from farm.common.frames import FrameReader, frame
from farm.config import BuildersConfig, FarmConfig
from farm.store.store import Store
from tests.support.waiting import until

IDENTITY = "f" * 64
ABI = "arm64-v8a"
PATIENCE_S = 180.0  # of a loaded host, which imports dask in each process
ENDED = "ended"  # in its folder
KILLER = b"kills its builder"  # a module
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["farm.builders.worker", __name__])  # dask is imported once, not by each builder


def library_of(module: bytes) -> bytes:
    """What a fake builder makes of a module: an ELF header for arm64, and the module."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + module


def key_of(module: bytes) -> str:
    return hashlib.sha256(module).hexdigest()


class FakeBuilds:
    """In the place of CandidateBuilds."""

    over = None
    behaviour = ""

    def __init__(self, _: Path) -> None:
        """As CandidateBuilds."""

    async def build(self, fields: dict[str, Any], module: bytes) -> Any:
        """Answer as the behaviour says."""
        library = library_of(module)
        answer = {"key": fields["key"], "library": library, "sha256": hashlib.sha256(library).hexdigest()}
        match self.behaviour.partition(":")[::2]:
            case ("good", seconds):
                if module == KILLER:
                    os.kill(os.getpid(), signal.SIGKILL)
                await asyncio.sleep(float(seconds or 0))
            case ("garbage", _):
                return b"\x80\x04garbage"
            case ("nothing", _):
                return {"key": fields["key"]}
            case ("another", _):
                return answer | {"key": key_of(b"another")}
            case ("full", _):
                return {"key": fields["key"], "error": "No space left on device", "host_fault": True}
            case ("raises", _):
                raise ValueError("no such thing")
            case ("never", _):
                await asyncio.Event().wait()
        return answer

    def close(self) -> None:
        """As CandidateBuilds."""


def main(folder: Path, slots: int, behaviour: str) -> None:
    """A builder with the membership in `folder`, until it is killed or ends by itself; ENDED has its error then."""
    from farm.builders import worker

    FakeBuilds.behaviour = behaviour
    tempfile.tempdir = str(folder)  # a killed builder leaves its scratch folder
    worker.CandidateBuilds = FakeBuilds  # type: ignore[misc,assignment]
    identity = "0" * 64 if behaviour == "other" else IDENTITY
    worker.build_identities = lambda: {identity: {"tvm": "0.27.0", "ffi": "0.1"}}  # type: ignore[assignment]
    try:
        asyncio.run(worker.run(folder, slots, 0, lambda line: print(line, flush=True)))
    except FarmError as error:
        (folder / ENDED).write_text(error.message)
        sys.exit(error.exit_code)


class FakeEvents:
    """Notes events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, Any]]] = []

    def publish(self, kind: str, subject: str, **data: Any) -> None:
        self.seen.append((kind, subject, data))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [data for each, _, data in self.seen if each == kind]


class BuilderFarm:
    """A farm's builders' process, and builders that are its own."""

    def __init__(self, place: Path) -> None:
        self.place, self.events = place, FakeEvents()
        self.store = Store.open(place / "farm.db")
        config = FarmConfig(state_dir=place, builders=BuildersConfig("tcp://127.0.0.1:0"))
        events: Any = self.events
        self.process = BuildersProcess(config, self.store, events, socket=place / "builders.sock")
        self.builders: list[ForkServerProcess] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, place: Path) -> AsyncIterator[Self]:
        """Until the block ends; then no process is left."""
        farm = cls(place)
        running = asyncio.create_task(farm.process.run())
        try:
            await until(lambda: farm.process.listening, PATIENCE_S)
            yield farm
        finally:
            for each in farm.builders:
                each.kill()
                each.join()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            farm.store.close()

    async def token(self, name: str) -> BuilderToken:
        return BuilderToken.parse(await self.process.token(name, "me"))

    async def start(self, name: str, behaviour: str = "good", slots: int = 2) -> ForkServerProcess:
        """A builder, which is connected."""
        await asyncio.to_thread(join, await self.token(name), self.place / name)
        builder = await self.start_again(name, behaviour, slots)
        await until(lambda: self.row(name)["slots"], PATIENCE_S)
        return builder

    async def start_again(self, name: str, behaviour: str = "good", slots: int = 2) -> ForkServerProcess:
        """A builder with the membership that it has."""
        builder = _PROCESSES.Process(target=main, args=(self.place / name, slots, behaviour))
        self.builders.append(builder)
        await asyncio.to_thread(builder.start)
        return builder

    def row(self, name: str) -> dict[str, Any]:
        """As `farm builder list` has it while it is connected."""
        found = (each for each in self.process.rows if each["name"].partition("/")[0] == name)
        return dict(next(found, {"slots": 0, "state": ""}))


class FakeRun:
    """A tuning run's end of the unix socket."""

    def __init__(self, farm: BuilderFarm, identity: str = IDENTITY) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(PATIENCE_S)
        self.link.connect(farm.process.socket)
        self.link.sendall(frame({"identity": identity}))
        self.identity = identity
        self._messages = FrameReader()
        self.slots = self.ordered = 0
        self.answers: dict[int, tuple[dict[str, Any], bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def order(self, number: int, module: bytes) -> None:
        fields = {
            "number": number, "identity": self.identity, "key": key_of(module), "target": {}, "abi": ABI,
            "platform": "android", "timeout_s": 30,
        }  # fmt: skip
        self.link.sendall(frame(fields, module))

    def read(self) -> None:
        """What has come, at least one message."""
        data = self.link.recv(1 << 20)
        assert data, "the broker has closed the connection"
        for fields, library in self._messages.feed(data):
            if "slots" in fields:
                self.slots = fields["slots"]
            else:
                assert fields["number"] not in self.answers, "answered twice"
                self.answers[fields["number"]] = (fields, library)

    def answer(self, number: int) -> tuple[bytes, str]:
        """The library of an order, and its error; b"": it is to be built by the run itself."""
        while number not in self.answers:
            self.read()
        fields, library = self.answers[number]
        return library, fields.get("error", "")

    def until_slots(self, wanted: int) -> None:
        while self.slots != wanted:
            self.read()
