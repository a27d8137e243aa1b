"""A leased adb: an adb server for one user's clients that has one phone, in front of the farm's real one.

`lease_proxy.requests` decides which requests are allowed; this file asks the real server and copies its answers. The
protocol version is the real server's: clients kill a server of another version and start their own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

from farm.adb.client import HOST_TIMEOUT_S, OPEN_TIMEOUT_S, AdbClient
from farm.adb.connection import AdbConnection
from farm.adb.devices import keep_only
from farm.adb.errors import AdbError
from farm.adb.host_protocol import MAX_REQUEST_BYTES, BlockReader, encode_request
from farm.adb.lease_proxy import requests as r
from farm.adb.lease_proxy.tunnels import Admits, LeaseTunnels, LoopbackListener, finish, relay
from farm.adb.tunnels import Tunnel, TunnelKind
from farm.common.errors import FarmError, ProtocolError, UserError

REQUEST_S = 60.0  # a client sends its request with the connection; a silent client holds a place
MAX_KINDS = 64  # of uses reported for one lease: clients choose the names of refused services
_TRANSPORT_ID = struct.Struct("<Q")
_OKAY = b"OKAY"
_NOT_YOURS = "this adb server belongs to another user's farm lease"
_NO_TUNNELS = "the leased phone is at another host, where its forwards and reverses would lead: run adb there for them"

_no_change = partial(asyncio.sleep, 0)


class LeasedAdb:
    """The adb server of one lease. Opened and closed on the event loop. `close` cuts all its streams."""

    def __init__(
        self,
        client: AdbClient,
        serial: str,
        admits: Admits,
        *,
        barred_ports: Callable[[], Collection[int]] = tuple,
        server_port: Callable[[], int] = int,
        changed: Callable[[], Awaitable[None]] = _no_change,
        used: Callable[[str, bool], None] = lambda _name, _allowed: None,
    ) -> None:
        """Not listening yet.

        Args:
            client: of the real adb server.
            serial: the leased phone's, as that server lists it.
            admits: checks the owner of a loopback connection (farm.adb.lease_proxy.tunnels.Admits).
            barred_ports: where no reverse may lead; asked in a thread.
            server_port: of farm's RPC server on the phone now, where no forward may lead; 0: none runs.
            changed: awaited when `tunnels` has changed.
            used: called with the name of each service at its first use, and at its first refusal (False).
        """
        self._client = client
        self._serial = serial
        self._server_port = server_port
        self._used = used
        self._known: set[tuple[str, bool]] = set()
        self._listener = LoopbackListener(admits, self._serve, turn_away)
        self._tunnels = LeaseTunnels(
            client,
            serial,
            admits,
            barred_ports=barred_ports,
            barred_service=lambda service: r.reaches_server(service, server_port()),
            changed=changed,
        )

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 where clients connect, or 0 before `open`."""
        return self._listener.port

    @property
    def tunnels(self) -> tuple[Tunnel, ...]:
        """Forwards and reverses made here."""
        return self._tunnels.made

    async def remake_reverses(self) -> tuple[str, ...]:
        """Make again the reverses that the adb server has forgotten; returns those that could not be made.

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
            AdbPortTaken: another program listens there.
        """
        opened = self._listener.open(port)
        await self._tunnels.restore(tunnels)
        return opened

    def take(self, client: socket.socket) -> None:
        """Serve a client that another host has admitted. It gets no tunnels: their ports would be this host's."""
        self._listener.take(client, partial(self._serve, carried=True))

    async def close(self) -> None:
        """Stop listening, cut every stream, remove every forward and reverse."""
        await self._listener.close()
        await self._tunnels.close()

    # -- one connection --

    async def _serve(self, client: socket.socket, *, carried: bool = False) -> None:
        phone: AdbConnection | None = None
        try:
            while True:
                request = await _read_request(client)
                if request is None:
                    return
                self._listener.mark_active(client)
                verdict = r.judge(request, self._serial, selected=phone is not None, server_port=self._server_port())
                decision = verdict.decision
                if verdict.transport_id is not None and verdict.transport_id != await self._transport_id():
                    decision = r.Refuse(f"no device with transport id '{verdict.transport_id}'")
                if carried and isinstance(decision, r.OpenTunnel):
                    decision = r.Refuse(_NO_TUNNELS)
                self._report_use(request, decision)
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
            await fail(client, error.message)
        except FarmError as error:
            # In the server's own words where there are any: clients look for them.
            await fail(client, (isinstance(error, AdbError) and error.evidence) or error.message)
        finally:
            if phone is not None:
                phone.close()

    def _report_use(self, request: str, decision: r.Decision) -> None:
        """Report each kind of use once: `adb push` of a folder is thousands of requests."""
        name, allowed = r.change_of(request, decision), not isinstance(decision, r.Refuse)
        if name and (name, allowed) not in self._known and len(self._known) < MAX_KINDS:
            self._known.add((name, allowed))
            self._used(name, allowed)

    async def _select(self, client: socket.socket, *, tell_id: bool) -> AdbConnection:
        """A connection of the real server switched to the phone. The client got the answer."""
        word = "tport:serial" if tell_id else "transport"
        async with asyncio.timeout(HOST_TIMEOUT_S):
            phone = await AdbConnection.open(self._client.address)
            try:
                await phone.request(f"host:{word}:{self._serial}", serial=self._serial)
                answer = _OKAY + (await phone.exactly(_TRANSPORT_ID.size) if tell_id else b"")
                await asyncio.get_running_loop().sock_sendall(client, answer)
            except BaseException:
                phone.close()
                raise
        return phone

    async def _answer(self, client: socket.socket, decision: r.Decision) -> None:
        loop = asyncio.get_running_loop()
        match decision:
            case r.Refuse(message=message):
                raise UserError(message)
            case r.Ask(service=service):
                async with await AdbConnection.open(self._client.address) as server:
                    await server.send(encode_request(service))
                    await relay(client, server.raw)
            case r.Listing():
                await self._list(client, decision)
            case r.ListForwards():
                await loop.sock_sendall(client, _OKAY + _block(self._tunnels.listing().encode()))
            case r.OpenTunnel() | r.CloseTunnel():
                await self._change_tunnels(client, decision)
            case r.Select() | r.Serve():
                raise AssertionError("served above")

    async def _change_tunnels(self, client: socket.socket, change: r.OpenTunnel | r.CloseTunnel) -> None:
        """Two statuses: adb sends both at the end, adbd (for a reverse) the first when the service is open."""
        loop = asyncio.get_running_loop()
        forward, port = change.kind is TunnelKind.FORWARD, ""
        if not forward:
            await loop.sock_sendall(client, _OKAY)
        if isinstance(change, r.OpenTunnel):
            add = self._tunnels.add_forward if forward else self._tunnels.add_reverse
            port = await add(change.listen, change.dial, rebind=change.rebind)
        else:
            remove = self._tunnels.remove_forward if forward else self._tunnels.remove_reverse
            await remove(change.listen)
        statuses = _OKAY * 2 if forward else _OKAY
        await loop.sock_sendall(client, statuses + (_block(port.encode()) if port else b""))

    async def _list(self, client: socket.socket, listing: r.Listing) -> None:
        """Lists of the one phone: once, or again whenever its entry has changed."""
        loop = asyncio.get_running_loop()
        async with await AdbConnection.open(self._client.address) as server:
            async with asyncio.timeout(HOST_TIMEOUT_S):
                await server.request(listing.service)
            await loop.sock_sendall(client, _OKAY)
            closed = asyncio.create_task(_until_closed(client), name="leased adb tracker")
            blocks, shown = BlockReader(), None
            try:
                while not closed.done():
                    while (block := blocks.next()) is None:
                        receiving = asyncio.ensure_future(server.receive())
                        await asyncio.wait((closed, receiving), return_when=asyncio.FIRST_COMPLETED)
                        if not receiving.done():
                            receiving.cancel()
                            return
                        if not (data := receiving.result()):
                            return
                        blocks.feed(data)
                    own = keep_only(block, self._serial, listing.form)
                    if own != shown:
                        await loop.sock_sendall(client, _block(own))
                        shown = own
                    if not listing.follow:
                        return
            finally:
                closed.cancel()
                await asyncio.gather(closed, return_exceptions=True)

    async def _transport_id(self) -> int | None:
        """The phone's number in the real server's list, None when it is not there."""
        devices = await self._client.list_devices()
        return next((device.transport_id for device in devices if device.serial == self._serial), None)


async def _read_request(client: socket.socket) -> str | None:
    """The next request, or None when the client has left."""
    loop = asyncio.get_running_loop()
    reader = BlockReader()  # reads no byte beyond the request
    async with asyncio.timeout(REQUEST_S):
        while (block := reader.next()) is None:
            data = await loop.sock_recv(client, reader.wants)
            if not data:
                return None
            reader.feed(data)
    return r.request_of(block)


async def _until_closed(client: socket.socket) -> None:
    """Wait until a client that follows a list closes its connection."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(client, MAX_REQUEST_BYTES):
            pass
    except OSError:
        return


async def turn_away(client: socket.socket) -> None:
    """Refuse a client of another user."""
    await fail(client, _NOT_YOURS)


async def fail(client: socket.socket, message: str) -> None:
    """Answer a client as an adb server that cannot do what it was asked for."""
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        text = message.encode("utf-8", "surrogateescape")
        await asyncio.get_running_loop().sock_sendall(client, b"FAIL" + _block(text))
        await finish(client)


def _block(data: bytes) -> bytes:
    """Four hex digits of length, then the text."""
    data = data[:MAX_REQUEST_BYTES]
    return b"%04x" % len(data) + data
