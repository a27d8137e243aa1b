"""This host's key and self-signed certificate: <state>/keys/lab.key and lab.pem. The certificate names the host."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509

from farm.common.errors import HostError
from farm.common.files import write_durably
from farm.lab.certificates import PEM, key_pem, name_of, new_key, signed

LIFE = timedelta(days=36_500)  # farm revokes a certificate by its row in the host table, not by its age
EARLY = timedelta(days=365)  # hosts accept each other though a clock is far off


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """The certificate that this host shows to others; the files are for OpenSSL."""

    host: str
    certificate: str  # PEM
    certificate_file: Path
    key_file: Path


def open_identity(folder: Path, host: str) -> HostIdentity:
    """The identity in this folder; a new one if there is none, or the host has another name now. Blocking.

    Raises:
        HostError: its files cannot be read or written, or are damaged.
    """
    key_file, certificate_file = folder / "lab.key", folder / "lab.pem"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (certificate_file.exists() and key_file.exists()) or _name_in(certificate_file) != host:
            key = new_key()
            certificate = signed(host, key.public_key(), key, name_of(host), LIFE, early=EARLY)
            write_durably(key_file, key_pem(key), 0o600)
            write_durably(certificate_file, certificate.public_bytes(PEM), 0o600)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file)  # fails unless they fit
        return HostIdentity(host, certificate_file.read_text(), certificate_file, key_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise HostError(
            f"this host's key or certificate for the lab cannot be used: {error}",
            hint=f"delete {key_file} and {certificate_file}: new ones are made at the next start",
        ) from error


def _name_in(file: Path) -> str:
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    return "".join(str(each.value) for each in certificate.subject)
