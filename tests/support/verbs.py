"""The daemon's verbs without the daemon."""

import inspect
import pkgutil
from importlib import import_module

from farm.control import verbs as package
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Caller, LocalPeer, Role
from farm.control.messages import Request
from farm.control.server import ControlCall, ControlServer, handler
from farm.daemon.reload import Reloader


def registered(folder, audit=None):
    """A desk with every verb of the daemon, none of which has the parts it works with."""
    server = ControlServer(folder / "control.sock", artifacts=ArtifactFolder(folder / "a"), audit=audit)
    for group in groups():
        group.register(server)
    return server


def groups():
    """Every group of verbs of the daemon, without parts."""
    modules = [import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    modules += [import_module(name) for name in ("farm.kinds.lease.executor", "farm.builders.process")]
    for module in modules:
        for name, verbs in inspect.getmembers(module, inspect.isclass):
            if name.endswith("Verbs") and verbs.__module__ == module.__name__:
                yield verbs.__new__(verbs)
    yield Reloader.__new__(Reloader)


def every_verb(folder):
    """Each verb as it is declared."""
    return registered(folder).verbs


async def ask(verb, user="ann", role=Role.USER, **fields):
    """What a verb's method answers to that user."""
    peer = LocalPeer(1, 1, 1)
    request = Request("r", verb.__name__, fields)
    return await handler(verb)(ControlCall(request, peer, None, caller=Caller(user, role, peer.origin, peer)))
