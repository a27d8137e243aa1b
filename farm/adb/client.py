"""The asyncio client of an adb server: farm's hot paths, without the adb program and without threads.

A command costs 1.1-1.4 ms on a virtual phone (docs/facts.md; through adbutils 22-27 ms). Each call
opens its own connection: the protocol has no other way. Every call takes a timeout: a wedged phone stays `device`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from farm.adb.connection import AdbConnection, ServerAddress, abridged, deadline
from farm.adb.devices import AdbDevice, distinct, parse_device_list
from farm.adb.errors import AdbError, AdbFailed, AdbLinkLost, AdbServerUnreachable, AdbTimeout, failure
from farm.adb.host_protocol import BlockReader, encode_request, text_of
from farm.adb.shell import MAX_OUTPUT_BYTES, STDERR_TAIL_BYTES, ShellResult, ShellStream, collect, new_sentinel
from farm.common.errors import Code, ProtocolError
from farm.common.histogram import QUICK_S, Histogram

HOST_TIMEOUT_S = 5.0  # an answer that needs no phone takes the server well below 0.1 s
OPEN_TIMEOUT_S = 10.0  # a service on a phone: one round trip over USB, or Wi-Fi on a bad day
CONNECT_TIMEOUT_S = 20.0  # `connect` to a dead address: the server gives up first, with the reason
LISTEN_BACKLOG = 4  # adb's listen(); a TCP connect beyond it is dropped and comes 1 s later (measured: 500 at once)
_EVIDENCE_BYTES = 2000


class AdbClient:
    """Talks to one adb server.

    Args:
        socket: adb's own socket spec, `tcp:127.0.0.1:5038` or `localfilesystem:/path`.
    """

    def __init__(self, socket: str) -> None:
        self.address = ServerAddress.parse(socket)
        self.last_answer_at = 0.0  # when any phone last answered, monotonic seconds; 0: never
        self.shared_serials: set[str] = set()  # of several phones each: these have their USB paths as serials
        # Until the answer of the server itself, or of a phone on which a service was opened.
        self.round_trips = {"server": Histogram(QUICK_S), "phone": Histogram(QUICK_S)}
        self._features: dict[str, frozenset[str]] = {}
        self._connecting = asyncio.Semaphore(LISTEN_BACKLOG)

    # -- the server itself --

    async def version(self) -> int:
        """The server's protocol version; 41 for every adb since 2018."""
        answer = await self._query("host:version")
        try:
            return int(answer, 16)
        except ValueError as error:
            raise ProtocolError("the adb server's version is not a number", evidence=repr(answer)) from error

    async def list_devices(self) -> list[AdbDevice]:
        """The attached phones, usable or not, with distinct serials."""
        return distinct(parse_device_list(await self._query("host:devices-l")), self.shared_serials)

    async def track_devices(self) -> AsyncGenerator[tuple[AdbDevice, ...], None]:
        """The list now, and again after each change, until the server goes; lists that were overtaken are skipped.

        Lists may be old: the server writes one per change, and its stream keeps those not yet read.
        Silent for as long as nothing changes, and adb 29 sends nothing when a phone becomes `unauthorized`: a follower
        also calls `list_devices()` now and then.

        Raises:
            AdbServerUnreachable: no server, or it went away.
        """
        async with await self._host("host:track-devices-l") as connection:
            blocks = BlockReader()
            while True:
                newest = None
                while (block := blocks.next()) is not None:
                    newest = block
                if newest is not None:
                    yield parse_device_list(text_of(newest))
                data = await connection.receive()
                if not data:
                    raise AdbServerUnreachable(
                        f"The adb server on {self.address.spec} went away.",
                        hint="It was killed or crashed; farm's own server is started again by itself.",
                    )
                blocks.feed(data)

    async def kill_server(self) -> None:
        """Ends the server. Every phone's streams and forwards go with it."""
        (await self._host("host:kill")).close()

    async def connect(self, address: str) -> str:
        """Attaches a network phone; returns the server's answer.

        Raises:
            AdbError: it could not be reached (`adb connect` itself would still exit with 0).
        """
        words = await self._query(f"host:connect:{address}", timeout_s=CONNECT_TIMEOUT_S)
        if not words.startswith(("connected to", "already connected to")):
            raise failure(words, serial=address)
        return words

    async def disconnect(self, address: str) -> str:
        """Detaches a network phone and returns the server's answer."""
        return await self._query(f"host:disconnect:{address}")

    async def emulator(self, port: int) -> None:
        """Makes the server plug in the phone that listens on a local `port`; its serial is `emulator-(port - 1)`.

        The server sends no answer, whether the port listens or not: only the list shows it.
        """
        async with self._deadline(HOST_TIMEOUT_S), await AdbConnection.open(self.address) as connection:
            await connection.send(encode_request(f"host:emulator:{port}"))
            while await connection.receive():
                continue

    # -- one phone --

    async def features(self, serial: str) -> frozenset[str]:
        """The features of the phone's adbd, asked once per phone (see `forget`)."""
        known = self._features.get(serial)
        if known is None:
            words = await self._query(f"host-serial:{serial}:features", serial=serial)
            known = self._features[serial] = frozenset(words.split(",")) - {""}
        return known

    def forget(self, serial: str) -> None:
        """Drops the remembered features of a phone: call it when the transport changed, for another adbd may answer."""
        self._features.pop(serial, None)

    async def shell(
        self, serial: str, command: str, *, timeout_s: float, most_bytes: int = MAX_OUTPUT_BYTES
    ) -> ShellResult:
        """Runs a command on the phone to its end; its stdin is empty.

        Args:
            serial: as listed.
            command: for the phone's `sh -c`; quote outside words with shlex.quote.
            timeout_s: for everything together; then the command is left to adbd's SIGHUP.
            most_bytes: of output; a phone that prints more fails.

        Raises:
            AdbTimeout: not finished in time; the evidence is what it printed so far.
            AdbLinkLost: phone, link or server went before the command ended.
            AdbError: the phone is not there or not usable, or the server is not.
        """
        kept: list[bytes] = []

        def late() -> AdbTimeout:
            return AdbTimeout(
                f"Phone {serial} did not finish a command in {timeout_s:g} s: {abridged(command)}",
                hint="The phone or its link may hang; replug it if this repeats.",
                evidence=b"".join(kept)[-_EVIDENCE_BYTES:].decode("utf-8", "replace"),
            )

        async with (
            deadline(timeout_s, late),
            await self._open_shell(serial, command, stderr_bytes=most_bytes) as stream,
        ):
            await stream.close_stdin()
            return await collect(stream, kept, most_bytes=most_bytes)

    async def open_shell(
        self,
        serial: str,
        command: str,
        *,
        timeout_s: float = OPEN_TIMEOUT_S,
        on_stderr: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> ShellStream:
        """Starts a command that continues; the caller closes the stream.

        Args:
            serial: as listed.
            command: for the phone's `sh -c`.
            timeout_s: for starting it.
            on_stderr: gets its stderr, and sets its pace; nothing without shell,v2 on the phone.
        """
        async with deadline(timeout_s, lambda: self._slow(serial, "a shell")):
            return await self._open_shell(serial, command, on_stderr=on_stderr)

    async def open_service(self, serial: str, service: str, *, timeout_s: float = OPEN_TIMEOUT_S) -> AdbConnection:
        """Opens any adbd service (`sync:`, `tcp:5000`, `localabstract:x`). The caller closes the connection."""
        async with deadline(timeout_s, lambda: self._slow(serial, service)):
            return await self._service(serial, service)

    async def open_tcp(self, serial: str, port: int, *, timeout_s: float = OPEN_TIMEOUT_S) -> socket.socket:
        """A non-blocking socket that carries a stream to `port` on the phone's loopback; the caller closes it.

        No listener on the host is involved. adb has no half-close: the end of one direction ends both.

        Raises:
            AdbFailed: nothing listens there.
        """
        try:
            connection = await self.open_service(serial, f"tcp:{port}", timeout_s=timeout_s)
        except (AdbLinkLost, AdbFailed) as error:
            if isinstance(error.__cause__, AdbServerUnreachable):
                raise  # its link ended
            raise AdbFailed(
                f"Nothing listens on port {port} of phone {serial}.",
                Code.PORT_CLOSED,
                evidence=error.evidence or error.message,
            ) from error
        return connection.raw

    async def reboot(self, serial: str) -> None:
        """Reboots the phone."""
        try:
            async with self._opened(serial, "reboot:") as connection:
                while await connection.receive():
                    continue  # adbd closes the stream when it has asked init
        except AdbLinkLost:
            pass  # the phone went down before adb could answer
        self.forget(serial)

    async def reconnect(self, serial: str) -> str:
        """Has the server drop a phone's transport, usable or not, and make a new one. Returns its answer.

        For a moment the phone is missing from the server's list or offline; its streams and forwards end.
        """
        self.forget(serial)
        return await self._query(f"host-serial:{serial}:reconnect", serial=serial)

    # -- forwards and reverses, for farm.adb.tunnels --

    async def list_forwards(self) -> str:
        """`SERIAL LOCAL REMOTE` lines of all phones."""
        return await self._query("host:list-forward")

    async def add_forward(self, serial: str, local: str, remote: str) -> str:
        """Listens on the host's `local` for the phone's `remote` without rebinding. Returns `tcp:0`'s port, or ''."""
        service = f"host-serial:{serial}:forward:norebind:{local};{remote}"
        async with self._deadline(HOST_TIMEOUT_S), await self._host(service, serial=serial) as connection:
            await connection.status(serial=serial, service=service)
            return text_of(await connection.block()) if local == "tcp:0" else ""

    async def remove_forward(self, serial: str, local: str) -> None:
        """Stops listening on `local`."""
        service = f"host-serial:{serial}:killforward:{local}"
        async with self._deadline(HOST_TIMEOUT_S), await self._host(service, serial=serial) as connection:
            await connection.status(serial=serial, service=service)

    async def list_reverses(self, serial: str) -> str:
        """`NAME REMOTE LOCAL` lines of one phone. The first column is not its serial."""
        async with self._opened(serial, "reverse:list-forward") as connection:
            return text_of(await connection.block())

    async def add_reverse(self, serial: str, remote: str, local: str) -> str:
        """Listens on the phone's `remote` for the host's `local` without rebinding. Returns `tcp:0`'s port, or ''."""
        service = f"reverse:forward:norebind:{remote};{local}"
        async with self._opened(serial, service) as connection:
            await connection.status(serial=serial, service=service)
            return text_of(await connection.block()) if remote == "tcp:0" else ""

    async def remove_reverse(self, serial: str, remote: str) -> None:
        """Stops listening on the phone's `remote`. DANGER: aborts the adb server if the phone dials it right then."""
        service = f"reverse:killforward:{remote}"
        async with self._opened(serial, service) as connection:
            await connection.status(serial=serial, service=service)

    # -- below --

    async def _query(self, service: str, *, serial: str = "", timeout_s: float = HOST_TIMEOUT_S) -> str:
        async with self._deadline(timeout_s), await self._host(service, serial=serial) as connection:
            return text_of(await connection.block())

    def _deadline(self, timeout_s: float) -> AbstractAsyncContextManager[None]:
        return deadline(
            timeout_s,
            lambda: AdbServerUnreachable(
                f"The adb server on {self.address.spec} did not answer in {timeout_s:g} s.",
                hint="It hangs: farm restarts its own; a foreign one must be killed by its owner.",
            ),
        )

    async def _host(self, service: str, *, serial: str = "") -> AdbConnection:
        """Asks the server itself and reads its status."""
        async with self._deadline(HOST_TIMEOUT_S), self._connecting:
            begun_s = time.monotonic()
            connection = await AdbConnection.open(self.address)
            try:
                await connection.request(service, serial=serial)
            except BaseException:
                connection.close()
                raise
            self.round_trips["server"].observe(time.monotonic() - begun_s)
            return connection

    async def _service(self, serial: str, service: str) -> AdbConnection:
        """Switches a connection to the phone's transport and opens a service there."""
        connection = await self._host(f"host:transport:{serial}", serial=serial)
        begun_s = time.monotonic()
        try:
            async with self._blames_link(serial, service):
                await connection.request(service, serial=serial)
        except BaseException:
            connection.close()
            raise
        self.last_answer_at = time.monotonic()
        self.round_trips["phone"].observe(self.last_answer_at - begun_s)
        return connection

    @asynccontextmanager
    async def _opened(self, serial: str, service: str) -> AsyncIterator[AdbConnection]:
        """A service for one short exchange, all of it within `OPEN_TIMEOUT_S`."""
        async with (
            deadline(OPEN_TIMEOUT_S, lambda: self._slow(serial, service)),
            await self._service(serial, service) as connection,
            self._blames_link(serial, service),
        ):
            yield connection

    @asynccontextmanager
    async def _blames_link(self, serial: str, service: str) -> AsyncIterator[None]:
        """Report a stream to a phone that ends early as a lost link, if the server still answers."""
        try:
            yield
        except AdbServerUnreachable as error:
            try:
                await self.version()
            except AdbError:
                raise error from None
            message = f"The link to phone {serial} ended before it answered {abridged(service)}."
            raise AdbLinkLost(message, hint="Check its cable.", evidence=error.message) from error

    async def _open_shell(
        self,
        serial: str,
        command: str,
        *,
        stderr_bytes: int = STDERR_TAIL_BYTES,
        on_stderr: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> ShellStream:
        features = await self.features(serial)
        sentinel = None if "shell_v2" in features else new_sentinel()
        service = f"shell,v2,raw:{command}" if sentinel is None else f"shell:{sentinel.wrap(command)}"
        try:
            connection = await self._service(serial, service)
        except AdbError:
            self.forget(serial)  # it may have come back with another adbd
            raise
        return ShellStream(connection, serial, sentinel, stderr_bytes=stderr_bytes, on_stderr=on_stderr)

    @staticmethod
    def _slow(serial: str, what: str) -> AdbTimeout:
        return AdbTimeout(
            f"Phone {serial} did not open {what} in time.", hint="The phone or its link may hang; replug it."
        )
