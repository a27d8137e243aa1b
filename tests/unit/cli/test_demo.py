"""What `farm demo` times, on a host that takes the processor from a phone now and then, and what it prints."""

import signal
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from farm.cli import demo
from farm.cli.demo import fault_words
from farm.cli.demo_hosts import Story
from farm.cli.demo_report import DemoProgress, summary_lines
from farm.client.model import JobInfo, outcome_from
from farm.common.errors import HostError
from farm.measure.assess import assess
from farm.measure.conditions import Verdict
from farm.measure.series import series
from farm.simulation import postgres
from farm.simulation.faults import parse_fault

RUN_S, SLICE_S, EVERY_S, SAMPLES = 1e-4, 4e-3, 0.07, 40


@pytest.mark.parametrize(("runs", "rejected"), [(100, True), (demo.RUNS, False)])
def test_slices_that_the_host_takes_reject_short_samples_only(runs, rejected):
    random = np.random.default_rng(1)
    lasts_s = runs * RUN_S
    slices = np.diff(np.arange(SAMPLES + 1) * lasts_s // EVERY_S)  # in each sample
    sample_s = RUN_S * random.normal(1, 0.005, SAMPLES) + slices * SLICE_S / runs
    reference_s = 1e-3 * random.normal(1, 0.005, SAMPLES)
    found = assess(series(sample_s, np.arange(SAMPLES) * lasts_s, reference_s))
    assert (found.verdict is Verdict.REJECTED) is rejected


def event(phone, kind, **data):
    return {"subject": phone, "kind": f"device.{kind}", "data": data}


def test_a_phone_that_boots_is_one_line(capsys):
    progress = DemoProgress()
    for each in (
        event("p1", "offline", reason="silent"), event("p1", "pushing", sent_bytes=1, total_bytes=2),
        event("p1", "ready"), event("p2", "checking"), event("p2", "quarantined", reason="wrong numbers"),
    ):  # fmt: skip
        progress.show(each)
    assert capsys.readouterr().err.splitlines() == ["  p1: ready", "  p2: quarantined: wrong numbers"]


def test_a_silent_demo_says_what_it_waits_for(capsys):
    said = ""
    progress = DemoProgress(silent_s=0.01)
    with progress.watched():
        progress.note("building ...")
        progress.show(event("p1", "pushing", sent_bytes=1, total_bytes=2))
        while "  ... p1: pushing 50%\n" not in said:
            said += capsys.readouterr().err
    assert said.startswith("building ...\n")


@pytest.mark.parametrize("code", [0, 3])
def test_the_steps_of_a_command_are_printed_when_it_fails(capfd, code):
    script = f"echo 'p2 waits: p1 on the same hub is in use' >&2; echo table; exit {code}"
    assert DemoProgress().run(["sh", "-c", script]) == code
    out, notes = capfd.readouterr()
    assert out == "table\n"
    assert ("waits: p1" in notes) is bool(code)


def outcome(kind, result):
    job = dict.fromkeys(JobInfo.__dataclass_fields__, "")
    job |= {"kind": kind, "state": "done", "on": "phone-1", "submitted_at": "2026-01-01T00:00:00+00:00", "error": None}
    return outcome_from({"job": job, "spec": {}, "attempts": [], "result": result})


def test_the_summary_fits_a_screen_and_says_what_next(snapshot):
    estimate = {"low_ms": 0.99, "high_ms": 1.01, "min_ms": 0.9, "max_ms": 1.1, "count": 40}
    certificate = {"reasons": [], "notes": [], "count": 40}
    result = {"verdict": "trusted", "max_abs_error": 1e-7, "certificate": certificate}
    benches = [
        SimpleNamespace(
            job=SimpleNamespace(kind="bench"), ok=True, device=f"phone-{number}", spec={"half_width": 0.01},
            result=result | {"estimate": {**estimate, "median_ms": float(number)}},
        )
        for number in range(1, 5)
    ]  # fmt: skip
    compared = {"answer": "faster", "ratio": 0.5, "low": 0.4, "high": 0.6}
    others = [
        outcome("compare", {"comparison": compared, "b": {"runtime": {"name": "ort", "version": "1.31.1"}}}),
        outcome("tune", {"speedup": {"times": 3.5, "low": 2.5, "high": 4.5, "answer": "faster"}, "trials": 16}),
    ]
    lines = list(summary_lines([{}] * 4, benches + others, 99.4))
    assert (len(lines) <= 24, max(map(len, lines)) <= 80) == (True, True)
    snapshot("\n".join(lines))
    assert "farm demo --stay" not in "\n".join(summary_lines([{}] * 4, benches + others, 99.4, stays=True))


class Daemon:
    """Dies while it starts, so many times; people end the demo once it is up again."""

    def __init__(self, deaths):
        self.starts, self.deaths, self.ended, self.config = 0, deaths, False, "farm.toml"

    def wait(self):
        if not self.ended and self.starts:
            raise KeyboardInterrupt
        return "signal 9"

    def start(self):
        self.starts += 1
        self.ended = self.starts <= self.deaths
        if self.ended:
            raise HostError("the daemon did not come up", evidence="its last line")
        return SimpleNamespace(close=lambda: None)

    def keep_ports(self, port, *, web_port):
        pass


def staying(deaths):
    status = {"adb": {"socket": "tcp:1"}, "web": "http://127.0.0.1:2/", "devices": [{"name": "phone"}]}
    return SimpleNamespace(daemon=Daemon(deaths), socket="s", status=lambda: status, tracker=lambda: ("127.0.0.1", 3))


def test_a_daemon_that_dies_while_it_starts_again_is_started_again(monkeypatch, capsys):
    monkeypatch.setattr(demo, "FIRST_PAUSE_S", 0.0)
    farm = staying(deaths=2)
    demo._say_addresses(farm)
    demo._stay(farm)
    assert farm.daemon.starts == 3
    out, notes = capsys.readouterr()
    assert "export FARM_SOCKET=s FARM_CONFIG=farm.toml " in out
    assert "starting it again on the same ports" in notes
    assert "while it was starting (signal 9); try 3 of 5" in notes


def test_a_daemon_that_never_comes_up_again_ends_the_demo(monkeypatch):
    monkeypatch.setattr(demo, "FIRST_PAUSE_S", 0.0)
    farm = staying(deaths=99)
    with pytest.raises(HostError, match="5 times in a row: the demo ends") as caught:
        demo._stay(farm)
    assert (farm.daemon.starts, caught.value.evidence) == (5, "its last line")


@pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_second_signal_cuts_no_cleaning_short(monkeypatch, first, code):
    """Ctrl-C twice left folders and, for a moment, processes."""
    before = {each: signal.getsignal(each) for each in demo.ENDED_BY}

    def one_host(*_, **__):
        try:
            signal.raise_signal(first)
        finally:
            for each in demo.ENDED_BY:
                signal.raise_signal(each)
            cleaned.append(True)

    cleaned = []
    monkeypatch.setattr(demo, "_one_host", one_host)
    try:
        done = CliRunner().invoke(demo.app, [])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert cleaned
    assert done.exit_code == code


def test_a_fault_is_echoed_as_it_is_typed():
    assert fault_words("full_disk", parse_fault("full_disk", {"free_bytes": 50})) == "full_disk free_bytes=50"
    assert fault_words("unplug", parse_fault("unplug", {})) == "unplug"


def lab_event(kind, subject, **data):
    return {"kind": kind, "subject": subject, "data": data}


def test_the_story_is_over_when_the_tuning_has_ended_and_the_host_is_missed():
    story = Story("lab2", "a")
    for each in (
        lab_event("lease.granted", "lease-1", job="a", device="one"),
        lab_event("lease.granted", "lease-2", job="b", device="three"),
        lab_event("lease.granted", "lease-3", job="a", device="two"),
        lab_event("host.lost", "lab1", reason="another"),
        lab_event("job.done", "b"),
    ):
        story.take(each)
    assert story.devices == {"one", "two"}
    story.take(lab_event("host.lost", "lab2", reason="not heard of"))
    assert not story.over
    story.take(lab_event("job.done", "a"))
    assert story.over
    assert story.lost == "not heard of"


def test_a_missing_server_is_one_line_with_the_package(monkeypatch):
    monkeypatch.setattr(postgres, "programs", lambda: None)
    with pytest.raises(HostError, match="PostgreSQL server's programs, which are not installed") as raised:
        postgres.check_programs()
    assert raised.value.hint.startswith("apt-get install postgresql")
