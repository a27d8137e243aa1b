"""Orders given on the page: who may, what is asked in their name, and what is refused."""

import pytest

from farm.common.errors import Code, UserError
from farm.control.callers import Role
from farm.model.device import Life
from farm.model.requests import NoSuchLeaseError
from tests.support.verbs import registered
from tests.support.web_desk import Desk, Page, device_desk, status, text_of
from tests.support.web_rows import NOW, view

ACTIONS = [
    "/devices/pixel/service", "/devices/pixel/adopt", "/devices/pixel/quarantine", "/devices/pixel/reboot",
    "/devices/pixel/power-cycle", "/drain/end", "/chosen/again", "/chosen/cancel", "/leases/acquire", "/leases/kick",
    "/leases/release", "/leases/extend", "/sign-out",
]  # fmt: skip
EVIL = {"origin": "http://evil.example"}


@pytest.mark.parametrize("path", ACTIONS)
async def test_no_action_without_a_session_its_csrf_and_our_own_page(path):
    farm = Page(Desk())
    answer = await farm.post(path, {"service": "in"})
    assert (answer.status_code, "/sign-in" in answer.text) == (401, True)
    csrf = await farm.sign_in()
    other = {"csrf": csrf[:-1] + ("A" if csrf[-1] != "A" else "B")}
    tries = [(other, {}), ({"csrf": ""}, {}), ({}, EVIL), ({}, {"sec-fetch-site": "cross-site"})]
    assert [(await farm.post(path, form, **headers)).status_code for form, headers in tries] == [400, 400, 403, 403]
    assert (await farm.get(path)).status_code in (404, 405)
    assert (farm.desk.asked, len(farm.web.sign_ins)) == ([], 1)
    assert [(kind, how) for _, kind, how in farm.desk.audited] == [
        ("web.action", "not_allowed"), ("auth.sign_in", "ok"),
        *[("web.action", "form_expired")] * 2, *[("web.action", "forged")] * 2,
    ]  # fmt: skip
    assert [who for who, _, _ in farm.desk.audited] == [
        "web page from 127.0.0.1", *["web token ann from 127.0.0.1"] * 5,
    ]  # fmt: skip


async def test_an_action_under_a_name_that_is_not_ours_is_audited_as_forged():
    farm = Page(Desk())
    assert (await farm.get("/", host="evil.example")).status_code == 421
    assert farm.desk.audited == []
    assert (await farm.post(ACTIONS[0], host="evil.example")).status_code == 421
    assert farm.desk.audited == [("web page from 127.0.0.1", "web.action", "forged")]


async def test_the_csrf_may_come_in_a_header():
    farm = Page(Desk(**{"lease.kick": {"id": "lease-1-1", "device": "pixel"}}))
    form, csrf = {"lease": "lease-1-1"}, await farm.sign_in()
    assert (await farm.client.post("/leases/kick", data=form, headers={"x-csrf-token": csrf})).status_code == 303


SERVED = {"name": "pixel", "service": "draining", "released": False, "quarantine": "", "holder": "bob", "still": []}
ORDERS = {
    "device.service": SERVED, "device.quarantine": {"name": "pixel", "reason": "it smokes", "holder": ""},
    "device.reboot": {"name": "pixel"}, "device.power_cycle": {"name": "pixel", "beside": ["fire"]},
    "device.adopt": {"name": "pixel", "pool": ""},
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "form", "fields", "notice"),
    [
        ("service", {"service": "draining"}, {"service": "draining"}, "bob still has it"),
        ("quarantine", {"reason": "it smokes", "force": "on"}, {"reason": "it smokes", "force": True}, "it smokes."),
        ("reboot", {}, {"force": False}, "pixel reboots."),
        ("power-cycle", {"force": "on"}, {"force": True}, "without power for a moment: fire"),
        ("adopt", {"rename": " new "}, {"pool": "", "rename": "new"}, "pixel is adopted."),
    ],
)
async def test_actions_are_asked_in_the_name_of_whoever_is_signed_in(path, form, fields, notice):
    desk = device_desk(view())
    desk.answers |= ORDERS
    farm = Page(desk)
    await farm.sign_in()
    assert await farm.order(f"/devices/pixel/{path}", form) == (303, "/devices/pixel")
    caller, _, asked = desk.asked[-1]
    assert (asked, caller.user) == ({"device": "pixel", **fields}, "ann")
    assert notice in await farm.words("/devices/pixel")


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        ("service", {"service": "gone"}, "Service must be 'in', 'draining' or 'maintenance' (got 'gone')"),
        ("service", {}, "Service must be 'in', 'draining' or 'maintenance' (got '')"),
        ("quarantine", {"reason": ""}, "What is wrong with it is missing"),
    ],
)
async def test_what_is_wrong_with_a_form_is_said_in_its_own_words(path, form, said, tmp_path):
    farm = Page(registered(tmp_path))  # every verb's own form; what is behind them is never reached
    await farm.sign_in()
    answer = await farm.post(f"/devices/pixel/{path}", form)
    assert answer.status_code == 400
    assert said in text_of(answer.text)
    assert "Nothing was done" in text_of(answer.text)


async def test_a_hint_names_the_forms_tick_and_no_option():
    def held(**_):
        raise UserError("bob holds pixel", Code.DEVICE_HELD, hint="farm device reboot pixel --force")

    farm = Page(Desk(**{"device.reboot": held}))
    await farm.sign_in()
    answer = await farm.post("/devices/pixel/reboot")
    assert (answer.status_code, "--" in text_of(answer.text)) == (400, False)
    assert "tick “even while it is leased”" in text_of(answer.text)


@pytest.mark.parametrize(("draining", "role"), [(True, Role.OPERATOR), (True, Role.USER), (False, Role.OPERATOR)])
async def test_an_operator_ends_a_drain(*, draining, role):
    farm = Page(Desk(**{"status": status(view(), draining=draining), "host.drain": {"draining": False}}))
    await farm.sign_in("ann", role)
    assert ('action="/drain/end"' in await farm.html("/")) is (draining and role is Role.OPERATOR)
    assert await farm.order("/drain/end") == (303, "/")
    assert farm.desk.asked[-1][1:] == ("host.drain", {"on": False})


async def test_a_lease_is_extended_by_a_duration():
    farm = Page(Desk(**{"lease.extend": {"lease": "lease-1-1", "expires_at": NOW.isoformat()}}))
    await farm.sign_in()
    assert (await farm.order("/leases/extend", {"lease": "lease-1-1", "duration": "1h30m"}))[0] == 303
    assert farm.desk.asked_last("lease.extend") == {"lease": "lease-1-1", "seconds": 5400.0}
    assert "ends at 2026-11-20 12:00 UTC" in await farm.words("/leases")
    answer = await farm.post("/leases/extend", {"lease": "lease-1-1", "duration": "soon"})
    assert (answer.status_code, "'soon' is no duration" in text_of(answer.text)) == (400, True)


async def test_a_phone_is_leased_and_used_from_the_page():
    def not_granted(**_):
        raise NoSuchLeaseError("there is no lease 'lease-7'")

    held = {
        "job": "lease-7", "lease": "lease-1-1", "device": "pixel", "serial": "s; reboot", "tvm_host": "127.0.0.1",
        "tvm_port": 9190, "tvm_key": "k", "adb_port": 5100, "expires_at": NOW.isoformat(), "yield_wanted": False,
    }  # fmt: skip
    submitted, queued = {"jobs": [{"id": "lease-7"}], "warnings": []}, [{"id": "lease-7", "state": "queued"}]
    farm = Page(Desk(**{"status": status(view()), "job.submit": submitted, "lease.show": not_granted}))
    await farm.sign_in("bob", Role.USER)
    assert 'value="pixel"' in await farm.html("/leases?on=pixel")
    order = await farm.order("/leases/acquire", {"on": "pixel", "duration": "30m"})
    assert order == (303, "/leases/use?lease=lease-7")
    assert farm.desk.asked_last("job.submit") == {"spec": {"kind": "lease", "on": "pixel", "seconds": 1800.0}}
    farm.desk.answers["job.list"] = {"jobs": queued, "more": False, "before": ""}
    assert "waits for a phone" in await farm.words("/leases/use?lease=lease-7")
    farm.desk.answers["lease.show"] = held
    text = await farm.words("/leases/use?lease=lease-1-1")
    assert "export ANDROID_SERIAL='s; reboot' export TVM_TRACKER_HOST=127.0.0.1" in text


async def test_a_bundle_is_promoted():
    lists = {"device.list": {"devices": []}, "bundle.list": {"bundles": []}, "toolchain.list": {"toolchains": []}}
    farm = Page(Desk(**lists, **{"bundle.promote": {"name": "nightly", "state": "current"}}))
    await farm.sign_in()
    assert (await farm.order("/bundles/promote", {"bundle": "b" * 64}))[0] == 303
    assert "Bundle nightly is current now." in await farm.words("/bundles")
    assert (await farm.order("/bundles/remove", {"bundle": "b" * 64}))[0] == 400


async def test_what_may_be_ordered_follows_the_device_while_the_page_is_open():
    desk = device_desk(view())
    farm = Page(desk)
    await farm.sign_in()
    assert ">Release<" not in await farm.part("/devices/pixel")
    desk.answers |= device_desk(view(life=Life.QUARANTINED)).answers
    part = await farm.part("/devices/pixel")
    assert farm.session.csrf in part
    assert part.index('data-key="head"') < part.index('data-key="orders"') < part.index(">Release<")


async def test_an_operator_adds_a_phone_of_the_network_where_there_is_none():
    farm = Page(Desk(status=status(), **{"device.add": {"address": "10.0.0.3:5555"}}))
    assert "Add network phone" not in await farm.html("/")
    await farm.sign_in()
    assert "Add network phone" in await farm.html("/")
    assert await farm.order("/devices/add", {"address": " 10.0.0.3:5555 "}) == (303, "/")
    assert farm.desk.asked[-1][1:] == ("device.add", {"address": "10.0.0.3:5555"})
    assert "10.0.0.3:5555 is added" in farm.session.notice
