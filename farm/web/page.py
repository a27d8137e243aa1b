"""The base of every page: sign-ins, the caller, the calls of verbs, and the guards of an action.

A page is a function that asks verbs (`ask`) and renders a template (`render`). An action is a POST of a form with the
sign-in's `csrf`; it asks one verb and answers with a redirect (`done`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.routing import APIRoute
from jinja2 import Environment
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response

from farm.common.errors import Code, FarmError, NotAllowedError, UserError
from farm.common.events import EventLog
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter
from farm.common.verbs import FieldError
from farm.config import WebConfig
from farm.control.callers import Accounts, Caller, Role
from farm.control.router import Answer
from farm.web import rendering
from farm.web.guard import UNSAFE_METHODS, Pace, is_loopback, network_of
from farm.web.rendering import Asset

COOKIE = "farm_session"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
MAX_FIELDS = 256  # a box for each row of the longest list
SEE_OTHER = 303
SIGN_IN = "/sign-in"
PUBLIC = frozenset({"/favicon.ico", "/metrics"})  # for every client that reaches the port
FORCE_HINT = "Nothing was done; wait for the end of the lease, or tick “even while it is leased”."
IDLE_S = 8 * 3600.0  # a working day
MAX_S = 24 * 3600.0  # of a sign-in
MAX_SIGN_INS = 256
MAX_SIGN_INS_OF_ONE = 16  # browsers of one account; tokens of scripts sign in once and keep their cookie
ID_BYTES = 32
FORM_HINT = "Nothing was done; go back and send the form again."


@dataclass(slots=True)
class SignIn:
    """One browser that showed a token."""

    id: str
    csrf: str
    account: str
    began_s: float
    seen_s: float
    notice: str = ""  # shown on the next page, once
    place: ClientPlace[str] = field(init=False, repr=False)


class SignIns:
    """Sign-ins by the value of their cookie. The account's longest unused one makes room."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sign_ins: dict[str, SignIn] = {}
        self._admission: ClientLimiter[str] = ClientLimiter(Limiter(MAX_SIGN_INS, MAX_SIGN_INS_OF_ONE))

    def __len__(self) -> int:
        return len(self._sign_ins)

    def begin(self, account: str) -> SignIn:
        """Sign in an account whose token was shown."""
        now = self._clock()
        sign_in = SignIn(secrets.token_urlsafe(ID_BYTES), secrets.token_urlsafe(ID_BYTES), account, now, now)
        place = self._admission.enter(account, partial(self.end, sign_in.id))
        assert place is not None  # every sign-in may be ended for another one
        sign_in.place = place
        self._sign_ins[sign_in.id] = sign_in
        return sign_in

    def get(self, sign_in_id: str) -> SignIn | None:
        """The sign-in of a cookie, if it is not over."""
        sign_in = self._sign_ins.get(sign_in_id)
        if sign_in is None:
            return None
        now = self._clock()
        if now - sign_in.seen_s > IDLE_S or now - sign_in.began_s > MAX_S:
            self.end(sign_in_id)
            return None
        sign_in.seen_s = now
        self._admission.mark_silent(sign_in.place)
        return sign_in

    def end(self, sign_in_id: str) -> None:
        """Sign out."""
        sign_in = self._sign_ins.pop(sign_in_id, None)
        if sign_in is not None:
            self._admission.leave(sign_in.place)

    def end_of(self, account: str) -> None:
        """End every sign-in of an account that is revoked."""
        for sign_in in [each for each in self._sign_ins.values() if each.account == account]:
            self.end(sign_in.id)


class VerbApi(Protocol):
    """farm.control.server.ControlServer, as far as the page needs it."""

    async def ask(self, caller: Caller, kind: str, fields: Mapping[str, Any]) -> Answer:
        """Call a verb as through the control channel."""

    async def audit(self, caller: Caller, kind: str, about: str, outcome: str) -> None:
        """Write down an action that had no verb."""


@dataclass(frozen=True, slots=True)
class Web:
    """The parts that the pages of one daemon share."""

    verbs: VerbApi
    accounts: Accounts
    events: EventLog
    assets: Mapping[str, Asset]
    templates: Environment
    version: str
    config: WebConfig
    of_other_hosts: Callable[[tuple[str, str]], Awaitable[Mapping[str, Any]]]  # farm.web.hosts.other_hosts
    lab: bool
    sign_ins: SignIns = field(default_factory=SignIns)
    pace: Pace = field(default_factory=Pace)
    heavy_work: asyncio.Lock = field(default_factory=asyncio.Lock)  # plots and CSV files are made one at a time

    def client_of(self, connection: HTTPConnection) -> str:
        """Whom `pace` charges for a request: the account that is signed in, else the network."""
        cookie = connection.cookies.get(COOKIE)
        sign_in = self.sign_ins.get(cookie) if cookie else None
        return f"account {sign_in.account}" if sign_in is not None else network_of(address_of(connection))


class PageRoute(APIRoute):
    """The route of a page. One rendering serves all readers of one network who ask at once without a sign-in.

    A reader who is signed in gets a rendering of their own, which shows what they have just ordered.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI's, shared."""
        handler = super().get_route_handler()
        running: dict[tuple[str | None, ...], asyncio.Task[Response]] = {}

        async def answer(request: Request) -> Response:
            if request.method != "GET" or COOKIE in request.cookies:
                return await handler(request)
            key = (network_of(address_of(request)), str(request.url), request.headers.get("hx-request"))
            if (shared := running.get(key)) is not None:
                response = await asyncio.shield(shared)
                return response if isinstance(response, HTMLResponse) else await handler(request)
            task = running[key] = asyncio.create_task(handler(request))
            task.add_done_callback(partial(ended, key))
            return await asyncio.shield(task)

        def ended(key: tuple[str | None, ...], task: asyncio.Task[Response]) -> None:
            del running[key]
            if not task.cancelled():
                task.exception()  # its readers have it, if there are any left

        return answer


def web_of(request: Request) -> Web:
    """The shared parts of the request's daemon."""
    web: Web = request.app.state.web
    return web


def sign_in_of(request: Request) -> SignIn | None:
    """The caller's sign-in, if they are signed in and `identify` was called."""
    return getattr(request.state, "sign_in", None)


def caller_of(request: Request) -> Caller:
    """The account that is signed in, else a viewer without a name."""
    found: Caller | None = getattr(request.state, "caller", None)
    return found or Caller(user="", role=Role.VIEWER, origin=f"web page from {address_of(request)}")


async def identify(request: Request) -> None:
    """Find the request's user, once for each request.

    Raises:
        HostError: the database cannot be read; the caller stays a viewer without a name.
    """
    if caller_of(request).user:
        return
    web, address = web_of(request), address_of(request)
    cookie = request.cookies.get(COOKIE)
    sign_in = web.sign_ins.get(cookie) if cookie else None
    if sign_in is None:
        return
    account = await web.accounts.named(sign_in.account)
    if account is None:
        web.sign_ins.end(sign_in.id)
        return
    request.state.sign_in = sign_in
    request.state.caller = Caller(account.user, account.role, f"web token {account.user} from {address}")


def address_of(request: HTTPConnection) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else "nowhere"


async def ask(request: Request, kind: str, **fields: Any) -> Mapping[str, Any]:
    """The answer of a verb to the page's caller.

    Raises:
        FarmError: what the verb raises; it becomes an error page. A field is called as the page's forms call it.
    """
    try:
        return (await web_of(request).verbs.ask(caller_of(request), kind, fields)).fields
    except FieldError as error:
        problem = f"{rendering.field(error.field)} {error.problem}"
        raise UserError(problem, hint=f"{error.hint}. {FORM_HINT}".removeprefix(". ")) from error
    except UserError as error:
        if error.code == Code.DEVICE_HELD:
            error.hint = FORCE_HINT
        raise


def render(request: Request, template: str, *, part: str = "", status: int = 200, **context: Any) -> HTMLResponse:
    """A page from a template under farm/web/templates; to a page that is open already, `part`, its changing part.

    Templates have `caller`, `signed_in`, `may_read`, `csrf`, `notice`, `path` (of this page), `seq` (newest event),
    `version` and `lab` (whether this host is one of several).
    """
    web, sign_in = web_of(request), sign_in_of(request)
    is_open = request.headers.get("hx-request") == "true"
    notice = ""
    if sign_in is not None and sign_in.notice and not is_open:
        notice, sign_in.notice = sign_in.notice, ""
    begun_s = time.monotonic()
    body = web.templates.get_template(part if is_open and part else template).render(
        caller=caller_of(request),
        signed_in=sign_in is not None,
        may_read=may_read(request),
        csrf=sign_in.csrf if sign_in else "",
        notice=notice,
        path=request.url.path,
        seq=web.events.seq,
        version=web.version,
        lab=web.lab,
        request=request,
        **context,
    )
    web.pace.charge(web.client_of(request), time.monotonic() - begun_s)
    return HTMLResponse(body, status)


def done(request: Request, notice: str, to: str) -> RedirectResponse:
    """An action's answer: back to a page of ours, which says `notice` once."""
    sign_in = sign_in_of(request)
    if sign_in is not None:
        sign_in.notice = notice
    return RedirectResponse(own_path(to), SEE_OTHER)


def own_path(path: str) -> str:
    r"""`path` if it leads to a page of ours, else the first page: `//host` and `/\host` lead elsewhere."""
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    leads_here = path.startswith("/") and not parts.netloc and not parts.scheme and not path.startswith(("//", "/\\"))
    return path if leads_here and path.isprintable() else "/"


async def form_of(request: Request) -> dict[str, str]:
    """The text fields of a form by name; files are left out.

    Raises:
        UserError: it is no form.
    """
    return dict(await form_fields(request))


async def form_fields(request: Request) -> list[tuple[str, str]]:
    """The text fields of a form in order; several boxes may have one name.

    Raises:
        UserError: it is no form.
    """
    try:
        form = await request.form(max_files=0, max_fields=MAX_FIELDS)
    except HTTPException as error:
        raise UserError("this is no form that the farm understands", hint="go back and send it again") from error
    return [(name, value) for name, value in form.multi_items() if not isinstance(value, UploadFile)]


def may_read(request: Request) -> bool:
    """Whether the caller may read pages: a signed-in user, and with `read = "loopback"` users of this host."""
    nameless = web_of(request).config.read == "loopback" and is_loopback(address_of(request))
    return nameless or sign_in_of(request) is not None


async def audit_refusal(request: Request, outcome: str) -> None:
    """Write down an action that was refused before any verb was asked: a form without a sign-in, or a forged one."""
    with suppress(FarmError):
        await identify(request)
    await web_of(request).verbs.audit(caller_of(request), "web.action", request.url.path, outcome)


async def guard_requests(request: Request) -> None:
    """Before every route: reading needs a sign-in where `[web] read` says so, an action one with its csrf.

    Raises:
        NotAllowedError: not signed in.
        UserError: the form is not of this sign-in.
    """
    path = request.url.path
    if path in PUBLIC or path.startswith("/static/"):
        return
    await identify(request)
    if path == SIGN_IN:
        return
    if request.method not in UNSAFE_METHODS and may_read(request):
        return
    sign_in = sign_in_of(request)
    if sign_in is None:
        if request.method in UNSAFE_METHODS:
            await audit_refusal(request, NotAllowedError.code)
        hint = "sign in with a token: farm auth new NAME --role user --web prints one"
        raise NotAllowedError(code=Code.SIGN_IN_NEEDED, hint=hint)
    given = request.headers.get(CSRF_HEADER) or (await form_of(request)).get(CSRF_FIELD, "")
    if not secrets.compare_digest(given.encode(), sign_in.csrf.encode()):
        await audit_refusal(request, Code.FORM_EXPIRED)
        raise UserError(
            code=Code.FORM_EXPIRED,
            hint="it is older than your sign-in; nothing was done: reload the page and try again",
        )
