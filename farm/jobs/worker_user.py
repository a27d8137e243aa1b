"""The users that workers run as, so that a model reaches neither the farm's store, keys and adb nor other users' jobs.

The workers of each user of the farm have a uid and gid of their own (`UserFolders`), and the group of the configured
user, by which they reach what all workers may.

A daemon of root can do that, or one with the capabilities SETUID and SETGID that is in that user's group
(systemd/farm.service): that one gives folders away by their group, and has the other user remove what is not its own.
The state folder is then open to that user's group for passing through, and
everything in it is closed but what workers need.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pwd
import re
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import farm
from farm.common.errors import HostError
from farm.common.files import remove_leftover
from farm.jobs.config import MAX_USERS

logger = logging.getLogger(__name__)

SETUID_AND_SETGID = 1 << 6 | 1 << 7  # linux/capability.h: CAP_SETGID 6, CAP_SETUID 7
HELPER_LIMIT_S = 60.0  # of `rm` for a large folder on a slow disk
OPEN = ("work", "bundles")  # in the state folder: attempts and compiled libraries; golden kernels
UNUSED_S = 7 * 24 * 3600.0  # as long as a compiled library stays unused (farm.compiler.files); no attempt takes longer
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """A user without rights."""

    name: str
    uid: int
    gid: int
    by_group: bool = False  # the daemon is not root: folders are shared with the user's group, not given away
    groups: tuple[int, ...] = ()  # besides its own: that of the configured user

    def give(self, folder: Path) -> None:
        """Let the user work in a folder of the daemon's. Blocks; raises OSError."""
        if not self.by_group:
            os.chown(folder, self.uid, self.gid)
            return
        # Only a member may give to a group, and the daemon's own groups are fixed while it has threads.
        done = subprocess.run(
            ("chgrp", "-h", str(self.gid), str(folder)), group=self.gid, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=HELPER_LIMIT_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise PermissionError(f"{folder} cannot be given to its worker: {done.stderr.strip()}")
        folder.chmod(0o770)  # no setgid bit: RestrictSUIDSGID= of the unit forbids it


class UserFolders:
    """<folder>/<digest>/: what workers keep for one user of the farm, named by the user's digest.

    The folder's owner, or its group where the daemon is not root, is the uid and gid of that user's workers. Other
    workers reach neither folder nor processes. Making a folder removes those that were not used for a week.
    """

    def __init__(self, folder: Path, shared: WorkerUser | None, first_id: int = 0) -> None:
        """`shared`: the configured user; None: the daemon's own. `first_id`: of the users' ids; 0: all are `shared`."""
        self._folder = folder
        self._shared = shared
        self._ids = range(first_id, first_id + MAX_USERS) if first_id else range(0)
        self._lock = threading.Lock()  # over the choice of ids

    def path(self, user: str) -> Path:
        """Where a user's folder is, or will be."""
        return self._folder / hashlib.sha256(user.encode()).hexdigest()[:32]

    def open(self, user: str) -> WorkerUser | None:
        """Make a user's folder if there is none; returns whom the user's workers become. Blocks.

        Raises:
            HostError: there is no free uid.
            OSError: the folder cannot be made or given.
        """
        folder = self.path(user)
        with self._lock:
            if not folder.exists():
                self.tidy()
            folder.mkdir(mode=0o700, exist_ok=True)
            os.utime(folder)
            if self._shared is None:
                return None
            owner = self.owner(folder)
            if owner is None or (self._ids and owner == self._shared):
                owner = self._new() if self._ids else self._shared
                owner.give(folder)
            return owner

    def owner(self, folder: Path) -> WorkerUser | None:
        """The user that a folder was given to; None: the daemon's own."""
        if self._shared is None:
            return None
        facts = folder.lstat()
        found, shared = (facts.st_gid, self._shared.gid) if self._shared.by_group else (facts.st_uid, self._shared.uid)
        if found in self._ids:
            return replace(self._shared, uid=found, gid=found, groups=(self._shared.gid,))
        return self._shared if found == shared else None

    def tidy(self) -> None:
        """Remove folders whose owner is not today's, and those that were not used for a week."""
        oldest_s = time.time() - UNUSED_S
        for folder in self._folder.iterdir():
            owner = self.owner(folder)
            own = self._shared is None and folder.lstat().st_uid == os.geteuid()
            current = own or (owner is not None and (owner == self._shared) != bool(self._ids))
            if not (current and _DIGEST.fullmatch(folder.name) and folder.lstat().st_mtime >= oldest_s):
                remove_tree(folder, owner)

    def _new(self) -> WorkerUser:
        assert self._shared is not None
        taken = {owner.uid for each in self._folder.iterdir() if (owner := self.owner(each)) is not None}
        free = next((found for found in self._ids if found not in taken and not _has_name(found)), None)
        if free is None:
            raise HostError(
                f"all {MAX_USERS:,} uids of workers from {self._ids.start} on are taken",
                hint="restart the daemon: it removes the folders of users who ran nothing for a week",
            )
        return replace(self._shared, uid=free, gid=free, groups=(self._shared.gid,))


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def remove_tree(folder: Path, user: WorkerUser | None) -> None:
    """Delete a folder that the user may have worked in; each file that stays is a line in the log. Blocks."""
    if user is not None and user.by_group:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            with suppress(OSError):
                _see_out(_as_user(user, "rm", "-rf", "--", str(folder)))
    remove_leftover(folder)


def kill_groups(groups: Collection[int], uid: int, gid: int) -> None:
    """SIGKILL process groups of a user's, which the daemon itself may not signal. Begun at once, not awaited."""
    try:
        # The shell's own kill: a host without procps has no program of that name.
        killer = _as_user(
            WorkerUser("", uid, gid), "sh", "-c", 'kill -s KILL -- "$@"', "sh", *(f"-{group}" for group in groups)
        )
    except OSError:
        logger.exception("cannot end what workers have left: process groups %s", ", ".join(map(str, groups)))
        return
    threading.Thread(target=_see_out, args=(killer,), name="kill", daemon=True).start()


def _as_user(user: WorkerUser, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, user=user.uid, group=user.gid, extra_groups=user.groups, cwd="/",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _see_out(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, but not forever; it is another user's, so that the daemon could not end it."""
    try:
        process.wait(HELPER_LIMIT_S)
    except subprocess.TimeoutExpired:
        logger.error("%s (pid %d) has not ended in %g s", process.args, process.pid, HELPER_LIMIT_S)  # noqa: TRY400


@dataclass(frozen=True, slots=True)
class RunAs:
    """The workers' `user`; None: the daemon's own; `blocked` names the folder that it cannot enter."""

    user: WorkerUser | None
    blocked: Path | None = None
    first_id: int = 0  # the first uid and gid of the workers of the farm's users; 0: all are `user`

    @property
    def name(self) -> str:
        """The user's name, empty when workers stay who the daemon is."""
        return self.user.name if self.user else ""


AS_THE_DAEMON = RunAs(None)


def workers_as(name: str, state_dir: Path, programs: Iterable[Path], first_id: int = 0) -> RunAs:
    """Prepare the state folder for workers of the user `name`, when they can be that user.

    Args:
        name: of whom they should become.
        state_dir: with everything in it that they may not see.
        programs: what they must reach besides: their interpreters.
        first_id: of the uids and gids of the workers of each user of the farm; 0: they have none of their own.

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
    if first_id and not all(_is_mapped(Path(f"/proc/self/{kind}_map"), first_id) for kind in ("uid", "gid")):
        logger.warning("workers of all users run as %s: this container has no uids from %d on", user.name, first_id)
        first_id = 0
    return RunAs(user, first_id=first_id)


def _is_mapped(ids: Path, first_id: int) -> bool:
    """Whether the ids of workers exist in this user namespace (man 7 user_namespaces)."""
    extents = (map(int, line.split()) for line in ids.read_text(encoding="ascii").splitlines())
    return any(first <= first_id and first_id + MAX_USERS <= first + count for first, _, count in extents)


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
