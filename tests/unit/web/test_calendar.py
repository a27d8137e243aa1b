"""The calendar: who used which phone, and what is reserved."""

from datetime import timedelta

from farm.web.leases import SCALE, bar, timeline
from tests.support.web_desk import Desk, Page, status
from tests.support.web_rows import NOW

DAY = (NOW - timedelta(days=1), NOW)


def past(device, user, hours_ago, hours):
    """A row of `lease.history`; `hours` None: it continues."""
    starts = NOW - timedelta(hours=hours_ago)
    return {
        "id": f"{device}-{hours_ago}", "device": device, "user": user, "source": "job", "job": "lease-7",
        "granted_at": starts.isoformat(), "ended_at": hours and (starts + timedelta(hours=hours)).isoformat(),
    }  # fmt: skip


def test_bars_lie_within_the_window_and_can_be_seen():
    def drawn(began_h, ended_h):
        found = bar(NOW - timedelta(hours=began_h), NOW - timedelta(hours=ended_h), DAY, 0, "")
        return found.x, found.width

    assert drawn(200, -200) == (0.0, SCALE)
    assert drawn(6, 5) == (18 * SCALE / 24, round(SCALE / 24, 1))
    assert drawn(6, 6)[1] == 1.0


def test_a_row_for_each_device_and_the_most_use_first():
    leases = [past("a-10", "ann", 2, None), past("a-2", "bob", 30, 10), past("a-2", "bob", 10, 1)]  # newest first
    rows, legend = timeline(leases, DAY)
    assert [(device, len(bars)) for device, bars in rows] == [("a-2", 2), ("a-10", 1)]
    assert legend == [("bob", "5h", 0), ("ann", "2h", 1)]  # of the first ten hours four are in the window
    assert rows[1][1][0].words == "ann, 11-20 10:00 to 12:00 UTC, lease-7"


async def test_the_calendar_shows_use_and_reservations():
    kept = [
        {"id": "r1", "selector": "soc=sm8650", "user": "ann", "note": "paper", "starts_at": at.isoformat(),
         "ends_at": (at + timedelta(hours=2)).isoformat()}
        for at in (NOW + timedelta(days=1), NOW + timedelta(days=30))
    ]  # fmt: skip
    used = {"leases": [past("pixel", "bob", 3, None)], "more": True, "now": NOW.isoformat()}
    farm = Page(Desk(**{"status": status(), "lease.history": used, "reservation.list": {"reservations": kept}}))
    assert (await farm.get("/leases/calendar?past=year")).status_code == 400
    assert (await farm.html("/leases/calendar?past=week")).count("<rect ") == 5  # the mark, the legend, a lease, r1
    text = await farm.words("/leases/calendar?past=week")
    for words in ("bob 3h", "Only the newest leases are drawn.", "soc=sm8650 for ann", "later"):
        assert words in text


async def test_an_empty_calendar_says_so():
    answers = {
        "lease.history": {"leases": [], "more": False, "now": NOW.isoformat()},
        "reservation.list": {"reservations": []},
    }
    text = await Page(Desk(status=status(), **answers)).words("/leases/calendar")
    assert ("No phone was leased." in text, "farm reservation add" in text) == (True, True)
