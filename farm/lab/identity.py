"""The key and the self-signed certificate of a member of a lab: a host, or a builder. The certificate has its name.

A host has them in <state>/keys: lab.key and lab.pem. Needs the package `cryptography`, which only extras of farm bring.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farm.common.errors import HostError
from farm.common.files import write_durably

PEM = serialization.Encoding.PEM
LIFE = timedelta(days=36_500)  # farm revokes a certificate by its row in the database, not by its age
EARLY = timedelta(days=365)  # members accept each other though a clock is far off


@dataclass(frozen=True, slots=True)
class LabIdentity:
    """The certificate that this member shows to others; the files are for OpenSSL."""

    name: str
    certificate: str  # PEM
    certificate_file: Path
    key_file: Path


def open_identity(folder: Path, name: str) -> LabIdentity:
    """The identity in this folder; a new one if there is none, or the member has another name now. Blocking.

    Raises:
        HostError: its files cannot be read or written, or are damaged.
    """
    key_file, certificate_file = folder / "lab.key", folder / "lab.pem"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (certificate_file.exists() and key_file.exists()) or _name_in(certificate_file) != name:
            return keep_identity(folder, name, *new_certificate(name))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file)  # fails unless they fit
        return LabIdentity(name, certificate_file.read_text(), certificate_file, key_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise HostError(
            f"this machine's key or certificate for the lab cannot be used: {error}",
            hint=f"delete {key_file} and {certificate_file}: new ones are made at the next start",
        ) from error


def keep_identity(folder: Path, name: str, key: bytes, certificate: bytes) -> LabIdentity:
    """Write a key and its certificate (PEM) into the folder.

    Raises:
        OSError: they cannot be written.
    """
    key_file, certificate_file = folder / "lab.key", folder / "lab.pem"
    write_durably(key_file, key, 0o600)
    write_durably(certificate_file, certificate, 0o600)
    return LabIdentity(name, certificate.decode(), certificate_file, key_file)


def new_certificate(name: str) -> tuple[bytes, bytes]:
    """A new private key on the curve P-256 and a certificate of it under this name, PEM."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC).replace(microsecond=0)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder(
            subject, subject, key.public_key(), x509.random_serial_number(), now - EARLY, now + LIFE
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return plain, certificate.public_bytes(PEM)


def _name_in(file: Path) -> str:
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    return "".join(str(each.value) for each in certificate.subject)
