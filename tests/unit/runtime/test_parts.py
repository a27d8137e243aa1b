"""Parts of the cache are there whole or not at all, whatever ends their maker."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading

import pytest

from farm.common.errors import HostError
from farm.common.files import hash_file
from farm.runtime.parts import default_cache, is_whole, output_of, part


def make(made, scratch):
    (scratch / "tried").write_text("scratch")
    (made / "libc").write_bytes(b"as it was")
    return {"libc.deb": "0" * 64}


def test_a_part_is_made_once_and_says_what_it_came_from(tmp_path):
    folder = part(tmp_path / "cache", "libc", make)
    assert json.loads((folder / "contents.json").read_text()) == {
        "sources": {"libc.deb": "0" * 64}, "files": {"libc": hash_file(folder / "libc")}
    }  # fmt: skip
    assert part(tmp_path / "cache", "libc", lambda *_: pytest.fail("made again")) == folder
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["libc", "lock"]
    assert (folder / "libc").stat().st_mode & 0o777 == 0o755  # the daemon is another user


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "libc").write_bytes(b"as it is"),
        lambda path: (path / "libc").unlink(),
        lambda path: (path / "contents.json").unlink(),
        lambda path: (path / "contents.json").write_text('{"files": {'),
        lambda path: (path / "contents.json").write_text("[]"),
        lambda path: (path / "contents.json").write_text('{"files": {}}'),
        lambda path: (path / "libm").touch(),
        lambda path: (shutil.rmtree(path), path.touch()),
    ],
)
def test_a_part_that_is_not_as_it_was_made_is_made_anew(tmp_path, damage):
    damage(folder := part(tmp_path, "libc", make))
    assert not is_whole(folder)
    assert is_whole(part(tmp_path, "libc", make))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("cause", "error", "said"),
    [(KeyboardInterrupt(), KeyboardInterrupt, None), (FULL, HostError, "making libc failed: No space left on device")],
)
def test_an_interrupt_and_a_full_disk_leave_nothing(tmp_path, cause, error, said):
    def fails(made, scratch):
        make(made, scratch)
        raise cause

    with pytest.raises(error, match=said) as caught:
        part(tmp_path, "libc", fails)
    assert "free some room there" in getattr(caught.value, "hint", "free some room there")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo 'cc1: error: /tmp/x.s: Disk quota exceeded' >&2; exit 1", "Disk quota exceeded"),
        ("ulimit -f 1; exec head -c 100000 /dev/zero >too_large", "File too large"),
    ],
)
def test_a_program_that_may_write_no_more_is_one_line(tmp_path, program, reason):
    def make(made, scratch):
        output_of(["sh", "-c", program], 60.0, HostError, scratch)

    with pytest.raises(HostError, match=f"making libc failed: {reason}") as caught:
        part(tmp_path, "libc", make)
    assert str(tmp_path) in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    with pytest.raises(HostError, match="false ended with 1 and said nothing"):
        output_of(["false"], 60.0, HostError, tmp_path)


def test_children_of_a_compiler_end_with_it_when_its_caller_is_ended(tmp_path, monkeypatch):
    """A demo that was stopped left cc1plus, which had inherited the lock: the next build waited for it."""
    (tmp_path / "cache").mkdir()
    os.mkfifo(tmp_path / "begun")

    def end(process, *_, **__):
        (tmp_path / "begun").read_text()
        raise SystemExit(143)

    monkeypatch.setattr(subprocess.Popen, "communicate", end)
    command = ["sh", "-c", f"(echo > {tmp_path}/begun; exec sleep 3600) & wait"]
    with pytest.raises(SystemExit):
        part(tmp_path / "cache", "libc", lambda *_: output_of(command, 60.0, HostError))
    with (tmp_path / "cache" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until no child has it any more


def test_a_second_build_says_that_it_waits(tmp_path):
    part(tmp_path, "libm", make)
    waits = threading.Event()
    said = []

    def report(line):
        said.append(line)
        waits.set()

    with (tmp_path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=part, args=(tmp_path, "libc", make, report))
        second.start()
        assert waits.wait(60)
        assert not (tmp_path / "libc").exists()
    second.join()
    assert is_whole(tmp_path / "libc")
    assert said == [f"waiting for another build that uses {tmp_path}"]


@pytest.mark.parametrize(("user", "place"), [(0, "/var/cache/farm/runtime"), (1000, "/home/ana/.cache/farm/runtime")])
@pytest.mark.parametrize("base", ["", "caches"])  # a relative one counts for nothing
def test_the_daemon_reads_what_root_makes(monkeypatch, user, place, base):
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert str(default_cache()) == place


MAKER = """
import sys
from pathlib import Path
from farm.common.errors import HostError
from farm.runtime.parts import output_of, part
folder = Path(sys.argv[1])
command = ["sh", "-c", f"echo > {folder}/begun; read line < {folder}/end"]
part(folder / "cache", "part", lambda made, scratch: output_of(command, 60.0, HostError, scratch))
"""


def test_a_program_that_outlives_its_killed_maker_keeps_the_lock(tmp_path):
    """The next maker swept the folder into which that program still wrote: some of it was left forever."""
    begun, end = tmp_path / "begun", tmp_path / "end"
    for fifo in (begun, end):
        os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-c", MAKER, tmp_path]) as maker:
        begun.read_text()
        maker.kill()
    with (tmp_path / "cache/lock").open("a") as lock:
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            end.write_text("\n")
        fcntl.flock(lock, fcntl.LOCK_EX)  # when it has ended
    assert list((tmp_path / "cache").glob(".making-*")) != []
    part(tmp_path / "cache", "part", make)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["lock", "part"]
