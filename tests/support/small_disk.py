"""A disk that is really full: a small tmpfs in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from farm.simulation.postgres import PostgresServer
from tests.support.needs import lacks, need
from tests.support.tvm import ROOT, environment
from tests.support.waiting import HANG_S

IN_NAMESPACE = ("unshare", "--mount", "--map-root-user", "--", "sh", "-ec")
TMPFS = 'mount -t tmpfs -o size="$1" none "$2"; shift 2; exec "$@"'
LIMIT_S = 100.0
# The tmpfs gets what is in the folder; it lasts as long as this shell.
AT_FOLDER = """
cp -a "$2" "$2.before"; mount -t tmpfs -o size="$1" none "$2"; cp -a "$2.before/." "$2"
chown --reference="$2.before" "$2"; chmod 700 "$2"; echo mounted; exec sleep infinity
"""


def on_small_disk(size: str, disk: Path, program: str, *arguments: object) -> Any:
    """What a Python program prints as JSON, told the folder of a disk of `size`; skips where none can be had."""
    probe = [*IN_NAMESPACE, "mount -t tmpfs -o size=64k none /mnt"]
    need("unshare")
    if subprocess.run(probe, capture_output=True, timeout=HANG_S, check=False).returncode:
        pytest.skip("this host lets us mount no tmpfs (unshare --mount --map-root-user)")
    disk.mkdir(exist_ok=True)
    done = subprocess.run(
        [*IN_NAMESPACE, TMPFS, "sh", size, str(disk), sys.executable, "-c", program, str(disk), *map(str, arguments)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TablesDisk:
    """The disk with a server's tables. Its log of changes is elsewhere: a server ends when that one is full."""

    def __init__(self, folder: Path) -> None:
        self._filling = folder / "filling"

    def fill(self) -> None:
        """Leave no byte of it."""
        with self._filling.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Give the room back."""
        self._filling.unlink()


@contextmanager
def tables_on_small_disk(server: PostgresServer, size: str) -> Iterator[TablesDisk | None]:
    """Move the tables of a running server to a disk of `size` and start it again; None: this host allows that not."""
    tables = server.folder / "data" / "base"
    if os.geteuid() or lacks("unshare", "nsenter"):
        yield None
        return
    server.stop("fast")
    command = ["unshare", "--mount", "--", "sh", "-ec", AT_FOLDER, "sh", size, str(tables)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            disk = None
            if holder.stdout.readline():
                server.wrapper = ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--")
                disk = TablesDisk(Path(f"/proc/{holder.pid}/root{tables}"))
            server.start("-c fsync=off")
            yield disk
        finally:
            holder.kill()
