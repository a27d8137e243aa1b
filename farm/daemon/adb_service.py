"""The program of farm-adb.service: the farm's adb server in the foreground, with the farm's key, Python replaced.

    python -m farm.daemon.adb_service --socket localfilesystem:/run/farm-adb/adb.sock --folder /var/lib/farm/adb

`[adb] binary` and `usb` of the configuration count; of one that cannot be read, their defaults: the daemon keeps its
old configuration, and the phones must not go because of a mistyped key.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from farm.adb.program import find_adb
from farm.adb.server import AdbServer, ensure_key
from farm.common.errors import FarmError
from farm.common.systemd import error_mark
from farm.config import AdbConfig, ConfigError, load

PAUSE_S = 5.0  # before the service manager tries again; it starts one that was killed at once


def main(arguments: list[str]) -> int:
    """Become the server; returns only when that fails."""
    parser = argparse.ArgumentParser(prog="farm-adb", description="The adb server of farm-adb.service.")
    parser.add_argument("--socket", required=True, help="where it listens, as adb spells it")
    parser.add_argument("--folder", required=True, type=Path, help="its home: the key is there")
    options = parser.parse_args(arguments)
    try:
        config = _config()
        binary = find_adb(Path(config.binary) if config.binary else None)
        server = AdbServer(binary, options.socket, options.folder, usb=config.usb)
        ensure_key(binary, options.folder)
        os.chdir(options.folder)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # adb would end, and every session with it
        command = [str(binary.path), "-L", options.socket, "nodaemon", "server"]
        os.execve(binary.path, command, server.environment())  # noqa: S606 (no shell is the point)
    except FarmError as error:
        _print_error(error)
    except OSError as error:
        _print_lines(f"error: cannot start adb: {error}")
    time.sleep(PAUSE_S)
    return 1


def _config() -> AdbConfig:
    try:
        return load().adb
    except ConfigError as error:
        _print_error(error)
        _print_lines("  adb starts with the defaults of [adb]")
        return AdbConfig()


def _print_error(error: FarmError) -> None:
    _print_lines(f"error: {error.message}", *([f"  hint: {error.hint}"] if error.hint else []))


def _print_lines(*lines: str) -> None:
    sys.stderr.writelines(f"{error_mark()}{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
