"""A disk that is really full: a small tmpfs in a mount namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs import need
from tests.support.tvm import ROOT, environment

IN_NAMESPACE = ("unshare", "--mount", "--map-root-user", "--", "sh", "-ec")
TMPFS = 'mount -t tmpfs -o size="$1" none "$2"; shift 2; exec "$@"'
LIMIT_S = 100.0


def on_small_disk(size: str, disk: Path, program: str, *arguments: object) -> Any:
    """What a Python program prints as JSON, told the folder of a disk of `size`; skips where none can be had."""
    probe = [*IN_NAMESPACE, "mount -t tmpfs -o size=64k none /mnt"]
    need("unshare")
    if subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode:
        pytest.skip("this host lets us mount no tmpfs (unshare --mount --map-root-user)")
    disk.mkdir(exist_ok=True)
    done = subprocess.run(
        [*IN_NAMESPACE, TMPFS, "sh", size, str(disk), sys.executable, "-c", program, str(disk), *map(str, arguments)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
