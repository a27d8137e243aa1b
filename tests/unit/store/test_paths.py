"""What stands in the way of a start is said in one line: the path, what it must be, and what to do."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

import pytest

from farm.common.errors import Code, HostError
from farm.config import load
from farm.daemon.daemon import Daemon
from farm.store.files import STATE_FILES, STATE_FOLDERS, check_paths
from tests.support.errors import raises_code

OTHERS = 65534


@pytest.fixture
def places(tmp_path):
    """A state and a runtime folder as a start leaves them."""
    state, runtime = tmp_path / "state", tmp_path / "run"
    for name in STATE_FOLDERS:
        (state / name).mkdir(parents=True, exist_ok=True)
    for name in STATE_FILES:
        (state / name.replace("*", "default")).touch()
    runtime.mkdir()
    check_paths(state, runtime)
    return state, runtime


SOCKETS = ("../run/control.sock", "../run/adb.sock")


@pytest.mark.parametrize("name", [*STATE_FOLDERS, "../run", *STATE_FILES, *SOCKETS])
def test_a_file_in_place_of_a_folder_and_a_folder_in_place_of_a_file(places, name):
    path = (places[0] / name.replace("*", "default")).resolve()
    wanted = "socket" if name in SOCKETS else "file" if name in STATE_FILES else "folder"
    if wanted == "folder":
        shutil.rmtree(path)
        path.touch()
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    with pytest.raises(HostError) as caught:
        check_paths(*places)
    assert caught.value.message == f"{path} must be a {wanted}, and is a {'file' if wanted == 'folder' else 'folder'}"
    assert (f"mv {path} {path}.old" if wanted == "folder" else str(path)) in caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("name", ["", "adb", "logs", "keys/server.key", "ports-off"])
def test_what_belongs_to_another_user(places, name):
    code = "import os, sys; from pathlib import Path; from farm.store.files import check_paths\n"
    for path in (places[0], *takewhile(lambda each: each != Path(tempfile.gettempdir()), places[0].parents)):
        path.chmod(0o755)
    subprocess.run(["chown", "-R", f"{OTHERS}:{OTHERS}", places[0]], check=True)
    shutil.chown(places[0] / name, 0, 0)
    code += f"os.setresgid({OTHERS}, {OTHERS}, {OTHERS}); os.setresuid({OTHERS}, {OTHERS}, {OTHERS})\n"
    code += "check_paths(Path(sys.argv[1]), Path(sys.argv[2]))"
    done = subprocess.run([sys.executable, "-c", code, *map(str, places)], capture_output=True, text=True, check=False)
    assert f"cannot use {places[0] / name}: uid {OTHERS} may not read and write it" in done.stderr


def test_a_folder_that_cannot_be_looked_into(places, monkeypatch):
    real = Path.stat

    def denied(path, **options):
        if places[0] / "adb" in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(HostError, match=f"cannot use {places[0] / 'adb/.android'}: Permission denied"):
        check_paths(*places)


async def test_a_runtime_folder_that_cannot_be_used_is_known_before_the_daemon_says_that_it_started(tmp_path):
    (tmp_path / "run").mkdir(mode=0o777)
    (tmp_path / "run").chmod(0o777)
    flags = {"state_dir": str(tmp_path / "state"), "runtime_dir": str(tmp_path / "run"), "tvm.port": 0}
    config = load(environ={}, flags=flags)
    with raises_code(Code.RUNTIME_FOLDER_UNUSABLE):
        await Daemon(config, lambda _: config).run()
    assert not (tmp_path / "state" / "farm.db").exists()
