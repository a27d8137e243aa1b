"""Bars: on stderr at a terminal, nothing elsewhere; lines that stay for pushes where there is no terminal."""

import io
import itertools
import sys

import pytest

from farm.cli import device
from farm.cli.output.terminal import TransferBars, elapsed
from farm.kinds.bench import command as bench
from farm.kinds.tune.command import Live


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("TERM", "xterm")


def test_a_transfer_has_a_bar_that_is_gone_at_the_end(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    bars = TransferBars()
    bars.update("net.onnx", 2 << 20, 8 << 20)
    bars._bars.refresh()
    seen = terminal.getvalue()
    assert "net.onnx" in seen
    assert "25%" in seen
    bars.update("net.onnx", 8 << 20, 8 << 20)
    assert bars._bars is None
    assert terminal.getvalue().rstrip().endswith("\x1b[2K\x1b[?25h")  # the line is cleared, the cursor is back
    assert terminal.getvalue().isascii()


def test_small_files_and_other_streams_get_none(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    TransferBars().update("small", 1, 1000)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    TransferBars().update("net.onnx", 1, 8 << 20)
    with elapsed("compiling"):
        pass
    assert stream.getvalue() == ""


def test_work_under_way_shows_its_time(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with elapsed("compiling net.onnx"):
        pass
    assert "compiling net.onnx" in terminal.getvalue()


class Adopted:
    """A client of a daemon that pushes to a phone."""

    def stream(self, kind, limit_s, **fields):
        for percent in range(1, 101):
            data = {"sent_bytes": percent << 20, "total_bytes": 100 << 20}
            yield {"subject": "pixel", "kind": "device.pushing", "data": data}
        yield {"subject": "other", "kind": "device.ready", "data": {}}
        yield {"subject": "pixel", "kind": "device.ready", "data": {}}


def test_a_push_is_a_bar_at_a_terminal_and_a_line_for_each_tenth_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    device._follow(Adopted(), "pixel", 0, 10.0)
    assert "pushing 10%" not in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    device._follow(Adopted(), "pixel", 0, 10.0)
    assert stream.getvalue().splitlines() == ["pushing 1%", *(f"pushing {tenth}0%" for tenth in range(1, 11)), "ready"]


def test_a_search_has_a_bar_ahead_of_its_line_and_stays_on_one_row():
    written = []
    live = Live(tty=True, write=written.append, clock=itertools.count(1.0).__next__)
    live.line("trial 5 of 20, " + "x" * 200, {"trials": 5, "wanted": 20, "tasks": []})
    (line,) = written
    assert line.startswith("\r\x1b[K#####............... trial 5 of 20, xxx")
    assert len(line) == len("\r\x1b[K") + 79


def test_a_bench_draws_its_samples(capsys):
    bench.print_plot({"device": "pixel", "samples_s": [0.001, 0.002, 0.002, 0.003]})
    assert capsys.readouterr().out.splitlines() == [
        "",
        "pixel: 4 samples, from the first to the last",
        "  _++#",
        "                                      #########",
        "                                      #########",
        "  #########                           #########                  #########",
        "  #########                           #########                  #########",
        "  1                                                                   3 ms",
    ]
    bench.print_plot({"device": "pixel"})
    assert capsys.readouterr().out == ""
