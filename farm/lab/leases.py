"""People's leases of phones at other hosts: their adb clients at this host, carried by the service `adb` of the link.

TVM clients need nothing: the key of a lease opens its phone at any host's port. For adb this host listens on a port of
its own, for the lease's user, and sends each connection on to the adb server of the lease at the phone's host.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from farm.adb.errors import AdbPortTaken
from farm.adb.lease_proxy.proxy import LeasedAdb, fail, turn_away
from farm.adb.lease_proxy.tunnels import Admits, LoopbackListener, relay
from farm.common.errors import FarmError, HostError, ProtocolError
from farm.common.files import write_durably
from farm.common.limiter import Limiter
from farm.control.router import Answer
from farm.lab.link import HostLink, LinkCall

SERVICE = "adb"  # {lease: id} -> {}, then what an adb client and its server say
MAX_CARRIED = 256  # connections at once: half of what a host admits from another, the rest is for sessions and verbs
MAX_OF_USER = 128  # a parallel test runner takes some 50

log = logging.getLogger(__name__)


_Word = Annotated[str, Field(pattern=r"^[^\x00]{1,256}$")]  # what the database stores


@dataclass(frozen=True, slots=True)
class CarriedLease:
    """A lease that another host holds, as it is used at this one."""

    host: _Word  # of its phone
    user: _Word
    port: Annotated[int, Field(ge=0, le=65535)] = 0  # of its adb at this host; 0: the kernel shall choose


_FILE: TypeAdapter[dict[str, CarriedLease]] = TypeAdapter(dict[_Word, CarriedLease])


class CarriedLeases:
    """Both sides of the service at this host. Used on the event loop."""

    def __init__(
        self,
        link: HostLink,
        adb_of: Callable[[str], LeasedAdb],
        admits: Callable[[str], Admits],
        gate: Callable[[], tuple[str, int]],
        path: Path,
    ) -> None:
        """Open the ports of the daemon before this one again.

        Args:
            link: to the other hosts.
            adb_of: the adb server of a lease that this host holds, by its id.
            admits: checks that a loopback connection is of this user.
            gate: address and port of this host's TVM port.
            path: of the file that keeps the ports over a restart.
        """
        self._link = link
        self._adb_of = adb_of
        self._admits = admits
        self._gate = gate
        self._path = path
        self._saving = asyncio.Lock()
        self._saved = b"{}"  # in the file
        self._problem = ""  # why the file cannot be written
        self._leases: dict[str, CarriedLease] = {}  # by id
        self._listeners: dict[str, LoopbackListener] = {}
        self._limiter: Limiter[str] = Limiter(MAX_CARRIED, MAX_OF_USER)  # by user
        for lease, carried in self._stored().items():
            try:
                self._listen(lease, carried)
            except HostError as error:  # no descriptor is left: the daemon has phones of its own
                log.warning("the adb of lease %s has no port until it is shown again: %s", lease, error.message)
        link.serve(SERVICE, self._serve)

    async def close(self) -> None:
        """Close every port, and cut the connections."""
        await asyncio.gather(*(each.close() for each in self._listeners.values()))

    async def shown_here(self, host: str, answer: Answer) -> Answer:
        """The answer of `host`, which holds a lease, to `lease.show`, with the ports that serve the lease at this host.

        Raises:
            ProtocolError: the answer has another form.
            HostError: no port can be had.
        """
        try:
            told = {answer.fields.get("lease"): {"host": host, "user": answer.fields.get("user")}}
            [(lease, carried)] = _FILE.validate_python(told).items()
        except (TypeError, ValidationError) as error:
            raise ProtocolError(
                f"host {host} described the lease in a form that this version does not know",
                hint="all hosts of a lab should have the same farm release",
            ) from error
        if lease not in self._leases:
            self._listen(lease, carried)
            await self._save()
        tvm_host, tvm_port = self._gate()
        here = {"tvm_host": tvm_host, "tvm_port": tvm_port, "adb_port": self._leases[lease].port}
        return replace(answer, fields={**answer.fields, **here})

    async def forget_ended(self, is_open: Callable[[str], Awaitable[bool]]) -> None:
        """Close the ports of leases that have ended, and keep those of the others as they are by now."""
        for lease in tuple(self._leases):
            if not await is_open(lease):
                del self._leases[lease]
                await self._listeners.pop(lease).close()
        await self._save()

    def _listen(self, lease: str, carried: CarriedLease) -> None:
        listener = LoopbackListener(self._admits(carried.user), partial(self._carry, lease, carried), turn_away)
        try:
            port = listener.open(carried.port)
        except AdbPortTaken as error:
            port = listener.open()
            log.warning("the adb of lease %s has moved from port %d to %d: %s", lease, carried.port, port, error)
        self._leases[lease], self._listeners[lease] = replace(carried, port=port), listener

    async def _carry(self, lease: str, carried: CarriedLease, client: socket.socket) -> None:
        if not self._limiter.fits(carried.user):
            most = f"{MAX_CARRIED} in all" if self._limiter.key_fits(carried.user) else f"{MAX_OF_USER} of a user"
            await fail(client, f"too many adb connections to other hosts: at most {most} at once")
            return
        self._limiter.take(carried.user)
        try:
            connection = await self._link.dial(carried.host, SERVICE, {"lease": lease})
            self._listeners[lease].mark_active(client)  # its host cuts it if it asks for nothing
            try:
                await relay(client, connection.sock)
            finally:
                await connection.close()
        except FarmError as error:
            await fail(client, f"{error.message} ({error.hint})" if error.hint else error.message)
        finally:
            self._limiter.give_back(carried.user)

    def _stored(self) -> dict[str, CarriedLease]:
        try:
            if self._path.exists():
                self._saved = self._path.read_bytes()
            return _FILE.validate_json(self._saved)
        except (OSError, ValidationError) as error:
            log.warning("%s cannot be read, so leases of other hosts' phones get new adb ports: %s", self._path, error)
            return {}

    async def _save(self) -> None:
        async with self._saving:
            if (content := _FILE.dump_json(self._leases)) == self._saved:
                return
            try:
                await asyncio.to_thread(write_durably, self._path, content, 0o600)
                self._saved, self._problem = content, ""
            except OSError as error:
                if self._problem != (problem := error.strerror or str(error)):
                    log.warning("adb ports of leases will not outlive this daemon: %s: %s", self._path, problem)
                self._problem = problem

    # --- for other hosts ------------------------------------------------------------------------------------------

    async def _serve(self, call: LinkCall) -> None:
        adb = self._adb_of(str(call.fields.get("lease")))
        await call.accept()
        connection, _ = call.take()  # the other host sends nothing before it is answered
        adb.take(connection)
