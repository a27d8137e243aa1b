"""The zygote: imports TVM once, then forks one child per attempt, each ready to work within milliseconds.

    python -m farm.worker.zygote FD PARENT_PID

FD is one end of a SOCK_SEQPACKET pair on which the supervisor asks for children (farm.jobs.messages). The zygote itself
never compiles, opens a session or starts a thread, so a child inherits no lock, no connection and no half-done work. It
and its children die with the daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.metadata
import os
import platform
import resource
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from farm.common.errors import ProtocolError
from farm.compiler.tvm_errors import die_with_parent
from farm.jobs.messages import (
    MAX_MESSAGE_BYTES,
    Exited,
    FromZygote,
    Kill,
    Ready,
    Spawn,
    Spawned,
    decode_to_zygote,
    encode,
)

PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38  # linux/prctl.h
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h: two words of 32 capabilities for each of three sets
MAX_OPEN_FILES = 1024  # a worker needs a few dozen
MAX_PROCESSES = 4096  # threads count; a worker has some dozens, and several run at once
MAX_FILE_BYTES = 4 << 30  # a library with its weights stays below 2 GiB; an endless file ends here
OOM_SCORE_ADJ = 500  # when memory runs out, a worker goes before the daemon (man 5 proc_pid_oom_score_adj)
PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "numpy")  # their versions go into every result
# What children use: imported here once, in the order in which a missing one is most worth naming.
PRELOADED = (
    "tvm", "tvm.relax", "tvm.rpc", "onnx.reference", "tvm.relax.frontend.onnx",
    "farm.worker.channel", "farm.kinds.bench.worker", "farm.kinds.compare.worker", "farm.kinds.run.worker",
    "farm.worker.checker",
)  # fmt: skip

Run = Callable[[Spawn], None]


class Zygote:
    """Serves spawn and kill orders, reaps children. `run` executes in the child and should not return an error."""

    def __init__(self, link: socket.socket, run: Run) -> None:
        self._link = link
        self._run = run
        self._attempts: dict[int, str] = {}  # pid (and process group) -> attempt
        self._users: dict[int, tuple[int, int]] = {}  # uid and gid of children that are not ours
        self._all_users: set[tuple[int, int]] = set()  # ended children's too, which may have left strays
        self._wake: tuple[int, ...] = ()

    def serve(self, versions: dict[str, str]) -> None:
        """Work until the supervisor closes its end, or SIGTERM; then end every child."""
        wake_read, wake_write = self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        stopping: list[int] = []
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda signum, _: stopping.append(signum))
        gc.freeze()  # keeps the collector of each child from touching, and so copying, what it shares with us
        self._report(Ready(_threads(), versions))
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while not stopping:
                for key, _ in selector.select():
                    if key.fileobj is self._link:
                        if not self._carry_out(selector):
                            stopping.append(0)
                    else:
                        os.read(wake_read, 4096)
                self._reap()
        for pid in self._attempts:
            self._signal(pid, signal.SIGKILL)

    def _carry_out(self, selector: selectors.BaseSelector) -> bool:
        """Read one order and carry it out; False when the supervisor is gone."""
        packet, files, _, _ = socket.recv_fds(self._link, MAX_MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return False
        order = decode_to_zygote(packet)
        if isinstance(order, Kill):
            for pid, attempt in self._attempts.items():
                if attempt == order.attempt:
                    self._signal(pid, order.signal)
            return True
        if len(files) != 2:
            raise ProtocolError(f"the order to fork {order.attempt} came without files for its output and token")
        zygote, (output, token) = os.getpid(), files
        try:
            pid = os.fork()
        except OSError as error:
            self._report(Spawned(order.attempt, 0, str(error)))
            return True
        else:
            if pid == 0:
                selector.close()
                self._link.close()
                signal.set_wakeup_fd(-1)
                for end in self._wake:  # a child that read it would hide the ends of others
                    os.close(end)
                _be_child(order, zygote, output, token, self._run)
        finally:
            os.close(output)
            os.close(token)
        if order.uid is not None and order.gid is not None:
            self._users[pid] = order.uid, order.gid
            self._all_users.add(self._users[pid])
        self._attempts[pid] = order.attempt
        self._report(Spawned(order.attempt, pid))
        return True

    def _reap(self) -> None:
        """Report each ended child; first kill the rest of its group, while its pid is still taken."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            self._signal(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            self._kill_strays()
            attempt = self._attempts.pop(ended.si_pid, "")
            self._users.pop(ended.si_pid, None)
            code = os.waitstatus_to_exitcode(status)
            if attempt:
                self._report(Exited(attempt, code if code >= 0 else None, -code if code < 0 else None))

    def _kill_strays(self) -> None:
        """Kill processes that workers detached (setsid, double forks): the kernel gave them to us, the subreaper.

        Its end brings us here again, for its own children. No compiler leaves daemons behind, so whose a stray was
        does not matter.
        """
        for pid in _children() - self._attempts.keys():
            self._signal(pid, signal.SIGKILL)

    def _signal(self, pid: int, signum: int) -> None:
        """Signal a process group, as its user where we may not ourselves. A stray may be any user's."""
        _signal_group(pid, signum, [self._users[pid]] if pid in self._users else self._all_users)

    def _report(self, message: FromZygote) -> None:
        self._link.sendall(encode(message))


def _be_child(order: Spawn, zygote: int, output: int, token: int, run: Run) -> None:
    """Everything a child does, from fork to exit. Never returns."""
    code = 1
    try:
        _confine(order, zygote, output)
        with os.fdopen(token, encoding="ascii") as pipe:
            order = replace(order, token=pipe.read())
        run(order)
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not fall back into the zygote's loop, whatever happens
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _confine(order: Spawn, zygote: int, output: int) -> None:
    """Own session, signals, limits, user, folder and output for this child."""
    os.setsid()
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    faulthandler.enable()  # where it crashed goes into the attempt's log
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)  # Python ignores SIGXFSZ: a write beyond it fails with EFBIG
    _limit(resource.RLIMIT_CPU, order.cpu_limit_s)
    _limit(resource.RLIMIT_DATA, order.data_limit_bytes)
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    if order.uid is not None and order.gid is not None:
        _limit(resource.RLIMIT_NPROC, MAX_PROCESSES)  # counted per uid: of all workers of one user together
        _become(order.uid, order.gid, order.groups)
    die_with_parent(zygote)  # after the change of user, which would reset it (man 2 PR_SET_PDEATHSIG)
    os.umask(0o027)
    os.chdir(order.folder)
    os.environ |= {"TMPDIR": order.folder, "HOME": order.folder}
    tempfile.tempdir = None  # something imported may have asked for it already


def _become(uid: int, gid: int, groups: Iterable[int] = ()) -> None:
    """Become an unprivileged user. A change between two users who are not root keeps capabilities: they are dropped."""
    os.setgroups([*groups])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none) != 0:  # what is not permitted is not ambient either
        raise OSError(ctypes.get_errno(), "capset")
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _children() -> set[int]:
    """Our children, orphans that the kernel gave to us included; none where the kernel does not list them."""
    try:
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except FileNotFoundError:  # built without CONFIG_PROC_CHILDREN
        return set()


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def _signal_group(pid: int, signum: int, users: Iterable[tuple[int, int]] = ()) -> None:
    """Signal a process group, as the first of `users` (uid, gid) that may, where we may not ourselves."""
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        # Between fork and setsid a child is in no group of its own yet; after its end there is none any more.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    except PermissionError:
        if not any(_signalled_as(user, pid, signum) for user in users):
            raise


def _signalled_as(user: tuple[int, int], pid: int, signum: int) -> bool:
    """Signal a process group as another user; False: that user may not."""
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            _become(*user)
            _signal_group(pid, signum)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == 0


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - /proc knows TVM's own threads, `threading` does not


def versions() -> dict[str, str]:
    """Versions of this interpreter and of the packages that workers import; empty for one without metadata."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


def main(arguments: list[str]) -> int:
    """Import, then serve."""
    link = socket.socket(fileno=int(arguments[0]))
    die_with_parent(int(arguments[1]))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    for signum in (signal.SIGINT, signal.SIGHUP):  # sent to all processes of a terminal or a service: for the daemon
        signal.signal(signum, signal.SIG_IGN)
    try:
        for module in PRELOADED:
            importlib.import_module(module)
        from farm.worker.channel import run
    except Exception:  # noqa: BLE001 - whatever a broken TVM raises at import is what the operator must see
        traceback.print_exc()  # the last line of our output: the supervisor reports it
        return 1
    try:
        Zygote(link, run).serve(versions())
    except (BrokenPipeError, ConnectionResetError, ProtocolError):
        traceback.print_exc()  # the supervisor is gone, or sent what is no order; our children end with us
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
