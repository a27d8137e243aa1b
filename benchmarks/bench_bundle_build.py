"""How long `farm bundle build` takes before the daemon gets the folder, and how much a phone then receives."""

from __future__ import annotations

import os
import shutil
import time
from importlib import metadata

from benchmarks.harness import Context, Figure, under
from farm.bundle.model import Abi, Platform
from farm.runtime.build import build_from_wheels
from farm.runtime.packages import check_versions

GOAL_S = 60.0


def run(context: Context) -> list[Figure]:
    """Seconds with nothing there, with the packages there, and with everything there."""
    os.environ["PIP_NO_CACHE_DIR"] = "1"
    cache = context.folder / "cache"
    versions = check_versions({each: metadata.version(each) for each in ("apache-tvm", "apache-tvm-ffi")}, "TVM here")
    figures = []
    for abi in (Abi.ARM64, Abi.X86_64):

        def build() -> float:
            begun = time.monotonic()
            build_from_wheels(cache, abi, Platform.ANDROID, versions, context.say)  # noqa: B023 - called in this turn
            return time.monotonic() - begun

        figures.append(under(f"{abi}: cold", build(), "s", GOAL_S))
        for made in cache.glob("bundle-*"):
            shutil.rmtree(made)
        figures.append(Figure(f"{abi}: packages there", build(), "s"))
        figures.append(Figure(f"{abi}: cached", build(), "s"))
        files = [path for made in cache.glob(f"bundle-{abi}-*/bundle") for path in made.iterdir()]
        figures.append(Figure(f"{abi}: size", sum(path.stat().st_size for path in files) / 1e6, "MB"))
    return figures
