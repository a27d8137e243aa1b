"""The page over made-up verbs: who may do what, what is refused, and what hostile names come out as."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from farm.control.callers import Role
from farm.core.device import Life, Service
from farm.core.errors import HostError, NotAllowedError, PhoneError, UserError
from farm.core.web_policy import WebConfig
from farm.web.page import own_path
from tests.support.verbs import registered
from tests.support.web_desk import NOW, Desk, device_desk, lease, page, status, view

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
ACTIONS = [
    "/devices/pixel/service",
    "/devices/pixel/adopt",
    "/devices/pixel/quarantine",
    "/devices/pixel/reboot",
    "/devices/pixel/power-cycle",
    "/leases/kick",
    "/leases/release",
    "/leases/extend",
    "/sign-out",
]


def said(text: str) -> str:
    """What a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


# --- every answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/sign-in", "/nowhere", "/events-of-nobody", "/metrics", "/favicon.ico"])
async def test_every_answer_has_the_headers(path: str) -> None:
    async with page() as farm:
        answer = await farm.client.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == ("public, max-age=86400" if path == "/favicon.ico" else "no-store")


async def test_the_scheme_is_not_told_the_server() -> None:
    async with page() as farm:
        assert "server" not in (await farm.client.get("/")).headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9191", "127.0.0.1.evil.example", "", "a b"])
async def test_other_names_are_refused(host: str) -> None:
    async with page() as farm:
        answer = await farm.client.get("/", headers={"host": host})
        assert answer.status_code == 421
        assert "allow_hosts" in answer.text
        assert not host or host not in answer.text
        assert farm.desk.asked == []


async def test_allowed_names_are_served() -> None:
    async with page(config=WebConfig(allow_hosts=("farm.lab",))) as farm:
        assert (await farm.client.get("/", headers={"host": "farm.lab:8080"})).status_code == 200
        assert (await farm.client.get("/", headers={"host": "localhost:1"})).status_code == 200


async def test_files_are_kept_by_browsers_for_ever_and_nothing_else_is_served() -> None:
    async with page() as farm:
        text = (await farm.client.get("/")).text
        (address,) = re.findall(r'href="(/static/[^"]*app\.css)"', text)
        answer = await farm.client.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        for other in ("/static/000000000000/app.css", "/static/x/../app.py", "/static/x/%2e%2e/app.py", "/static/x/y"):
            assert (await farm.client.get(other)).status_code == 404


async def test_metrics_are_what_the_collector_says() -> None:
    async with page() as farm:
        answer = await farm.client.get("/metrics")
    assert answer.text == "farm_up 1\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


# --- limits -------------------------------------------------------------------------------------------------------


async def test_what_is_too_large_is_refused() -> None:
    async with page() as farm:
        assert (await farm.client.get("/?text=" + "x" * 5000)).status_code == 414
        assert (await farm.client.get("/?text=" + "x" * 300)).status_code == 400
        assert (await farm.client.post("/sign-in", content=b"x" * 70_000)).status_code == 413

        form = {"content-type": "application/x-www-form-urlencoded"}

        async def endless() -> Any:
            for _ in range(100):
                yield b"token=" + b"x" * 1000

        assert (await farm.client.post("/sign-in", content=endless(), headers=form)).status_code == 413
        many = "&".join(f"f{number}=1" for number in range(200))
        assert (await farm.client.post("/sign-in", content=many, headers=form)).status_code == 400
        assert farm.desk.asked == []


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999", "1e3"])
async def test_a_length_that_is_none_is_refused(length: str) -> None:
    async with page() as farm:
        answer = await farm.client.post("/sign-in", headers={"content-length": length}, content=b"")
        assert answer.status_code == 413


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotAllowedError("no", hint="ask"), 403),
        (PhoneError("no", hint="ask"), 502),
        (HostError("no", hint="ask"), 503),
    ],
)
async def test_an_error_is_a_page_with_a_sentence_and_what_to_do(error: Exception, code: int) -> None:
    def fails() -> None:
        raise error

    async with page(Desk(status=fails)) as farm:
        answer = await farm.client.get("/")
    assert answer.status_code == code
    assert "no ask" in said(answer.text)


async def test_a_bug_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ZeroDivisionError("a secret detail")

    async with page(Desk(status=fails)) as farm:
        answer = await farm.client.get("/")
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert "secret detail" not in answer.text
    assert "mistake of the farm" in answer.text
    assert "ZeroDivisionError" in caplog.text  # the daemon's log has it


async def test_a_device_that_is_not_there_names_the_nearest() -> None:
    async with page(device_desk(view("pixel"))) as farm:
        answer = await farm.client.get("/devices/pixle")
    assert answer.status_code == 404
    assert "did you mean pixel?" in said(answer.text)


async def test_no_such_page_and_no_such_method() -> None:
    async with page() as farm:
        assert (await farm.client.get("/nowhere")).status_code == 404
        await farm.sign_in()
        answer = await farm.client.post("/", data={"csrf": farm.session.csrf})
        assert answer.status_code == 405


# --- reading ------------------------------------------------------------------------------------------------------


async def test_anybody_may_look_and_is_a_viewer() -> None:
    async with page(Desk(status=status(view("pixel", temperature_c=36.04, battery_percent=80)))) as farm:
        answer = await farm.client.get("/")
    assert "36.0 °C" in answer.text
    assert "80 %" in answer.text
    (caller, _, _), *_ = farm.desk.asked
    assert (caller.user, caller.role) == ("", Role.VIEWER)
    assert '<form method="post"' not in answer.text


async def test_hostile_words_of_phones_are_words() -> None:
    shown = view("pixel", reason=HOSTILE, pool=HOSTILE, aliases=(HOSTILE,), checked=HOSTILE)
    events = [
        {"seq": 1, "at": NOW.isoformat(), "kind": "device.ready", "subject": "pixel", "data": {"reason": HOSTILE}}
    ]
    desk = device_desk(
        shown, holder=HOSTILE, why=HOSTILE, hint=HOSTILE, lines=[HOSTILE], events=events,
        quarantine={"reason": HOSTILE, "hint": HOSTILE, "at": None, "rule": HOSTILE, "evidence": [HOSTILE]},
        columns=[{"quantity": HOSTILE, "name": HOSTILE, "unit": HOSTILE, "values": [1.0]}],
    )  # fmt: skip
    desk.answers["status"] = {**status(shown, holder=HOSTILE), "problems": [HOSTILE]}
    desk.answers["lease.list"] = {"leases": [lease(user=HOSTILE, note=HOSTILE)], "waiting": [], "waiting_more": 0}
    async with page(desk) as farm:
        for path in ("/", f"/?text={HOSTILE}", "/devices/pixel", "/leases", f"/sign-in?to={HOSTILE}"):
            answer = await farm.client.get(path)
            assert answer.status_code == 200, path
            assert "<img" not in answer.text, path
            assert 'onerror=alert(1)>"' not in answer.text, path
            assert path.startswith("/sign-in") or HOSTILE.replace(" ", "") in said(answer.text).replace(" ", ""), path


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["fire", "pixel", "tablet"]),
        ("?state=ready", ["fire", "pixel"]),
        ("?pool=lab", ["pixel"]),
        ("?text=SM-X", ["fire"]),
        ("?text=adreno+fire", ["fire"]),
        ("?state=draining", ["tablet"]),
        ("?pool=lab&state=draining", []),
    ],
)
async def test_the_wall_filters_by_pool_state_and_text(query: str, names: list[str]) -> None:
    devices = (
        view("fire", serial="SM-X", aliases=("adreno-740",)),
        view("pixel", pool="lab"),
        view("tablet", service=Service.DRAINING),
    )
    async with page(Desk(status=status(*devices))) as farm:
        for path in ("/", "/fleet/wall"):
            answer = await farm.client.get(path + query)
            assert re.findall(r'class="name">([^<]*)<', answer.text) == names
            assert f"{len(names)} of 3 shown" in answer.text


async def test_a_part_is_no_whole_page() -> None:
    async with page(device_desk(view("pixel"))) as farm:
        for path in ("/fleet/wall", "/devices/pixel/now"):
            assert "<html" not in (await farm.client.get(path)).text


async def test_readings_for_plots_and_their_limits() -> None:
    async with page(device_desk(view("pixel"))) as farm:
        assert (await farm.client.get("/devices/pixel/readings?seconds=60")).json()["device"] == "pixel"
        for seconds in ("0", "-1", "86401", "nan", "x", "inf"):
            assert (await farm.client.get(f"/devices/pixel/readings?seconds={seconds}")).status_code == 400


async def test_sessions_of_a_device_as_its_events_tell_them() -> None:
    def event(kind: str, seq: int, **data: Any) -> dict[str, Any]:
        return {"seq": seq, "at": NOW.isoformat(), "kind": kind, "subject": "lease-1", "data": data}

    events = [
        event("session.opened", 4, user="eve", session="s2"),
        event(
            "session.ended", 3, user="bob", session="s1", outcome="cut", detail="idle", bytes_up=2_000_000,
            bytes_down=10, seconds=61.5,
        ),
        event("session.opened", 2, user="bob", session="s1"),
    ]  # fmt: skip
    async with page(device_desk(view("pixel"), events=events, holder="eve")) as farm:
        text = said((await farm.client.get("/devices/pixel")).text)
    assert "eve open" in text
    assert "bob 61.5 s 2.0 MB 10 bytes cut: idle" in text


async def test_a_form_that_breaks_off_is_no_mistake_of_the_farm(caplog: pytest.LogCaptureFixture) -> None:
    told = []

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/sign-in", "raw_path": b"/sign-in",
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "scheme": "http", "root_path": "",
    }  # fmt: skip
    async with page() as farm:
        await farm.app(scope, gone, send)
    assert told == []
    assert caplog.text == ""


async def test_addresses_that_are_none_are_no_mistake_of_the_farm(caplog: pytest.LogCaptureFixture) -> None:
    async with page() as farm:
        answer = await farm.client.post("/sign-in", headers={"origin": "http://["}, data={"token": "x"})
        assert answer.status_code == 403
        assert "content-security-policy" in answer.headers
        assert (await farm.client.get("/sign-in?to=http://[")).status_code == 200
    assert caplog.text == ""


# --- signing in ---------------------------------------------------------------------------------------------------


async def test_a_good_token_begins_a_session() -> None:
    async with page() as farm:
        token = await farm.account("ann", Role.OPERATOR)
        answer = await farm.client.post("/sign-in", data={"token": f" {token} ", "to": "/leases"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/leases")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert token not in cookie
        shown = said((await farm.client.get("/")).text)
        assert "You are signed in as ann (operator)." in shown
        assert "signed in as" not in said((await farm.client.get("/")).text)  # said once
        caller, _, _ = farm.desk.asked[-1]
        assert (caller.user, caller.role, caller.origin) == ("ann", Role.OPERATOR, "web token ann from 127.0.0.1")


async def test_a_wrong_token_is_told_and_then_has_to_wait() -> None:
    async with page() as farm:
        for _ in range(5):
            answer = await farm.client.post("/sign-in", data={"token": "farm_wrong"})
            assert answer.status_code == 403
            assert "knows no such token" in said(answer.text)
            assert "farm_wrong" not in answer.text
        answer = await farm.client.post("/sign-in", data={"token": "farm_wrong"})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "2"
        assert len(farm.web.sessions) == 0
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
        assert len(farm.web.sessions) == 0
        answer = await farm.client.post("/devices/pixel/service", data={"csrf": csrf, "service": "in"})
        assert answer.status_code == 401
        csrf = await farm.sign_in("bob")
        assert (await farm.client.post("/sign-out", data={"csrf": csrf})).status_code == 303
        assert len(farm.web.sessions) == 0
        assert "Sign in" in said((await farm.client.get("/")).text)


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


# --- actions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ACTIONS)
async def test_no_action_without_a_session_its_csrf_and_our_own_page(path: str) -> None:
    async with page(Desk()) as farm:
        answer = await farm.client.post(path, data={"service": "in"})
        assert answer.status_code == 401
        assert "/sign-in" in answer.text
        csrf = await farm.sign_in()
        other = (await farm.client.post(path, data={"csrf": csrf[:-1] + ("A" if csrf[-1] != "A" else "B")})).status_code
        missing = (await farm.client.post(path, data={})).status_code
        foreign = (
            await farm.client.post(path, data={"csrf": csrf}, headers={"origin": "http://evil.example"})
        ).status_code
        framed = (
            await farm.client.post(path, data={"csrf": csrf}, headers={"sec-fetch-site": "cross-site"})
        ).status_code
        assert (other, missing, foreign, framed) == (400, 400, 403, 403)
        assert (await farm.client.get(path)).status_code in (404, 405)
        assert farm.desk.asked == []
        assert len(farm.web.sessions) == 1


async def test_the_csrf_may_come_in_a_header() -> None:
    async with page(Desk(**{"lease.kick": {"id": "lease-1-1", "device": "pixel"}})) as farm:
        csrf = await farm.sign_in()
        answer = await farm.client.post("/leases/kick", data={"lease": "lease-1-1"}, headers={"x-csrf-token": csrf})
        assert answer.status_code == 303


async def test_actions_are_asked_in_the_name_of_whoever_is_signed_in() -> None:
    served = {"name": "pixel", "service": "draining", "released": False, "quarantine": "", "holder": "bob", "still": []}
    desk = device_desk(view("pixel"))
    desk.answers |= {
        "device.service": served,
        "device.quarantine": {"name": "pixel", "reason": "it smokes", "holder": ""},
        "device.reboot": {"name": "pixel"},
        "device.power_cycle": {"name": "pixel", "beside": ["fire"]},
        "device.adopt": {"name": "pixel", "pool": ""},
    }
    async with page(desk) as farm:
        csrf = await farm.sign_in()
        wanted = [
            ("service", {"service": "draining"}, {"device": "pixel", "service": "draining"}, "bob still has it"),
            ("quarantine", {"reason": "it smokes", "force": "on"},
             {"device": "pixel", "reason": "it smokes", "force": True}, "pixel is in quarantine: it smokes."),
            ("reboot", {}, {"device": "pixel", "force": False}, "pixel reboots."),
            ("power-cycle", {"force": "on"}, {"device": "pixel", "force": True}, "without power for a moment: fire"),
            ("adopt", {"rename": " new "}, {"device": "pixel", "pool": "", "rename": "new"}, "pixel is adopted."),
        ]  # fmt: skip
        for path, form, fields, told in wanted:
            answer = await farm.client.post(f"/devices/pixel/{path}", data={"csrf": csrf, **form})
            assert (answer.status_code, answer.headers["location"]) == (303, "/devices/pixel")
            caller, _, asked = farm.desk.asked[-1]
            assert asked == fields
            assert caller.user == "ann"
            assert told in said((await farm.client.get("/devices/pixel")).text)


@pytest.mark.parametrize(
    ("path", "form", "told"),
    [
        (
            "/devices/pixel/service",
            {"service": "gone"},
            "Service must be 'in', 'draining' or 'maintenance' (got 'gone')",
        ),
        ("/devices/pixel/service", {}, "Service must be 'in', 'draining' or 'maintenance' (got '')"),
        ("/devices/pixel/quarantine", {"reason": ""}, "What is wrong with it is missing"),
    ],
)
async def test_what_is_wrong_with_a_form_is_said_in_its_own_words(
    path: str, form: dict[str, str], told: str, tmp_path: Path
) -> None:
    desk = registered(tmp_path)  # every verb's own form; what is behind them is never reached
    async with page(desk) as farm:
        csrf = await farm.sign_in()
        answer = await farm.client.post(path, data={"csrf": csrf, **form})
    assert answer.status_code == 400
    assert told in said(answer.text)
    assert "Nothing was done" in said(answer.text)


async def test_a_hint_names_the_forms_tick_and_no_option() -> None:
    def held(**_: Any) -> None:
        raise UserError("bob has pixel", hint="farm device reboot pixel --force")

    async with page(Desk(**{"device.reboot": held})) as farm:
        csrf = await farm.sign_in()
        answer = await farm.client.post("/devices/pixel/reboot", data={"csrf": csrf})
    assert (answer.status_code, "--" in said(answer.text)) == (400, False)
    assert "tick “even while somebody holds it”" in said(answer.text)


async def test_a_lease_is_extended_by_a_duration() -> None:
    ends = {"lease": "lease-1-1", "expires_at": NOW.isoformat()}
    async with page(
        Desk(**{"lease.extend": ends, "lease.list": {"leases": [], "waiting": [], "waiting_more": 0}})
    ) as farm:
        csrf = await farm.sign_in()
        form = {"csrf": csrf, "lease": "lease-1-1", "duration": "1h30m"}
        assert (await farm.client.post("/leases/extend", data=form)).status_code == 303
        assert farm.desk.asked[-1][2] == {"lease": "lease-1-1", "seconds": 5400.0}
        assert "ends at 2026-11-20 12:00 UTC" in said((await farm.client.get("/leases")).text)
        answer = await farm.client.post("/leases/extend", data={**form, "duration": "soon"})
        assert answer.status_code == 400
        assert "'soon' is no duration" in said(answer.text)


@pytest.mark.parametrize(
    ("role", "user", "orders"),
    [
        (Role.OPERATOR, "ann", {"/leases/extend", "/leases/release", "/leases/kick"}),
        (Role.USER, "bob", {"/leases/extend", "/leases/release"}),
        (Role.USER, "ann", set()),
        (Role.VIEWER, "bob", set()),
    ],
)
async def test_leases_offer_what_the_role_allows(role: Role, user: str, orders: set[str]) -> None:
    held = {
        "leases": [lease(), lease(id="lease-1-2", device="fire", door="tvm", job="", expires_at=None)],
        "waiting": [{"user": "eve", "selector": "android", "priority": 5, "job": "", "waited_s": 7.0}],
        "waiting_more": 3,
    }
    async with page(Desk(**{"lease.list": held})) as farm:
        await farm.sign_in(user, role)
        text = (await farm.client.get("/leases")).text
    assert set(re.findall(r'action="(/leases/[a-z]+)"', text)) == orders
    assert "4 wait for a phone" in said(text)


@pytest.mark.parametrize(("role", "offered"), [(Role.OPERATOR, True), (Role.USER, False), (Role.VIEWER, False)])
async def test_orders_about_a_device_are_offered_to_operators(role: Role, offered: bool) -> None:
    async with page(device_desk(view("pixel"))) as farm:
        await farm.sign_in("ann", role)
        text = (await farm.client.get("/devices/pixel")).text
    assert ("/devices/pixel/reboot" in text) is offered


async def test_what_may_be_ordered_follows_the_device_while_the_page_is_open() -> None:
    desk = device_desk(view("pixel"))
    async with page(desk) as farm:
        await farm.sign_in()
        assert ">Release<" not in (await farm.client.get("/devices/pixel/now")).text
        desk.answers |= device_desk(view("pixel", life=Life.QUARANTINED)).answers
        part = (await farm.client.get("/devices/pixel/now")).text
    assert ">Release<" in part
    assert farm.session.csrf in part
    assert part.index('data-key="orders"') < part.index(">Release<") < part.index('data-key="head"')


async def test_a_name_that_needs_quoting_is_one_segment_of_its_address() -> None:
    shown = view("10.0.0.3:5555")
    async with page(device_desk(shown)) as farm:
        assert 'href="/devices/10.0.0.3%3A5555"' in (await farm.client.get("/")).text
        assert (await farm.client.get("/devices/10.0.0.3%3A5555")).status_code == 200


# --- hints --------------------------------------------------------------------------------------------------------


async def test_too_many_open_pages_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.web.stream.MOST_READERS", 0)
    async with page() as farm:
        answer = await farm.client.get("/events")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "10"
