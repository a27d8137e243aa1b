"""Orders given on the page: who may, what is asked in their name, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from farm.common.errors import Code, UserError
from farm.control.callers import Role
from farm.model.device import Life
from farm.model.requests import NoSuchLeaseError
from tests.support.verbs import registered
from tests.support.web_desk import NOW, Desk, device_desk, lease, page, status, text_of, view

ACTIONS = [
    "/devices/pixel/service",
    "/devices/pixel/adopt",
    "/devices/pixel/quarantine",
    "/devices/pixel/reboot",
    "/devices/pixel/power-cycle",
    "/drain/end",
    "/chosen/again",
    "/chosen/cancel",
    "/leases/acquire",
    "/leases/kick",
    "/leases/release",
    "/leases/extend",
    "/sign-out",
]


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
        assert len(farm.web.sign_ins) == 1
        nobody, ann = "web page from 127.0.0.1", farm.desk.audited[1][0]
        assert farm.desk.audited == [
            (nobody, "web.action", "not_allowed"),
            (ann, "auth.sign_in", "ok"),
            *[(ann, "web.action", "form_expired")] * 2,
            *[(ann, "web.action", "forged")] * 2,
        ]


async def test_an_action_under_a_name_that_is_not_ours_is_audited_as_forged() -> None:
    async with page(Desk()) as farm:
        assert (await farm.client.get("/", headers={"host": "evil.example"})).status_code == 421
        assert farm.desk.audited == []
        assert (await farm.client.post(ACTIONS[0], headers={"host": "evil.example"})).status_code == 421
        assert farm.desk.audited == [("web page from 127.0.0.1", "web.action", "forged")]


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
            assert told in text_of((await farm.client.get("/devices/pixel")).text)


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
    assert told in text_of(answer.text)
    assert "Nothing was done" in text_of(answer.text)


async def test_a_hint_names_the_forms_tick_and_no_option() -> None:
    def held(**_: Any) -> None:
        raise UserError("bob holds pixel", Code.DEVICE_HELD, hint="farm device reboot pixel --force")

    async with page(Desk(**{"device.reboot": held})) as farm:
        csrf = await farm.sign_in()
        answer = await farm.client.post("/devices/pixel/reboot", data={"csrf": csrf})
    assert (answer.status_code, "--" in text_of(answer.text)) == (400, False)
    assert "tick “even while it is leased”" in text_of(answer.text)


@pytest.mark.parametrize(("draining", "role"), [(True, Role.OPERATOR), (True, Role.USER), (False, Role.OPERATOR)])
async def test_an_operator_ends_a_drain(*, draining: bool, role: Role) -> None:
    desk = device_desk(view("pixel"))
    desk.answers |= {"status": {**status(view("pixel")), "draining": draining}, "host.drain": {"draining": False}}
    async with page(desk) as farm:
        csrf = await farm.sign_in("ann", role)
        offered = 'action="/drain/end"' in (await farm.client.get("/")).text
        assert offered is (draining and role is Role.OPERATOR)
        answer = await farm.client.post("/drain/end", data={"csrf": csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert farm.desk.asked[-1][1:] == ("host.drain", {"on": False})


async def test_a_lease_is_extended_by_a_duration() -> None:
    ends = {"lease": "lease-1-1", "expires_at": NOW.isoformat()}
    async with page(
        Desk(**{"lease.extend": ends, "lease.list": {"leases": [], "waiting": [], "waiting_more": 0}})
    ) as farm:
        csrf = await farm.sign_in()
        form = {"csrf": csrf, "lease": "lease-1-1", "duration": "1h30m"}
        assert (await farm.client.post("/leases/extend", data=form)).status_code == 303
        assert farm.desk.asked[-1][2] == {"lease": "lease-1-1", "seconds": 5400.0}
        assert "ends at 2026-11-20 12:00 UTC" in text_of((await farm.client.get("/leases")).text)
        answer = await farm.client.post("/leases/extend", data={**form, "duration": "soon"})
        assert answer.status_code == 400
        assert "'soon' is no duration" in text_of(answer.text)


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
        "leases": [
            lease(),
            lease(id="lease-1-2", device="fire", source="tvm", job="", personal=False, expires_at=None),
            lease(id="lease-1-3", device="tab", job="tune-7", personal=False),
        ],
        "waiting": [{"user": "eve", "selector": "android", "priority": 5, "job": "", "waited_s": 7.0}],
        "waiting_more": 3,
    }
    async with page(Desk(**{"lease.list": held})) as farm:
        await farm.sign_in(user, role)
        text = (await farm.client.get("/leases")).text
    assert ('action="/leases/acquire"' in text) is (role >= Role.USER)
    assert set(re.findall(r'action="(/leases/[a-z]+)"', text)) - {"/leases/acquire"} == orders
    assert text.count("/leases/kick") == 2 * (role is Role.OPERATOR)
    assert ('href="/leases/use?lease=lease-1-1"' in text) is ("/leases/extend" in orders)
    assert "4 wait for a phone" in text_of(text)


def _not_granted(**_: Any) -> None:
    raise NoSuchLeaseError("there is no lease 'lease-7'")


async def test_a_phone_is_leased_and_used_from_the_page() -> None:
    held = {
        "job": "lease-7", "lease": "lease-1-1", "device": "pixel", "serial": "s; reboot", "tvm_host": "127.0.0.1",
        "tvm_port": 9190, "tvm_key": "k", "adb_port": 5100, "expires_at": NOW.isoformat(), "yield_wanted": False,
    }  # fmt: skip
    answers = {"job.submit": lambda spec: {"jobs": [{"id": "lease-7"}], "warnings": []}, "lease.show": held}
    async with page(Desk(status=status(view("pixel")), **answers)) as farm:
        csrf = await farm.sign_in("bob", Role.USER)
        assert 'value="pixel"' in (await farm.client.get("/leases?on=pixel")).text
        answer = await farm.client.post("/leases/acquire", data={"csrf": csrf, "on": "pixel", "duration": "30m"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/leases/use?lease=lease-7")
        assert farm.desk.asked[-1][2] == {"spec": {"kind": "lease", "on": "pixel", "seconds": 1800.0}}
        farm.desk.answers["lease.show"] = _not_granted
        farm.desk.answers["job.list"] = {"jobs": [{"id": "lease-7", "state": "queued"}], "more": False, "before": ""}
        assert "waits for a phone" in text_of((await farm.client.get("/leases/use?lease=lease-7")).text)
        farm.desk.answers["lease.show"] = held
        text = text_of((await farm.client.get("/leases/use?lease=lease-1-1")).text)
        assert "export ANDROID_SERIAL='s; reboot' export TVM_TRACKER_HOST=127.0.0.1" in text


@pytest.mark.parametrize(("role", "offered"), [(Role.OPERATOR, True), (Role.USER, False)])
async def test_bundles_show_their_state_and_operators_promote_them(role: Role, offered: bool) -> None:
    bundle = {
        "name": "nightly", "names": ["nightly", "monday"],
        "hash": "b" * 64, "abi": "arm64-v8a", "toolchain": "t", "tvm_version": "0.1",
        "ffi_version": "",
        "has_opencl": False, "size_bytes": 1, "files": [], "golden": [], "warnings": [],
    }  # fmt: skip
    trying = [{"device": "p", "since": "", "waits": "a check"}]
    rows = [
        {**bundle, "state": "rolling-out", "reason": "", "phones": 1, "of": 3, "trying": trying},
        {**bundle, "state": "refused", "reason": "tvm_rpc ends with 3", "phones": 0, "of": 0, "trying": []},
    ]
    answers = {"bundle.list": {"bundles": rows}, "toolchain.list": {"toolchains": []}}
    answers |= {"bundle.promote": {**rows[0], "state": "current"}}
    async with page(Desk(status=status(), **answers)) as farm:
        csrf = await farm.sign_in("ann", role)
        text = (await farm.client.get("/bundles")).text
        assert "rolling out 1 of 3 p: a check" in text_of(text)
        assert "nightly, monday" in text_of(text)
        assert "refused tvm_rpc ends with 3" in text_of(text)
        assert [text.count(f"/bundles/{order}") for order in ("promote", "rollback")] == [2 * offered, offered]
        form = {"csrf": csrf, "bundle": "b" * 64}
        assert (await farm.client.post("/bundles/promote", data=form)).status_code == 303
        assert "Bundle nightly is current now." in text_of((await farm.client.get("/bundles")).text)
        assert (await farm.client.post("/bundles/remove", data=form)).status_code == 400


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
        assert ">Release<" not in (await farm.part("/devices/pixel")).text
        desk.answers |= device_desk(view("pixel", life=Life.QUARANTINED)).answers
        part = (await farm.part("/devices/pixel")).text
    assert ">Release<" in part
    assert farm.session.csrf in part
    assert part.index('data-key="head"') < part.index('data-key="orders"') < part.index(">Release<")


async def test_an_operator_adds_a_phone_of_the_network_where_there_is_none() -> None:
    async with page(Desk(status=status(), **{"device.add": {"address": "10.0.0.3:5555"}})) as farm:
        assert "Add network phone" not in (await farm.client.get("/")).text
        csrf = await farm.sign_in()
        assert "Add network phone" in (await farm.client.get("/")).text
        answer = await farm.client.post("/devices/add", data={"csrf": csrf, "address": " 10.0.0.3:5555 "})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert farm.desk.asked[-1][1:] == ("device.add", {"address": "10.0.0.3:5555"})
        assert "10.0.0.3:5555 is added" in farm.session.notice
