"""The thread that polls for `farm top`, and one picture of it."""

from typer.testing import CliRunner

from farm.cli.main import app
from farm.cli.top import Poller
from tests.support.waiting import HANG_S


class Reader:
    """Gives its look, or raises it."""

    def __init__(self, look):
        self.look = look
        self.farm = None

    def read(self):
        if isinstance(self.look, Exception):
            raise self.look
        return self.look

    def close(self):
        pass


def test_a_mistake_while_reading_is_told_and_it_reads_on():
    reader = Reader(ZeroDivisionError("of farm"))
    with Poller(reader, 0.01) as poller:
        assert poller.changed.wait(HANG_S)
        assert (poller.farm, "ZeroDivisionError: of farm" in poller.away) == (None, True)
        reader.look = "the farm"
        while poller.away:
            poller.changed.clear()
            assert poller.changed.wait(HANG_S)
        assert poller.farm == "the farm"


def test_one_picture_is_as_wide_as_columns_says(daemon, monkeypatch):
    monkeypatch.setenv("FARM_SOCKET", str(daemon.socket))
    monkeypatch.setenv("COLUMNS", "40")
    done = CliRunner().invoke(app, ["top", "--once"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 40
    assert any("pixel" in line and "ready" in line for line in lines)
