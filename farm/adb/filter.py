"""A leased adb: an adb server for one user's clients that has one phone, in front of the farm's real one (DESIGN D12).

What may be asked is decided in `farm.adb.filter_requests`; this file asks the real server and copies its answers. The
protocol version clients see is the real server's: one that differs would make them kill it and start their own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable

from farm.adb import filter_requests as r
from farm.adb.client import HOST_TIMEOUT_S, OPEN_TIMEOUT_S, AdbClient
from farm.adb.connection import Connection
from farm.adb.errors import AdbError
from farm.adb.filter_lists import only
from farm.adb.filter_streams import Admits, Doorway, finish, relay
from farm.adb.filter_tunnels import LeaseTunnels
from farm.adb.host_protocol import MAX_REQUEST_BYTES, BlockReader, encode_request
from farm.adb.tunnels import Tunnel
from farm.core.errors import FarmError, ProtocolError, UserError

REQUEST_S = 60.0  # a client sends its request with the connection; one that does not holds a place
MOST_KINDS = 64  # of uses that are told of one lease: names of refused services are the client's own words
_TRANSPORT_ID = struct.Struct("<Q")
_OKAY = b"OKAY"
_NOT_YOURS = "this adb server belongs to another user's farm lease"


async def _nothing_changes() -> None:
    return


def _nothing_barred() -> Collection[int]:
    return ()


def _nobody_hears(_name: str, _allowed: bool) -> None:
    return


class LeasedAdb:
    """The adb server of one lease. Opened and closed on the event loop; `close` cuts whatever goes through it."""

    def __init__(
        self,
        client: AdbClient,
        serial: str,
        admits: Admits,
        *,
        barred_ports: Callable[[], Collection[int]] = _nothing_barred,
        changed: Callable[[], Awaitable[None]] = _nothing_changes,
        used: Callable[[str, bool], None] = _nobody_hears,
    ) -> None:
        """Not listening yet.

        Args:
            client: of the real adb server.
            serial: the leased phone's, as that server lists it.
            admits: whom the owner of a loopback connection must be (farm.adb.filter_streams.Admits).
            barred_ports: where no reverse may lead.
            changed: awaited when `tunnels` has changed.
            used: hears the first use of each service by its name, and each that was refused (False).
        """
        self._client = client
        self._serial = serial
        self._used = used
        self._known: set[tuple[str, bool]] = set()
        self._door = Doorway(admits, self._serve, _turn_away)
        self._tunnels = LeaseTunnels(client, serial, admits, barred_ports=barred_ports, changed=changed)

    @property
    def port(self) -> int:
        """Where clients connect, on 127.0.0.1; 0 before `open`."""
        return self._door.port

    @property
    def tunnels(self) -> tuple[Tunnel, ...]:
        """Forwards and reverses made here."""
        return self._tunnels.made

    async def remake_reverses(self) -> tuple[str, ...]:
        """Make again the reverses that the adb server has forgotten; returns what could not be made.

        Raises:
            AdbError: phone or server do not answer.
        """
        return await self._tunnels.remake_reverses()

    async def open(self, port: int = 0, tunnels: Iterable[Tunnel] = ()) -> int:
        """Listen; returns the port.

        Args:
            port: 0 lets the kernel choose.
            tunnels: of an earlier daemon, to be taken over.

        Raises:
            AdbPortTaken: somebody else listens there.
        """
        opened = self._door.open(port)
        await self._tunnels.restore(tunnels)
        return opened

    async def close(self) -> None:
        """Stop listening, cut every stream, remove every forward and reverse."""
        await self._door.close()
        await self._tunnels.close()

    # -- one connection --

    async def _serve(self, client: socket.socket) -> None:
        phone: Connection | None = None
        try:
            while True:
                request = await _read_request(client)
                if request is None:
                    return
                verdict = r.judge(request, self._serial, selected=phone is not None)
                decision = verdict.decision
                if verdict.transport_id is not None and verdict.transport_id != await self._transport_id():
                    decision = r.Refuse(f"no device with transport id '{verdict.transport_id}'")
                self._tell(request, decision)
                if isinstance(decision, r.Select):
                    if phone is not None:
                        phone.close()
                    phone = await self._select(client, tell_id=decision.tell_id)
                    continue
                if isinstance(decision, r.Serve) and phone is not None:
                    await phone.send(encode_request(decision.service))
                    await relay(client, phone.raw)
                    return
                await self._answer(client, decision)
                await finish(client)
                return
        except ProtocolError as error:
            await _fail(client, error.message)
        except FarmError as error:
            # In the server's own words where there are any: clients look for them.
            await _fail(client, (isinstance(error, AdbError) and error.evidence) or error.message)
        finally:
            if phone is not None:
                phone.close()

    def _tell(self, request: str, decision: r.Decision) -> None:
        """Each kind of use once: `adb push` of a folder is thousands of requests."""
        name, allowed = r.change_of(request, decision), not isinstance(decision, r.Refuse)
        if name and (name, allowed) not in self._known and len(self._known) < MOST_KINDS:
            self._known.add((name, allowed))
            self._used(name, allowed)

    async def _select(self, client: socket.socket, *, tell_id: bool) -> Connection:
        """A connection of the real server switched to the phone; the client has been told."""
        word = "tport:serial" if tell_id else "transport"
        async with asyncio.timeout(HOST_TIMEOUT_S):
            phone = await Connection.open(self._client.address)
            try:
                await phone.request(f"host:{word}:{self._serial}", serial=self._serial)
                told = _OKAY + (await phone.exactly(_TRANSPORT_ID.size) if tell_id else b"")
                await asyncio.get_running_loop().sock_sendall(client, told)
            except BaseException:
                phone.close()
                raise
        return phone

    async def _answer(self, client: socket.socket, decision: r.Decision) -> None:
        loop = asyncio.get_running_loop()
        tunnels = self._tunnels
        match decision:
            case r.Refuse(message=message):
                raise UserError(message)
            case r.Ask(service=service):
                async with await Connection.open(self._client.address) as server:
                    await server.send(encode_request(service))
                    await relay(client, server.raw)
            case r.Listing():
                await self._list(client, decision)
            case r.ListForwards():
                await loop.sock_sendall(client, _OKAY + _block(tunnels.listing().encode()))
            case r.AddForward(local=local, remote=remote, rebind=rebind):
                port = await tunnels.add_forward(local, remote, rebind=rebind)
                await loop.sock_sendall(client, _OKAY * 2 + (_block(port.encode()) if port else b""))
            case r.RemoveForward(local=one):
                await tunnels.remove_forward(one)
                await loop.sock_sendall(client, _OKAY * 2)
            case r.AddReverse() | r.RemoveReverse():
                await self._reverse(client, decision)
            case r.Select() | r.Serve():
                raise AssertionError("served above")

    async def _reverse(self, client: socket.socket, decision: r.AddReverse | r.RemoveReverse) -> None:
        """As adbd answers: the service is open, then how it went."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, _OKAY)
        port = ""
        if isinstance(decision, r.AddReverse):
            port = await self._tunnels.add_reverse(decision.remote, decision.local, rebind=decision.rebind)
        else:
            await self._tunnels.remove_reverse(decision.remote)
        await loop.sock_sendall(client, _OKAY + (_block(port.encode()) if port else b""))

    async def _list(self, client: socket.socket, listing: r.Listing) -> None:
        """Lists of the one phone: once, or again whenever what they say of it has changed."""
        loop = asyncio.get_running_loop()
        async with await Connection.open(self._client.address) as server:
            async with asyncio.timeout(HOST_TIMEOUT_S):
                await server.request(listing.service)
            await loop.sock_sendall(client, _OKAY)
            left = asyncio.create_task(_until_gone(client), name="leased adb tracker")
            blocks, shown = BlockReader(), None
            try:
                while not left.done():
                    while (block := blocks.next()) is None:
                        receiving = asyncio.ensure_future(server.receive())
                        await asyncio.wait((left, receiving), return_when=asyncio.FIRST_COMPLETED)
                        if not receiving.done():
                            receiving.cancel()
                            return
                        if not (data := receiving.result()):
                            return
                        blocks.feed(data)
                    own = only(block, self._serial, listing.form)
                    if own != shown:
                        await loop.sock_sendall(client, _block(own))
                        shown = own
                    if not listing.follow:
                        return
            finally:
                left.cancel()
                await asyncio.gather(left, return_exceptions=True)

    async def _transport_id(self) -> int | None:
        """The phone's number in the real server's list, None when it is not there."""
        devices = await self._client.list_devices()
        return next((device.transport_id for device in devices if device.serial == self._serial), None)


async def _read_request(client: socket.socket) -> str | None:
    """The next request; None when the client has left."""
    loop = asyncio.get_running_loop()
    reader = r.RequestReader()
    async with asyncio.timeout(REQUEST_S):
        while (request := reader.next()) is None:
            data = await loop.sock_recv(client, reader.wants)
            if not data:
                return None
            reader.feed(data)
    return request


async def _until_gone(client: socket.socket) -> None:
    """Whoever follows a list says nothing more; it leaves."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(client, MAX_REQUEST_BYTES):
            pass
    except OSError:
        return


async def _turn_away(client: socket.socket) -> None:
    await _fail(client, _NOT_YOURS)


async def _fail(client: socket.socket, message: str) -> None:
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        text = message.encode("utf-8", "surrogateescape")
        await asyncio.get_running_loop().sock_sendall(client, b"FAIL" + _block(text))
        await finish(client)


def _block(data: bytes) -> bytes:
    """Four hex digits of length, then the text."""
    data = data[:MAX_REQUEST_BYTES]
    return b"%04x" % len(data) + data
