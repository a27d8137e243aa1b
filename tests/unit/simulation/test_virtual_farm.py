"""The order in which the parts of a virtual farm end."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

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
