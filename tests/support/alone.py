"""Commands of farm where there is no daemon."""

import os
from pathlib import Path

from farm.zoo import small_cnn as build
from tests.support.forked_commands import run_farm

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 100


def alone(*arguments, cwd, cache):
    """`farm ARGUMENTS` in the folder `cwd`, with a cache of its own."""
    environ = {**os.environ, "FARM_SOCKET": str(cwd / "absent.sock"), "XDG_CACHE_HOME": str(cache)}
    return run_farm(*arguments, environ=environ | {"PYTHONPATH": str(ROOT)}, folder=cwd, timeout_s=LIMIT_S)


def package_for_here(folder: Path) -> Path:
    """A package of a small model for this machine's architecture, made in `folder` without a daemon."""
    (folder / "small_cnn.onnx").write_bytes(build().SerializeToString(deterministic=True))
    done = alone("compile", "small_cnn.onnx", "--target", "linux-x86_64", cwd=folder, cache=folder / "cache")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "small_cnn.farm.tar\n"
    return folder / "small_cnn.farm.tar"
