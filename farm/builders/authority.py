"""The farm's own certificate authority for builders: <state>/builders, its tokens and certificates.

ca.key ca.pem       the authority; the certificate is also what the farm shows where builders join
host.key host.pem   the farm's, for dask's scheduler and client
crl.pem             certificates that were taken back
members.json        tokens by the SHA-256 of their secrets, and builders by name
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import TypeAdapter

from farm.builders.token_policy import KEPT_S, TokenRecord, check_name, unknown_token_error
from farm.common.errors import UserError
from farm.common.files import write_durably
from farm.lab.certificates import PEM, key_pem, name_of, new_key, signed

AUTHORITY_LIFE = timedelta(days=3650)
BUILDER_LIFE = timedelta(days=730)
SECRET_BYTES = 24
HOST = "farm"  # the name of the host's own certificate

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """A builder that has a certificate."""

    serial: int
    removed_at: str = ""  # ISO 8601, as the next
    built: int = 0
    seen_at: str = ""  # the latest heartbeat of any process with that certificate
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Members:
    """The stored tokens and certificates."""

    tokens: dict[str, TokenRecord] = field(default_factory=dict)
    builders: dict[str, Member] = field(default_factory=dict)
    revoked: tuple[int, ...] = ()  # serial numbers


_KEPT = TypeAdapter(Members)


class Authority:
    """Opens the folder; makes missing files.

    Raises:
        OSError: the folder cannot be used.
        ValueError: a file in it is damaged; the message names it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        if not self.path("ca.pem").exists():
            self._make()
        self._key = self._read("ca.key", partial(serialization.load_pem_private_key, password=None))
        self._certificate = self._read("ca.pem", x509.load_pem_x509_certificate)
        kept = self.path("members.json").exists()
        self.members = self._read("members.json", _KEPT.validate_json) if kept else Members()
        self._write_crl()

    def path(self, name: str) -> Path:
        """One of the files."""
        return self.folder / name

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def new_token(self, now_s: float) -> str:
        """The secret of a new token."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        kept = {digest: each for digest, each in self.members.tokens.items() if now_s - each.made_s < KEPT_S}
        self._keep(replace(self.members, tokens={**kept, _digest(secret): TokenRecord(now_s)}))
        return secret

    def exchange(self, secret: str, name: str, public_key: bytes, now_s: float) -> bytes:
        """The certificate (PEM) of a new builder for its public key (PEM); the token is used up.

        Raises:
            UserError: the token or the name is not good, or the key is none.
        """
        digest = _digest(secret)
        token = self.members.tokens.get(digest)
        if token is None:
            raise unknown_token_error()
        token.check(now_s)
        check_name(name)
        if name == HOST or ((known := self.members.builders.get(name)) is not None and not known.removed_at):
            raise UserError(
                f"there is a builder {name!r} already", hint=f"another --name, or: farm builder remove {name}"
            )
        try:
            key = serialization.load_pem_public_key(public_key)
        except ValueError as error:
            raise UserError("the builder's key cannot be read") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise UserError("the builder's key is of another kind", hint="is it the same release of farm?")
        certificate = signed(name, key, self._key, self._certificate.subject, BUILDER_LIFE)
        members = {**self.members.builders, name: Member(certificate.serial_number)}
        tokens = {**self.members.tokens, digest: replace(token, used_by=name)}
        self._keep(replace(self.members, tokens=tokens, builders=members))
        return certificate.public_bytes(PEM)

    def remove(self, name: str) -> None:
        """Take a builder's certificate back.

        Raises:
            UserError: there is no such builder.
        """
        member = self.members.builders.get(name)
        if member is None or member.removed_at:
            raise UserError(f"there is no builder {name!r}", hint="farm builder list")
        members = {**self.members.builders, name: replace(member, removed_at=_now().isoformat())}
        self._keep(replace(self.members, builders=members, revoked=(*self.members.revoked, member.serial)))
        self._write_crl()

    def note(self, name: str, *, built: int, versions: dict[str, str], seen_at: str) -> None:
        """Note the work of a builder that is or was just connected; written with the next change."""
        if (member := self.members.builders.get(name)) is not None:
            self.members.builders[name] = replace(
                member, built=member.built + built, versions=versions, seen_at=seen_at
            )

    def save(self) -> None:
        """Write it all."""
        self._keep(self.members)

    def _keep(self, members: Members) -> None:
        self._write("members.json", json.dumps(asdict(members)).encode())
        self.members = members

    def _write(self, name: str, data: bytes) -> None:
        write_durably(self.path(name), data, 0o600)

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(self.path(name).read_bytes())
        except ValueError as error:
            raise ValueError(
                f"{self.path(name)} is damaged; put it back from a backup, or move {self.folder} away: "
                "then every builder needs a new token"
            ) from error

    def _make(self) -> None:
        key, host = new_key(), new_key()
        name = name_of("farm's builders")
        own = signed("farm's builders", key.public_key(), key, name, AUTHORITY_LIFE, authority=True)
        self._write("ca.key", key_pem(key))
        self._write("host.key", key_pem(host))
        certificate = signed(HOST, host.public_key(), key, own.subject, AUTHORITY_LIFE)
        self._write("host.pem", certificate.public_bytes(PEM))
        self._write("ca.pem", own.public_bytes(PEM))  # last: it says that the others are there

    def _write_crl(self) -> None:
        # OpenSSL keeps the older of two lists of the same second: each removal makes the list's date a second later.
        made = self._certificate.not_valid_before_utc + timedelta(seconds=len(self.members.revoked))
        builder = x509.CertificateRevocationListBuilder(self._certificate.subject, made, _now() + AUTHORITY_LIFE)
        for serial in self.members.revoked:
            row = x509.RevokedCertificateBuilder(serial, made).build()
            builder = builder.add_revoked_certificate(row)
        self._write("crl.pem", builder.sign(self._key, hashes.SHA256()).public_bytes(PEM))  # type: ignore[arg-type]


def new_key_pair() -> tuple[bytes, bytes]:
    """A private key and its public one, PEM."""
    key = new_key()
    public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key_pem(key), public


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
