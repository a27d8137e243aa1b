"""Signing in and out of the page, what each attempt leaves behind, and how long a session lasts."""

import httpx
import pytest

from farm.config import WebConfig
from farm.control.callers import Role
from farm.web import page as module
from farm.web.page import SignIns, own_path
from tests.support.web_desk import BASE, Desk, Page, status, text_of
from tests.support.web_rows import view

READ = ("/", "/jobs/bench-1/files/result?x=1", "/jobs/bench-1/log", "/events", "/devices/pixel/readings")


async def test_a_good_token_begins_a_session():
    farm = Page()
    token = await farm.account("ann", Role.OPERATOR)
    answer = await farm.post("/sign-in", {"token": f" {token} ", "to": "/leases"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/leases")
    cookie = answer.headers["set-cookie"]
    assert ["HttpOnly" in cookie, "SameSite=strict" in cookie, token in cookie] == [True, True, False]
    assert "You are signed in as ann (operator)." in await farm.words("/")
    assert "signed in as" not in await farm.words("/")  # said once
    caller, _, _ = farm.desk.asked[-1]
    assert (caller.user, caller.role, caller.origin) == ("ann", Role.OPERATOR, "web token ann from 127.0.0.1")
    before = farm.session.id
    assert "You are signed in as ann" in await farm.words("/sign-in?to=/jobs")
    assert 'name="token"' not in await farm.html("/sign-in?to=/jobs")
    await farm.sign_in("bob")
    assert farm.session.id != before


async def test_wrong_tokens_have_to_wait_and_lock_nobody_out_who_has_a_good_one():
    farm = Page()
    token = await farm.account("ann", Role.USER)
    wrong = [await farm.post("/sign-in", {"token": "farm_wrong"}) for _ in range(6)]
    assert [each.status_code for each in wrong] == [403] * 5 + [429]
    assert ("knows no such token" in text_of(wrong[0].text), "farm_wrong" in wrong[0].text) == (True, False)
    assert (wrong[-1].headers["retry-after"], len(farm.web.sign_ins)) == ("2", 0)
    assert (await farm.order("/sign-in", {"token": token}))[0] == 303
    farm.clock += 2.5
    assert (await farm.order("/sign-in", {"token": "farm_wrong"}))[0] == 403


async def test_a_session_ends_with_its_account_and_by_signing_out():
    farm = Page(Desk(status=status(view())))
    csrf = await farm.sign_in("ann")
    await farm.accounts.revoke("ann")
    assert len(farm.web.sign_ins) == 0
    assert (await farm.order("/devices/pixel/service", {"csrf": csrf, "service": "in"}))[0] == 401
    await farm.sign_in("bob")
    assert (await farm.order("/sign-out"))[0] == 303
    assert len(farm.web.sign_ins) == 0
    assert "Sign in" in await farm.words("/")


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/leases?x=1", True), ("/", True), ("//evil.example", False), ("/\\evil.example", False), ("", False),
        ("https://evil.example/", False), ("javascript:alert(1)", False), ("/a\r\nset-cookie: x=1", False),
        ("http://[", False), ("//[", False),
    ],
)  # fmt: skip
def test_nobody_is_led_elsewhere(path, own):
    assert own_path(path) == (path if own else "/")


async def test_sign_in_sign_out_and_wrong_tokens_are_audited():
    farm = Page()
    await farm.post("/sign-in", {"token": "farm_wrong"})
    await farm.sign_in("ann", Role.USER)
    await farm.post("/sign-out")
    assert farm.desk.audited == [
        ("web page from 127.0.0.1", "auth.sign_in", "wrong_token"),
        ("web token ann from 127.0.0.1", "auth.sign_in", "ok"),
        ("web token ann from 127.0.0.1", "auth.sign_out", "ok"),
    ]


@pytest.mark.parametrize("path", READ)
async def test_a_farm_whose_readers_sign_in_shows_others_nothing(path):
    farm = Page(config=WebConfig(read="token"))
    answer = await farm.get(path)
    assert answer.status_code == (await farm.client.head(path)).status_code == 401
    assert f'name="to" value="{path}"' in answer.text
    assert "Users of this host may read" not in answer.text
    assert "data-seq" not in answer.text  # nor does the page follow events
    assert farm.desk.asked == []
    for public in ("/sign-in", "/metrics", "/favicon.ico"):
        assert (await farm.get(public)).status_code == 200
    await farm.sign_in("vera", Role.VIEWER)
    await farm.html("/")
    await farm.accounts.revoke("vera")
    assert (await farm.get("/")).status_code == 401


async def test_users_of_this_host_read_without_a_sign_in_and_others_sign_in():
    farm = Page()
    assert "Users of this host may read" in await farm.html("/")
    elsewhere = httpx.ASGITransport(farm.app, client=("10.0.0.7", 5555))
    async with httpx.AsyncClient(transport=elsewhere, base_url=BASE) as client:
        assert [(await client.get(path)).status_code for path in ("/", "/metrics")] == [401, 200]


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def sign_ins(now):
    return SignIns(lambda: now[0])


def test_a_session_ends_when_it_is_not_used(now, sign_ins):
    sign_in = sign_ins.begin("ann")
    now[0] = module.IDLE_S
    assert sign_ins.get(sign_in.id) is sign_in
    now[0] += module.IDLE_S + 1
    assert (sign_ins.get(sign_in.id), len(sign_ins)) == (None, 0)


def test_a_session_ends_however_much_it_is_used(now, sign_ins):
    sign_in = sign_ins.begin("ann")
    while now[0] <= module.MAX_S:
        assert sign_ins.get(sign_in.id) is sign_in
        now[0] += module.IDLE_S / 2
    assert sign_ins.get(sign_in.id) is None


def test_an_account_with_many_sign_ins_ends_its_own_one_that_is_unused_for_longest(sign_ins):
    operator, first, second = (sign_ins.begin(name) for name in ("olga", "vera", "vera"))
    for _ in range(module.MAX_SIGN_INS_OF_ONE - 2):
        sign_ins.begin("vera")
    sign_ins.get(first.id)
    sign_ins.begin("vera")
    assert [sign_ins.get(each.id) for each in (operator, first, second)] == [operator, first, None]
    for _ in range(module.MAX_SIGN_INS):
        sign_ins.begin("vera")
    assert (sign_ins.get(operator.id), len(sign_ins)) == (operator, module.MAX_SIGN_INS_OF_ONE + 1)


def test_many_accounts_leave_each_one_a_sign_in(numbers, now):
    numbers(module, MAX_SIGN_INS=6)
    sign_ins = SignIns(lambda: now[0])
    operator = sign_ins.begin("olga")
    for name in "abc" * 9:
        sign_ins.begin(name)
    assert (sign_ins.get(operator.id), len(sign_ins)) == (operator, 6)


def test_sessions_go_with_their_account(sign_ins):
    gone, also, stays = sign_ins.begin("ann"), sign_ins.begin("ann"), sign_ins.begin("bob")
    sign_ins.end_of("ann")
    assert [sign_ins.get(each.id) for each in (gone, also, stays)] == [None, None, stays]


def test_nothing_of_a_session_can_be_guessed_from_another(sign_ins):
    known = {text for _ in range(50) for sign_in in [sign_ins.begin("ann")] for text in (sign_in.id, sign_in.csrf)}
    assert (len(known), min(map(len, known)) >= 43) == (100, True)  # 32 random bytes
