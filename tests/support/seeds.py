"""The children of a daemon that is a fork, its zygote and its gate: importing TVM alone takes 1.6 s of processor.

Before the daemon begins it forks the seeds, which wait and have imported what it has, and TVM. Where the daemon starts
such a child, a seed becomes it. Once the seeds are used up, children are new interpreters.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import forked_processes

CHILDREN = (("-P", "-m", "farm.worker.zygote"), ("-P", "-m", "farm", "gate"))
_MESSAGE_LIMIT_BYTES = 1 << 17
_FREE = 200  # descriptors above it are nobody's

_seeds: list[tuple[int, socket.socket]] = []  # process ids, and where they read what they become


def plant() -> None:
    """Fork a seed for each child. Call it before the process has threads or a loop."""
    for _ in CHILDREN:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            for link in (ours, *(link for _, link in _seeds)):
                link.close()
            _grow(theirs)
        theirs.close()
        _seeds.append((pid, ours))
    subprocess.Popen = _SeededPopen  # type: ignore[misc]


class _SeededPopen(subprocess.Popen[Any]):
    """As `subprocess.Popen`; a child that a seed can become is one."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):  # type: ignore[no-untyped-def]
        if not (_seeds and _is_child(args) and _has_nothing_of_its_own(os.environ if env is None else env)):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)  # type: ignore[misc]
            return
        ends = rest[3:9]  # p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        streams = [number if end == -1 else end for number, end in enumerate((ends[0], ends[3], ends[5]))]
        request = {
            "words": [os.fspath(each) for each in args[1:]], "folder": os.fspath(cwd or Path.cwd()),
            "environ": dict(os.environ if env is None else env), "new_session": bool(rest[14]), "kept": list(pass_fds),
        }  # fmt: skip
        self.pid, link = _seeds.pop()
        self._child_created = True
        with link:
            socket.send_fds(link, [json.dumps(request).encode()], [*streams, *pass_fds])
        self._close_pipe_fds(*ends)


def _is_child(command: Sequence[Any]) -> bool:
    program, *words = map(os.fspath, command)
    return program == sys.executable and any(tuple(words[: len(each)]) == each for each in CHILDREN)


def _has_nothing_of_its_own(environ: Mapping[str, str]) -> bool:
    """TVM reads its settings as it is imported."""
    own = any(name.startswith("TVM_") for name in environ)
    return not own and forked_processes.has_nothing_of_its_own(environ)


def _grow(link: socket.socket) -> None:
    """Wait for what to become, and become it. Never returns."""
    data, files, _, _ = socket.recv_fds(link, _MESSAGE_LIMIT_BYTES, 16)
    if not data:  # the daemon has ended
        os._exit(0)
    request: Mapping[str, Any] = json.loads(data)
    link.close()
    above = [fcntl.fcntl(each, fcntl.F_DUPFD, _FREE) for each in files]
    for each in files:
        os.close(each)
    for here, there in zip(above[3:], request["kept"], strict=True):
        os.dup2(here, there)
        os.close(here)
    forked_processes.become(request, above[:3])
