"""How a virtual farm's daemon fails to start, and the order in which the parts end."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.common.errors import HostError
from farm.simulation import virtual_farm as module


def test_the_daemon_ends_before_its_phones_vanish(monkeypatch):
    ended = []

    @contextlib.contextmanager
    def running_lab(*_, **__):
        yield None
        ended.append("lab")

    client = SimpleNamespace(call=lambda *_, **__: {"adb": {"socket": ""}}, close=lambda: None)
    monkeypatch.setattr(module.DaemonProcess, "start", lambda _: client)
    monkeypatch.setattr(module.DaemonProcess, "stop", lambda _: ended.append("daemon"))
    monkeypatch.setattr(module, "_build", lambda *_: (Path("bundle"), None, None))
    monkeypatch.setattr("farm.simulation.control.running_lab", running_lab)
    monkeypatch.setattr("farm.simulation.runtime.is_launcher", lambda _: False)
    monkeypatch.setattr("farm.adb.program.find_adb", lambda: SimpleNamespace(path=Path("adb")))
    with module.virtual_farm({"phone": "pixel"}):
        pass
    assert ended[:2] == ["daemon", "lab"]


@pytest.mark.parametrize(
    ("script", "message", "evidence", "hint"),
    [
        ("echo a note; echo error: port 1 is taken; echo '  hint: use: 2'; exit 1",
         "the daemon did not start: port 1 is taken", "", "use: 2"),
        ("echo a note; exit 3", "the daemon ended while it was starting (exit code 3)", "a note", ""),
    ],
)  # fmt: skip
def test_a_daemon_that_does_not_start_says_why(tmp_path, script, message, evidence, hint):
    """The demo said "see the evidence", where there was none or the log's fifth line from the end, without its hint."""
    (tmp_path / "daemon.log").write_text("error: of an earlier start\n")
    daemon = module.DaemonProcess(tmp_path)
    daemon.wrapper = ("sh", "-c", script)
    with pytest.raises(HostError) as caught:
        daemon.start()
    assert (caught.value.message, caught.value.evidence, caught.value.hint) == (message, evidence, hint)
    daemon.wrapper = ("sh", "-c", "exec sleep 600")
    daemon.launch()
    assert daemon.start_error("it", 60.0).message == "it did not answer within 60 s"
    daemon.kill()
