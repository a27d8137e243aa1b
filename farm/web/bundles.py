"""Runtime bundles and toolchains."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from farm.web.page import ask, render

router = APIRouter(prefix="/bundles")


@router.get("")
async def bundles(request: Request) -> Response:
    """The page."""
    found = (await ask(request, "bundle.list"))["bundles"]
    devices = (await ask(request, "status"))["devices"]
    on: dict[str, list[str]] = {}
    for device in devices:
        if device["bundle"]:
            on.setdefault(device["bundle"], []).append(device["name"])
    return render(
        request,
        "bundles.html",
        bundles=found,
        on=on,
        toolchains=(await ask(request, "toolchain.list"))["toolchains"],
    )
