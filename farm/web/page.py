"""What every page stands on: who asks, the verbs they ask by, templates, and what guards an action.

A page is a function that asks verbs (`ask`) and renders a template (`render`). An action is a POST of a form with the
session's `csrf`; it asks one verb and answers with a redirect (`done`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse

from farm.control.accounts import Accounts
from farm.control.callers import Caller, Role
from farm.control.forms import FieldError
from farm.control.router import Answer
from farm.core.errors import NotAllowedError, UserError
from farm.core.events import EventLog
from farm.web import words
from farm.web.assets import Asset
from farm.web.hosts import UNSAFE_METHODS
from farm.web.session import Session, Sessions

COOKIE = "farm_session"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
MOST_FIELDS = 40
SEE_OTHER = 303
SIGN_IN = "/sign-in"
FORCE_HINT = "Nothing was done; wait for the end of the lease, or tick “even while somebody holds it”."
FORM_HINT = "Nothing was done; go back and send the form again."


class Desk(Protocol):
    """farm.control.server.ControlServer, as far as the page needs it."""

    async def ask(self, caller: Caller, kind: str, fields: Mapping[str, Any]) -> Answer:
        """Call a verb as anybody would by the job door."""

    async def tell(self, caller: Caller, kind: str, about: str, outcome: str) -> None:
        """Write down what was done without a verb."""


class SignInNeededError(NotAllowedError):
    """This needs somebody who is signed in."""

    code = "sign_in"


class FormExpiredError(UserError):
    """This form is not from your session: it is older than your last sign-in, or from elsewhere."""

    code = "form_expired"


@dataclass(frozen=True, slots=True)
class Web:
    """What the pages of one daemon share."""

    desk: Desk
    accounts: Accounts
    events: EventLog
    assets: Mapping[str, Asset]
    templates: Environment
    version: str
    sessions: Sessions = field(default_factory=Sessions)
    drawing: asyncio.Lock = field(default_factory=asyncio.Lock)  # one plot at a time: others need threads too


def make_templates(assets: Mapping[str, Asset]) -> Environment:
    """The templates; whatever is put into them is escaped."""
    environment = Environment(
        loader=PackageLoader("farm.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(words.FILTERS)

    def static(path: str) -> str:
        return f"/static/{assets[path].version}/{path}"

    environment.globals["static"] = static
    environment.globals["Role"] = Role
    return environment


def web_of(request: Request) -> Web:
    """What this request's daemon shares between pages."""
    web: Web = request.app.state.web
    return web


def session_of(request: Request) -> Session | None:
    """The session of whoever asks, if they are signed in."""
    _identify(request)
    session: Session | None = request.state.session
    return session


def caller_of(request: Request) -> Caller:
    """Who asks: the account of their session, else a viewer without a name."""
    _identify(request)
    caller: Caller = request.state.caller
    return caller


def _identify(request: Request) -> None:
    if hasattr(request.state, "caller"):
        return
    web, address = web_of(request), address_of(request)
    cookie = request.cookies.get(COOKIE)
    session = web.sessions.get(cookie) if cookie else None
    account = web.accounts.named(session.account) if session else None
    if session is not None and account is None:
        web.sessions.end(session.id)
        session = None
    request.state.session = session
    request.state.caller = (
        Caller(user="", role=Role.VIEWER, origin=f"web page from {address}")
        if account is None
        else Caller(user=account.name, role=account.role, origin=f"web token {account.name} from {address}")
    )


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else "nowhere"


async def ask(request: Request, kind: str, **fields: Any) -> Mapping[str, Any]:
    """What a verb answers to whoever asks for the page.

    Raises:
        FarmError: what the verb raises; it becomes an error page. A field is called as the page's forms call it.
    """
    try:
        return (await web_of(request).desk.ask(caller_of(request), kind, fields)).fields
    except FieldError as error:
        hint = FORM_HINT if "--" in error.hint else error.hint or FORM_HINT  # a page has no options
        raise UserError(f"{words.field(error.field)} {error.said}", hint=hint) from error
    except UserError as error:
        if "--force" in error.hint:
            error.hint = FORCE_HINT
        raise


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page, or a part of one, from a template under farm/web/templates.

    Templates have `caller`, `signed_in`, `csrf`, `notice`, `path` (of this page), `seq` (newest event), `version`.
    """
    web, session = web_of(request), session_of(request)
    part = request.headers.get("hx-request") == "true"
    notice = ""
    if session is not None and session.notice and not part:
        notice, session.notice = session.notice, ""
    body = web.templates.get_template(template).render(
        caller=caller_of(request),
        signed_in=session is not None,
        csrf=session.csrf if session else "",
        notice=notice,
        path=request.url.path,
        seq=web.events.seq,
        version=web.version,
        request=request,
        **context,
    )
    return HTMLResponse(body, status)


def done(request: Request, notice: str, to: str) -> RedirectResponse:
    """An action's answer: back to a page of ours, which says `notice` once."""
    session = session_of(request)
    if session is not None:
        session.notice = notice
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
    """The text fields of a form; files are left out.

    Raises:
        UserError: it is no form.
    """
    try:
        form = await request.form(max_files=0, max_fields=MOST_FIELDS)
    except HTTPException as error:
        raise UserError("this is no form that the farm understands", hint="go back and send it again") from error
    return {name: value for name, value in form.multi_items() if not isinstance(value, UploadFile)}


async def guard_actions(request: Request) -> None:
    """Before every route: whatever may change something needs a session, and that session's csrf.

    Raises:
        SignInNeededError: nobody is signed in.
        FormExpiredError: the form is not of this session.
    """
    if request.method not in UNSAFE_METHODS or request.url.path == SIGN_IN:
        return
    session = session_of(request)
    if session is None:
        raise SignInNeededError(hint="sign in with a token: farm auth new NAME --role user --web prints one")
    given = request.headers.get(CSRF_HEADER) or (await form_of(request)).get(CSRF_FIELD, "")
    if not secrets.compare_digest(given.encode(), session.csrf.encode()):
        raise FormExpiredError(hint="nothing was done; go back, reload the page and try again")
