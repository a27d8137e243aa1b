"""Joining a farm: a builder's key and name for a certificate, over TLS 1.3 to the host that its token names.

One exchange of two messages (farm.common.frames). The farm shows its authority's own certificate there, whose hash the
token has, so the builder knows before it sends the secret that this is the farm that made the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from farm import RELEASE, __version__
from farm.builders.authority import Authority, new_key_pair
from farm.builders.token_policy import BuilderToken
from farm.common.errors import FarmError, HostError, NotAllowedError, ProtocolError, UserError
from farm.common.files import write_durably
from farm.common.frames import MAX_LINE_BYTES, FrameReader, frame
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter
from farm.common.peers import shut_down
from farm.common.tasks import BackgroundTasks
from farm.tvm_server.listener import Acceptor, address_at, bind

LIMIT_S = 10.0
MAX_JOINING = 64  # connections at once; the oldest silent one makes room
MAX_JOINING_OF_ADDRESS = 32
LISTEN_HINT = "[builders] listen must be an address of this host, with two free ports"
_BROKEN = (OSError, ValueError, ProtocolError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
KEY, CERTIFICATE, AUTHORITY, FACTS = "builder.key", "builder.pem", "ca.pem", "builder.json"


@dataclass(frozen=True, slots=True)
class Membership:
    """A builder's membership of a farm, stored beside its key and certificates."""

    name: str
    scheduler: str  # tls://HOST:PORT


def join(token: BuilderToken, name: str, folder: Path) -> Membership:
    """Exchange a token; keys and certificates are in `folder` then.

    Raises:
        UserError: the token or the name is refused, or there is another farm.
        HostError: the farm does not answer.
    """
    key, public_key = new_key_pair()
    where = f"{token.host}:{token.port}"
    asked = frame({"secret": token.secret, "name": name, "key": public_key.decode(), "farm": __version__})
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with (
            socket.create_connection((token.host, token.port), LIMIT_S) as plain,
            _client_tls().wrap_socket(plain) as link,
        ):
            if hashlib.sha256(link.getpeercert(binary_form=True) or b"").hexdigest() != token.authority:
                raise NotAllowedError(
                    f"{where} is not the farm that made this token: its certificate is another one",
                    hint="ask the operator of that farm for a token: farm builder token",
                )
            link.sendall(asked)
            answer = _answer(link)
    except (OSError, ProtocolError) as error:
        raise HostError(
            f"the farm at {where} does not answer: {error}", hint="is its daemon running, with [builders] listen?"
        ) from error
    if "error" in answer:
        raise UserError(str(answer["error"]), hint=str(answer.get("hint", "")))
    found = Membership(name, f"tls://{token.host}:{answer['port']}")
    authority, certificate = answer["authority"].encode(), answer["certificate"].encode()
    facts = json.dumps(asdict(found)).encode()
    try:
        for file, data in ((KEY, key), (CERTIFICATE, certificate), (AUTHORITY, authority), (FACTS, facts)):
            write_durably(folder / file, data, 0o600)
    except OSError as error:
        raise HostError(
            f"the certificate cannot be kept in {folder}: {error.strerror}, and the token is used up",
            hint=f"make room there; at the farm: farm builder remove {name}, then farm builder token",
        ) from error
    return found


def membership(folder: Path) -> Membership:
    """The membership that an earlier `join` stored there.

    Raises:
        UserError: nothing.
    """
    try:
        return TypeAdapter(Membership).validate_json((folder / FACTS).read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(
            f"this machine has no certificate in {folder}",
            hint="farm builder join, with a token of `farm builder token`",
        ) from error


def _client_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its hash is compared, which says more
    return context


def _answer(link: ssl.SSLSocket) -> Mapping[str, Any]:
    reader = FrameReader()
    while data := link.recv(MAX_LINE_BYTES):
        for fields, _ in reader.feed(data):
            return fields
    raise ProtocolError("it closed the connection")


class JoinServer:
    """The host's side of joining. A connection may send one message, within ten seconds."""

    def __init__(self, authority: Authority, port: Callable[[], int], joined: Callable[[str], None]) -> None:
        """`port`: dask's scheduler's. `joined`: called with the name of each new builder."""
        self._authority, self._port, self._joined = authority, port, joined
        self._acceptor = Acceptor(self._accepted)
        self._admission: ClientLimiter[str] = ClientLimiter(Limiter(MAX_JOINING, MAX_JOINING_OF_ADDRESS))
        self._tasks = BackgroundTasks()

    def listen(self, host: str, port: int) -> int:
        """Serve there; returns the port.

        Raises:
            HostError: the port is taken.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._authority.path("ca.pem"), self._authority.path("ca.key"))
        self._context = context
        self._acceptor.take(bind(host, port, LISTEN_HINT))
        return self._acceptor.port

    def _accepted(self, sock: socket.socket) -> None:
        if not (address := address_at(sock)):
            return
        place = self._admission.enter(address, partial(shut_down, sock))
        if place is None:
            sock.close()
            return
        self._tasks.spawn(self._serve(sock, place), "a builder that joins")

    async def _serve(self, sock: socket.socket, place: ClientPlace[str]) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(MAX_LINE_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            with contextlib.suppress(*_BROKEN):
                async with asyncio.timeout(LIMIT_S):
                    transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=self._context)
                    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                    with contextlib.closing(transport):
                        [(fields, _)] = FrameReader().feed(await reader.readuntil(b"\n"))
                        self._admission.mark_active(place)
                        try:
                            answer = self._exchange(fields)
                        except FarmError as error:
                            answer = {"error": error.message, "hint": error.hint}
                        writer.write(frame(answer))
                        await writer.drain()
                    await writer.wait_closed()
        finally:
            self._admission.leave(place)

    def _exchange(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        secret, name, key, release = (str(fields.get(each, "")) for each in ("secret", "name", "key", "farm"))
        if release.partition("+")[0] != RELEASE:
            raise UserError(
                f"this machine has farm {release}, the host has {__version__}: it would build other bytes",
                hint="install the same release",
            )
        certificate = self._authority.exchange(secret, name, key.encode(), time.time())
        self._joined(name)
        return {
            "certificate": certificate.decode(),
            "authority": self._authority.path("ca.pem").read_text(),
            "port": self._port(),
        }
