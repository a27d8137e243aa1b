"""Gives candidates of tuning runs to builders: runs come over a unix socket, builders are dask's workers.

Each order of a run ends once, with a library or without one: then the run builds the candidate itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from distributed import Client, KilledWorker, Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from farm.builders.table_policy import Builder, BuilderTable, candidate_error, checked, must_be_alone
from farm.builders.worker import FACTS, SLOT, build
from farm.bundle.model import Abi, Platform
from farm.common.errors import ProtocolError
from farm.common.files import SHA256_FORM
from farm.common.frames import FrameReader, frame
from farm.common.limiter import ClientLimiter, Limiter
from farm.common.peers import peer_process

READ_BYTES = 1 << 18
MAX_RUNS = 512  # connections of runs; the oldest one without a message makes room

PublishEvent = Callable[[str, str, Mapping[str, Any]], None]  # an event's kind, subject and data

log = logging.getLogger(__name__)


Number = Annotated[int, Field(ge=0)]


@with_config(ConfigDict(extra="ignore"))
@dataclass(frozen=True, slots=True)
class BuildOrder:
    """A candidate that a tuning run wants built."""

    number: Number
    identity: str  # of the builders that may build it
    key: Annotated[str, Field(pattern=SHA256_FORM)]
    target: Any
    abi: Abi
    platform: Platform
    timeout_s: Annotated[float, Field(gt=0, le=3600)]


_ORDER = TypeAdapter(BuildOrder)
_NUMBER: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0, strict=True)])


@dataclass(slots=True, eq=False)
class ConnectedRun:
    """A tuning run that is connected."""

    writer: asyncio.StreamWriter
    identity: str = ""
    orders: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def send(self, fields: Mapping[str, Any], library: bytes = b"") -> None:
        """One message."""
        if not self.writer.is_closing():
            self.writer.write(frame(fields, library))


class Broker(SchedulerPlugin):  # type: ignore[misc]
    """The builders of dask's scheduler, and the runs that want them."""

    def __init__(self, scheduler: Scheduler, publish: PublishEvent) -> None:
        """`scheduler`: not started yet, so that no builder joins unnoticed."""
        self.table = BuilderTable()
        self.runs: set[ConnectedRun] = set()
        self.wanted: frozenset[str] = frozenset()  # identities that runs have asked for
        self._scheduler, self._publish = scheduler, publish
        self._client: Client  # from `listen` on
        self._numbers = itertools.count(1)
        self._admission: ClientLimiter[int] = ClientLimiter(Limiter(MAX_RUNS))
        self._left: dict[Builder, asyncio.Future[None]] = {}  # of those that are connected
        scheduler.add_plugin(self)

    async def listen(self, bound: socket.socket, client: Client) -> asyncio.Server:
        """Serve runs at a unix socket. `client`: of the scheduler."""
        self._client = client
        return await asyncio.start_unix_server(self._serve, sock=bound)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Dask's scheduler has a new worker, of that address."""
        joined = scheduler.workers[worker]
        slots = int(joined.resources.get(SLOT, 0))
        versions = {name: str(value) for name, value in (joined.extra.get(FACTS) or {}).items()}
        identities = frozenset(joined.resources) - {SLOT}
        builder = Builder(str(joined.name), worker, slots, identities, versions, time.monotonic())
        self.table.builders[worker] = builder
        self._left[builder] = asyncio.get_running_loop().create_future()
        self._publish("builder.joined", builder.name, {"slots": slots, **versions})
        self.grant_slots()

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """Dask's scheduler has one worker less; its tasks have failed already if it was killed."""
        builder = self.table.builders.pop(worker)
        self._left.pop(builder).set_result(None)
        self._publish("builder.left", builder.name, {"built": builder.built, "reason": builder.excluded})
        self.grant_slots()

    def note_heartbeats(self) -> None:
        """Take over from dask when each builder was seen last."""
        for address, builder in self.table.builders.items():
            seen = self._scheduler.workers[address].last_seen  # by the wall's clock
            builder.seen_s = time.monotonic() - max(0.0, time.time() - seen)

    def grant_slots(self) -> None:
        """Set how many candidates each run may have at builders."""
        now_s, identities = time.monotonic(), [run.identity for run in self.runs]
        for run in self.runs:
            run.send({"slots": self.table.grant(run.identity, identities, now_s)})

    async def remove(self, certificate: str) -> None:
        """End the connections of all builders with the certificate of that name."""
        for each in [each for each in self.table.builders.values() if each.certificate == certificate]:
            each.excluded = "removed"
            await self._scheduler.remove_worker(each.address, stimulus_id="farm", expected=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        run = ConnectedRun(writer)
        uid = peer_process(writer.get_extra_info("socket")).uid
        place = self._admission.enter(uid, writer.transport.abort)
        if place is None:
            writer.transport.abort()
            return
        self.runs.add(run)
        messages = FrameReader()
        try:
            while data := await reader.read(READ_BYTES):
                for fields, module in messages.feed(data):
                    self._admission.mark_active(place)
                    self._take(run, fields, module)
                await writer.drain()
        except (OSError, ProtocolError, ValidationError):
            pass  # the run has ended or sent no valid frame: it builds its candidates itself
        finally:
            self._admission.leave(place)
            self.runs.discard(run)
            for order in run.orders.values():
                order.cancel()
            writer.close()
            self.grant_slots()

    def _take(self, run: ConnectedRun, fields: Mapping[str, Any], module: bytes) -> None:
        if "number" in fields:
            order = _ORDER.validate_python(fields)
            if order.number in run.orders:
                raise ProtocolError(f"two orders have the number {order.number}")
            task = run.orders[order.number] = asyncio.create_task(self._fill(run, order, module))
            task.add_done_callback(lambda _: run.orders.pop(order.number, None))
        elif "cancel" in fields:
            if (under_way := run.orders.get(_NUMBER.validate_python(fields["cancel"]))) is not None:
                under_way.cancel()
        else:
            run.identity = str(fields.get("identity", ""))
            self.wanted |= {run.identity}
            self.grant_slots()

    async def _fill(self, run: ConnectedRun, order: BuildOrder, module: bytes) -> None:
        """Answer an order, whatever happens: without library and error the run builds the candidate itself."""
        library, error = b"", ""
        try:
            library, error = await self._build(order, module)
        except Exception:
            log.exception("builders cannot be given candidate %s", order.key[:12])
        run.send({"number": order.number, "error": error}, library)

    async def _build(self, order: BuildOrder, module: bytes) -> tuple[bytes, str]:
        """A candidate's library, or its error, from one builder after the other while they leave or die of it."""
        killed: list[str] = []
        while not (error := candidate_error(killed)):
            alone = must_be_alone(killed)
            builder = self.table.choose(order.identity, time.monotonic(), alone=alone)
            if builder is None:
                return b"", ""
            try:
                library = await self._try(builder, order, module, alone=alone)
            except KilledWorker:
                killed.append(builder.name)
                continue
            if library or builder in self._left:
                return library, ""
        self._publish("builder.killed", order.key[:12], {"builders": killed})
        return b"", error

    async def _try(self, builder: Builder, order: BuildOrder, module: bytes, *, alone: bool) -> bytes:
        """A builder's library; b"": it has none, or left.

        Raises:
            KilledWorker: it died with it.
        """
        key = f"build-{next(self._numbers)}"
        builder.running.add(key)
        try:
            future = self._client.submit(
                build, _ORDER.dump_python(order, mode="json"), module, key=key, workers=[builder.address],
                allow_other_workers=False, retries=0, pure=False,
                resources={order.identity: 1, SLOT: builder.slots if alone else 1},
            )  # fmt: skip
            try:
                answer = await self._answer(future, self._left[builder])
            except KilledWorker:
                raise
            except Exception as error:  # noqa: BLE001 - what a builder's own code raises, or what cannot be unpickled
                answer = {"key": order.key, "error": f"{type(error).__name__}: {error}", "host_fault": True}
            finally:
                future.release()
        finally:
            builder.running.discard(key)
            if alone:
                builder.reserved = False
        library, fault = checked(answer, order.key, order.abi)
        if library:
            builder.succeeded()
        elif fault and builder in self._left and builder.failed(fault):
            self._publish("builder.excluded", builder.name, {"reason": builder.excluded})
            self.grant_slots()
        return library

    async def _answer(self, future: Any, left: asyncio.Future[None]) -> Any:
        """The builder's answer; None: it left by itself."""
        answered = asyncio.ensure_future(future.result())
        try:
            await asyncio.wait({answered, left}, return_when=asyncio.FIRST_COMPLETED)
            task = self._scheduler.tasks.get(future.key)
            if not answered.done() and (task is None or task.state != "erred"):
                return None
            return await answered
        finally:
            answered.cancel()
