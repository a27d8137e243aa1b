"""docs/interfaces.md tells of every verb of the job door."""

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

from farm import control
from farm.control.artifacts import ArtifactFolder
from farm.control.server import ControlServer

TEXT = (Path(__file__).parents[3] / "docs" / "interfaces.md").read_text()


def test_every_verb_is_in_the_document(tmp_path):
    server = ControlServer(tmp_path / "control.sock", artifacts=ArtifactFolder(tmp_path))
    modules = [import_module(f"farm.control.{found.name}") for found in pkgutil.iter_modules(control.__path__)]
    for module in modules:
        for name, verbs in inspect.getmembers(module, inspect.isclass):
            if name.endswith("Verbs") and verbs.__module__ == module.__name__:
                verbs.register(verbs.__new__(verbs), server)  # registering takes none of the parts it works with
    kinds = set(server._handlers)
    assert {"status", "device.adopt", "job.submit", "store.prune"} <= kinds
    assert [kind for kind in sorted(kinds) if not re.search(rf"`{re.escape(kind)}[` \n]", TEXT)] == []
