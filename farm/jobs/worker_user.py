"""The user that workers run as, so that other people's models reach neither the farm's store nor its keys nor adb.

A daemon of root can do that, or one with the capabilities SETUID and SETGID that is in that user's group
(systemd/farm.service): that one gives folders away by their group, and has the other user remove what is not its own.
The state folder is then open to that user's group for passing through, and
everything in it is closed but what workers need.
"""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import stat
import subprocess
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import farm
from farm.common.files import remove_leftover

logger = logging.getLogger(__name__)

SETUID_AND_SETGID = 1 << 6 | 1 << 7  # linux/capability.h: CAP_SETGID 6, CAP_SETUID 7
HELPER_LIMIT_S = 60.0  # of `rm` for a large folder on a slow disk
OPEN = ("work", "bundles")  # in the state folder: attempts and compiled libraries; golden kernels


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """A user without rights."""

    name: str
    uid: int
    gid: int
    by_group: bool = False  # the daemon is not root: folders are shared with the user's group, not given away

    def give(self, folder: Path) -> None:
        """Let the user work in a folder of the daemon's. Raises OSError."""
        if self.by_group:
            os.chown(folder, -1, self.gid)
            folder.chmod(0o770)  # no setgid bit: RestrictSUIDSGID= of the unit forbids it
        else:
            os.chown(folder, self.uid, self.gid)

    def owner_of_given(self) -> int:
        """The uid of the owner of a given folder."""
        return os.geteuid() if self.by_group else self.uid


def remove_tree(folder: Path, user: WorkerUser | None) -> None:
    """Delete a folder that the user may have worked in; each file that stays is a line in the log. Blocks."""
    if user is not None and user.by_group:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            with suppress(OSError):
                _see_out(_as_user(user, "rm", "-rf", "--", str(folder)))
    remove_leftover(folder)


def kill_groups(groups: Collection[int], user: WorkerUser) -> None:
    """SIGKILL process groups of the user's, which the daemon itself may not signal. Begun at once, not awaited."""
    if not groups:
        return
    try:
        # The shell's own kill: a host without procps has no program of that name.
        killer = _as_user(user, "sh", "-c", 'kill -s KILL -- "$@"', "sh", *(f"-{group}" for group in groups))
    except OSError:
        logger.exception("cannot end what workers have left: process groups %s", ", ".join(map(str, groups)))
        return
    threading.Thread(target=_see_out, args=(killer,), name="kill", daemon=True).start()


def _as_user(user: WorkerUser, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, user=user.uid, group=user.gid, extra_groups=[], cwd="/",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _see_out(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, but not for ever; it is another user's, so that the daemon could not end it."""
    try:
        process.wait(HELPER_LIMIT_S)
    except subprocess.TimeoutExpired:
        logger.error("%s (pid %d) has not ended in %g s", process.args, process.pid, HELPER_LIMIT_S)  # noqa: TRY400


@dataclass(frozen=True, slots=True)
class RunAs:
    """The workers' `user`; None: the daemon's own; `blocked` names the folder on whose account they cannot."""

    user: WorkerUser | None
    blocked: Path | None = None

    @property
    def name(self) -> str:
        """The user's name, empty when workers stay who the daemon is."""
        return self.user.name if self.user else ""


def workers_as(name: str, state_dir: Path, programs: Iterable[Path]) -> RunAs:
    """Prepare the state folder for workers of the user `name`, when they can be that user.

    Args:
        name: of whom they should become.
        state_dir: with everything in it that they may not see.
        programs: what they must reach besides: their interpreters.

    Raises:
        OSError: the state folder cannot be changed.
    """
    user = find_worker_user(name)
    if user is None:
        return RunAs(None)
    let_in(user, state_dir)
    blocked = blocking_folder(user, (state_dir / "work" / "any", Path(farm.__file__), *programs))
    if blocked is not None:
        logger.warning("workers run as the daemon itself: %s may not pass %s", user.name, blocked)
        return RunAs(None, blocked)
    return RunAs(user)


def find_worker_user(name: str) -> WorkerUser | None:
    """The user of that name; None when there is none, it is root, or this process may not change its user."""
    try:
        entry = pwd.getpwnam(name) if name else None
    except KeyError:
        entry = None
    if entry is None or entry.pw_uid in (0, os.geteuid()):
        return None
    if os.geteuid() == 0:
        return WorkerUser(name, entry.pw_uid, entry.pw_gid)
    shares_group = entry.pw_gid in (os.getegid(), *os.getgroups())
    return WorkerUser(name, entry.pw_uid, entry.pw_gid, by_group=True) if shares_group and may_change_user() else None


def may_change_user() -> bool:
    """Whether this process, which is not root, has the capabilities SETUID and SETGID (man 5 proc: CapEff)."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    words = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return int(words, 16) & SETUID_AND_SETGID == SETUID_AND_SETGID


def blocking_folder(user: WorkerUser, paths: Iterable[Path]) -> Path | None:
    """The first folder on the way to one of `paths` that the user may not pass; None when all can be reached."""
    for path in paths:
        for way in (path.absolute(), path.resolve()):
            for folder in reversed(way.parents):
                if folder.exists() and not _passes(user, folder):
                    return folder
    return None


def let_in(user: WorkerUser, state_dir: Path) -> None:
    """Let the user pass the state folder to the folders in `OPEN`, and close the rest of it.

    Call it when everything in it has been made. Raises OSError.
    """
    for entry in state_dir.iterdir():
        mode = stat.S_IMODE(entry.lstat().st_mode)
        if entry.name not in OPEN and not entry.is_symlink() and mode & 0o077:
            entry.chmod(mode & ~0o077)
    for name in OPEN:
        (state_dir / name).mkdir(exist_ok=True)
        (state_dir / name).chmod(0o711)
    if not _passes(user, state_dir):
        mode = stat.S_IMODE(state_dir.stat().st_mode)
        os.chown(state_dir, -1, user.gid)
        state_dir.chmod(mode & ~0o070 | 0o010)


def _passes(user: WorkerUser, folder: Path) -> bool:
    facts = folder.stat()
    if facts.st_uid == user.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid == user.gid:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)
