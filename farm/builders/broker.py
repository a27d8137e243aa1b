"""Gives candidates of tuning runs to builders: runs come over a unix socket, builders are dask's workers.

Each order of a run ends once, with a library or with the word that there is none: then the run builds it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from distributed import Client, KilledWorker, Scheduler
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from farm.builders.table_policy import Builder, BuilderTable, blame, checked, grant, must_be_alone
from farm.builders.worker import FACTS, SLOT, build
from farm.bundle.model import Abi, Platform
from farm.common.errors import ProtocolError
from farm.common.files import SHA256_FORM
from farm.common.frames import FrameReader, frame

READ_BYTES = 1 << 18
LOOK_S = 1.0  # between two looks at the builders
GRACE_S = 0.5  # dask says within it that a builder died; one that left by itself says nothing

Tell = Callable[[str, str, Mapping[str, Any]], None]  # an event's kind, subject and data


@with_config(ConfigDict(extra="ignore"))
@dataclass(frozen=True, slots=True)
class Order:
    """A candidate that a run wants."""

    number: Annotated[int, Field(ge=0)]
    key: Annotated[str, Field(pattern=SHA256_FORM)]
    target: Any
    abi: Abi
    platform: Platform
    timeout_s: Annotated[float, Field(gt=0, le=3600)]

    def to_wire(self) -> dict[str, Any]:
        """For a builder, which has places of its own."""
        return {
            "key": self.key, "target": self.target, "abi": str(self.abi), "platform": str(self.platform),
            "timeout_s": self.timeout_s,
        }  # fmt: skip


_ORDER = TypeAdapter(Order)


@dataclass(slots=True, eq=False)
class Run:
    """A tuning run that is connected."""

    writer: asyncio.StreamWriter
    identity: str = ""
    orders: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def send(self, fields: Mapping[str, Any], library: bytes = b"") -> None:
        """One message."""
        if not self.writer.is_closing():
            self.writer.write(frame(fields, library))


class Broker:
    """The builders of dask's scheduler, and the runs that want them."""

    def __init__(self, scheduler: Scheduler, client: Client, tell: Tell) -> None:
        self.table = BuilderTable()
        self.runs: set[Run] = set()
        self.wanted: frozenset[str] = frozenset()  # identities that runs have asked for
        self._scheduler, self._client, self._tell = scheduler, client, tell
        self._numbers = itertools.count(1)
        self._gone: dict[Builder, asyncio.Event] = {}

    async def listen(self, bound: socket.socket) -> asyncio.Server:
        """Serve runs at a unix socket."""
        return await asyncio.start_unix_server(self._serve, sock=bound)

    def look(self) -> None:
        """Bring the table up to date with dask's scheduler, and tell runs how many slots they have."""
        workers = self._scheduler.workers
        for address in self.table.builders.keys() - workers.keys():
            builder = self.table.builders.pop(address)
            self._gone.pop(builder).set()
            self._tell("builder.left", builder.name, {"built": builder.built, "reason": builder.aside})
        for address, worker in workers.items():
            builder = self.table.builders.get(address) or self._joined(worker)
            # dask's clock is the wall's.
            builder.seen_s = time.monotonic() - max(0.0, time.time() - worker.last_seen)
        for run in self.runs:
            run.send({"slots": self._granted(run)})

    async def keep_looking(self) -> None:
        """For ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    async def disconnect(self, builder: Builder) -> None:
        """End the connection of a builder."""
        await self._scheduler.remove_worker(builder.address, stimulus_id="farm", expected=True)
        self.look()

    def _joined(self, worker: Any) -> Builder:
        slots = int(worker.resources.get(SLOT, 0))
        versions = {name: str(value) for name, value in (worker.extra.get(FACTS) or {}).items()}
        identities = frozenset(worker.resources) - {SLOT}
        builder = Builder(str(worker.name), worker.address, slots, identities, versions, time.monotonic())
        self.table.builders[worker.address] = builder
        self._gone[builder] = asyncio.Event()
        self._tell("builder.joined", builder.name, {"slots": slots, **versions})
        return builder

    def _granted(self, run: Run) -> int:
        runs = sum(each.identity == run.identity for each in self.runs)
        return grant(self.table.slots(run.identity, time.monotonic()), runs)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        run = Run(writer)
        self.runs.add(run)
        messages = FrameReader()
        try:
            while data := await reader.read(READ_BYTES):
                for fields, module in messages.feed(data):
                    self._take(run, fields, module)
                await writer.drain()
        except (OSError, ProtocolError, ValidationError):
            pass  # it has ended, or does not speak our language: its candidates are its own again
        finally:
            self.runs.discard(run)
            for order in run.orders.values():
                order.cancel()
            writer.close()

    def _take(self, run: Run, fields: Mapping[str, Any], module: bytes) -> None:
        if "identity" in fields:
            run.identity = str(fields["identity"])
            self.wanted |= {run.identity}
            run.send({"slots": self._granted(run)})
        elif "cancel" in fields:
            if (under_way := run.orders.get(fields["cancel"])) is not None:
                under_way.cancel()
        else:
            order = _ORDER.validate_python(fields)
            task = run.orders[order.number] = asyncio.create_task(self._fill(run, order, module))
            task.add_done_callback(lambda _: run.orders.pop(order.number, None))

    async def _fill(self, run: Run, order: Order, module: bytes) -> None:
        """Have builders build a candidate, one after the other while they die of it."""
        killed: list[str] = []
        while not (why := blame(killed)):
            alone = must_be_alone(killed)
            builder = self.table.choose(run.identity, time.monotonic(), alone=alone)
            if builder is None:
                break
            try:
                library = await self._try(builder, run.identity, order, module, alone=alone)
            except KilledWorker:
                killed.append(builder.name)
                self.look()  # dask knows already that it is gone
                continue
            run.send({"number": order.number}, library)
            return
        if why:
            self._tell("builder.killed", order.key[:12], {"builders": killed})
        run.send({"number": order.number, "blame": why})

    async def _try(self, builder: Builder, identity: str, order: Order, module: bytes, *, alone: bool) -> bytes:
        """A builder's library; b"": it has none.

        Raises:
            KilledWorker: it died with it.
        """
        key = f"build-{next(self._numbers)}"
        future = self._client.submit(
            build, order.to_wire(), module, key=key, workers=[builder.address], allow_other_workers=False, retries=0,
            pure=False, resources={identity: 1, SLOT: builder.slots if alone else 1},
        )  # fmt: skip
        builder.running.add(key)
        try:
            answer = await self._answer(future, self._gone[builder])
        except (KilledWorker, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - what a builder's own code raises, or what cannot be unpickled
            answer = {"key": order.key, "error": f"{type(error).__name__}: {error}", "host_fault": True}
        finally:
            builder.running.discard(key)
            builder.reserved = builder.reserved and not alone
            future.release()
        if answer is None:
            return b""
        found = checked(answer, order.key, order.abi)
        if found.library:
            builder.succeeded()
        elif found.fault and builder.failed(found.why):
            self._tell("builder.aside", builder.name, {"reason": builder.aside})
        return found.library

    async def _answer(self, future: Any, gone: asyncio.Event) -> Any:
        """What the builder answered; None: it left by itself."""
        answered = asyncio.ensure_future(future.result())
        left = asyncio.create_task(gone.wait())
        try:
            await asyncio.wait({answered, left}, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                await asyncio.wait({answered}, timeout=GRACE_S)
            return answered.result() if answered.done() else None
        finally:
            for each in (answered, left):
                each.cancel()
            if not answered.done():
                with contextlib.suppress(Exception):
                    await future.cancel()
