"""Commands of farm where there is no daemon."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 100


def alone(*arguments, cwd, cache):
    """`farm ARGUMENTS` in the folder `cwd`, with a cache of its own."""
    environment = {**os.environ, "FARM_SOCKET": str(cwd / "absent.sock"), "XDG_CACHE_HOME": str(cache)}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, "-m", "farm", *arguments],
        env=environment, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
