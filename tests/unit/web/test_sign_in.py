"""Signing in and out of the page, and what each attempt leaves behind."""

import httpx
import pytest

from farm.config import WebConfig
from farm.control.callers import Role
from farm.web.page import own_path
from tests.support.web_desk import BASE, Desk, Page, page, status, text_of, view

TOKEN = WebConfig(read="token")
READ = ("/", "/jobs/bench-1/files/result?x=1", "/jobs/bench-1/log", "/events", "/devices/pixel/readings")


async def test_a_good_token_begins_a_session() -> None:
    async with page() as farm:
        token = await farm.account("ann", Role.OPERATOR)
        answer = await farm.client.post("/sign-in", data={"token": f" {token} ", "to": "/leases"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/leases")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert token not in cookie
        shown = text_of((await farm.client.get("/")).text)
        assert "You are signed in as ann (operator)." in shown
        assert "signed in as" not in text_of((await farm.client.get("/")).text)  # said once
        caller, _, _ = farm.desk.asked[-1]
        assert (caller.user, caller.role, caller.origin) == ("ann", Role.OPERATOR, "web token ann from 127.0.0.1")


async def test_a_wrong_token_is_told_and_then_has_to_wait() -> None:
    async with page() as farm:
        for _ in range(5):
            answer = await farm.client.post("/sign-in", data={"token": "farm_wrong"})
            assert answer.status_code == 403
            assert "knows no such token" in text_of(answer.text)
            assert "farm_wrong" not in answer.text
        answer = await farm.client.post("/sign-in", data={"token": "farm_wrong"})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "2"
        assert len(farm.web.sign_ins) == 0
        farm.clock += 2.5
        assert (await farm.client.post("/sign-in", data={"token": "farm_wrong"})).status_code == 403


async def test_wrong_tokens_of_one_address_lock_nobody_out_who_has_a_good_one() -> None:
    async with page() as farm:
        token = await farm.account("ann", Role.USER)
        for _ in range(50):
            answer = await farm.client.post("/sign-in", data={"token": "farm_wrong"})
        assert answer.status_code == 429
        assert (await farm.client.post("/sign-in", data={"token": token})).status_code == 303


async def test_a_session_ends_with_its_account_and_by_signing_out() -> None:
    async with page(Desk(status=status(view()))) as farm:
        csrf = await farm.sign_in("ann")
        await farm.accounts.revoke("ann")
        assert len(farm.web.sign_ins) == 0
        answer = await farm.client.post("/devices/pixel/service", data={"csrf": csrf, "service": "in"})
        assert answer.status_code == 401
        csrf = await farm.sign_in("bob")
        assert (await farm.client.post("/sign-out", data={"csrf": csrf})).status_code == 303
        assert len(farm.web.sign_ins) == 0
        assert "Sign in" in text_of((await farm.client.get("/")).text)


async def test_who_is_signed_in_is_not_asked_to_sign_in() -> None:
    async with page() as farm:
        await farm.sign_in("ann")
        text = (await farm.client.get("/sign-in?to=/jobs")).text
    assert "You are signed in as ann" in text_of(text)
    assert 'name="token"' not in text


async def test_signing_in_again_is_another_session() -> None:
    async with page() as farm:
        await farm.sign_in("ann")
        before = farm.session.id
        await farm.sign_in("bob")
        assert farm.session.id != before


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/leases?x=1", True), ("/", True), ("//evil.example", False), ("/\\evil.example", False), ("", False),
        ("https://evil.example/", False), ("javascript:alert(1)", False), ("/a\r\nset-cookie: x=1", False),
        ("http://[", False), ("//[", False),
    ],
)  # fmt: skip
def test_nobody_is_led_elsewhere(path: str, own: bool) -> None:
    assert own_path(path) == (path if own else "/")


async def test_sign_in_sign_out_and_wrong_tokens_are_audited() -> None:
    async with page() as opened:
        await opened.client.post("/sign-in", data={"token": "farm_wrong"})
        csrf = await opened.sign_in("ann", Role.USER)
        await opened.client.post("/sign-out", data={"csrf": csrf})
        assert opened.desk.audited == [
            ("web page from 127.0.0.1", "auth.sign_in", "wrong_token"),
            ("web token ann from 127.0.0.1", "auth.sign_in", "ok"),
            ("web token ann from 127.0.0.1", "auth.sign_out", "ok"),
        ]


@pytest.mark.parametrize("path", READ)
async def test_a_farm_whose_readers_sign_in_shows_others_nothing(path: str) -> None:
    async with page(config=TOKEN) as farm:
        answer = await farm.client.get(path)
        assert answer.status_code == 401
        assert f'name="to" value="{path}"' in answer.text
        assert "Users of this host may read" not in answer.text
        assert "data-seq" not in answer.text  # nor does the page follow events
        assert (await farm.client.head(path)).status_code == 401
        assert farm.desk.asked == []
        for public in ("/sign-in", "/metrics", "/favicon.ico"):
            assert (await farm.client.get(public)).status_code == 200
        token = await farm.account("vera", Role.VIEWER)
        assert (await farm.client.post("/sign-in", data={"token": token})).status_code == 303
        assert (await farm.client.get("/")).status_code == 200
        await farm.accounts.revoke("vera")
        assert (await farm.client.get("/")).status_code == 401


async def test_readers_of_another_host_sign_in() -> None:
    elsewhere = httpx.ASGITransport(page_app := Page(Desk(status=status())).app, client=("10.0.0.7", 5555))
    async with httpx.AsyncClient(transport=elsewhere, base_url=BASE) as client:
        assert (await client.get("/")).status_code == 401
        assert (await client.get("/metrics")).status_code == 200
    assert page_app.state.web.config.read == "loopback"


async def test_users_of_this_host_read_without_a_sign_in_unless_the_configuration_says_otherwise() -> None:
    async with page() as farm:
        answer = await farm.client.get("/")
    assert answer.status_code == 200
    assert "Users of this host may read" in answer.text
