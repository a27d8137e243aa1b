"""Which requests come from our own pages: the Host allow-list and the checks against cross-site requests. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
WILDCARDS = frozenset({"0.0.0.0", "::", "[::]"})
UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def host_name(host: str) -> str:
    """The name in a Host header, without its port; "" when it is none (RFC 9110 §7.2)."""
    name, separator, port = host.rpartition(":")
    if separator and not host.endswith("]"):
        if not (port.isascii() and port.isdigit()):
            return ""
        host = name
    host = host.lower().removesuffix(".")
    return host if host and not set(host) & set("/\\@ \t") else ""


def allowed_names(host: str, allow_hosts: Iterable[str]) -> frozenset[str]:
    """Names the page may be asked for by. Ports are free: `ssh -L` chooses another one."""
    bound = f"[{host}]" if ":" in host and not host.startswith("[") else host
    own = set() if host in WILDCARDS else {bound.lower()}
    return LOOPBACK_NAMES | own | {name.lower().removesuffix(".") for name in allow_hosts}


def is_loopback(address: str) -> bool:
    """Whether a peer's address is this host's own."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def cross_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that another site's page made this request (Fetch Metadata, Origin).

    A program that is no browser sends neither header: it has nothing of a user's that a page could abuse.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        # A proxy may speak TLS for us: its scheme is not ours, its host is.
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:  # an address that no browser sends
        return True
