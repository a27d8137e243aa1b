"""How a machine joins a farm as a builder: with a token, over TLS 1.3 at the port where builders connect.

A token has a key and certificate of its own, which the host lets in for a day. The host greets who shows it with its
release, reads the certificate that the machine has made, and answers (farm.common.frames). From then on the host lets
in that certificate, whose key only the builder has, and the token no more.
"""

from __future__ import annotations

import json
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from farm import RELEASE
from farm.common.errors import HostError, NotAllowedError, ProtocolError, UserError
from farm.common.files import write_durably
from farm.common.frames import MAX_LINE_BYTES, FrameReader, frame
from farm.common.token_text import BUILDER_TOKEN, token_text, token_values
from farm.lab.identity import LabIdentity, keep_identity, open_identity
from farm.lab.tls import client_context, tls_socket

LIMIT_S = 10.0
FACTS = "builder.json"
ANOTHER = "ask an operator of the farm for another: farm builder token NAME"


@dataclass(frozen=True, slots=True)
class BuilderToken:
    """A builder's way into a farm, once and within 24 hours."""

    name: str  # of the builder
    host: str
    port: int
    host_certificate: str  # PEM
    certificate: str  # PEM, of the token, with its key
    key: str

    def text(self) -> str:
        """The text for people to copy."""
        return token_text(BUILDER_TOKEN, astuple(self))

    @classmethod
    def parse(cls, text: str) -> BuilderToken:
        """From its text.

        Raises:
            UserError: it is no token, or not all of one.
        """
        try:
            name, host, port, host_certificate, certificate, key = token_values(BUILDER_TOKEN, text)
            return cls(str(name), str(host), int(port), str(host_certificate), str(certificate), str(key))
        except (ValueError, TypeError) as error:
            raise UserError(
                "this is no builder token, or not all of it", hint=f"copy the whole line; or {ANOTHER}"
            ) from error


@dataclass(frozen=True, slots=True)
class Membership:
    """A builder's membership of a farm, stored beside its key and certificate."""

    name: str
    host: str
    port: int
    host_certificate: str  # PEM

    @property
    def scheduler(self) -> str:
        """The address as dask has it."""
        return f"tls://{self.host}:{self.port}"


def join(token: BuilderToken, folder: Path) -> Membership:
    """Use a token up; the machine's key, its certificate and the membership are in `folder` then.

    Raises:
        NotAllowedError: the token was used, taken back or has expired.
        UserError: this machine has another release of farm.
        HostError: the farm does not answer, or another one does.
    """
    identity = open_identity(folder, token.name)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        shown = keep_identity(Path(place), token.name, token.key.encode(), token.certificate.encode())
        _use_up(token, shown, identity.certificate)
    found = Membership(token.name, token.host, token.port, token.host_certificate)
    try:
        write_durably(folder / FACTS, json.dumps(asdict(found)).encode(), 0o600)
    except OSError as error:
        raise HostError(
            f"the membership cannot be kept in {folder}: {error.strerror}, and the token is used up",
            hint=f"make room there; at the farm: farm builder remove {token.name}, and make another token",
        ) from error
    return found


def membership(folder: Path) -> Membership:
    """The membership that an earlier `join` stored there.

    Raises:
        UserError: nothing, or what a release before had.
    """
    try:
        return TypeAdapter(Membership).validate_json((folder / FACTS).read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(
            f"this machine has no membership of a farm in {folder}",
            hint="farm builder join, with a token of `farm builder token NAME`",
        ) from error


def is_refused(about: Membership, identity: LabIdentity) -> bool:
    """Whether the farm answers, and does not know the builder's certificate. Blocks up to LIMIT_S.

    dask's errors do not tell. In TLS 1.3 the alert comes after the client's handshake, with the first read.
    """
    try:
        with _connected(about.host, about.port, identity, about.host_certificate) as link:
            link.recv(1)  # dask speaks first
    except OSError as error:
        return _is_refusal(error)
    return False


def _connected(host: str, port: int, identity: LabIdentity, certificate: str) -> ssl.SSLSocket:
    own = client_context(identity, [certificate])
    return tls_socket(socket.create_connection((host, port), LIMIT_S), own, handshake=True)


def _is_refusal(error: OSError) -> bool:
    """Whether it is the other side's alert about an unknown certificate (RFC 8446, 6.2)."""
    return isinstance(error, ssl.SSLError) and (error.reason or "").endswith("ALERT_UNKNOWN_CA")


def _use_up(token: BuilderToken, shown: LabIdentity, certificate: str) -> None:
    where = f"{token.host}:{token.port}"
    try:
        with _connected(token.host, token.port, shown, token.host_certificate) as link:
            messages = _messages(link)
            if (release := str(next(messages).get("farm", ""))) != RELEASE:
                raise UserError(
                    f"this machine has farm {RELEASE}, the host has {release}: it would build other bytes",
                    hint="install the same release",
                )
            link.sendall(frame({"certificate": certificate}))
            answer = next(messages)
    except ssl.SSLCertVerificationError as error:
        raise NotAllowedError(f"{where} is not the farm that made this token", hint=ANOTHER) from error
    except (OSError, ProtocolError) as error:
        if isinstance(error, OSError) and _is_refusal(error):
            raise NotAllowedError(
                "the farm does not take this token: it was used, replaced or taken back, or has expired", hint=ANOTHER
            ) from error
        raise HostError(
            f"the farm at {where} does not answer: {error}", hint="is its daemon running, with [builders] listen?"
        ) from error
    if "error" in answer:
        raise UserError(str(answer["error"]), hint=ANOTHER)


def _messages(link: ssl.SSLSocket) -> Iterator[Mapping[str, Any]]:
    reader = FrameReader()
    while data := link.recv(MAX_LINE_BYTES):
        for fields, _ in reader.feed(data):
            yield fields
    raise ProtocolError("it closed the connection")
