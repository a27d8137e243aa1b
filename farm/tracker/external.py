"""Servers that register themselves (boards, the tutorials' `adb reverse` path): who may, what they offer. No I/O."""

from __future__ import annotations

import ipaddress
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

LOOPBACK = ("127.0.0.0/8", "::1/128")
# Stock servers ask for their pending match keys every 2 s while they are free. One that was silent for this long is
# frozen or cut off: it is not handed out until it speaks again.
SILENT_AFTER_S = 30.0
MAX_OFFERS_PER_CONNECTION = 1024  # stock servers have one

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ExternalPolicy:
    """Who may register, and under which keys.

    `allow` and `custom_addresses` are CIDRs, the latter may also be host names: addresses that a server may announce in
    place of its own. Its own network (`allow`) always may. `join` are farm aliases that external servers may share.
    """

    allow: tuple[str, ...] = LOOPBACK
    custom_addresses: tuple[str, ...] = ()
    join: frozenset[str] = frozenset()
    silent_after_s: float = SILENT_AFTER_S


@dataclass(frozen=True, slots=True)
class Offer:
    """One server, to be handed out once."""

    address: str
    port: int
    match_key: str


class Refused(Exception):  # noqa: N818 (an answer to a server, not a failure of ours)
    """The registration is against the policy; the text says what and where to change it."""


class Admission:
    """The policy, ready to be asked."""

    def __init__(self, policy: ExternalPolicy) -> None:
        self._allow = networks(policy.allow)
        self._custom = self._allow + networks(entry for entry in policy.custom_addresses if _is_network(entry))
        self._names = frozenset(entry.lower() for entry in policy.custom_addresses if not _is_network(entry))
        self._join = policy.join

    def check(self, peer: str, key: str, custom_address: str | None, *, farm_key: bool) -> None:
        """Raise `Refused` unless a server at `peer` may serve `key` and announce `custom_address`."""
        if not contains(self._allow, peer):
            raise Refused(f"{peer} may not register servers; add its network to [tvm.external] allow")
        if farm_key and key not in self._join:
            raise Refused(
                f"key {key!r} belongs to the farm's own phones; choose another or add it to [tvm.external] join"
            )
        if custom_address is None:
            return
        if contains(self._custom, custom_address) or custom_address.lower() in self._names:
            return
        raise Refused(f"custom address {custom_address!r} is not in [tvm.external] custom_addresses")

    def may_serve(self, key: str, *, farm_key: bool) -> bool:
        """Whether external servers may answer requests for `key` at all."""
        return not farm_key or key in self._join


@dataclass(slots=True, eq=False)
class Registration:
    """What one connection registered. Gone with the connection."""

    last_heard: float
    servers: dict[str, tuple[str, int]] = field(default_factory=dict)  # key -> announced address, port
    offers: dict[str, tuple[str, Offer]] = field(default_factory=dict)  # match key -> key, offer


class Registry:
    """All offers of all connections, first in first out within a key."""

    def __init__(self, clock: Callable[[], float], silent_after_s: float = SILENT_AFTER_S) -> None:
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._registrations: set[Registration] = set()
        self._queues: dict[str, deque[tuple[Registration, Offer]]] = {}

    def register(self) -> Registration:
        """A new connection's empty registration."""
        registration = Registration(self._clock())
        self._registrations.add(registration)
        return registration

    def heard(self, registration: Registration) -> tuple[str, ...]:
        """The connection spoke; returns the keys of the offers that count again because of it."""
        returned = {key for key, _ in registration.offers.values()} if self._silent(registration) else ()
        registration.last_heard = self._clock()
        return tuple(returned)

    def put(self, registration: Registration, key: str, offer: Offer) -> None:
        """Add an offer; the same match key again replaces the earlier one.

        Raises:
            Refused: the connection has too many.
        """
        if offer.match_key in registration.offers:
            self._discard(registration, offer.match_key)
        elif len(registration.offers) >= MAX_OFFERS_PER_CONNECTION:
            raise Refused(f"one connection may hold {MAX_OFFERS_PER_CONNECTION} unused match keys")
        registration.offers[offer.match_key] = (key, offer)
        self._queues.setdefault(key, deque()).append((registration, offer))

    def take(self, key: str) -> Offer | None:
        """The oldest offer whose server is not silent, removed."""
        for registration, offer in self._queues.get(key, ()):
            if not self._silent(registration):
                self._discard(registration, offer.match_key)
                return offer
        return None

    def pending(self, registration: Registration) -> list[str]:
        """Match keys of this connection that nobody took yet."""
        return list(registration.offers)

    def drop(self, registration: Registration) -> None:
        """The connection is closed: nothing of it stays."""
        for match_key in tuple(registration.offers):
            self._discard(registration, match_key)
        self._registrations.discard(registration)

    def free(self) -> Counter[str]:
        """Offers per key that could be taken now."""
        return Counter(
            key for key, queue in self._queues.items() for registration, _ in queue if not self._silent(registration)
        )

    def servers(self) -> Iterator[tuple[str, str, int]]:
        """(key, address, port) of every registered server, handed out or not."""
        for registration in self._registrations:
            for key, (address, port) in registration.servers.items():
                yield key, address, port

    def _silent(self, registration: Registration) -> bool:
        return self._clock() - registration.last_heard > self._silent_after_s

    def _discard(self, registration: Registration, match_key: str) -> None:
        key, offer = registration.offers.pop(match_key)
        queue = self._queues[key]
        queue.remove((registration, offer))
        if not queue:
            del self._queues[key]


def networks(entries: Iterable[str]) -> tuple[Network, ...]:
    """Parse CIDRs (a bare address is a network of one).

    Raises:
        ValueError: an entry is neither.
    """
    return tuple(ipaddress.ip_network(entry, strict=False) for entry in entries)


def contains(allowed: tuple[Network, ...], address: str) -> bool:
    """Whether `address` is an IP address inside one of `allowed`."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in allowed)


def _is_network(entry: str) -> bool:
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return True
