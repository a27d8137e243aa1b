"""The web page as one FastAPI application: its routes and errors, static files, signing in and out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import Scope

from farm import __version__
from farm.bundle.library import NoSuchBundleError
from farm.common.errors import Code, FarmError, Fault, NoPhoneError, NoSuchDeviceError, NotAllowedError
from farm.common.events import EventLog
from farm.common.tasks import SharedCall
from farm.config import WebConfig
from farm.control.audit import FORGED, OK, WRONG_TOKEN
from farm.control.callers import Accounts, Caller
from farm.head.queue.model import NoSuchJobError
from farm.metrics.exposition import content_type_of
from farm.model.requests import NoSuchLeaseError
from farm.web import devices, hosts, jobs, leases, measured
from farm.web.guard import UNSAFE_METHODS, Guard
from farm.web.page import (
    COOKIE,
    SIGN_IN,
    VerbApi,
    Web,
    address_of,
    audit_refusal,
    caller_of,
    done,
    form_of,
    guard_requests,
    identify,
    own_path,
    render,
    sign_in_of,
    web_of,
)
from farm.web.rendering import make_templates, read_assets
from farm.web.stream import HintReaders, HintStream, number_of

A_YEAR = "public, max-age=31536000, immutable"
# Errors about a name of which there is nothing: their page has the status 404.
NOT_FOUND = frozenset(
    {
        NoSuchDeviceError.code, NoSuchJobError.code, NoSuchLeaseError.code, NoSuchBundleError.code,
        Code.NO_SUCH_ARTIFACT, Code.NO_SUCH_FILE, Code.NO_SUCH_RECORDS,
    }
)  # fmt: skip

router = APIRouter()


def create_app(
    verbs: VerbApi,
    accounts: Accounts,
    events: EventLog,
    metrics: Callable[[str], Coroutine[Any, Any, tuple[bytes, str]]],
    config: WebConfig,
    *,
    lab: bool = False,
) -> FastAPI:
    """The page.

    Args:
        verbs: answers verbs, each in the caller's role.
        accounts: whom tokens belong to.
        events: what happens.
        metrics: what /metrics answers to an Accept header, and its content type (farm.daemon.monitoring).
        config: under which names the page may be asked for, and whether readers sign in.
        lab: whether this host is one of several.
    """
    app = FastAPI(
        title="farm",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(guard_requests)],
    )
    assets = read_assets()
    app.state.web = Web(
        verbs, accounts, events, assets, make_templates(assets), __version__, config, hosts.other_hosts(verbs), lab
    )
    accounts.on_revoked(app.state.web.sign_ins.end_of)
    app.state.hints = HintReaders(events)
    scrape = SharedCall(metrics)
    app.state.metrics = lambda accept: scrape(content_type_of(accept))
    for each in (router, devices.router, hosts.router, leases.router, jobs.router, measured.router):
        for route in each.routes:
            if isinstance(route, APIRoute) and "GET" in (methods := route.methods or set()):
                methods.add("HEAD")  # RFC 9110 §9.1; the server leaves the body out
        app.include_router(each)
    app.add_exception_handler(FarmError, _farm_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_middleware(
        Guard, host=config.host, allow_hosts=config.allow_hosts, on_forged=_audit_forged, pace=app.state.web.pace,
        client=partial(_client, app.state.web),
    )  # fmt: skip
    return app


def _client(web: Web, scope: Scope) -> str:
    return web.client_of(HTTPConnection(scope))


async def _audit_forged(scope: Scope) -> None:
    await audit_refusal(Request(scope), FORGED)


@router.get("/static/{version}/{path:path}")
async def static_file(request: Request, version: str, path: str) -> Response:
    """One of the page's own files; its address changes with it."""
    asset = web_of(request).assets.get(path)
    if asset is None or asset.version != version:
        raise HTTPException(404)
    return Response(asset.body, media_type=asset.media_type, headers={"cache-control": A_YEAR})


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    """The icon that browsers request by themselves."""
    asset = web_of(request).assets["icon.svg"]
    return Response(asset.body, media_type=asset.media_type, headers={"cache-control": "public, max-age=86400"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus. One rendering serves all who ask at once."""
    web, begun_s = web_of(request), time.monotonic()
    body, content_type = await request.app.state.metrics(request.headers.get("accept", ""))
    web.pace.charge(web.client_of(request), time.monotonic() - begun_s)
    return Response(body, headers={"content-type": content_type})


@router.get("/events")
async def events(request: Request, since: str | None = None) -> Response:
    """Hints of events after `since` (or the browser's Last-Event-ID), without end."""
    hints: HintReaders = request.app.state.hints
    leave = hints.enter(caller_of(request).user)
    if leave is None:
        return PlainTextResponse("too many pages are open; try again later\n", 503, headers={"retry-after": "10"})
    start = number_of(request.headers.get("last-event-id")) or number_of(since)
    return HintStream(() if request.method == "HEAD" else hints.read(start), leave)


# --- signing in with a token of `farm auth new NAME --role ROLE --web`, and out ---------------------------------------


@router.get(SIGN_IN)
async def ask_for_token(request: Request, to: Annotated[str, Query()] = "/") -> Response:
    """The form."""
    return render(request, "sign_in.html", to=own_path(to), wrong="")


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Sign in by a token; a wrong one is reported, and makes the next one wait."""
    web, address = web_of(request), address_of(request)
    form = await form_of(request)
    to = own_path(form.get("to", "/"))
    waited = web.accounts.tokens.wait_s(address) > 0
    account = await web.accounts.by_token(form.get("token", "").strip(), address)
    if account is None:
        await web.verbs.audit(caller_of(request), "auth.sign_in", "", WRONG_TOKEN)
    if account is None and waited:  # a good token gets in meanwhile: a neighbour's wrong ones lock no user out
        wait_s = math.ceil(web.accounts.tokens.wait_s(address))
        wrong = f"Too many wrong tokens from here: wait {wait_s} s and try again."
        answer: Response = render(request, "sign_in.html", status=429, to=to, wrong=wrong)
        answer.headers["retry-after"] = str(wait_s)
        return answer
    if account is None:
        return render(request, "sign_in.html", status=403, to=to, wrong="The farm knows no such token.")
    await web.accounts.noted(account)
    before = sign_in_of(request)
    if before is not None:
        web.sign_ins.end(before.id)
    caller = Caller(account.user, account.role, f"web token {account.user} from {address}")
    await web.verbs.audit(caller, "auth.sign_in", "", OK)
    begun = web.sign_ins.begin(account.user)
    begun.notice = f"You are signed in as {account.user} ({account.role.name.lower()})."
    answer = done(request, "", to)
    answer.set_cookie(
        COOKIE, begun.id, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Sign out."""
    begun = sign_in_of(request)
    if begun is not None:
        await web_of(request).verbs.audit(caller_of(request), "auth.sign_out", "", OK)
        web_of(request).sign_ins.end(begun.id)
    answer = done(request, "", "/")
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


# --- errors -----------------------------------------------------------------------------------------------------------


def status_of(error: FarmError) -> int:
    """The HTTP status of an error."""
    if error.code == Code.SIGN_IN_NEEDED:
        return 401
    if isinstance(error, NotAllowedError):
        return 403
    if error.code in NOT_FOUND:
        return 404
    if isinstance(error, NoPhoneError):
        return 409
    return {Fault.USER: 400, Fault.PHONE: 502, Fault.HOST: 503}.get(error.fault, 500)


async def _page(request: Request, status: int, message: str, hint: str) -> HTMLResponse:
    with suppress(FarmError):  # an address without a page passes no guard
        await identify(request)
    return render(request, "error.html", status=status, message=message, hint=hint, status_code=status)


async def _farm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FarmError)
    if error.code == Code.SIGN_IN_NEEDED and request.method not in UNSAFE_METHODS:
        query = f"?{request.url.query}" if request.url.query else ""
        return render(request, "sign_in.html", status=401, to=own_path(request.url.path + query), wrong="")
    return await _page(request, status_of(error), error.message, error.hint)


_MESSAGES = {
    404: ("There is no such page", "The address may be mistyped, or the thing is gone: start from the fleet."),
    405: ("This address does not do that", "Open the page itself and use its buttons."),
}


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, hint = _MESSAGES.get(error.status_code, (str(error.detail), ""))
    return await _page(request, error.status_code, message, hint)


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    where = ", ".join(str(each["loc"][-1]) for each in error.errors())
    return await _page(request, 400, f"The page does not understand this address: {where}", "Go back and choose again.")
