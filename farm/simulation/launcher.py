"""`tvm_rpc` for hosts without g++: the same options, log words, exit codes and sessions as tvm_rpc.cc, in Python.

`runtime.build_bundle_folder` copies this file into a bundle with the host's interpreter in front; it uses nothing of
farm. One process listens; each session is a forked child. A tracker is not supported: farm never uses one on a phone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import math
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_MAGIC = 0xFF271
_MISMATCH = _MAGIC + 2
_MAX_KEY_BYTES = 64 * 1024
_HANDSHAKE_LIMIT_S = 30.0  # a slow link delivers 40 bytes in less; a dead one must not block everybody forever
_USAGE = "Command line usage: tvm_rpc server [--host=] [--port=] [--port-end=] [--key=] [--work-dir=] [--silent]"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    host: str = "0.0.0.0"
    port: int = 9090
    port_end: int = 9099  # exclusive
    key: str = ""
    work_dir: str = ""
    silent: bool = False

    @property
    def cache(self) -> Path:
        """Where uploads go."""
        if self.work_dir:
            return Path(self.work_dir) / ".cache"
        return Path("/data/local/tmp/rpc") if Path("/data/local/tmp").is_dir() else Path.cwd() / "rpc"


class LauncherLog:
    """Lines on stderr, each in one write."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent

    def line(self, text: str) -> None:
        """Write a line, unless silent."""
        if not self.silent:
            self.always(text)

    def always(self, text: str) -> None:
        """Write a line, silent or not."""
        line = f"[{time.strftime('%H:%M:%S')}] tvm_rpc.py: {text}\n"
        with contextlib.suppress(OSError):  # nobody reads the log any more: serve on
            os.write(2, line.encode())


def parse_options(arguments: list[str], log: LauncherLog) -> Options:
    """Read `--name=value` options; unknown ones are ignored, a wrong value ends the process with 1."""
    values: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and value:
            values.setdefault(name, value)

    def refuse(complaint: str) -> NoReturn:
        log.always(complaint)
        log.always(_USAGE)
        sys.exit(1)

    def port(name: str, default: int) -> int:
        text = values.get(name, str(default))
        if not (text.isascii() and text.isdecimal()) or int(text) > 0xFFFF:
            refuse(f"Wrong {name.removeprefix('--')} number.")
        return int(text)

    host = values.get("--host", "0.0.0.0")
    try:
        ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        refuse("Wrong host address format.")
    if "--tracker" in values:
        refuse("--tracker needs the compiled server: install g++ and build the bundle again.")
    key = values.get("--key", "")
    if any(letter.isspace() or letter in ':"\\' for letter in key):
        refuse("Wrong key format.")
    return Options(
        host=host,
        port=port("--port", 9090),
        port_end=port("--port-end", 9099),
        key=key,
        work_dir=values.get("--work-dir", ""),
        silent=any(argument.startswith("--silent") for argument in arguments),
    )


def bind(options: Options, log: LauncherLog) -> socket.socket | None:
    """The first free port of the range; None when there is none."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    for port in range(options.port, options.port_end):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1" if options.host == "localhost" else options.host, port))
            listener.listen()
        except OSError as error:
            listener.close()
            log.line(f"Bind failed to {options.host}:{port}: {os.strerror(error.errno or errno.EADDRINUSE)}")
            continue
        log.line(f"Bind to {options.host}:{listener.getsockname()[1]}")
        return listener
    log.always(f"No free port from {options.port} to {options.port_end - 1} on {options.host}, exiting")
    return None


def handshake(connection: socket.socket, key: str) -> float | None:
    """Check who connects; returns the session's time limit in seconds (0: none), or None for a stranger."""
    connection.settimeout(_HANDSHAKE_LIMIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if struct.unpack("<i", _receive(connection, 4))[0] != _MAGIC:
        return None
    (size,) = struct.unpack("<i", _receive(connection, 4))
    if not 0 < size <= _MAX_KEY_BYTES:
        return None
    words = _receive(connection, size).decode("utf-8", "replace").split()
    if not words or words[0] != f"client:{key}":
        connection.sendall(struct.pack("<i", _MISMATCH))
        return None
    name = f"server:{key}".encode()
    connection.sendall(struct.pack("<ii", _MAGIC, len(name)) + name)
    connection.settimeout(None)
    limit_s = 0.0
    for word in words[1:]:
        if word.startswith("-timeout="):
            with contextlib.suppress(ValueError):
                limit_s = float(word.removeprefix("-timeout="))
    return limit_s if math.isfinite(limit_s) and limit_s > 0 else 0.0


def serve(options: Options, listener: socket.socket, log: LauncherLog) -> NoReturn:
    """One session after the other, forever."""
    while True:
        connection, address = listener.accept()
        peer = f"{address[0]}:{address[1]}"
        with connection:
            try:
                limit_s = handshake(connection, options.key)
            except OSError as error:
                log.line(f"Handshake with {peer} failed: {error}")
                continue
            if limit_s is None:
                log.line(f"Mismatch key from {peer}")
                continue
            log.line(f"New session from {peer}")
            child = os.fork()
            if child == 0:
                listener.close()
                os._exit(_run_session(options, connection, peer, log))
        _wait(child, limit_s, log)
        log.line(f"End session with {peer}")


def main() -> int:
    """Run the server."""
    log = LauncherLog(silent=False)
    if sys.argv[1:2] != ["server"]:
        log.line(_USAGE)
        return 0
    options = parse_options(sys.argv[2:], log)
    log.silent = options.silent
    log.line("Starting Python server, Press Ctrl+C to stop.")
    _load_runtime()
    listener = bind(options, log)
    if listener is None:
        return 1
    try:
        serve(options, listener, log)
    except KeyboardInterrupt:
        log.line("User pressed Ctrl+C, Exiting")
        return 1


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise OSError(errno.ECONNRESET, "the peer closed the connection")
        data += piece
    return bytes(data)


def _wait(child: int, limit_s: float, log: LauncherLog) -> None:
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], limit_s or None)
    os.close(descriptor)
    if not ended:
        os.kill(child, signal.SIGTERM)
    status = os.waitpid(child, 0)[1]
    if ended:
        log.line(f"Child pid={child} exited, status ={status}")
    else:
        log.line(f"Child pid={child} killed (timeout = {limit_s:g} sec), status = {status}")


def _load_runtime() -> None:
    """Load TVM once; every session inherits it. The runtime alone starts twice as fast as the compiler."""
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    import tvm

    # Random fill and other contributed functions: the runtime-only import leaves them out.
    ctypes.CDLL(str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_extra.so"), mode=ctypes.RTLD_GLOBAL)


def _run_session(options: Options, connection: socket.socket, peer: str, log: LauncherLog) -> int:
    import tvm
    import tvm_ffi

    cache = options.cache
    started = time.monotonic()

    def path_of(name: str) -> str:
        return name if "/" in name else str(cache / name)

    def load_module(name: str) -> object:
        log.line(f"Load module from {path_of(name)} ...")
        if not name.endswith(".so"):
            raise RuntimeError(f"this phone has no linker: {name}; export the library as .so on the host")
        return tvm.runtime.load_module(path_of(name))

    tvm_ffi.register_global_func("tvm.rpc.server.workpath", path_of, override=True)
    tvm_ffi.register_global_func("tvm.rpc.server.load_module", load_module, override=True)
    try:
        for folder in (cache.parent, cache):  # as TVM's: not those above, which somebody may have removed
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
        tvm_ffi.get_global_func("rpc.ServerLoop")(connection.detach())
    except Exception as error:  # noqa: BLE001 - a session's end, whatever it was, is told in the log
        log.always(f"Session with {peer} failed: {error}")
        return 1
    log.line(f"Finished serving {peer} after {time.monotonic() - started:g} sec")
    shutil.rmtree(cache, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
