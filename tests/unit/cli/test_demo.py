"""What `farm demo` times, on a host that takes the processor from a phone now and then, and what it prints."""

import signal
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from farm.cli import demo
from farm.common.errors import HostError
from farm.measure.assess import assess
from farm.measure.conditions import Verdict
from farm.measure.series import series

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


def test_a_step_of_a_phone_is_printed_once(capsys):
    show = demo._step_printer()
    for phone, sent in (("p1", 1), ("p1", 2), ("p2", 1), ("p1", 3), ("p1", 600), ("p1", 1000)):
        show({"subject": phone, "kind": "device.pushing", "data": {"sent_bytes": sent, "total_bytes": 1000}})
    assert capsys.readouterr().err.splitlines() == [
        "  p1: pushing 0%", "  p2: pushing 0%", "  p1: pushing 60%", "  p1: pushing 100%",
    ]  # fmt: skip


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
