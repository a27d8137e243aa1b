"""The cache of what was fetched or made for phones: one folder a part, there whole or not at all.

    <cache>/<part>/contents.json   the SHA-256 of every file, and of what they came from
    <cache>/<part>/...             its files

A part appears by one rename, is compared with its contents.json whenever it is used, and is made again when it differs.
What a killed process left is swept by the next one, which continues with the parts that are there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING

from farm.common.errors import HostError
from farm.common.files import hash_file, remove_leftover
from farm.common.install import cache_home
from farm.common.os_errors import free_in, hint_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CONTENTS = "contents.json"
_MAKING = ".making-"  # of a part under way; under the lock, one that is there was left by a killed process
_NO_ROOM = (ENOSPC, EDQUOT)


def default_cache() -> Path:
    """Where parts are kept: root's is not in its home, which the daemon's user cannot read."""
    return cache_home(Path("/var/cache") if os.geteuid() == 0 else None) / "farm" / "runtime"


def part(
    cache: Path,
    name: str,
    make: Callable[[Path, Path], Mapping[str, str]],
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """The folder of a part, made when it is not there whole.

    `make` fills an empty folder, may use another for scratch, and returns what its files came from, with the SHA-256.
    `report` is called when another maker has the cache, which is waited for.
    """
    folder = cache / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_maker(cache / "lock", report):
            if not is_whole(folder):
                for left in cache.glob(f"{_MAKING}*"):
                    shutil.rmtree(left, ignore_errors=True)
                _make(folder, make)
    except OSError as error:
        hint = f"{cache} ({free_in(cache)}): {hint_for(error.errno)}"
        raise HostError(f"making {name} failed: {error.strerror or error}", hint=hint, evidence=str(error)) from error
    return folder


def is_whole(folder: Path) -> bool:
    """Whether every file is there as it was made, and no other."""
    try:
        files = json.loads((folder / CONTENTS).read_bytes())["files"]
        there = {*_files_in(folder)} - {CONTENTS}
        return bool(files) and there == {*files} and all(hash_file(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _make(folder: Path, make: Callable[[Path, Path], Mapping[str, str]]) -> None:
    # What an interrupted program still writes there is swept by the next maker.
    place = tempfile.TemporaryDirectory(dir=folder.parent, prefix=_MAKING, ignore_cleanup_errors=True)
    with place as name:
        made, scratch = Path(name) / "made", Path(name) / "scratch"
        made.mkdir()
        scratch.mkdir()
        sources = make(made, scratch)
        contents = {"sources": sources, "files": {file: hash_file(made / file) for file in sorted(_files_in(made))}}
        (made / CONTENTS).write_text(json.dumps(contents, indent=1), "utf-8")
        for path in (made, *made.rglob("*")):
            path.chmod(0o755)  # a phone's shell, and the daemon, are other users
        remove_leftover(folder)  # damaged
        made.rename(folder)


def _files_in(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@contextmanager
def _only_maker(lock: Path, report: Callable[[str], None]) -> Iterator[None]:
    """One maker at a time; the kernel releases the lock when its process and its children have ended."""
    with lock.open("a") as file:
        os.set_inheritable(file.fileno(), True)  # one that outlives a killed maker writes into its folder still
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another build that uses {lock.parent}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def output_of(
    command: Sequence[str], limit_s: float, failed: Callable[[str], HostError], folder: Path | None = None
) -> str:
    """The output of a program on the host, which works in `folder` and puts temporary files there.

    `failed` makes the error of a program that did not end well; it gets what the program said.
    """
    environment = {**os.environ, "LC_ALL": "C"} | ({"TMPDIR": str(folder)} if folder else {})
    try:
        # With the descriptors that may be inherited: the lock under which a part is made. A group ends as a whole.
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            close_fds=False, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                said, complaint = process.communicate(timeout=limit_s)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # g++ has children, which would hold the lock
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise failed(f"{command[0]}: {error}") from error
    if process.returncode and folder is not None:
        check_room(folder, process.returncode, complaint)
    if process.returncode:
        raise failed(complaint.strip() or f"{command[0]} ended with {process.returncode} and said nothing")
    return said


def check_room(folder: Path, code: int, said: str) -> None:
    """Whether a program that writes to a folder failed because it may write no more."""
    number = next((each for each in _NO_ROOM if os.strerror(each) in said), EFBIG if code == -signal.SIGXFSZ else 0)
    if number:
        raise OSError(number, os.strerror(number), str(folder))
