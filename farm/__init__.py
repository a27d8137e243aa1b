"""farm: a lab daemon that turns a host with Android phones into a measurement lab for ML compilers.

`from farm import Client`: what is in `__all__` is imported when it is first asked for (PEP 562), so that `farm status`
pays for none of it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's, known to type checkers by this name; its import would take longer than all else here
RELEASE = "0.1.0"  # builds of a release work together; __version__ names the build


def _build() -> str:
    """The release with the commit that this code is of, such as 0.1.0+g25d57cca; without it where nothing tells it.

    A checkout's commit is read again at each start, without the program git; an installed wheel's name has it.
    """
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if commit := _commit(f"{root}/.git"):
        return f"{RELEASE}+g{commit[:8]}"
    installed = [name.split("-")[1] for name in os.listdir(root) if name.startswith(f"tvm_phone_farm-{RELEASE}")]
    return installed[0].removesuffix(".dist") if len(installed) == 1 else RELEASE


def _commit(git: str) -> str:
    """The commit of a checkout; `git`: its folder .git, or a work tree's file. Empty: there is none."""
    try:
        if os.path.isfile(git):
            git = os.path.join(os.path.dirname(git), _text(git).removeprefix("gitdir: "))
        kind, _, ref = _text(f"{git}/HEAD").rpartition(": ")
        if not kind:
            return ref
        shared = os.path.join(git, _text(f"{git}/commondir")) if os.path.isfile(f"{git}/commondir") else git
        if os.path.isfile(f"{shared}/{ref}"):
            return _text(f"{shared}/{ref}")
        return next(line.split()[0] for line in _text(f"{shared}/packed-refs").splitlines() if line.endswith(f" {ref}"))
    except (OSError, StopIteration):
        return ""


def _text(file: str) -> str:
    with open(file, encoding="utf-8") as opened:
        return opened.read().strip()


__version__ = _build()
__all__ = [
    "AsyncClient",
    "BenchSpec",
    "Client",
    "FarmBuilder",
    "FarmError",
    "FarmRunner",
    "HostError",
    "LeaseSpec",
    "NoPhoneError",
    "PhoneError",
    "RunSpec",
    "ShellSpec",
    "UserError",
    "__version__",
]

if TYPE_CHECKING:
    from farm.client import AsyncClient, Client
    from farm.client.tuning import FarmBuilder, FarmRunner
    from farm.common.errors import FarmError, HostError, NoPhoneError, PhoneError, UserError
    from farm.kinds.bench import BenchSpec
    from farm.kinds.lease import LeaseSpec
    from farm.kinds.run import RunSpec
    from farm.kinds.shell import ShellSpec
else:
    _HOMES = {
        "farm.client": ("AsyncClient", "Client"),
        "farm.client.tuning": ("FarmBuilder", "FarmRunner"),  # with TVM
        "farm.common.errors": ("FarmError", "HostError", "NoPhoneError", "PhoneError", "UserError"),
        "farm.kinds.bench": ("BenchSpec",),
        "farm.kinds.lease": ("LeaseSpec",),
        "farm.kinds.run": ("RunSpec",),
        "farm.kinds.shell": ("ShellSpec",),
    }

    def __getattr__(name: str) -> object:
        import importlib

        for home, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module 'farm' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
