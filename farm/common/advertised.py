"""Addresses that clients of some networks are given: `client's CIDR = address or address:port`. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from farm.common.errors import Code, UserError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Advertised = tuple[tuple[Network, str, int], ...]  # clients' network, address, port (0: the same as always)


def parse_advertised(entries: Mapping[str, str], key: str) -> Advertised:
    """The entries of the configuration's `key`, in order.

    Raises:
        UserError: one cannot be read.
    """
    return tuple(_parsed(network, target, key) for network, target in entries.items())


def address_for(client: str, entries: Iterable[tuple[Network, str, int]]) -> tuple[str, int] | None:
    """Address and port for a client at this address, by the first entry whose network has it; None: there is none."""
    address = ipaddress.ip_address(client)
    return next(((target, port) for network, target, port in entries if address in network), None)


def _parsed(network: str, target: str, key: str) -> tuple[Network, str, int]:
    host, port = target, 0
    if target.startswith("[") and "]" in target:
        host, _, rest = target[1:].partition("]")
        port_text = rest.removeprefix(":")
    elif target.count(":") == 1:
        host, _, port_text = target.partition(":")
    else:
        port_text = ""
    try:
        parsed = ipaddress.ip_network(network, strict=False)
        if port_text:
            port = int(port_text)
        if not host or not 0 <= port <= 65535:
            raise ValueError(target)
    except ValueError as error:
        raise UserError(
            f"{key}: {network!r} = {target!r} is not CIDR = address or address:port",
            Code.BAD_CONFIG,
            hint='for example "10.8.0.0/16" = "lab.example.org:9190"',
        ) from error
    return parsed, host, port
