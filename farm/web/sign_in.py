"""Signing in with a token of `farm auth new NAME --role ROLE --web`, and out."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from farm.control.audit import OK, WRONG_TOKEN
from farm.control.callers import Caller
from farm.web.page import COOKIE, SIGN_IN, address_of, caller_of, done, form_of, own_path, render, session_of, web_of

router = APIRouter()


@router.get(SIGN_IN)
async def ask_for_token(request: Request, to: Annotated[str, Query()] = "/") -> Response:
    """The form."""
    return render(request, "sign_in.html", to=own_path(to), wrong="")


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Begin a session for a good token; a wrong one is told, and makes the next wait."""
    web, address = web_of(request), address_of(request)
    form = await form_of(request)
    to = own_path(form.get("to", "/"))
    waited = web.accounts.tokens.wait_s(address) > 0
    account = web.accounts.by_token(form.get("token", "").strip(), address)
    if account is None:
        await web.desk.tell(caller_of(request), "auth.sign_in", "", WRONG_TOKEN)
    if account is None and waited:  # a good token gets in meanwhile: a neighbour's wrong ones lock nobody out
        wait_s = math.ceil(web.accounts.tokens.wait_s(address))
        wrong = f"Too many wrong tokens from here: wait {wait_s} s and try again."
        answer: Response = render(request, "sign_in.html", status=429, to=to, wrong=wrong)
        answer.headers["retry-after"] = str(wait_s)
        return answer
    if account is None:
        return render(request, "sign_in.html", status=403, to=to, wrong="The farm knows no such token.")
    await web.accounts.noted(account)
    before = session_of(request)
    if before is not None:
        web.sessions.end(before.id)
    caller = Caller(account.name, account.role, f"web token {account.name} from {address}")
    await web.desk.tell(caller, "auth.sign_in", "", OK)
    session = web.sessions.begin(account.name)
    session.notice = f"You are signed in as {account.name} ({account.role.name.lower()})."
    answer = done(request, "", to)
    answer.set_cookie(
        COOKIE, session.id, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session."""
    session = session_of(request)
    if session is not None:
        await web_of(request).desk.tell(caller_of(request), "auth.sign_out", "", OK)
        web_of(request).sessions.end(session.id)
    answer = done(request, "", "/")
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer
