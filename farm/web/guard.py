"""The outermost layer of the page: which requests are answered at all, how large one may be, headers of every answer.

Requests come from our own pages: the Host allow-list and the checks against cross-site requests see to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from html import escape
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.common.limiter import Limiter

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
WILDCARDS = frozenset({"0.0.0.0", "::", "[::]"})
UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_FORGED = frozenset({403, 421})  # statuses of requests that no page of ours sends


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
    """Host names that a request may name. Its port may be any: `ssh -L` chooses another one."""
    bound = f"[{host}]" if ":" in host and not host.startswith("[") else host
    own = set() if host in WILDCARDS else {bound.lower()}
    return LOOPBACK_NAMES | own | {name.lower().removesuffix(".") for name in allow_hosts}


def is_loopback(address: str) -> bool:
    """Whether a peer's address is this host's own."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def network_of(address: str) -> str:
    """The addresses that count as one client: all of loopback, where a login has 16 million, and an IPv6 /64."""
    if is_loopback(address.removeprefix("::ffff:")):
        return "loopback"
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((found, 64), strict=False)) if isinstance(found, IPv6Address) else address


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


MAX_BODY_BYTES = 64 * 1024  # forms only
MAX_TARGET_BYTES = 4096
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


NOT_OUR_NAME = (
    "Open it by http://127.0.0.1 and its port (by ssh -L from elsewhere), or add the name to allow_hosts of [web] in "
    "farm.toml."
)


TOO_MANY = (429, "There are too many requests from here", "Wait a few seconds, and open fewer pages at once.")
OUR_MISTAKE = "It is a mistake of the farm, not yours; the daemon's log has the trace."

REQUEST_S = 0.005  # the loop's time for any request, as it is charged
SHARE = 0.25  # of the loop's time, for one client
SAVED_S = 10.0  # of a client without requests: a page with its parts, and a few more
MAX_WAIT_S = 3.0  # a request that would wait for longer is answered 429 then
MAX_CLIENTS = 4096
FREE_AT_ONCE = 4  # requests of a client that never wait: a browser has no more for one page
MAX_AT_ONCE = 128  # requests of a client, waiting ones too
STREAM = "/events"

log = logging.getLogger(__name__)


class Pace:
    """Bounds the part of the daemon's loop that each client's requests take: a request waits for its turn.

    A client is an account, or the address of readers without a sign-in. A few requests at once never wait.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way: Limiter[str] = Limiter()
        self._until: dict[str, float] = {}  # by client: when its share covers its requests, the latest client last

    def wait_s(self, client: str) -> float:
        """The time until the client's next request may begin."""
        return max(0.0, self._until.get(client, 0.0) - self._clock() - SAVED_S)

    def charge(self, client: str, seconds: float) -> None:
        """Count the loop's time for a client."""
        now = self._clock()
        self._until[client] = max(self._until.pop(client, now), now) + seconds / SHARE
        while len(self._until) > MAX_CLIENTS:
            del self._until[next(iter(self._until))]

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[bool]:
        """Wait for a request's turn, and charge the request; False: the client has asked for too much."""
        at_once = self._under_way.of(client)
        if at_once >= MAX_AT_ONCE:
            yield False
            return
        wait_s = 0.0 if at_once < FREE_AT_ONCE else self.wait_s(client)
        admitted = wait_s <= MAX_WAIT_S
        if admitted:
            self.charge(client, REQUEST_S)
        self._under_way.take(client)
        try:
            if wait_s:  # a refusal waits too, or the client would ask again at once
                await asyncio.sleep(min(wait_s, MAX_WAIT_S))
            yield admitted
        finally:
            self._under_way.give_back(client)


class BodyTooLarge(Exception):  # noqa: N818 (no error of farm: it never leaves this module)
    """More came than fits."""


class Guard:
    """Refuses strangers' requests before anything else looks at them."""

    def __init__(
        self, app: ASGIApp, *, host: str, allow_hosts: Iterable[str], on_forged: Callable[[Scope], Awaitable[None]],
        pace: Pace, client: Callable[[Scope], str],
    ) -> None:  # fmt: skip
        """Prepare.

        Args:
            app: the application.
            host: where the page listens.
            allow_hosts: further names of it.
            on_forged: gets actions that another site sent, or that came under a name that is not ours.
            pace: of the requests.
            client: of a request.
        """
        self._app = app
        self._pace = pace
        self._client = client
        self._on_forged = on_forged
        self._names = allowed_names(host, allow_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        began = False

        async def with_headers(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            elif scope["method"] == "HEAD" and message.get("more_body"):  # a long answer, or one without end
                await send({"type": "http.response.body"})
                raise ClientDisconnect
            await send(message)

        try:
            refused = self._refuse(scope)
            if refused is not None:
                if refused[0] in _FORGED and scope["method"] in UNSAFE_METHODS:
                    await self._on_forged(scope)
                await _answer(with_headers, *refused)
                return
            async with AsyncExitStack() as turn:
                admitted = await turn.enter_async_context(self._pace.turn(self._client(scope)))
                if scope["path"] == STREAM:  # it lasts as long as a page is open
                    await turn.aclose()
                if admitted:
                    await self._app(scope, _bounded(receive), with_headers)
                else:
                    await _answer(with_headers, *TOO_MANY)
        except ClientDisconnect:  # in the middle of a form: there is no client to answer; or all is answered
            return
        except BodyTooLarge:
            if not began:
                await _answer(with_headers, 413, "This request is too large", "Send less in one form.")
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not began:
                await _answer(with_headers, 500, "This page failed inside the farm", OUR_MISTAKE)

    def _refuse(self, scope: Scope) -> tuple[int, str, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self._names:
            return 421, "The farm is not known by this name", NOT_OUR_NAME
        if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > MAX_TARGET_BYTES:
            return 414, "This address is too long", "Go back to the fleet: /"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:12]) > MAX_BODY_BYTES:
            return 413, "This request is too large", "Send less in one form."
        if scope["method"] in UNSAFE_METHODS and cross_site(headers):
            return 403, "Another site sent this request", "Nothing was done. Open the page itself and try again."
        return None


def _bounded(receive: Receive) -> Receive:
    """`receive` that ends a body sent without its length."""
    so_far = 0

    async def bounded() -> Message:
        nonlocal so_far
        message = await receive()
        if message["type"] == "http.request":
            so_far += len(message.get("body", b""))
            if so_far > MAX_BODY_BYTES:
                raise BodyTooLarge
        return message

    return bounded


async def _answer(send: Send, status: int, message: str, hint: str) -> None:
    """A page that needs no template: of a stranger's request nothing is repeated."""
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(message)}</title>'
        f"<h1>{escape(message)}</h1><p>{escape(hint)}</p>"
    ).encode()
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
