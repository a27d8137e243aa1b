"""The pages over made-up verbs: what they take, what changes while they are open, what hostile names come out as."""

import re
from datetime import timedelta

import pytest

from farm.common.errors import HostUnreachableError
from farm.control.callers import Role
from farm.model.device import Life, Service
from farm.web.devices import classes_of
from tests.support.web_desk import Desk, Page, device_desk, lab_desk, status, text_of
from tests.support.web_rows import HOSTILE, NOW, lease, leases, running, view


def names(text):
    return re.findall(r'class="name">([^<]*)<', text)


async def test_metrics_are_what_the_collector_says():
    answer = await Page().get("/metrics")
    assert (answer.text, answer.headers["content-type"][:25]) == ("farm_up 1\n", "text/plain; version=0.0.4")


async def test_a_device_that_is_not_there_names_the_nearest():
    answer = await Page(device_desk(view())).get("/devices/pixle")
    assert (answer.status_code, "did you mean pixel?" in text_of(answer.text)) == (404, True)


async def test_anybody_may_look_and_is_a_viewer():
    farm = Page(Desk(status=status(view())))
    assert '<form method="post"' not in await farm.html("/")
    caller = farm.desk.asked[0][0]
    assert (caller.user, caller.role) == ("", Role.VIEWER)


async def test_hostile_words_of_phones_are_words():
    shown = view(reason=HOSTILE, pool=HOSTILE, aliases=(HOSTILE,), checked=HOSTILE)
    event = {"seq": 1, "at": NOW.isoformat(), "kind": "device.ready", "subject": "pixel", "data": {"reason": HOSTILE}}
    desk = device_desk(
        shown, holder=HOSTILE, why=HOSTILE, hint=HOSTILE, lines=[HOSTILE], events=[event],
        quarantine={"cause": HOSTILE, "hint": HOSTILE, "at": None, "rule": HOSTILE, "evidence": [HOSTILE]},
        columns=[{"quantity": HOSTILE, "name": HOSTILE, "unit": HOSTILE, "values": [1.0]}],
    )  # fmt: skip
    desk.answers["status"] = {**status(shown, holder=HOSTILE), "problems": [HOSTILE]}
    desk.answers |= leases(lease(user=HOSTILE, note=HOSTILE))
    for path in ("/", f"/?text={HOSTILE}", "/devices/pixel", "/leases", f"/sign-in?to={HOSTILE}"):
        text = await Page(desk).html(path)
        assert "<img" not in text, path
        assert 'onerror=alert(1)>"' not in text, path
        assert path.startswith("/sign-in") or HOSTILE.replace(" ", "") in text_of(text).replace(" ", ""), path


async def test_what_turns_or_hides_text_is_spelled_out():
    text = await Page(device_desk(view(reason="a\x1b[2J\u202eb"))).html("/devices/pixel")
    assert r"a\x1b[2J\u202eb" in text
    assert not {"\x1b", "\u202e"} & {*text}


WALL = (
    view("fire", serial="SM-X", aliases=("adreno-740",)),
    view(pool="lab"),
    view("tablet", service=Service.DRAINING),
)
TABLE = (view("a-10", temperature_c=30.0), view("a-2", life=Life.QUARANTINED), view("b-1", temperature_c=41.0))


@pytest.mark.parametrize(
    ("devices", "query", "found"),
    [
        (WALL, "?", ["fire", "pixel", "tablet"]),
        (WALL, "?state=ready", ["fire", "pixel"]),
        (WALL, "?pool=lab", ["pixel"]),
        (WALL, "?text=SM-X", ["fire"]),
        (WALL, "?text=adreno+fire", ["fire"]),
        (WALL, "?state=draining", ["tablet"]),
        (WALL, "?pool=lab&state=draining", []),
        (TABLE, "?view=table&sort=name", ["a-2", "a-10", "b-1"]),
        (TABLE, "?view=table&sort=-temperature", ["b-1", "a-10", "a-2"]),  # without a reading: last
        (TABLE, "?view=table&group=state&sort=-name", ["a-2", "b-1", "a-10"]),
        (TABLE, "?view=table&sort=no-column&group=nothing", ["a-2", "a-10", "b-1"]),
    ],
)
async def test_the_wall_filters_sorts_and_groups_whole_or_in_part(devices, query, found):
    farm = Page(Desk(status=status(*devices)))
    for text in (await farm.html("/" + query), await farm.part("/" + query)):
        assert names(text) == found
        assert f"{len(found)} of 3 shown" in text


async def test_many_devices_are_a_table_unless_cards_are_asked_for():
    farm = Page(Desk(status=status(*(view(f"a-{n}") for n in range(25)))))
    assert ['<table class="fleet"' in await farm.html(path) for path in ("/", "/?view=cards")] == [True, False]


async def test_a_part_is_no_whole_page():
    farm = Page(device_desk(view()))
    for path in ("/", "/devices/pixel"):
        assert ["<html" in text for text in (await farm.html(path), await farm.part(path))] == [True, False]


async def test_readings_for_plots_and_their_limits():
    farm = Page(device_desk(view()))
    assert (await farm.get("/devices/pixel/readings?seconds=60")).json()["device"] == "pixel"
    for seconds in ("0", "-1", "86401", "nan", "x", "inf"):
        assert (await farm.get(f"/devices/pixel/readings?seconds={seconds}")).status_code == 400


async def test_a_name_that_needs_quoting_is_one_segment_of_its_address():
    assert "10.0.0.3:5555" in await Page(device_desk(view("10.0.0.3:5555"))).words("/devices/10.0.0.3%3A5555")


async def test_old_readings_and_those_of_a_gone_phone_are_marked():
    old = NOW - timedelta(hours=2, minutes=1)
    gone = view(life=Life.GONE, temperature_c=36.0, temperature_of="skin", battery_percent=100, read_at=old)
    for path in ("/", "/?view=table", "/devices/pixel"):
        assert "2h 1m ago" in await Page(device_desk(gone)).words(path), path


PROGRESS = {"done": 12, "of": 64, "eta_s": 90.0}


@pytest.mark.parametrize(
    ("progress", "expires_in_s", "left"),
    [
        (PROGRESS, 3600.0, "12 of 64 · about 1m 30s left"),
        (dict.fromkeys(PROGRESS), 3600.5, "at most 1h left"),
        (None, -5.0, "at most 0s left"),
        (None, None, ""),
    ],
)
async def test_a_busy_card_shows_its_job_and_the_time_left(progress, expires_in_s, left):
    ends = None if expires_in_s is None else (NOW + timedelta(seconds=expires_in_s)).isoformat()
    job = {"id": "tune-7", "kind": "tune", "name": "net.onnx", "progress": progress}
    answers = leases(lease(job="tune-7", expires_at=ends)) | {"job.list": {"jobs": [job], "before": ""}}
    text = await Page(Desk(status=status(view(), holder="bob"), **answers)).html("/")
    (work,) = re.findall(r'<span class="work">(.*?)</span>\s*</li>', text, re.DOTALL)
    assert text_of(work).removeprefix("bob · tune net.onnx").strip(" ·,") == left
    assert 'href="/jobs/tune-7"' in work


async def test_a_lease_that_ends_between_two_questions_costs_no_page():
    text = await Page(Desk(status=status(view(), holder="bob"))).html("/")
    assert '<span class="holder">bob</span></span>' in text


def test_classes_closed_for_one_reason_share_a_line():
    warm = {"open": False, "reason": "it is warm"}
    classes = {"interactive": {"open": True, "reason": ""}, "bench": warm, "tune": warm}
    assert classes_of(classes) == [("interactive", True, ""), ("bench, tune", False, "it is warm")]


@pytest.fixture
def lab():
    return Page(lab_desk(running(on="far")), lab=True)


async def test_an_operator_drains_a_host(lab):
    await lab.sign_in()
    assert await lab.order("/hosts/lab2/drain") == (303, "/hosts")
    assert lab.desk.asked_last("host.drain") == {"host": "lab2", "on": True}


async def test_a_lost_host_is_not_asked(lab):
    await lab.html("/jobs")
    assert [fields["host"] for _, kind, fields in lab.desk.asked if kind == "job.steps"] == ["lab2"]


async def test_a_host_that_does_not_answer_is_left_out(lab):
    def silent(host):
        raise HostUnreachableError("host lab2 cannot be reached")

    lab.desk.answers["job.steps"] = silent
    await lab.html("/jobs")


async def test_a_phone_of_no_host_is_not_there_and_a_host_alone_has_no_page_of_hosts(lab):
    assert (await lab.get("/devices/unknown")).status_code == 503
    assert ['href="/hosts"' in await farm.html("/") for farm in (lab, Page())] == [True, False]
