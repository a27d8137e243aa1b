"""Bars: one line on stderr at a terminal, nothing elsewhere; lines that stay for pushes where there is no terminal."""

import io

import pytest

from farm.cli import bench
from farm.cli.bars import Bars, Pushes, bar_line
from farm.cli.terminal import ASCII
from farm.cli.tune import Live


class Clock:
    now_s = 0.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LC_ALL", "C")


def test_a_bar_says_how_far_and_how_long():
    line = bar_line("net.onnx", 25_000_000, 100_000_000, 10.0, 80, ASCII)
    assert line == "net.onnx ######..................  25% 25.0 of 100.0 MB, 30s left"
    assert bar_line("x" * 200, 1, 2, 0.0, 80, ASCII) == "x" * 79
    assert "left" not in bar_line("net", 0, 10, 5.0, 80, ASCII)


def test_a_bar_overwrites_itself_and_is_gone_at_the_end():
    stream = io.StringIO()
    bars = Bars(stream=stream, lively=True, clock=Clock())
    bars.transfer("net.onnx", 2 << 20, 8 << 20)
    bars.transfer("net.onnx", 8 << 20, 8 << 20)
    first, last = stream.getvalue().split("\r\x1b[K")[1:]
    assert first.startswith("net.onnx ######")
    assert last == ""


def test_small_files_and_other_streams_get_none():
    stream = io.StringIO()
    Bars(stream=stream, lively=True, clock=Clock()).transfer("small", 1, 1000)
    elsewhere = Bars(stream=stream, clock=Clock())
    elsewhere.transfer("net.onnx", 1, 8 << 20)
    with elsewhere.ticking("compiling"):
        pass
    assert stream.getvalue() == ""


def test_a_push_is_a_bar_at_a_terminal_and_a_line_for_each_tenth_elsewhere():
    stream, lines = io.StringIO(), []
    here = Pushes(Bars(stream=stream, lively=True, clock=Clock()), lines.append)
    there = Pushes(Bars(stream=io.StringIO(), lively=False), lines.append)
    for sent in range(1, 101):
        here.step("device.pushing", "pushing", sent << 20, 100 << 20)
    assert lines == []
    assert "pushing ######..................  25%" in stream.getvalue()
    for sent in range(1, 101):
        there.step("device.pushing", f"pushing {sent}%", sent << 20, 100 << 20)
    there.step("device.ready", "ready")
    assert lines == ["pushing 1%", *(f"pushing {tenth}0%" for tenth in range(1, 11)), "ready"]


def test_a_search_has_a_bar_ahead_of_its_line_and_stays_on_one_row():
    written = []
    live = Live(tty=True, write=written.append, clock=Clock())
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
