"""Caches: what nobody wanted for a week is deleted, nothing else."""

import fcntl
import os
import time

from farm.compiler.files import UNUSED_S, drop_unused, newest_inside_s


def test_only_what_is_old_is_deleted(tmp_path):
    for name in ("old", "young", "busy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "old.lock").touch()
    old_s = time.time() - UNUSED_S - 60
    for path in ("old/file", "old", "old.lock", "busy"):
        os.utime(tmp_path / path, (old_s, old_s))
    drop_unused(tmp_path.iterdir(), newest_inside_s_or_own)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "young"]
    drop_unused(tmp_path.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["young"]


def newest_inside_s_or_own(path):
    return newest_inside_s(path) if path.is_dir() else path.stat().st_mtime


def test_an_old_folder_in_which_another_process_works_stays(tmp_path):
    old_s = time.time() - UNUSED_S - 60
    for name in ("busy", "left"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        for path in (tmp_path / name / "lock", tmp_path / name):
            os.utime(path, (old_s, old_s))
    with (tmp_path / "busy" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        drop_unused(tmp_path.iterdir(), newest_inside_s, "lock")
    assert [path.name for path in tmp_path.iterdir()] == ["busy"]
    drop_unused(tmp_path.iterdir(), newest_inside_s, "lock")
    assert not list(tmp_path.iterdir())
