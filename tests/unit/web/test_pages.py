"""The pages over made-up verbs: what they show, and what hostile names come out as."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from farm.common.causes import brief
from farm.control.callers import Role
from farm.model.device import Life, Service
from farm.model.health import Finding, FindingKind
from farm.model.identity import DeviceIdentity, Soc
from farm.web.devices import classes_of
from tests.support.web_desk import NOW, Desk, device_desk, lease, page, status, text_of, view

HOSTILE = "<img src=x onerror=alert(1)>\"'&"


async def test_metrics_are_what_the_collector_says() -> None:
    async with page() as farm:
        answer = await farm.client.get("/metrics")
    assert answer.text == "farm_up 1\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_a_device_that_is_not_there_names_the_nearest() -> None:
    async with page(device_desk(view("pixel"))) as farm:
        answer = await farm.client.get("/devices/pixle")
    assert answer.status_code == 404
    assert "did you mean pixel?" in text_of(answer.text)


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
        quarantine={"cause": HOSTILE, "hint": HOSTILE, "at": None, "rule": HOSTILE, "evidence": [HOSTILE]},
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
            assert path.startswith("/sign-in") or HOSTILE.replace(" ", "") in text_of(answer.text).replace(" ", ""), (
                path
            )


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
        for get in (farm.client.get, farm.part):
            answer = await get("/" + query)
            assert re.findall(r'class="name">([^<]*)<', answer.text) == names
            assert f"{len(names)} of 3 shown" in answer.text


async def test_a_part_is_no_whole_page() -> None:
    async with page(device_desk(view("pixel"))) as farm:
        for path in ("/", "/devices/pixel"):
            assert "<html" in (await farm.client.get(path)).text
            assert "<html" not in (await farm.part(path)).text


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
        text = text_of((await farm.client.get("/devices/pixel")).text)
    assert "eve open" in text
    assert "bob 61.5 s 2.0 MB 10 bytes cut: idle" in text


async def test_a_name_that_needs_quoting_is_one_segment_of_its_address() -> None:
    shown = view("10.0.0.3:5555")
    async with page(device_desk(shown)) as farm:
        assert 'href="/devices/10.0.0.3%3A5555"' in (await farm.client.get("/")).text
        assert (await farm.client.get("/devices/10.0.0.3%3A5555")).status_code == 200


async def test_what_needs_a_person_stands_first_on_the_wall() -> None:
    full = Finding(FindingKind.DATA_LOW, "its storage is nearly full")
    devices = (
        view("a-ready"), view("b-gone", life=Life.GONE), view("c-new", adopted=False, life=Life.NEW),
        view("d-bad", life=Life.QUARANTINED), view("e-mends", life=Life.RECOVERING), view("f-full", findings=(full,)),
        view("g-drained", service=Service.DRAINING),
    )  # fmt: skip
    async with page(Desk(status=status(*devices))) as farm:
        answer = await farm.client.get("/")
    names = re.findall(r'class="name">([^<]*)<', answer.text)
    assert names == ["d-bad", "e-mends", "b-gone", "c-new", "f-full", "a-ready", "g-drained"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?sort=name", ["a-2", "a-10", "b-1"]),
        ("?sort=-temperature", ["b-1", "a-10", "a-2"]),  # without a reading: last
        ("?group=state&sort=-name", ["a-2", "b-1", "a-10"]),
        ("?sort=no-column&group=nothing", ["a-2", "a-10", "b-1"]),
    ],
)
async def test_a_table_sorts_and_groups_and_keeps_the_choice_in_its_links(query: str, names: list[str]) -> None:
    devices = (
        view("a-10", temperature_c=30.0), view("a-2", life=Life.QUARANTINED), view("b-1", temperature_c=41.0),
    )  # fmt: skip
    async with page(Desk(status=status(*devices))) as farm:
        answer = await farm.client.get(f"/{query}&view=table")
        again = await farm.part(f"/{query}&view=table")
    for each in (answer, again):
        assert re.findall(r'class="name">([^<]*)<', each.text) == names
    assert ("sort=-name" if query == "?sort=name" else "sort=name") in answer.text
    assert "view=table&amp;" in answer.text or "&amp;view=table" in answer.text
    assert "<title>1 quarantined · Fleet · farm</title>" in answer.text


async def test_many_devices_are_a_table_unless_cards_are_asked_for() -> None:
    async with page(Desk(status=status(*(view(f"a-{n}") for n in range(25))))) as farm:
        assert '<table class="fleet"' in (await farm.client.get("/")).text
        assert '<table class="fleet"' not in (await farm.client.get("/?view=cards")).text


async def test_old_readings_and_those_of_a_gone_phone_are_marked() -> None:
    old = datetime.now(UTC) - timedelta(hours=2, minutes=1)
    gone = view("pixel", life=Life.GONE, temperature_c=36.0, temperature_of="skin", battery_percent=100, read_at=old)
    async with page(device_desk(gone)) as farm:
        for path in ("/", "/?view=table", "/devices/pixel"):
            assert "2h 1m ago" in text_of((await farm.client.get(path)).text), path


async def test_a_busy_device_names_its_job_and_its_recent_ones() -> None:
    job = {"id": "tune-7", "kind": "tune", "name": "net.onnx", "state": "running", "user": "bob"} | {
        "progress": {"done": 12, "of": 64, "eta_s": 90.0}
    }
    desk = device_desk(view("pixel"), holder="bob")
    desk.answers["lease.list"] = {"leases": [lease(job="tune-7")], "waiting": [], "waiting_more": 0}
    desk.answers["job.list"] = {"jobs": [job], "more": False, "before": ""}
    async with page(desk) as farm:
        answer = await farm.client.get("/devices/pixel")
    assert "held by bob · tune net.onnx , 12 of 64 · about 1m 30s left" in text_of(answer.text)
    assert answer.text.count('href="/jobs/tune-7"') == 2
    assert 'value="12" max="64"' in answer.text


async def test_a_card_has_the_name_on_the_box_and_is_found_by_it() -> None:
    named = view("poco", identity=DeviceIdentity(model="24069PC21I", market_name="POCO F6", soc=Soc(model="SM8635")))
    async with page(device_desk(named)) as farm:
        assert "POCO F6 · SM8635" in text_of((await farm.client.get("/?text=poco+f6")).text)
        assert "POCO F6 (24069PC21I)" in text_of((await farm.client.get("/devices/poco")).text)


@pytest.mark.parametrize(
    ("progress", "expires_in_s", "left"),
    [
        ({"done": 12, "of": 64, "eta_s": 90.0}, 3600.0, "12 of 64 · about 1m 30s left"),
        ({"done": None, "of": None, "eta_s": None}, 3600.0, "at most 1h left"),
        (None, -5.0, "at most 0s left"),
        (None, None, ""),
    ],
)
async def test_a_busy_card_shows_its_job_and_the_time_left(
    progress: Any, expires_in_s: float | None, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.web.devices.datetime", Clock)
    ends = None if expires_in_s is None else (NOW + timedelta(seconds=expires_in_s)).isoformat()
    job = {"id": "tune-7", "kind": "tune", "name": "net.onnx", "progress": progress}
    answers = {
        "lease.list": {"leases": [lease(job="tune-7", expires_at=ends)], "waiting": [], "waiting_more": 0},
        "job.list": {"jobs": [job], "more": False, "before": ""},
    }
    async with page(Desk(status=status(view("pixel"), holder="bob"), **answers)) as farm:
        answer = await farm.client.get("/")
    (work,) = re.findall(r'<span class="work">(.*?)</span>\s*</li>', answer.text, re.DOTALL)
    assert text_of(work).removeprefix("bob · tune net.onnx").strip(" ·,") == left
    assert 'href="/jobs/tune-7"' in work


async def test_a_lease_that_ends_between_two_questions_costs_no_page() -> None:
    async with page(Desk(status=status(view("pixel"), holder="bob"))) as farm:
        answer = await farm.client.get("/")
    assert answer.status_code == 200
    assert '<span class="holder">bob</span></span>' in answer.text


async def test_what_a_quarantine_says_is_said_once() -> None:
    long = "the golden check failed: conv2d on opencl differs by 0.3 at 17 of 4096 places, dense was right"
    shown = view("pixel", life=Life.QUARANTINED, reason=long, checked=long)
    event = {"seq": 1, "at": NOW.isoformat(), "kind": "device.quarantined", "subject": "pixel"} | {
        "data": {"reason": long}
    }
    desk = device_desk(
        shown, why=long, hint="look at it, then `farm device release NAME`", events=[event],
        quarantine={"cause": brief(long), "hint": "", "at": None, "rule": "person", "evidence": []},
    )  # fmt: skip
    async with page(desk) as farm:
        answer = await farm.client.get("/devices/pixel")
    text = text_of(answer.text)
    assert text.count("the golden check failed") == 2  # its cause, and whole in the folded evidence
    assert "Not available: quarantined." in text
    assert "Nothing wrong" not in text
    assert "Lease it" not in text
    assert 'then <a href="/devices/pixel">farm device release pixel</a>' in answer.text
    assert text.index("pixel quarantined") < text.index("the golden check failed")


async def test_classes_closed_for_one_reason_share_a_line() -> None:
    classes = {
        "interactive": {"open": True, "reason": ""},
        "bench": {"open": False, "reason": "it is warm"},
        "tune": {"open": False, "reason": "it is warm"},
    }
    assert classes_of(classes) == [("interactive", True, ""), ("bench, tune", False, "it is warm")]


class Clock(datetime):
    """A clock that stands at NOW."""

    @classmethod
    def now(cls, tz: Any = None) -> "datetime":
        """When the tests happen."""
        assert tz is UTC
        return NOW
