"""The thread that polls for `farm top`, and one picture of it."""

import queue

from typer.testing import CliRunner

from farm.cli.main import app
from farm.cli.top import Poller
from tests.support.waiting import HANG_S


class Reader:
    """Gives its looks one after the other, then the last again."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.farm = None

    def read(self):
        seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(seen, Exception):
            raise seen
        return seen

    def close(self):
        pass


def test_a_mistake_while_reading_is_told_and_it_reads_on():
    poller = Poller(Reader(ZeroDivisionError("of farm"), "the farm"), 0.01)
    said = queue.Queue()
    poller.on_snapshot = lambda: said.put((poller.farm, poller.away))
    with poller:
        farm, away = said.get(timeout=HANG_S)
        assert (farm, "ZeroDivisionError: of farm" in away) == (None, True)
        assert said.get(timeout=HANG_S) == ("the farm", "")


def test_one_picture_is_as_wide_as_columns_says(daemon, monkeypatch):
    monkeypatch.setenv("FARM_SOCKET", str(daemon.socket))
    monkeypatch.setenv("COLUMNS", "40")
    done = CliRunner().invoke(app, ["top", "--once"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 40
    assert any("pixel" in line and "ready" in line for line in lines)
