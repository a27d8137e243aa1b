"""The picture of `farm top`: what is shown at which size, in which order."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import get_args

import pytest

from farm.cli.output.terminal import ASCII, UNICODE
from farm.cli.top_picture import PhoneOrder, Snapshot, TopView, followed, lines_of, phone_cells, snapshot, sorted_phones

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)


def device(name, state="ready", **facts):
    row = {
        "name": name, "state": state, "reason": "", "soc": "SM8650", "gpu": "Adreno 750", "temperature_c": 31.25,
        "battery_percent": 90, "heat": "ok", "holder": "",
    }  # fmt: skip
    return row | facts


def status(*devices, pid=1, seq=0, **facts):
    return {
        "version": "0.1.0", "pid": pid, "seq": seq, "tracker": {"host": "127.0.0.1", "port": 9190},
        "devices": devices, "problems": [], **facts,
    }  # fmt: skip


def lease(device, user="ann", job="j1", held_s=61.0, session=""):
    return {
        "id": "l1", "device": device, "user": user, "job": job, "key": "", "note": "", "held_s": held_s,
        "session": session,
    }  # fmt: skip


def job(number, state="running", **facts):
    row = {
        "id": f"j{number}", "kind": "tune", "name": "net.onnx", "user": "ann", "state": state, "on": "pixel",
        "device": "", "waits": "", "submitted_at": AT.isoformat(), "progress": None,
    }  # fmt: skip
    return row | facts


def event(seq, kind="device.ready", subject="pixel", **data):
    return {"seq": seq, "at": AT.isoformat(), "kind": kind, "subject": subject, "data": data}


def farm(*devices, leases=(), waiting=(), jobs=(), events=(), **facts):
    held = {"leases": list(leases), "waiting": list(waiting), "waiting_more": 0}
    return followed(None, snapshot(status(*devices, **facts), held, {"jobs": list(jobs), "more": False}, AT), events)


def shown(farm, width=80, height=24, **facts):
    return [line.plain for line in lines_of(farm, TopView(width, height, facts.pop("marks", ASCII), **facts))]


WAITS = {"user": "bob", "selector": "gpu=mali-g78", "job": "", "priority": 1, "waited_s": 3700.0}
LONG_WAIT = {**WAITS, "user": "a-user-with-a-long-name", "selector": "soc=" + "s" * 60, "waited_s": 1.0}
SMALL = farm(
    device("pixel", "busy"), device("galaxy", temperature_c=None, battery_percent=None, soc="", gpu=""),
    device("nord", "quarantined", reason="it rebooted thrice", heat="hot", battery_percent=9),
    leases=[lease("pixel")], waiting=[WAITS], jobs=[job(1, progress={"step": "trial 5 of 20", "done": 5, "of": 20})],
    events=[event(7, reason="it is back")],
)  # fmt: skip
TIMING = farm(device("pixel"), jobs=[
    job(1, progress={"step": "timing"}), job("x" * 20, progress={"step": "running, 1m 3s of 30m, battery 29.0 C"}),
])  # fmt: skip
LONG = farm(
    device("pixel", "quarantined", reason="r" * 200, soc="Snapdragon 8 Gen 3 for Galaxy"), waiting=[LONG_WAIT],
    jobs=[job(1, name="n" * 60)],
)  # fmt: skip
BEFORE = farm(device("pixel"), events=[event(5), event(6, "device.pushing"), event(7, "device.busy")])
AFTER = followed(BEFORE, farm(device("pixel"), pid=2), [event(7), event(1 << 33)])
CELLS = farm(device("pixel-of-the-lab", "busy"), device("nord"), leases=[lease("pixel-of-the-lab")])


@pytest.mark.parametrize(
    ("name", "picture", "view"),
    [
        ("a small farm as a table", SMALL, {"width": 106, "height": 20}),
        ("80 columns with a job's phone and step", TIMING, {}),
        *((f"cut texts in {width} columns", LONG, {"width": width, "height": 30}) for width in (100, 140)),
        *((f"phones as cells in {width} columns", CELLS, {"width": width}) for width in (20, 40, 60, 80)),
        ("a daemon that is away", farm(device("pixel")), {"away": "no farm daemon listens"}),
        ("a daemon that was never there", None, {"away": "no farm daemon listens"}),
        ("a daemon that was restarted", AFTER, {}),
        ("no phones", farm(), {}),
        ("no phone of these words", farm(device("pixel")), {"wanted": "nexus"}),
    ],
)
def test_it_shows(at_utc, snapshot, name, picture, view):
    lines = shown(picture, **view)
    assert max(map(len, lines)) <= view.get("width", 80)
    snapshot("\n".join(lines), name)


def test_a_restart_goes_on_with_the_news():
    assert [each.seq for each in AFTER.news] == [5, 7, 1 << 33]


def test_an_old_temperature_has_its_age_and_a_phone_that_is_gone_has_none():
    lines = shown(farm(device("nord", read_age_s=1_641_600.0), device("galaxy", "gone")))
    old, gone = (line.split()[2:4] for line in lines if line.startswith(("nord", "galaxy")))
    assert (old[0], old[1][-1], gone) == ("31C", "d", ["-", "-"])


def test_old_readings_are_grey():
    (phone,) = farm(device("nord", read_age_s=1_641_600.0, battery_percent=9, heat="hot")).phones
    heat, battery = phone_cells(phone, wide=False)[2:4]
    assert (str(heat.style), str(battery.style), battery.plain) == ("dim", "dim", "9%")
    alone = phone_cells(replace(phone, celsius=None), wide=False)[3]
    assert alone.plain == f"9% {phone.read}"


@pytest.mark.parametrize(("width", "height"), [(20, 3), (40, 10), (80, 24), (132, 43), (200, 60), (500, 300)])
@pytest.mark.parametrize("count", [0, 1, 30, 200])
def test_it_fits_every_screen(width, height, count):
    phones = [device(f"phone-{n:03}", ("ready", "busy", "quarantined")[n % 3]) for n in range(count)]
    told = farm(
        *phones, jobs=[job(n) for n in range(50)], events=[event(n) for n in range(1, 90)], problems=["x" * 300]
    )
    lines = shown(told, width, height, marks=UNICODE)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_two_hundred_phones_stand_side_by_side_none_left_out():
    phones = [device(f"phone-{n:03}") for n in range(200)]
    text = "\n".join(shown(farm(*phones), width=160, height=50))
    assert all(f"phone-{n:03}" in text for n in range(200))


def test_what_does_not_fit_is_counted():
    phones = [device(f"phone-{n:03}") for n in range(200)]
    lines = shown(farm(*phones), width=60, height=24)
    seen = sum(line.count("phone-") for line in lines)
    assert f"~ {200 - seen} phones more" in lines


def test_orders_and_words():
    told = farm(
        device("a", "ready", temperature_c=20.0, battery_percent=50),
        device("b", "busy", temperature_c=40.0, battery_percent=None),
        device("c", "quarantined", temperature_c=None, battery_percent=10),
        leases=[lease("b")],
    )
    names = {by: "".join(phone.name for phone in sorted_phones(told.phones, by)) for by in get_args(PhoneOrder)}
    assert names == {
        "state": "cba", "name": "abc", "heat": "bac", "battery": "cab",
        "holder": "bac",
    }  # fmt: skip
    assert [phone.name for phone in sorted_phones(told.phones, "name", "ANN busy")] == ["b"]


def test_words_of_others_steer_no_terminal():
    told = farm(device("pixel", reason="\x1b[2Jgone"), jobs=[job(1, name="\x1b]0;x\x07", user="\r")])
    assert "\x1b" not in "".join(shown(told, width=200))


def test_json_has_all_of_it():
    told = asdict(replace(farm(device("pixel")), at=AT))
    assert told["phones"][0]["celsius"] == 31.25
    assert set(told) == set(Snapshot.__dataclass_fields__)
