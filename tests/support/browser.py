"""Real headless Chromium on the page of a real farm: what it asks for and what its console says are watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.waiting import HANG_S

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = (
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}
# Pixels of all canvases of the page that are neither transparent nor the canvas's commonest colour.
DRAWN = """() => [...document.querySelectorAll('canvas')].map((canvas) => {
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  let drawn = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 40) {
    drawn += 1;
    colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  }
  return [drawn, colours.size];
})"""


@dataclass
class Watched:
    """One browser profile at a farm's page."""

    url: str
    context: BrowserContext
    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # of the console, and scripts that failed

    def open(self, path: str) -> Page:
        """Go to a page of the farm."""
        self.page.goto(self.url + path)
        return self.page

    def strangers(self) -> list[str]:
        """Requests that left the farm's own page."""
        own = urlsplit(self.url).netloc
        return [each for each in self.requests if urlsplit(each).netloc != own]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def profile(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """A fresh profile; `options` are Playwright's (color_scheme, viewport, java_script_enabled)."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    page = context.new_page()
    page.set_default_timeout(HANG_S * 1000)
    watched = Watched(url.rstrip("/"), context, page)
    page.on("request", lambda request: watched.requests.append(request.url))
    page.on(
        "console",
        lambda message: watched.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    try:
        yield watched
    finally:
        context.close()


def sign_in(web: Watched, secret: str, to: str = "/") -> Page:
    """Sign in by a token; returns the page `to`."""
    page = web.open(f"/sign-in?to={to}")
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    return page


def violations(web: Watched, paths: Sequence[str]) -> dict[str, list[str]]:
    """What axe finds on pages, and pages that are wider than the screen."""
    rules = {"target-size": {"enabled": True}}  # WCAG 2.2; off by default
    found = {}
    for path in paths:
        page = web.open(path)
        answer = Axe().run(page, options={"rules": rules, "resultTypes": ["violations"]}).response
        wrong = [f"{each['id']}: {node['html'][:160]}" for each in answer["violations"] for node in each["nodes"]]
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wrong.append("the page is wider than the screen")
        if wrong:
            found[path] = wrong
    return found
