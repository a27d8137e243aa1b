"""The installation on a host: default folders of the daemon, and the command that installs farm (docs/service.md).

`farm status` imports this module: standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

# For a variable that names what is not there: where `farm demo --stay` exported it, the farm went with the demo.
ENDED_DEMO_HINT = (
    "if a farm demo that has ended exported it: unset FARM_SOCKET FARM_CONFIG TVM_TRACKER_HOST TVM_TRACKER_PORT "
    "ADB_SERVER_SOCKET, or start it again and take its new exports; else correct it"
)
SERVICE_SEES = "a service sees nothing in /home, /root and /tmp: use /opt or /srv"
TVM_SOURCE_VARIABLE = "FARM_TVM_SOURCE"  # of the environment: the folder of a checkout of TVM


def default_state_dir() -> Path:
    """/var/lib/farm for root, else the user's state folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/farm")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "farm"


def cache_home(default: Path | None = None) -> Path:
    """The folder of caches: $XDG_CACHE_HOME if it is absolute (XDG: else it is ignored), or `default`, or ~/.cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return base if base.is_absolute() else default or Path.home() / ".cache"


def default_runtime_dir() -> Path:
    """/run/farm for root, else the user's runtime folder."""
    if os.geteuid() == 0:
        return Path("/run/farm")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "farm" if base else Path(f"/tmp/farm-{os.geteuid()}")  # noqa: S108 (farm.control.listeners checks its owner)


SOURCE = "/path/to/farm"  # never the bare name: on PyPI `farm` is another package


def pip_install(extra: str = "", python: str = "") -> str:
    """The command that installs farm, with an extra, for an interpreter."""
    return f"{python and f'{python} -m '}pip install '{SOURCE}{extra and f'[{extra}]'}'"


_EXTRAS = {  # what is imported -> the extra that brings it
    "tvm": ("cloudpickle", "onnx", "tflite", "tornado", "tvm", "tvm_ffi", "xgboost"), "torch": ("torch",),
    "keras": ("h5py", "keras", "onnxscript"), "postgres": ("psycopg",), "lab": ("cryptography",),
    "objectstore": ("obstore",), "builders": ("dask", "distributed"),
    "results": ("mlflow", "pyarrow"),
}  # fmt: skip


def extra_of(module: str) -> str:
    """The extra that brings a module; "": farm itself needs it."""
    top = module.partition(".")[0]
    return next((extra for extra, modules in _EXTRAS.items() if top in modules), "")
