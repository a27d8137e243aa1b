"""The calendar: who used which phone, and what is reserved."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from farm.web.leases import SCALE, bar, timeline
from tests.support.web_desk import NOW, Desk, page, status, text_of

DAY = (NOW - timedelta(days=1), NOW)


def past(device: str, user: str, hours_ago: float, hours: float | None) -> dict[str, Any]:
    """A row of `lease.history`; `hours` None: it goes on."""
    starts = NOW - timedelta(hours=hours_ago)
    ends = None if hours is None else (starts + timedelta(hours=hours)).isoformat()
    return {"id": f"{device}-{hours_ago}", "device": device, "user": user, "source": "job", "job": "lease-7"} | {
        "granted_at": starts.isoformat(), "ended_at": ends,
    }  # fmt: skip


def test_bars_lie_within_the_window_and_can_be_seen() -> None:
    hour = SCALE / 24
    whole = bar(NOW - timedelta(days=9), NOW + timedelta(days=9), DAY, 0, "")
    assert (whole.x, whole.width) == (0.0, SCALE)
    last = bar(NOW - timedelta(hours=6), NOW - timedelta(hours=5), DAY, 0, "")
    assert (last.x, last.width) == (18 * hour, round(hour, 1))
    assert bar(NOW - timedelta(hours=6), NOW - timedelta(hours=6), DAY, 0, "").width == 1.0


def test_a_row_for_each_device_and_the_most_use_first() -> None:
    leases = [past("a-10", "ann", 2, None), past("a-2", "bob", 30, 10), past("a-2", "bob", 10, 1)]  # newest first
    rows, legend = timeline(leases, DAY)
    assert [(device, len(bars)) for device, bars in rows] == [("a-2", 2), ("a-10", 1)]
    assert legend == [("bob", "5h", 0), ("ann", "2h", 1)]  # of the first ten hours four are in the window
    (newest,) = rows[1][1]
    assert newest.words == "ann, 11-20 10:00 to 12:00 UTC, lease-7"


async def test_the_calendar_shows_use_and_reservations() -> None:
    now = datetime.now(UTC)
    used = past("pixel", "bob", 0, None) | {"granted_at": (now - timedelta(hours=3)).isoformat()}
    soon, far = now + timedelta(days=1), now + timedelta(days=30)
    kept = [
        {"id": "r1", "selector": "soc=sm8650", "user": "ann", "note": "paper"}
        | {"starts_at": at.isoformat(), "ends_at": (at + timedelta(hours=2)).isoformat()}
        for at in (soon, far)
    ]
    answers = {"lease.history": {"leases": [used], "more": True}, "reservation.list": {"reservations": kept}}
    async with page(Desk(status=status(), **answers)) as farm:
        answer = await farm.client.get("/leases/calendar?past=week")
        assert (await farm.client.get("/leases/calendar?past=year")).status_code == 400
    text = text_of(answer.text)
    assert "bob 3h" in text
    assert "Only the newest leases are drawn." in text
    assert "soc=sm8650 for ann" in text
    assert len(re.findall("<rect ", answer.text)) == 5  # the mark of the page, the legend, a lease, a reservation
    assert "later" in text


async def test_an_empty_calendar_says_so() -> None:
    answers = {"lease.history": {"leases": [], "more": False}, "reservation.list": {"reservations": []}}
    async with page(Desk(status=status(), **answers)) as farm:
        text = text_of((await farm.client.get("/leases/calendar")).text)
    assert "No phone was leased." in text
    assert "farm reservation add" in text
