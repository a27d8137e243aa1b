"""The user whom workers become, so that other people's models reach neither the farm's store nor its keys nor adb.

Only a daemon of root can do that. The state folder is then open to that user's group for passing through, and
everything in it is closed but what workers need.
"""

from __future__ import annotations

import logging
import os
import pwd
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import farm

logger = logging.getLogger(__name__)

OPEN = ("work", "bundles")  # in the state folder: attempts and compiled libraries; golden kernels


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """Somebody without rights."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class RunAs:
    """Whom workers become: `user`, or nobody else; `blocked` names the folder on whose account they cannot."""

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
        logger.warning("workers run as root: %s may not pass %s", user.name, blocked)
        return RunAs(None, blocked)
    return RunAs(user)


def find_worker_user(name: str) -> WorkerUser | None:
    """The user of that name; None when there is none, it is root, or this process may become nobody else."""
    if os.geteuid() != 0 or not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return WorkerUser(name, entry.pw_uid, entry.pw_gid) if entry.pw_uid != 0 else None


def blocking_folder(user: WorkerUser, paths: Iterable[Path]) -> Path | None:
    """The first folder on the way to one of `paths` that the user may not pass; None when all can be reached."""
    for path in paths:
        for way in (path.absolute(), path.resolve()):
            for folder in reversed(way.parents):
                if folder.exists() and not _passes(user, folder):
                    return folder
    return None


def let_in(user: WorkerUser, state_dir: Path) -> None:
    """Let the user pass the state folder, on the way to what is `OPEN` there, and close the rest of it.

    Call it when everything in it has been made. Raises OSError.
    """
    for entry in state_dir.iterdir():
        if entry.name not in OPEN and not entry.is_symlink():
            entry.chmod(stat.S_IMODE(entry.stat().st_mode) & ~0o077)
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
