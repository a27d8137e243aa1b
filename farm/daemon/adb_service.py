"""What farm-adb.service runs: the farm's adb server in the foreground, with the farm's key, and nothing of Python left.

    python -m farm.daemon.adb_service --socket localfilesystem:/run/farm-adb/adb.sock --folder /var/lib/farm/adb

`[adb] binary` and `usb` of the configuration count.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from farm.adb.program import find_adb
from farm.adb.server import AdbServer, ensure_key
from farm.config import load
from farm.core.errors import FarmError


def main(arguments: list[str]) -> int:
    """Become the server; returns only when that fails."""
    parser = argparse.ArgumentParser(prog="farm-adb", description="The adb server of farm-adb.service.")
    parser.add_argument("--socket", required=True, help="where it listens, as adb spells it")
    parser.add_argument("--folder", required=True, type=Path, help="its home: the key is there")
    told = parser.parse_args(arguments)
    try:
        config = load()
        binary = find_adb(Path(config.adb.binary) if config.adb.binary else None)
        server = AdbServer(binary, told.socket, told.folder, usb=config.adb.usb)
        ensure_key(binary, told.folder)
        os.chdir(told.folder)
        command = [str(binary.path), "-L", told.socket, "nodaemon", "server"]
        os.execve(binary.path, command, server.environment())  # noqa: S606 (no shell is the point)
    except FarmError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
    except OSError as error:
        sys.stderr.write(f"error: cannot start adb: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
