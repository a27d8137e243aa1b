"""Servers that register themselves (boards, the tutorials' `adb reverse` path): policy and offers. No I/O."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm.common.limiter import Limiter

if TYPE_CHECKING:
    from farm.config import ExternalConfig

MAX_OFFERS_PER_CONNECTION = 128  # a stock server has one, a stock proxy one for each phone behind it
MAX_OFFERS = 8192  # of all connections: two for each that the TVM server takes, and 40 MiB at the very worst

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """One server, to be handed out once. Its own identity, because two connections may use the same match key."""

    key: str
    address: str
    port: int
    match_key: str


class RegistrationRefused(Exception):  # noqa: N818 (an answer to a server, not a failure of ours)
    """The registration is against the policy; the text names the setting to change."""


class Admission:
    """The policy, ready to be asked."""

    def __init__(self, policy: ExternalConfig) -> None:
        self._allow = networks(policy.allow)
        self._custom = list(self._allow)
        self._names: set[str] = set()
        for entry in policy.custom_addresses:
            try:
                self._custom += networks([entry])
            except ValueError:
                self._names.add(entry.lower())
        self._join = policy.join

    def check(self, peer: str, key: str, custom_address: str | None, *, farm_key: bool) -> None:
        """Raise `RegistrationRefused` unless a server at `peer` may serve `key` and announce `custom_address`."""
        if not contains(self._allow, peer):
            raise RegistrationRefused(f"{peer} may not register servers; add its network to [tvm.external] allow")
        if farm_key and key not in self._join:
            raise RegistrationRefused(
                f"key {key!r} belongs to the farm's own phones; choose another or add it to [tvm.external] join"
            )
        if custom_address is None:
            return
        if contains(self._custom, custom_address) or custom_address.lower() in self._names:
            return
        raise RegistrationRefused(f"custom address {custom_address!r} is not in [tvm.external] custom_addresses")

    def may_serve(self, key: str, *, farm_key: bool) -> bool:
        """Whether external servers may answer requests for `key` at all."""
        return not farm_key or key in self._join


@dataclass(slots=True, eq=False)
class Registration:
    """The servers and offers of one connection, gone with it."""

    last_heard: float
    servers: dict[str, tuple[str, int]] = field(default_factory=dict)  # key -> announced address, port
    offers: dict[str, Offer] = field(default_factory=dict)  # by match key
    silent: bool = False  # its offers are in no queue


class OfferRegistry:
    """All offers of all connections, first in first out within a key.

    What a connection can cause costs the same however many offers there are: a registered server could otherwise stop
    the loop for all. Silent servers leave their queues, so that nothing has to step over them.
    """

    def __init__(self, clock: Callable[[], float], silent_after_s: float) -> None:
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._speaking: OrderedDict[Registration, None] = OrderedDict()  # longest unheard first
        self._silent: set[Registration] = set()
        # By key. A dict would walk over what left its front.
        self._queues: dict[str, OrderedDict[Offer, Registration]] = {}
        self._offers: Limiter[Registration] = Limiter(MAX_OFFERS, MAX_OFFERS_PER_CONNECTION)

    def register(self) -> Registration:
        """A new connection's empty registration."""
        registration = Registration(self._clock())
        self._speaking[registration] = None
        return registration

    def renew(self, registration: Registration) -> tuple[str, ...]:
        """The connection spoke; returns the keys of the offers that count again because of it."""
        self._notice_silence()
        registration.last_heard = self._clock()
        if not registration.silent:
            self._speaking.move_to_end(registration)
            return ()
        registration.silent = False
        self._silent.discard(registration)
        self._speaking[registration] = None
        for offer in registration.offers.values():
            self._enqueue(registration, offer)
        return tuple({offer.key for offer in registration.offers.values()})

    def put(self, registration: Registration, offer: Offer) -> None:
        """Add an offer of a connection that was just heard; the same match key again replaces the earlier one.

        Raises:
            RegistrationRefused: the connection, or all of them, have too many.
        """
        if offer.match_key in registration.offers:
            self._discard(registration, registration.offers[offer.match_key])
        elif not self._offers.key_fits(registration):
            raise RegistrationRefused(f"one connection may hold {MAX_OFFERS_PER_CONNECTION} unused match keys")
        elif not self._offers.total_fits(registration):
            raise RegistrationRefused(f"all connections together may hold {MAX_OFFERS} unused match keys")
        registration.offers[offer.match_key] = offer
        self._offers.take(registration)
        if not registration.silent:
            self._enqueue(registration, offer)

    def take(self, key: str) -> Offer | None:
        """The oldest offer whose server is not silent, removed."""
        self._notice_silence()
        queue = self._queues.get(key)
        if queue is None:
            return None
        offer, registration = next(iter(queue.items()))
        self._discard(registration, offer)
        return offer

    def pending(self, registration: Registration) -> list[str]:
        """Match keys of this connection that are not taken yet."""
        return list(registration.offers)

    def drop(self, registration: Registration) -> None:
        """The connection is closed: nothing of it stays."""
        for offer in tuple(registration.offers.values()):
            self._discard(registration, offer)
        self._speaking.pop(registration, None)
        self._silent.discard(registration)

    def free(self) -> Counter[str]:
        """Offers per key that could be taken now."""
        self._notice_silence()
        return Counter({key: len(queue) for key, queue in self._queues.items()})

    def servers(self) -> Iterator[tuple[str, str, int]]:
        """(key, address, port) of every registered server, handed out or not."""
        for registration in (*self._speaking, *self._silent):
            for key, (address, port) in registration.servers.items():
                yield key, address, port

    def _notice_silence(self) -> None:
        """Take the offers of servers that have fallen silent out of their queues: once each."""
        now = self._clock()
        while self._speaking:
            registration = next(iter(self._speaking))
            if now - registration.last_heard <= self._silent_after_s:
                return
            del self._speaking[registration]
            self._silent.add(registration)
            registration.silent = True
            for offer in registration.offers.values():
                self._dequeue(offer)

    def _discard(self, registration: Registration, offer: Offer) -> None:
        del registration.offers[offer.match_key]
        self._offers.give_back(registration)
        if not registration.silent:
            self._dequeue(offer)

    def _enqueue(self, registration: Registration, offer: Offer) -> None:
        self._queues.setdefault(offer.key, OrderedDict())[offer] = registration

    def _dequeue(self, offer: Offer) -> None:
        queue = self._queues[offer.key]
        del queue[offer]
        if not queue:
            del self._queues[offer.key]


def networks(entries: Iterable[str]) -> tuple[Network, ...]:
    """Parse CIDRs (a bare address is a network of one).

    Raises:
        ValueError: an entry is neither.
    """
    return tuple(ipaddress.ip_network(entry, strict=False) for entry in entries)


def contains(allowed: Iterable[Network], address: str) -> bool:
    """Whether `address` is an IP address inside one of `allowed`."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in allowed)
