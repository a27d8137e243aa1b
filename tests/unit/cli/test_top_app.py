"""`farm top` with keys and panes, driven by textual's own pilot against a daemon whose answers are made up."""

import contextlib

import pytest

from farm.cli.top import FarmReader, Poller
from farm.control.client import ControlClient
from tests.support.waiting import until

textual = pytest.importorskip("textual", reason="the extra `tui` is not installed")
Resize = pytest.importorskip("textual.events").Resize

SPEC = {"kind": "bench", "on": "android", "devices": 1, "hold": False, "priority": 1, "name": "net.onnx"}


@pytest.fixture
def poller(daemon):
    reader = FarmReader(lambda: ControlClient(daemon.socket))
    reader.read()
    reader.close()
    return Poller(reader, 0.05)


@pytest.fixture
def start(poller):
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(poller)


@pytest.fixture
def app(daemon, poller):
    from farm.cli.top_app import TopApp

    return TopApp(poller, connected=lambda: ControlClient(daemon.socket))


def names(app, table="phones"):
    return [str(row.value) for row in app._table(table).rows]


def detail(app):
    return "\n".join(line.text for line in app.query_one("#text").lines)


def submit(daemon):
    async def add():
        return daemon._add(SPEC, "", "")["id"]

    return daemon.run(add())


async def test_phones_and_jobs_come_and_q_ends_it(app, daemon, poller, start):
    async with app.run_test(size=(120, 40)) as pilot:
        start()
        assert names(app) == ["galaxy", "pixel"]
        job = submit(daemon)
        await until(lambda: names(app, "jobs") == [job])
        daemon.tell("device.gone", "pixel", reason="it was unplugged")
        await until(lambda: any("it was unplugged" in line.text for line in app.query_one("#events").lines))
        await pilot.press("q")
    assert app.return_code == 0
    assert poller.on_snapshot == poller.changed.set


@pytest.mark.parametrize(("width", "columns"), [(120, 9), (80, 6)])
async def test_panes_are_apart_and_columns_follow_the_width(app, poller, width, columns):
    async with app.run_test(size=(width, 30)) as pilot:
        await pilot.pause()
        phones = app._table("phones")
        assert len(phones.columns) == len(phones.get_row("pixel")) == columns
        events = app.query_one("#events")
        jobs = app._table("jobs")
        assert events.region.size != events.content_size  # a border
        assert jobs.region.y == phones.region.bottom + 1
        assert (events.region.y == jobs.region.y) is (width >= 100)
        assert events.region.y >= jobs.region.bottom or events.region.x >= jobs.region.right
        await pilot.resize_terminal(200 - width, 30)
        await until(lambda: len(phones.columns) == 15 - columns)


@pytest.mark.parametrize("early", [False, True], ids=["size after mount", "size before mount"])
@pytest.mark.parametrize("width", [40, 200])
async def test_a_live_job_is_shown_at_every_width(app, daemon, poller, start, width, early):
    """A real terminal's driver knows its size before the app is mounted; the pilot's does not."""
    job = submit(daemon)
    daemon.begin(job, "pixel")
    poller.farm = poller._reader.read()
    poller._reader.close()
    if early:
        app.__class__ = type("Sized", (type(app),), {"on_mount": lambda app: app.on_resize(Resize(app.size, app.size))})
    async with app.run_test(size=(width, 40)) as pilot:
        start()
        for columns in (width, 200, 60, 121, 99, 100, width):
            await pilot.resize_terminal(columns, 30)
            await until(lambda: len(app._table("phones").columns) == (9 if columns >= 100 else 6))  # noqa: B023
            assert (names(app), names(app, "jobs")) == (["galaxy", "pixel"], [job])
        await pilot.press("q")
    assert app.return_code == 0


async def test_explain_the_phone_under_the_cursor(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("down", "e")
        await until(lambda: "pixel is as it is" in detail(app))
        assert "explain device pixel" in detail(app)
        await pilot.press("escape")
        assert not app.query_one("#detail").has_class("shown")


async def test_logs_of_a_job_and_what_the_daemon_refuses(app, daemon, start):
    job = submit(daemon)
    daemon.begin(job, "pixel")
    daemon.lines.append(
        {"at": "2026-11-22T12:00:00+00:00", "level": "info", "source": "worker", "text": "\x1b[2Jhello"}
    )
    async with app.run_test(size=(120, 40)) as pilot:
        start()
        await until(lambda: names(app, "jobs") == [job])
        app._table("jobs").focus()
        await pilot.press("l")
        await until(lambda: r"worker: \x1b[2Jhello" in detail(app))
        daemon.end(job, {})
        await until(lambda: names(app, "jobs") == [])
        await pilot.press("escape", "down", "l")
        await until(lambda: "no job runs there" in "".join(str(each.message) for each in app._notifications))
        daemon.jobs.clear()
        app._ask("logs", lambda: app._logged(job))
        await until(lambda: "error: there is no job" in detail(app))


async def test_filter_and_order(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("slash", *"pix")
        assert names(app) == ["pixel"]
        await pilot.press("enter", "s")
        assert app._by == "name"
        assert names(app) == ["pixel"]
        await pilot.press("escape")
        assert names(app) == ["galaxy", "pixel"]


async def test_a_daemon_that_is_away_is_told(app, daemon, start, monkeypatch):
    monkeypatch.setattr("farm.control.client.SILENT_AFTER_S", 1.0)
    async with app.run_test(size=(120, 40)):
        start()
        daemon.kill()
        head = app.query_one("#head")
        await until(lambda: "this is how it was" in str(head.render()))
        assert names(app) == ["galaxy", "pixel"]
        daemon.start()
        await until(lambda: "this is how it was" not in str(head.render()))


async def test_keys_are_listed(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("question_mark")
        await until(lambda: "explain" in detail(app))
        assert "/        filter" in detail(app)
