"""Keys and X.509 certificates on the curve P-256. Needs the package `cryptography`, which only extras of farm bring."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
EARLY = timedelta(hours=1)  # a certificate is valid so long before it was made: clocks may be off


def new_key() -> ec.EllipticCurvePrivateKey:
    """A private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key, PEM."""
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def name_of(text: str) -> x509.Name:
    """The name that has this text as its only part."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def signed(
    name: str, key: ec.EllipticCurvePublicKey, signer: object, issuer: x509.Name, life: timedelta, *,
    authority: bool = False, early: timedelta = EARLY,
) -> x509.Certificate:  # fmt: skip
    """A certificate of `key` under this name, by `signer`; valid from `early` before now on."""
    now = datetime.now(UTC).replace(microsecond=0)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = x509.CertificateBuilder(
        subject_name=name_of(name), issuer_name=issuer, public_key=key, serial_number=x509.random_serial_number(),
        not_valid_before=now - early, not_valid_after=now + life,
    )  # fmt: skip
    extensions: Sequence[x509.ExtensionType] = (x509.BasicConstraints(ca=authority, path_length=None), usage)
    for each in extensions:
        builder = builder.add_extension(each, critical=True)
    return builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]
