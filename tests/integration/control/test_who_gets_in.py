"""The socket and its folder: whom the file system lets in, and which folders are refused."""

import asyncio
import grp
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from farm.common.errors import Code
from farm.control.listeners import group_to_admit, prepare_runtime_folder
from tests.integration.control.served import ServedControl
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S

SOMEBODY, FARM_GID = 61234, 61235  # ids of nobody


async def test_the_socket_is_for_owner_and_group_only(door):
    assert stat.S_IMODE(door.path.stat().st_mode) == 0o660


def call_as_somebody(path, groups):
    """What another user who is in `groups` is answered, or told.

    It becomes that user after its imports: this interpreter may lie in a home that is closed to others.
    """
    program = (
        "import os, sys; from pathlib import Path; import zmq; from farm.control.client import ControlClient;"
        f"os.setgroups({groups}); os.setresgid(*[{SOMEBODY}] * 3); os.setresuid(*[{SOMEBODY}] * 3);"
        "print(ControlClient(Path(sys.argv[1])).call('echo')['user'])"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False, timeout=HANG_S
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_members_of_the_group_reach_the_daemon_and_outsiders_do_not():
    with tempfile.TemporaryDirectory(prefix="farm-group-") as made:
        os.chmod(made, 0o711)  # noqa: PTH101 (as /run is)
        folder = Path(made) / "run"
        prepare_runtime_folder(folder, FARM_GID)
        door = ServedControl(folder, FARM_GID)
        await door.server.start()
        try:
            member = await asyncio.to_thread(call_as_somebody, door.path, [FARM_GID])
            outsider = await asyncio.to_thread(call_as_somebody, door.path, [])
        finally:
            await door.server.stop()
    assert (member.returncode, member.stdout.strip()) == (0, f"uid-{SOMEBODY}"), member.stderr
    assert outsider.returncode != 0
    assert "NotAllowedError" in outsider.stderr


def test_a_runtime_folder_is_made_for_owner_and_group(tmp_path):
    folder = tmp_path / "a" / "run"
    prepare_runtime_folder(folder, os.getegid())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    folder.chmod(0o700)  # of a daemon from before the group was there
    prepare_runtime_folder(folder, os.getegid())
    assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_gid) == (0o750, os.getegid())


def test_a_runtime_folder_that_others_may_enter_stays_so(tmp_path):
    tmp_path.chmod(0o755)
    prepare_runtime_folder(tmp_path, None)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_runtime_folder_that_anybody_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o1777)
    with raises_code(Code.RUNTIME_FOLDER_UNUSABLE, match="any user may write"):
        prepare_runtime_folder(tmp_path, None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_runtime_folder_is_refused(tmp_path):
    folder, link = tmp_path / "run", tmp_path / "link"
    prepare_runtime_folder(folder, None)
    link.symlink_to(folder)
    os.chown(link, SOMEBODY, -1, follow_symlinks=False)
    with raises_code(Code.RUNTIME_FOLDER_UNUSABLE, match=f"belongs to uid {SOMEBODY}"):
        prepare_runtime_folder(link, None)
    os.chown(folder, SOMEBODY, -1)
    with raises_code(Code.RUNTIME_FOLDER_UNUSABLE, match=f"belongs to uid {SOMEBODY}"):
        prepare_runtime_folder(folder, None)


def test_a_runtime_folder_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with raises_code(Code.RUNTIME_FOLDER_UNUSABLE, match="Not a directory") as caught:
        prepare_runtime_folder(tmp_path / "file" / "run", None)
    assert "--runtime-dir" in caught.value.hint


def test_a_group_that_is_not_there_is_not_let_in():
    assert group_to_admit("no-such-group-here") is None
    assert group_to_admit(grp.getgrgid(os.getegid()).gr_name) == os.getegid()
