"""The runtime folder: where the daemon's sockets are, and who may reach them.

Owner: the daemon's user. Group: `farm`, whose members use phones, when there is such a group. Nobody else gets in.
"""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

from farm.core.errors import HostError

FARM_GROUP = "farm"
MODE = 0o750
_OTHERS = 0o007


class RuntimeFolderError(HostError):
    """The runtime folder cannot be used."""

    code = "runtime_folder"


def prepare_runtime_folder(path: Path, gid: int | None) -> None:
    """Make the folder of the daemon's sockets, or check the one that is there. Done once, before any socket is opened.

    A folder that others may enter is somebody's choice (`--runtime-dir /srv/lab`): its mode stays, the sockets in it
    are closed by their own. Any other is opened to the group.

    Args:
        path: the folder.
        gid: the group to let in, see `group_to_let_in`.

    Raises:
        RuntimeFolderError: it cannot be made, is somebody else's (in /tmp anybody can be first), or anybody may write
            to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_foreign(path)
        if not path.stat().st_mode & _OTHERS:
            if gid is not None:
                os.chown(path, -1, gid)
            path.chmod(MODE)
    except OSError as error:
        raise RuntimeFolderError(
            f"cannot use the runtime folder {path}: {error.strerror}",
            hint="choose another with --runtime-dir, or run as the user that owns it",
        ) from error


def group_to_let_in(name: str = FARM_GROUP) -> int | None:
    """The id of the group `name`; None when there is none, or when this process may not give files to it."""
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        return None
    return gid if os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()) else None


def _refuse_foreign(path: Path) -> None:
    ours = {os.geteuid()}
    for facts, owners in ((path.lstat(), ours | {0}), (path.stat(), ours)):  # the link itself may be root's
        if facts.st_uid not in owners:
            raise RuntimeFolderError(
                f"the runtime folder {path} belongs to uid {facts.st_uid}, not to this daemon's uid {os.geteuid()}",
                hint="choose another with --runtime-dir, or have its owner remove it",
            )
    if path.stat().st_mode & stat.S_IWOTH:
        raise RuntimeFolderError(
            f"anybody may write to the runtime folder {path}", hint="choose a folder of the daemon's own: --runtime-dir"
        )
