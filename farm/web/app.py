"""The web page as one FastAPI application: its routes, its errors, its guard."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from farm import __version__
from farm.control.accounts import Accounts
from farm.core.errors import FarmError, Fault, NoPhoneError, NoSuchDeviceError, NotAllowedError
from farm.core.events import EventLog
from farm.core.web_policy import WebConfig
from farm.web import bundles, device, fleet, jobs, leases, measured, queue, sign_in
from farm.web.assets import read_assets
from farm.web.guard import Guard
from farm.web.page import (
    Desk,
    SignInNeededError,
    Web,
    address_of,
    caller_of,
    guard_actions,
    make_templates,
    render,
    web_of,
)
from farm.web.stream import Hints, number_of

A_YEAR = "public, max-age=31536000, immutable"

router = APIRouter()


def create_app(
    desk: Desk, accounts: Accounts, events: EventLog, metrics: Callable[[str], tuple[bytes, str]], config: WebConfig
) -> FastAPI:
    """The page.

    Args:
        desk: answers verbs, each in the role of whoever asks.
        accounts: whom tokens belong to.
        events: what happens.
        metrics: what /metrics answers to an Accept header, and its content type (farm.metrics.exposition).
        config: under which names the page may be asked for.
    """
    app = FastAPI(
        title="farm",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(guard_actions)],
    )
    assets = read_assets()
    app.state.web = Web(desk, accounts, events, assets, make_templates(assets), __version__)
    accounts.on_revoked(app.state.web.sessions.end_of)
    app.state.hints = Hints(events)
    app.state.metrics = metrics
    pages = (sign_in, fleet, device, leases, bundles, jobs, queue, measured)
    for each in (router, *(page.router for page in pages)):
        app.include_router(each)
    app.add_exception_handler(FarmError, _farm_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_middleware(Guard, host=config.host, allow_hosts=config.allow_hosts)
    return app


@router.get("/static/{version}/{path:path}")
async def static_file(request: Request, version: str, path: str) -> Response:
    """One of the page's own files; its address changes with it."""
    asset = web_of(request).assets.get(path)
    if asset is None or asset.version != version:
        raise HTTPException(404)
    return Response(asset.body, media_type=asset.media_type, headers={"cache-control": A_YEAR})


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    """What browsers ask for by themselves."""
    asset = web_of(request).assets["icon.svg"]
    return Response(asset.body, media_type=asset.media_type, headers={"cache-control": "public, max-age=86400"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    body, content_type = request.app.state.metrics(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


@router.get("/events")
async def events(request: Request, since: str | None = None) -> Response:
    """Hints of what happens, after `since` (or the browser's Last-Event-ID), without end."""
    hints: Hints = request.app.state.hints
    account, address = caller_of(request).user, address_of(request)
    if not hints.has_room(account, address):
        return PlainTextResponse("too many pages are open; try again later\n", 503, headers={"retry-after": "10"})
    start = number_of(request.headers.get("last-event-id")) or number_of(since)
    return StreamingResponse(
        hints.read(start, account, address),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def status_of(error: FarmError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, SignInNeededError):
        return 401
    if isinstance(error, NotAllowedError):
        return 403
    if isinstance(error, NoSuchDeviceError) or error.code.startswith("no_such"):
        return 404
    if isinstance(error, NoPhoneError):
        return 409
    return {Fault.USER: 400, Fault.PHONE: 502, Fault.HOST: 503}.get(error.fault, 500)


def _page(request: Request, status: int, said: str, hint: str) -> HTMLResponse:
    return render(request, "error.html", status=status, said=said, hint=hint, status_code=status)


async def _farm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FarmError)
    return _page(request, status_of(error), error.message, error.hint)


_SAID = {
    404: ("There is no such page", "The address may be mistyped, or the thing is gone: start from the fleet."),
    405: ("This address does not do that", "Open the page itself and use its buttons."),
}


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said, hint = _SAID.get(error.status_code, (str(error.detail), ""))
    return _page(request, error.status_code, said, hint)


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    where = ", ".join(str(each["loc"][-1]) for each in error.errors())
    return _page(request, 400, f"The page does not understand this address: {where}", "Go back and choose again.")
