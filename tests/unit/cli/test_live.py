"""`farm top` and `farm watch` at a terminal, against a daemon that comes and goes."""

import json
import signal
import subprocess
import sys

import pytest

from farm.common.errors import PhoneError, error_to_wire
from tests.support.fake_daemon import FARM
from tests.support.terminal import Terminal
from tests.support.waiting import HANG_S

SPEC = {"kind": "bench", "on": "android", "devices": 1, "hold": False, "priority": 1, "name": "net.onnx"}
LEAVE_ALTERNATE, SHOW_CURSOR = "\x1b[?1049l", "\x1b[?25h"


@pytest.fixture
def at_terminal(daemon, tmp_path):
    open_ones = []

    def start(*arguments, more=(), **options):
        environ = dict(more) | {"FARM_SOCKET": str(daemon.socket), "XDG_CACHE_HOME": str(tmp_path), "LANG": "C.UTF-8"}
        open_ones.append(Terminal([*FARM, *arguments], environ=environ, **options))
        return open_ones[-1]

    yield start
    for each in open_ones:
        each.__exit__()


def submit(daemon, **facts):
    async def add():
        row = daemon._add({**SPEC, **facts}, "", "")
        await daemon._tell("job.submitted", row["id"], {})
        return row["id"]

    return daemon.run(add())


@pytest.mark.parametrize(
    ("columns", "environ"), [(40, {}), (80, {"NO_COLOR": "1"}), (121, {}), (200, {"NO_COLOR": "1"})]
)
def test_top_shows_a_live_job_on_every_terminal(at_terminal, daemon, columns, environ):
    job = submit(daemon)
    daemon.begin(job, "pixel")
    top = at_terminal("top", "--interval", "0.2", size=(40, columns), more=environ)
    assert "Traceback" not in top.read(lambda seen: job[:8] in seen and "pixel" in seen)
    top.process.send_signal(signal.SIGINT)
    assert top.ends() == 130
    assert "Traceback" not in top.raw


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_top_leaves_the_terminal_as_it_was(at_terminal, sent):
    top = at_terminal("top", "--interval", "0.2")
    top.shows("galaxy")
    top.process.send_signal(sent)
    assert top.ends() == 130
    assert LEAVE_ALTERNATE in top.raw
    assert SHOW_CURSOR in top.raw
    assert "Traceback" not in top.raw


def test_top_outlives_the_daemon_and_says_so(at_terminal, daemon):
    top = at_terminal("top", "--interval", "0.2")
    top.shows("galaxy")
    daemon.kill()
    top.read(lambda text: "pixel" in text.partition("this is how it was")[2])
    daemon.start()
    top.read(lambda text: text.rfind("running jobs") > text.rfind("this is how it was"))
    daemon.tell("device.gone", "galaxy", reason="it was unplugged")
    top.shows("it was unplugged")


def test_top_follows_the_terminals_size(at_terminal):
    top = at_terminal("top", "--interval", "0.2", size=(24, 120))
    assert "SOC" in top.shows("REASON")
    top.resize(10, 40)
    frame = top.shows("● galaxy").replace("\r", "").rpartition("farm 0.1.0")[2]  # cells, where columns do not fit
    assert "SOC" not in frame
    assert all(len(line) <= 40 for line in frame.split("\n"))


def test_top_goes_on_while_its_window_is_dragged(at_terminal, daemon):
    top = at_terminal("top", "--interval", "0.2", size=(24, 120))
    top.shows("galaxy")
    for columns in range(2000):
        top.resize(24, 60 + columns % 60)
    daemon.tell("device.gone", "galaxy", reason="it was unplugged")
    top.shows("it was unplugged")


@pytest.mark.parametrize("arguments", [("top",), ("watch", "job-0001")])
def test_a_terminal_that_closes_ends_it(at_terminal, daemon, arguments):
    submit(daemon)
    shown = at_terminal(*arguments)
    shown.shows("job-0001")
    shown.hang_up()
    shown.process.send_signal(signal.SIGHUP)
    # The second signal may come while it is ending already, with the default handler back.
    assert shown.process.wait(HANG_S) in (130, 1, -signal.SIGHUP)


def test_top_for_scripts(typed):
    once = typed("top", "--once")
    out, err = once.communicate(timeout=60)
    assert (once.returncode, err) == (0, "")
    assert "pixel" in out
    assert "\x1b" not in out
    told = typed("top", "--once", "--json")
    assert [phone["name"] for phone in json.loads(told.communicate(timeout=60)[0])["phones"]] == ["pixel", "galaxy"]
    lines = typed("top", "--json", "--interval", "0.2")
    assert json.loads(lines.stdout.readline())["version"] == json.loads(lines.stdout.readline())["version"] == "0.1.0"
    lines.stdout.close()  # the reader has what it wanted
    assert lines.wait(HANG_S) in (0, 1)


def test_top_without_a_daemon(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "farm", "--socket", str(tmp_path / "none"), "top"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "")


def test_watch_draws_phases_attempts_and_ends_with_the_jobs_code(at_terminal, daemon):
    job = submit(daemon)
    watch = at_terminal("watch", job)
    watch.shows("pixel is held by bob")
    daemon.begin(job, "pixel")
    daemon.tell("job.progress", job, step="compiling", device="pixel")
    seen = watch.shows("> compiling")
    assert "pixel" in seen
    watch.shows("30.0C")
    error = PhoneError("it was unplugged")
    told = {"job": job, "device": "pixel", "state": "failed", "error": error_to_wire(error)}
    daemon.tell("attempt.ended", f"{job}.1", **told)
    daemon.begin(job, "galaxy")
    watch.shows("attempt 2")
    daemon.end(job, {}, error)
    assert watch.ends() == 1 or watch.process.returncode == error.exit_code
    assert SHOW_CURSOR in watch.raw


def test_watch_goes_on_after_a_restart(at_terminal, daemon):
    job = submit(daemon)
    watch = at_terminal("watch", job)
    watch.shows("pixel is held by bob")
    daemon.kill()
    watch.shows("waiting up to")
    daemon.start()
    daemon.begin(job, "pixel")
    daemon.tell("job.progress", job, step="timing", device="pixel")
    watch.shows("> timing")
    daemon.end(job, {})
    assert watch.ends() == 0


def test_watch_stopped_by_hand_says_that_the_job_goes_on(at_terminal, daemon):
    job = submit(daemon)
    watch = at_terminal("watch", job)
    watch.shows("pixel is held by bob")
    watch.process.send_signal(signal.SIGINT)
    assert watch.ends() == 130
    assert f"farm watch {job}" in watch.raw
    assert daemon.jobs[job]["job"]["state"] == "queued"


def test_no_color_is_honoured(daemon, tmp_path):
    environ = {"FARM_SOCKET": str(daemon.socket), "NO_COLOR": "1"}
    with Terminal([*FARM, "top", "--once"], environ=environ) as top:
        assert top.ends() == 0
        assert "\x1b[3" not in top.raw
    with Terminal([*FARM, "top", "--once"], environ={"FARM_SOCKET": str(daemon.socket)}) as top:
        assert top.ends() == 0
        assert "\x1b[" in top.raw
