"""The pages of a lab of several hosts in real Chromium, over made-up verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from farm.control.callers import Role
from farm.web.server import WebServer
from tests.support.browser import CHROMIUM, chromium, profile, sign_in, violations
from tests.support.web_desk import lab_desk, page

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
async def test_axe_finds_nothing_on_the_pages_of_a_lab(width: int, scheme: str) -> None:
    async with page(lab_desk(), lab=True) as opened:
        token = await opened.account("axel", Role.OPERATOR)
        server = WebServer("127.0.0.1", 0)
        server.start(opened.app)
        try:
            found = await asyncio.to_thread(
                _violations, server.url, token, width, scheme, ("/hosts", "/", "/devices/away")
            )
        finally:
            await server.stop()
    assert found == {}


def _violations(url: str, secret: str, width: int, scheme: str, paths: Sequence[str]) -> dict[str, list[str]]:
    with (
        chromium() as browser,
        profile(browser, url, color_scheme=scheme, viewport={"width": width, "height": 900}) as web,
    ):
        sign_in(web, secret)
        return violations(web, paths)
