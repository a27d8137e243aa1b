"""farm: a lab daemon that turns a host with Android phones into a measurement lab for ML compilers.

`from farm import Client`: what is in `__all__` is imported when it is first asked for (PEP 562), so that `farm status`
pays for none of it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, known to type checkers by this name; its import would take longer than all else here
__version__ = "0.1.0"
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
    from farm.kinds.bench.spec import BenchSpec
    from farm.kinds.lease.spec import LeaseSpec
    from farm.kinds.run.spec import RunSpec
    from farm.kinds.shell.spec import ShellSpec
else:
    _HOMES = {
        "farm.client": ("AsyncClient", "Client"),
        "farm.client.tuning": ("FarmBuilder", "FarmRunner"),  # with TVM
        "farm.common.errors": ("FarmError", "HostError", "NoPhoneError", "PhoneError", "UserError"),
        "farm.kinds.bench.spec": ("BenchSpec",),
        "farm.kinds.lease.spec": ("LeaseSpec",),
        "farm.kinds.run.spec": ("RunSpec",),
        "farm.kinds.shell.spec": ("ShellSpec",),
    }

    def __getattr__(name: str) -> object:
        import importlib

        for home, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module 'farm' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
