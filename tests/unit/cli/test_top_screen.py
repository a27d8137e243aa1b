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


def test_a_small_farm_as_a_table():
    waits = {"user": "bob", "selector": "gpu=mali-g78", "job": "", "priority": 1, "waited_s": 3700.0}
    told = farm(
        device("pixel", "busy"), device("galaxy", temperature_c=None, battery_percent=None, soc="", gpu=""),
        device("nord", "quarantined", reason="it rebooted thrice", heat="hot", battery_percent=9),
        leases=[lease("pixel")], waiting=[waits],
        jobs=[job(1, progress={"step": "trial 5 of 20", "done": 5, "of": 20})],
        events=[event(7, reason="it is back")],
    )  # fmt: skip
    lines = shown(told, width=106, height=20)
    lines = [line.replace(f"{AT.astimezone():%H:%M:%S}", "12:00:00") for line in lines]
    assert lines == [
        "farm 0.1.0  tracker 127.0.0.1:9190  3 phones: 1 busy  1 ready  1 quarantined",
        "12:00:00  running jobs: 1, waiting for a phone: 1",
        "PHONE                STATE           HEAT  BATT SOC            GPU            HOLDER       AGE      REASON",
        "nord                 quarantined    31.2C    9% SM8650         Adreno 750     -                     it re~",
        "pixel                busy           31.2C   90% SM8650         Adreno 750     ann          1m 1s    j1",
        "galaxy               ready              -     - -              -              -",
        "JOBS",
        "j1  running  pixel  ##........  25% trial 5 of 20  net.onnx  ann",
        "WAITING FOR A PHONE",
        "bob          gpu=mali-g78                   priority 1  1h 1m",
        "EVENTS",
        "12:00:00 pixel is ready: it is back",
    ]


def test_an_old_temperature_has_its_age_and_a_phone_that_is_gone_has_none():
    lines = shown(farm(device("nord", read_at="2026-11-01T00:00:00+00:00"), device("galaxy", "gone")))
    old, gone = (line.split()[2:4] for line in lines if line.startswith(("nord", "galaxy")))
    assert (old[0], old[1][-1], gone) == ("31C", "d", ["-", "-"])


def test_old_readings_are_grey():
    (phone,) = farm(device("nord", read_at="2026-11-01T00:00:00+00:00", battery_percent=9, heat="hot")).phones
    heat, battery = phone_cells(phone, wide=False)[2:4]
    assert (str(heat.style), str(battery.style), battery.plain) == ("dim", "dim", "9%")
    alone = phone_cells(replace(phone, celsius=None), wide=False)[3]
    assert alone.plain == f"9% {phone.read}"


def test_80_columns_show_a_jobs_phone_and_step():
    lines = shown(farm(device("pixel"), jobs=[job(1, progress={"step": "timing"})]))
    assert "j1  running  pixel  timing  net.onnx  ann" in lines
    step = "running, 1m 3s of 30m, battery 29.0 C"
    (line,) = (line for line in shown(farm(jobs=[job("x" * 20, progress={"step": step})])) if "29.0" in line)
    assert line == f"j{'x' * 20}  running  pixel  {step}  n~"


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


def test_a_daemon_that_is_away_is_told_and_what_was_known_stays():
    lines = shown(farm(device("pixel")), away="no farm daemon listens")
    assert "this is how it was: no farm daemon listens" in lines
    assert any(line.startswith("pixel") for line in lines)
    assert shown(None, away="no farm daemon listens") == ["no farm daemon listens"]


def test_a_restart_is_told_and_the_ticker_goes_on():
    before = farm(device("pixel"), events=[event(5), event(6, "device.pushing"), event(7, "device.busy")])
    after = followed(before, farm(device("pixel"), pid=2), [event(7), event(1 << 33)])
    assert [each.seq for each in after.news] == [5, 7, 1 << 33]
    assert any("the daemon was restarted" in line for line in shown(after))
    assert not any("restarted" in line for line in shown(before))


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


def test_phones_without_the_words_are_not_phones_that_are_not_there():
    assert "no phone has the words nexus" in shown(farm(device("pixel")), wanted="nexus")
    assert "no phones: plug one in, or `farm doctor`" in shown(farm())


def test_words_of_others_steer_no_terminal():
    told = farm(device("pixel", reason="\x1b[2Jgone"), jobs=[job(1, name="\x1b]0;x\x07", user="\r")])
    assert "\x1b" not in "".join(shown(told, width=200))


def test_json_has_all_of_it():
    told = asdict(replace(farm(device("pixel")), at=AT))
    assert told["phones"][0]["celsius"] == 31.25
    assert set(told) == set(Snapshot.__dataclass_fields__)


def test_no_phone_and_one_phone_are_said_as_such():
    assert shown(farm())[0].endswith("  0 phones")
    assert shown(farm(device("pixel")))[0].endswith("  1 phone: 1 ready")


@pytest.mark.parametrize("width", [20, 40, 60])
def test_where_the_columns_do_not_fit_phones_stand_as_cells(width):
    held = farm(device("pixel-of-the-lab", "busy"), device("nord"), leases=[lease("pixel-of-the-lab")])
    lines = shown(held, width=width)
    assert not any(line.startswith("PHONE") for line in lines)
    assert "2 phones: 1 busy  1 ready"[:width].strip() in "\n".join(lines)
    cells = " ".join(line for line in lines if line.startswith("*"))
    assert "nord" in cells
    assert width < 30 or ("ann" in cells and "ready" in cells)
    assert any(line.startswith("PHONE") for line in shown(held, width=80))


def test_each_text_that_is_cut_shows_it():
    told = farm(
        device("pixel", "quarantined", reason="r" * 200, soc="Snapdragon 8 Gen 3 for Galaxy"),
        waiting=[
            {
                "user": "a-user-with-a-long-name",
                "selector": "soc=" + "s" * 60,
                "priority": 1,
                "waited_s": 1.0,
                "job": "",
            }
        ],
        jobs=[job(1, name="n" * 60)],
    )
    for width in (100, 140):
        lines = shown(told, width=width, height=30)
        reason, job_line, waiting = (
            next(line for line in lines if line.startswith(begin)) for begin in ("pixel", "j1", "a-user")
        )
        assert reason[-1] == "~"
        assert "Snapdragon 8 ~" in reason
        assert "n~" in job_line
        assert (waiting.count("~"), max(map(len, lines))) == (2, width)
